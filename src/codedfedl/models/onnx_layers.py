"""The layers of a sequential network as nodes of an ONNX graph."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from codedfedl.errors import InputError
from codedfedl.learning.modules import import_torch
from codedfedl.learning.torch_network import TorchNetwork

__all__ = ["Graph", "network_scores"]

Array = npt.NDArray[Any]


class Graph(Protocol):
    """A graph that grows: both methods return the name of what they add."""

    def constant(self, array: npt.ArrayLike) -> str:
        """Add a constant."""

    def apply(self, kind: str, *inputs: str, output: str | None = None, **settings: Any) -> str:
        """Add an operation."""


def network_scores(graph: Graph, points: str, network: TorchNetwork, weights: Array) -> str:
    """Add the layers of a network with these parameters; return the name of its outputs."""
    layers = network.layers
    if layers is None:
        raise InputError(
            f"the module {network.module!r} is not a torch.nn.Sequential of layers that have an "
            "ONNX form: give its parameters to the module, and use torch.onnx.export"
        )
    torch = import_torch()
    remaining = iter(network.split(weights.astype(np.float32)))
    probe, value = torch.zeros(1, network.inputs), points
    for layer in layers:
        parts = [next(remaining) for _ in layer.parameters()]
        with torch.no_grad():
            probe = layer(probe)
        add: Callable[..., str] = _LAYERS.get(type(layer).__name__, _refused)
        value = add(graph, value, layer, parts, [-1, *probe.shape[1:]])
    return value


def _refused(graph: Graph, value: str, layer: Any, parts: list[Array], shape: list[int]) -> str:
    raise InputError(f"the layer {layer} has no ONNX form here: use torch.onnx.export")


def _linear(graph: Graph, value: str, layer: Any, parts: list[Array], shape: list[int]) -> str:
    return graph.apply("Gemm", value, *map(graph.constant, parts), transB=1)


def _convolution(graph: Graph, value: str, layer: Any, parts: list[Array], shape: list[int]) -> str:
    window = _window(layer) | {"dilations": _pair(layer.dilation)}
    return graph.apply("Conv", value, *map(graph.constant, parts), **window)


def _reshaped(graph: Graph, value: str, layer: Any, parts: list[Array], shape: list[int]) -> str:
    return graph.apply("Reshape", value, graph.constant(np.array(shape)))


def _images(graph: Graph, value: str, layer: Any, parts: list[Array], shape: list[int]) -> str:
    image = graph.apply("Reshape", value, graph.constant(np.array([-1, *layer.image])))
    return graph.apply("Transpose", image, perm=[0, 3, 1, 2])


def _pool(graph: Graph, value: str, layer: Any, parts: list[Array], shape: list[int]) -> str:
    kind = type(layer).__name__
    if kind == "AdaptiveAvgPool2d" and shape[2:] == [1, 1]:
        return graph.apply("GlobalAveragePool", value)
    if getattr(layer, "ceil_mode", True) or getattr(layer, "divisor_override", None):
        return _refused(graph, value, layer, parts, shape)
    window = _window(layer)
    if kind == "MaxPool2d":
        return graph.apply("MaxPool", value, **window, dilations=_pair(layer.dilation))
    counted = int(layer.count_include_pad)
    return graph.apply("AveragePool", value, **window, count_include_pad=counted)


def _group_norm(graph: Graph, value: str, layer: Any, parts: list[Array], shape: list[int]) -> str:
    """Normalise groups as instances, then scale each channel."""
    groups = layer.num_groups
    grouped = graph.apply("Reshape", value, graph.constant(np.array([0, groups, -1])))
    scale = [graph.constant(np.full(groups, number)) for number in (1.0, 0.0)]
    normed = graph.apply("InstanceNormalization", grouped, *scale, epsilon=layer.eps)
    value = graph.apply("Reshape", normed, graph.constant(np.array(shape)))
    sides = (1,) * (len(shape) - 2)
    for step, array in zip(("Mul", "Add"), parts, strict=False):
        value = graph.apply(step, value, graph.constant(array.reshape(-1, *sides)))
    return value


def _window(layer: Any) -> dict[str, Any]:
    stride = layer.kernel_size if layer.stride is None else layer.stride
    return {
        "kernel_shape": _pair(layer.kernel_size),
        "strides": _pair(stride),
        "pads": 2 * _pair(layer.padding),
    }


def _pair(setting: Any) -> list[int]:
    return [setting, setting] if isinstance(setting, int) else list(setting)


def _gelu(graph: Graph, value: str, layer: Any, parts: list[Array], shape: list[int]) -> str:
    if layer.approximate != "none":
        return _refused(graph, value, layer, parts, shape)
    erf = graph.apply("Erf", graph.apply("Mul", value, graph.constant(0.5**0.5)))
    half = graph.apply("Mul", value, graph.constant(0.5))
    return graph.apply("Mul", half, graph.apply("Add", erf, graph.constant(1.0)))


def _silu(graph: Graph, value: str, layer: Any, parts: list[Array], shape: list[int]) -> str:
    return graph.apply("Mul", value, graph.apply("Sigmoid", value))


def _softplus(graph: Graph, value: str, layer: Any, parts: list[Array], shape: list[int]) -> str:
    beta = graph.constant(float(layer.beta))
    return graph.apply("Div", graph.apply("Softplus", graph.apply("Mul", value, beta)), beta)


def _elementwise(kind: str, **names: str) -> Callable[..., str]:
    """Return how an activation of ONNX is added, with settings by their names in PyTorch."""

    def add(graph: Graph, value: str, layer: Any, parts: list[Array], shape: list[int]) -> str:
        settings = {key: float(getattr(layer, name)) for key, name in names.items()}
        return graph.apply(kind, value, output=None, **settings)

    return add


_LAYERS: dict[str, Callable[..., str]] = {
    "Linear": _linear,
    "Conv2d": _convolution,
    "GroupNorm": _group_norm,
    "Flatten": _reshaped,
    "Unflatten": _reshaped,
    "Images": _images,
    "AvgPool2d": _pool,
    "MaxPool2d": _pool,
    "AdaptiveAvgPool2d": _pool,
    "ReLU": _elementwise("Relu"),
    "Tanh": _elementwise("Tanh"),
    "Sigmoid": _elementwise("Sigmoid"),
    "Identity": _elementwise("Identity"),
    "LeakyReLU": _elementwise("LeakyRelu", alpha="negative_slope"),
    "ELU": _elementwise("Elu", alpha="alpha"),
    "GELU": _gelu,
    "SiLU": _silu,
    "Softplus": _softplus,
}
