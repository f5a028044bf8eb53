"""A model as an ONNX graph: from points to scores, for whatever runs such graphs."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.errors import InputError
from codedfedl.io.files import replacing
from codedfedl.learning.features import (
    Encoder,
    Identity,
    Patches,
    RandomFourier,
    Semilinear,
    Structured,
    Tangent,
)
from codedfedl.learning.modules import import_torch
from codedfedl.learning.torch_network import TorchNetwork
from codedfedl.models.model import Model
from codedfedl.models.onnx_graph import ML, Graph, prepared
from codedfedl.models.onnx_tangent import Passed, tangent_slopes

_OPSET = 13  # of 2020, which every runtime of today knows
_IR = 8

Array = npt.NDArray[Any]


def export_onnx(model: Model, path: str | Path) -> None:
    """Write a model as ONNX: ``inputs`` (n, d) to ``scores`` (n, c) and, for classes, ``label``.

    Inputs are the values of a file, in float32, before they are scaled; of a built-in data set
    they are scaled to [0, 1]. Of a table with categories, ``inputs`` are its columns of numbers,
    NaN where one is missing, and ``words`` its other columns, as texts; the file's metadata has the
    names of both. Of a model with an encoder they are the encoder's outputs, shape (n, q), before
    they are normalised. A label is the class's place; the names are in the metadata, with the model
    card.
    """
    try:
        import onnx
    except ImportError:
        raise InputError(
            "an export needs the package onnx: install it with pip install 'codedfedl[onnx]'"
        ) from None
    graph = Graph()
    encoded = isinstance(model.features, Encoder)
    points, taken = "inputs", {"inputs": list(model.columns)}
    if model.preparation is not None:
        points, taken = prepared(graph, model.preparation)
    elif model.low is not None and model.span is not None and not model.takes_unit_inputs:
        moved = graph.apply("Sub", points, graph.constant(model.low))
        points = graph.apply("Div", moved, graph.constant(model.span))
    if model.center is not None:
        points = graph.apply("Sub", points, graph.constant(model.center))
    features = _features(graph, points, model)
    weights, width = np.asarray(model.weights, dtype=np.float64), model.learner.outputs
    scale = np.ones(width) if model.scale is None else model.scale
    offset = np.zeros(width) if model.offset is None else model.offset
    if isinstance(model.learner, TorchNetwork):
        _, network = _through(graph, features, model.learner, weights)
        product = graph.apply("Mul", network, graph.constant(scale))
    else:
        product = graph.apply("MatMul", features, graph.constant(weights * scale))
    graph.apply("Add", product, graph.constant(offset), output="scores")
    outputs = [_tensor("scores", onnx.TensorProto.FLOAT, width)]
    if model.is_classifier:
        graph.apply("ArgMax", "scores", axis=1, keepdims=0, output="label")
        outputs.append(_tensor("label", onnx.TensorProto.INT64))
    widths = {name: len(columns) for name, columns in taken.items()}
    if model.preparation is None:
        widths["inputs"] = model.learner.inputs if encoded else model.inputs
    kinds = {"inputs": onnx.TensorProto.FLOAT, "words": onnx.TensorProto.STRING}
    inputs = [_tensor(name, kinds[name], width) for name, width in widths.items()]
    built = onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, "codedfedl", inputs, outputs, graph.constants),
        opset_imports=[
            onnx.helper.make_opsetid("", _OPSET),
            *([onnx.helper.make_opsetid(ML, 1)] if "words" in widths else []),
        ],
        ir_version=_IR,
    )
    onnx.helper.set_model_props(built, _metadata(model, taken))
    onnx.checker.check_model(built)
    with replacing(Path(path)) as partial:
        partial.write_bytes(built.SerializeToString())


def _tensor(name: str, kind: int, *width: int) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, kind, ["points", *width])


def _metadata(model: Model, taken: Mapping[str, list[str]]) -> dict[str, str]:
    classes = [] if model.classes is None else model.classes.tolist()
    facts = {"classes": classes, "columns": taken, "card": dict(model.card)}
    return {name: json.dumps(fact) for name, fact in facts.items()}


def _features(graph: Graph, points: str, model: Model) -> str:
    features = model.features
    if isinstance(features, Identity):
        return points
    if isinstance(features, Encoder):
        return _normalised(graph, points) if features.normalise else points
    if isinstance(features, Semilinear):
        line = graph.apply("Mul", points, graph.constant(1 / (2**0.5 * features.sigma)))
        length = graph.apply("ReduceL2", line, axes=[1], keepdims=1)
        longest = graph.constant(features.LONGEST)
        shrunk = graph.apply("Div", longest, graph.apply("Max", length, longest))
        line = graph.apply("Mul", line, shrunk)
        constant = graph.apply("Div", shrunk, shrunk)
        return graph.apply(
            "Concat", _fourier(graph, points, features.bent, model), line, constant, axis=1
        )
    if isinstance(features, RandomFourier | Structured):
        return _fourier(graph, points, features, model)
    if isinstance(features, Tangent):
        passed, output = _through(graph, points, features.learner, features.model)
        return _normalised(graph, tangent_slopes(graph, passed, output, features))
    if isinstance(features, Patches):
        return _patches(graph, points, features, model.inputs)
    raise InputError(f"the feature map {type(features).__name__} has no ONNX form: use another")


def _fourier(graph: Graph, points: str, features: RandomFourier | Structured, model: Model) -> str:
    omega, delta = features.frequencies(model.inputs)
    scale = (2 / features.n_components) ** 0.5
    return graph.apply("Mul", _waves(graph, points, omega, delta), graph.constant(scale))


def _normalised(graph: Graph, points: str) -> str:
    """Scale every row to length 1; a row of zeros stays."""
    length = graph.apply("ReduceL2", points, axes=[1], keepdims=1)
    least = graph.constant(np.finfo(np.float32).tiny)
    return graph.apply("Div", points, graph.apply("Max", length, least))


def _waves(graph: Graph, points: str, omega: Array, delta: Array) -> str:
    product = graph.apply("MatMul", points, graph.constant(omega))
    return graph.apply("Cos", graph.apply("Add", product, graph.constant(delta)))


def _patches(graph: Graph, points: str, features: Patches, inputs: int) -> str:
    """Cut, filter and average: the average over cells is a product with a small matrix."""
    tiling = features.tiles.on(inputs)
    omega, delta = features.frequencies(inputs)
    chosen = graph.apply("Gather", points, graph.constant(tiling.indices().ravel()), axis=1)
    shape = graph.constant(np.array([-1, tiling.patch_count, tiling.patch_numbers]))
    waves = _waves(graph, graph.apply("Reshape", chosen, shape), omega, delta)
    moved = graph.apply("Sub", waves, graph.constant(np.cos(delta)))
    scale = (2 / features.size(inputs)) ** 0.5
    pooled = graph.apply("MatMul", graph.constant(scale * tiling.averages()), moved)
    flat = graph.constant(np.array([-1, features.size(inputs)]))
    return graph.apply("Reshape", pooled, flat)


def _through(graph: Graph, points: str, network: Any, weights: Array) -> tuple[list[Passed], str]:
    """Add the layers of a network with these parameters; return them, and the outputs' name."""
    layers = network.layers
    if layers is None:
        raise InputError(
            f"the module {network.module!r} is not a torch.nn.Sequential of layers that have an "
            "ONNX form: give its parameters to the module, and use torch.onnx.export"
        )
    torch = import_torch()
    remaining = iter(network.split(weights.astype(np.float32)))
    probe, value, passed = torch.zeros(1, network.inputs), points, []
    for layer in layers:
        parts = [next(remaining) for _ in layer.parameters()]
        passed.append(Passed(layer, parts, value, [-1, *probe.shape[1:]]))
        with torch.no_grad():
            probe = layer(probe)
        add: Callable[..., str] = _LAYERS.get(type(layer).__name__, _refused)
        value = add(graph, value, layer, parts, [-1, *probe.shape[1:]])
    return passed, value


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
