"""A frozen network in an ONNX file: onnxruntime runs it, and its graph says what a point costs."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from codedfedl.errors import InputError
from codedfedl.io.names import shortened

Array = npt.NDArray[Any]

_KINDS = {"tensor(float)": np.float32, "tensor(double)": np.float64}
_CHANNELS = (1, 3, 4)  # Of an image: they tell the order of a graph's axes.
_LOOPS = {"GRU", "If", "LSTM", "Loop", "RNN", "Scan"}
_PRODUCTS = {"Attention", "ConvTranspose", "DeformConv", "Einsum"}
_INTEGERS = {"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"}
_NOT_COUNTED = _LOOPS | _PRODUCTS | _INTEGERS
_INSTALL = "install it with pip install 'codedfedl[encoders]'"


class Network(NamedTuple):
    """How a network is run on points of shape (n, d), and the SHA-256 of its file."""

    encode: Callable[[Array], Array]
    digest: str


def read_network(path: Path) -> Network:
    """Read an ONNX file with one input, and with embeddings as its first output.

    A graph whose input has the shape (n, d) takes points as they are. One that takes images, in
    either order of axes, gets the pixels of every point, which lie row by row with the channels of
    a pixel side by side.
    """
    try:
        import onnxruntime
    except ImportError:
        raise InputError(f"the encoder {path} needs the package onnxruntime: {_INSTALL}") from None
    if not path.is_file():
        raise InputError(f"cannot read the encoder {path}: there is no such file")
    content = path.read_bytes()
    _refuse_outside(path, content)
    try:
        # By its path: large weights may lie in files beside it.
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"cannot read the encoder {path} ({reason}): export it again") from None
    given = session.get_inputs()
    if len(given) != 1 or given[0].type not in _KINDS or len(given[0].shape) not in (2, 3, 4):
        takes = ", ".join(f"{entry.name} {entry.type} {entry.shape}" for entry in given)
        raise InputError(
            f"the encoder {path} takes {takes}: it must have one input of floats, points or "
            "images; wrap it in a Python function, and name that as module:function"
        )
    name, shape, kind = given[0].name, given[0].shape, _KINDS[given[0].type]
    first = session.get_outputs()[0].name

    def encode(points: Array) -> Array:
        batch = _shaped(path, points, shape).astype(kind)
        if isinstance(shape[0], int) and shape[0] != len(batch):
            parts = [batch[row : row + 1] for row in range(len(batch))]
        else:
            parts = [batch]
        outputs = [np.asarray(session.run([first], {name: part})[0]) for part in parts]
        return np.concatenate(outputs).reshape(len(points), -1)

    return Network(encode, hashlib.sha256(content).hexdigest())


def _refuse_outside(path: Path, content: bytes) -> None:
    """Refuse a graph whose weights lie in files outside its own folder: it may be anybody's."""
    onnx = _onnx(f"checking where the weights of {path} lie")
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        model = onnx.load_model_from_string(content)
    except DecodeError as error:
        raise InputError(f"cannot read the encoder {path} ({error}): export it again") from None
    folder = path.parent.resolve()
    for tensor in _tensors(model):
        for entry in tensor.external_data:
            if entry.key == "location":
                there = (path.parent / entry.value).resolve()
                if there.parent != folder:
                    raise InputError(
                        f"the encoder {path} has weights in {shortened(entry.value)}, outside its "
                        "folder: export it again, with its weights in the file or beside it"
                    )


def _tensors(message: Any) -> Iterator[Any]:
    """Yield every tensor of a model, a graph within a graph included."""
    if message.DESCRIPTOR.name == "TensorProto":
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if isinstance(value, Sequence) else [value]:
                yield from _tensors(part)


def _onnx(what: str) -> Any:
    try:
        import onnx
    except ImportError:
        raise InputError(f"{what} needs the package onnx: {_INSTALL}") from None
    return onnx


def _shaped(path: Path, points: Array, shape: list[Any]) -> Array:
    """Return points in the shape of the graph's input."""
    sizes = shape[1:]
    if isinstance(shape[0], int) and shape[0] != 1:
        raise InputError(
            f"the encoder {path} takes {shape[0]} points at a time: export it with a free "
            "first axis"
        )
    if len(sizes) == 1 and not isinstance(sizes[0], int):
        return points
    if not all(isinstance(size, int) for size in sizes) or prod(sizes) != points.shape[1]:
        raise InputError(
            f"the encoder {path} takes points of shape {sizes}, and the data have "
            f"{points.shape[1]} values per point: give it the data that it is made for"
        )
    if len(sizes) < 3 or (sizes[2] in _CHANNELS and sizes[0] not in _CHANNELS):
        return points.reshape(-1, *sizes)
    channels, height, width = sizes
    return points.reshape(-1, height, width, channels).transpose(0, 3, 1, 2)


def count_operations(path: Path, inputs: int) -> int:
    """Return the multiply-accumulates that one point costs, from the shapes in the graph.

    Counted are matrix products and convolutions, which are nearly all of a network's work. A graph
    with other operators of that kind, or with shapes that are unknown before it runs, is refused.
    """
    onnx = _onnx(f"counting the operations of {path}")
    model = onnx.load(str(path), load_external_data=False)
    known = {tensor.name for tensor in model.graph.initializer}
    axes = next(
        entry for entry in model.graph.input if entry.name not in known
    ).type.tensor_type.shape
    axes.dim[0].dim_value = 1
    if len(axes.dim) == 2:
        axes.dim[1].dim_value = inputs
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in [*graph.input, *graph.value_info, *graph.output]:
        dims = value.type.tensor_type.shape.dim
        if all(dim.HasField("dim_value") for dim in dims):
            shapes[value.name] = tuple(dim.dim_value for dim in dims)
    return sum(_node_operations(path, node, shapes) for node in graph.node)


def _node_operations(path: Path, node: Any, shapes: Mapping[str, tuple[int, ...]]) -> int:
    if node.op_type not in ("MatMul", "Gemm", "Conv"):
        if node.op_type in _NOT_COUNTED or node.domain not in ("", "ai.onnx", "ai.onnx.ml"):
            raise _uncounted(path, f"the operator {node.op_type} is not counted")
        return 0
    first, second, out = node.input[0], node.input[1], node.output[0]
    if not {first, second, out} <= shapes.keys():
        raise _uncounted(path, f"the shapes of a {node.op_type} are unknown before it runs")
    if node.op_type == "Conv":
        return prod(shapes[out]) * prod(shapes[second][1:])
    transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return prod(shapes[out]) * shapes[first][-2 if transposed else -1]


def _uncounted(path: Path, why: str) -> InputError:
    return InputError(
        f"cannot count the operations of {path} ({why}): say features.operations, the "
        "multiply-accumulates of one point"
    )
