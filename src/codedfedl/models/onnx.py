"""A model as an ONNX graph: from points to scores, for whatever runs such graphs."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.errors import InputError
from codedfedl.io.files import replacing
from codedfedl.learning.features import Encoder, Identity, Patches, RandomFourier, Structured
from codedfedl.learning.torch_network import TorchNetwork
from codedfedl.models.model import Model
from codedfedl.models.onnx_layers import network_scores

__all__ = ["export_onnx"]

_OPSET = 13  # of 2020, which every runtime of today knows
_IR = 8


class _Graph:
    """Nodes and constants, one after another: each method returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, array: npt.ArrayLike) -> str:
        """Add a constant: whole numbers as they are, all others as float32."""
        from onnx import numpy_helper

        held = np.asarray(array)
        name = f"constant_{len(self.constants)}"
        kind = np.int64 if held.dtype.kind == "i" else np.float32
        self.constants.append(numpy_helper.from_array(held.astype(kind), name))
        return name

    def apply(self, kind: str, *inputs: str, output: str | None = None, **settings: Any) -> str:
        """Add an operation."""
        from onnx import helper

        name = output or f"value_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **settings))
        return name


def export_onnx(model: Model, path: str | Path) -> None:
    """Write a model as ONNX: ``inputs`` (n, d) to ``scores`` (n, c) and, for classes, ``label``.

    Inputs are as `Model.predict` takes them, in float32; of a model with an encoder they are the
    encoder's outputs, shape (n, q), before they are normalised. A label is the class's place; the
    names are in the file's metadata, with the model card.
    """
    try:
        import onnx
    except ImportError:
        raise InputError(
            "an export needs the package onnx: install it with pip install 'codedfedl[onnx]'"
        ) from None
    graph = _Graph()
    points = "inputs"
    if model.center is not None:
        points = graph.apply("Sub", points, graph.constant(model.center))
    features = _features(graph, points, model)
    weights, width = np.asarray(model.weights, dtype=np.float64), model.learner.outputs
    scale = np.ones(width) if model.scale is None else model.scale
    offset = np.zeros(width) if model.offset is None else model.offset
    if isinstance(model.learner, TorchNetwork):
        network = network_scores(graph, features, model.learner, weights)
        product = graph.apply("Mul", network, graph.constant(scale))
    else:
        product = graph.apply("MatMul", features, graph.constant(weights * scale))
    graph.apply("Add", product, graph.constant(offset), output="scores")
    outputs = [_tensor("scores", onnx.TensorProto.FLOAT, width)]
    if model.is_classifier:
        graph.apply("ArgMax", "scores", axis=1, keepdims=0, output="label")
        outputs.append(_tensor("label", onnx.TensorProto.INT64))
    encoded = isinstance(model.features, Encoder)
    taken = model.learner.inputs if encoded else model.inputs
    inputs = [_tensor("inputs", onnx.TensorProto.FLOAT, taken)]
    built = onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, "codedfedl", inputs, outputs, graph.constants),
        opset_imports=[onnx.helper.make_opsetid("", _OPSET)],
        ir_version=_IR,
    )
    onnx.helper.set_model_props(built, _metadata(model))
    onnx.checker.check_model(built)
    with replacing(Path(path)) as partial:
        partial.write_bytes(built.SerializeToString())


def _tensor(name: str, kind: int, *width: int) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, kind, ["points", *width])


def _metadata(model: Model) -> dict[str, str]:
    import json

    classes = [] if model.classes is None else model.classes.tolist()
    return {"classes": json.dumps(classes), "card": json.dumps(dict(model.card))}


def _features(graph: _Graph, points: str, model: Model) -> str:
    features = model.features
    if isinstance(features, Identity):
        return points
    if isinstance(features, Encoder):
        return _normalised(graph, points) if features.normalise else points
    if isinstance(features, RandomFourier | Structured):
        omega, delta = features.frequencies(model.inputs)
        scale = (2 / features.n_components) ** 0.5
        return graph.apply("Mul", _waves(graph, points, omega, delta), graph.constant(scale))
    if isinstance(features, Patches):
        return _patches(graph, points, features, model.inputs)
    raise InputError(f"the feature map {type(features).__name__} has no ONNX form: use another")


def _normalised(graph: _Graph, points: str) -> str:
    """Scale every row to length 1; a row of zeros stays."""
    length = graph.apply("ReduceL2", points, axes=[1], keepdims=1)
    least = graph.constant(np.finfo(np.float32).tiny)
    return graph.apply("Div", points, graph.apply("Max", length, least))


def _waves(graph: _Graph, points: str, omega: npt.NDArray[Any], delta: npt.NDArray[Any]) -> str:
    product = graph.apply("MatMul", points, graph.constant(omega))
    return graph.apply("Cos", graph.apply("Add", product, graph.constant(delta)))


def _patches(graph: _Graph, points: str, features: Patches, inputs: int) -> str:
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
