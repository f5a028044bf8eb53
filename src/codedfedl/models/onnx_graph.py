"""The first steps of an ONNX graph: nodes and constants, and from raw columns to inputs."""

from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.data.tabular import Preparation

Array = npt.NDArray[Any]


class Graph:
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


def prepared(graph: Graph, preparation: Preparation) -> tuple[str, dict[str, list[str]]]:
    """Add what a preparation does to raw columns.

    Returns
    -------
    The name of the result, and the columns of each of the graph's inputs: ``inputs`` are numbers,
    NaN where one is missing, and ``words`` are texts, empty where one is.
    """
    numbers = [column for column in preparation.columns if column.words is None]
    categories = [column for column in preparation.columns if column.words is not None]
    blocks: list[tuple[str, list[str]]] = []  # of inputs, and which column each is of
    if numbers:
        rows = {key: [getattr(c, key) for c in numbers] for key in ("fill", "low", "span")}
        empty = graph.apply("IsNaN", "inputs")
        known = graph.apply("Where", empty, graph.constant([rows["fill"]]), "inputs")
        moved = graph.apply("Sub", known, graph.constant([rows["low"]]))
        scaled = graph.apply("Div", moved, graph.constant([rows["span"]]))
        if (limit := preparation.limit) is not None:
            scaled = graph.apply("Clip", scaled, graph.constant(-limit), graph.constant(limit))
        blocks.append((scaled, [f"{c.name}:0" for c in numbers]))
        if flagged := [k for k, c in enumerate(numbers) if c.indicator]:
            chosen = graph.apply("Gather", empty, graph.constant(np.array(flagged)), axis=1)
            flags = graph.apply("Cast", chosen, to=1)
            blocks.append((flags, [f"{numbers[k].name}:1" for k in flagged]))
    for k, column in enumerate(categories):
        assert column.words is not None
        cells = graph.apply("Gather", "words", graph.constant(np.array(k)), axis=1)
        one_hot = graph.apply(
            "OneHotEncoder", cells, cats_strings=list(column.words), zeros=1, domain=ML
        )
        blocks.append((one_hot, [f"{column.name}:{i}" for i in range(len(column.words))]))
        if column.other:
            known = graph.apply("ReduceMax", one_hot, axes=[1], keepdims=1)
            rest = graph.apply("Sub", graph.constant(1.0), known)
            blocks.append((rest, [f"{column.name}:{len(column.words)}"]))
    joined = graph.apply("Concat", *(name for name, _ in blocks), axis=1)
    there = [label for _, labels in blocks for label in labels]
    wanted = [f"{c.name}:{i}" for c in preparation.columns for i in range(c.inputs)]
    order = graph.constant(np.array([there.index(label) for label in wanted]))
    given = {"inputs": [c.name for c in numbers], "words": [c.name for c in categories]}
    result = graph.apply("Gather", joined, order, axis=1)
    return result, {name: columns for name, columns in given.items() if columns}


ML = "ai.onnx.ml"
"""The operators for categories."""
