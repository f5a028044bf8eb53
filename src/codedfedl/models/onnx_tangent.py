"""The tangent features of a network as an ONNX graph: forward, and back through its layers."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from codedfedl.errors import InputError
from codedfedl.learning.features import Tangent
from codedfedl.models.onnx_graph import Graph

Array = npt.NDArray[Any]


class Passed(NamedTuple):
    """A layer that a graph has gone through: its parameters, its input, and the input's shape."""

    layer: Any
    parts: list[Array]
    value: str
    shape: list[int]


def tangent_slopes(graph: Graph, passed: Sequence[Passed], output: str, features: Tangent) -> str:
    """Add the features before they are scaled to length 1; return their name."""
    left = len(features.learner.tensor_sizes) - features.skipped
    parts: list[str] = []
    if features.hidden:
        last = passed[-1]
        if type(last.layer).__name__ != "Linear":
            raise InputError("tangent features have an ONNX form where a Linear layer is the last")
        bias = _moved(graph, graph.apply("ReduceL2", last.value, axes=[1], keepdims=1), 0.0, 1.0)
        parts = [last.value, bias][: 1 + features.copied - features.hidden]
        left -= len(last.parts)
    slopes: list[str] = []
    back = _moved(graph, output, 0.0, features.combination[None])
    for number, step in reversed(list(enumerate(passed))):
        is_copied = features.hidden and number == len(passed) - 1
        if step.parts and not is_copied:
            slopes_of: Callable[..., list[str]] = _WEIGHTS.get(type(step.layer).__name__, _refused)
            made = slopes_of(graph, step, back)
            slopes = made[max(0, len(made) - left) :] + slopes if left > 0 else slopes
            left -= len(made)
        if left <= 0:
            break
        backward: Callable[..., str] = _INPUTS.get(type(step.layer).__name__, _refused)
        back = backward(graph, step, back)
    if slopes:
        joined = graph.apply("Concat", *slopes, axis=1) if len(slopes) > 1 else slopes[0]
        signed = graph.apply("Mul", joined, graph.constant(features.signs[None]))
        parts.append(_sketched(graph, signed, features))
    return graph.apply("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]


def _sketched(graph: Graph, slopes: str, features: Tangent) -> str:
    """Deal the numbers to the features, in turn, and add what each has been dealt."""
    if not features.has_buckets:
        return slopes
    order, buckets = features.bucket_order, features.size(features.inputs) - features.copied
    rows = -(-len(order) // buckets)
    columns = np.full(rows * buckets, len(order))  # the last few have one less: a column of zeros
    columns[: len(order)] = order
    first = graph.apply("Gather", slopes, graph.constant(np.array([0])), axis=1)
    widened = graph.apply("Concat", slopes, _moved(graph, first, 0.0, 0.0), axis=1)
    chosen = graph.apply("Gather", widened, graph.constant(columns), axis=1)
    dealt = _reshaped(graph, chosen, -1, rows, buckets)
    return graph.apply("ReduceSum", dealt, graph.constant(np.array([1])), keepdims=0)


def _moved(graph: Graph, value: str, factor: float, offset: npt.ArrayLike) -> str:
    """Add factor·value + offset."""
    scaled = graph.apply("Mul", value, graph.constant(factor))
    return graph.apply("Add", scaled, graph.constant(offset))


def _reshaped(graph: Graph, value: str, *shape: int) -> str:
    return graph.apply("Reshape", value, graph.constant(np.array(shape)))


def _refused(graph: Graph, step: Passed, back: str) -> Any:
    raise InputError(
        f"the layer {step.layer} has no gradient in ONNX here: export a linearised network of "
        "Linear, Conv2d and ReLU layers, or of fewer last tensors (parts)"
    )


def _linear_weights(graph: Graph, step: Passed, back: str) -> list[str]:
    weights = step.parts[0]
    product = graph.apply(
        "MatMul",
        _reshaped(graph, back, -1, len(weights), 1),
        _reshaped(graph, step.value, -1, 1, weights.shape[1]),
    )
    return [_reshaped(graph, product, -1, weights.size), back][: len(step.parts)]


def _linear_input(graph: Graph, step: Passed, back: str) -> str:
    return graph.apply("MatMul", back, graph.constant(step.parts[0]))


def _convolution_weights(graph: Graph, step: Passed, back: str) -> list[str]:
    layer, weights = step.layer, step.parts[0]
    if layer.groups != 1 or isinstance(layer.padding, str):
        return _refused(graph, step, back)  # type: ignore[no-any-return]
    (below, right), (down, across) = layer.padding, layer.stride
    pads = np.array([0, 0, below, right, 0, 0, below, right])
    padded = graph.apply("Pad", step.value, graph.constant(pads))
    channels, height, width = step.shape[1:]
    height, width = height + 2 * below, width + 2 * right
    tops, lefts = (
        np.arange(0, size - spread * (side - 1), move)
        for size, side, spread, move in zip(
            (height, width), layer.kernel_size, layer.dilation, (down, across), strict=True
        )
    )
    rows, columns = (
        spread * np.arange(side)
        for side, spread in zip(layer.kernel_size, layer.dilation, strict=True)
    )
    where = (
        np.arange(channels)[:, None, None] * height * width
        + (tops[:, None, None, None, None] + rows[:, None]) * width
        + (lefts[:, None, None, None] + columns)
    )
    flat = _reshaped(graph, padded, -1, channels * height * width)
    chosen = graph.apply("Gather", flat, graph.constant(where.ravel()), axis=1)
    count, numbers = len(tops) * len(lefts), weights[0].size
    there = _reshaped(graph, back, -1, len(weights), count)
    product = graph.apply("MatMul", there, _reshaped(graph, chosen, -1, count, numbers))
    sums = graph.apply("ReduceSum", there, graph.constant(np.array([2])), keepdims=0)
    return [_reshaped(graph, product, -1, weights.size), sums][: len(step.parts)]


def _convolution_input(graph: Graph, step: Passed, back: str) -> str:
    layer = step.layer
    whole = zip(
        step.shape[2:], layer.kernel_size, layer.dilation, layer.stride, layer.padding, strict=True
    )
    rest = [
        (size + 2 * pad - spread * (side - 1) - 1) % move for size, side, spread, move, pad in whole
    ]
    return graph.apply(
        "ConvTranspose",
        back,
        graph.constant(step.parts[0]),
        strides=list(layer.stride),
        pads=2 * list(layer.padding),
        dilations=list(layer.dilation),
        output_padding=rest,
    )


def _rectified_input(graph: Graph, step: Passed, back: str) -> str:
    positive = graph.apply("Greater", step.value, graph.constant(0.0))
    return graph.apply("Mul", back, graph.apply("Cast", positive, to=1))


def _shaped_input(graph: Graph, step: Passed, back: str) -> str:
    return _reshaped(graph, back, -1, *step.shape[1:])


_WEIGHTS = {
    "Linear": _linear_weights,
    "Conv2d": _convolution_weights,
}
_INPUTS = {
    "Linear": _linear_input,
    "Conv2d": _convolution_input,
    "ReLU": _rectified_input,
    "Flatten": _shaped_input,
    "Unflatten": _shaped_input,
}
