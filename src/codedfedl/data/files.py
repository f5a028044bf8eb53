"""The user's own data: arrays in `.npz` files, tables in `.csv` and `.parquet` files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from codedfedl.arrays import FloatArray
from codedfedl.data.dataset import check_finite, real_numbers, texts
from codedfedl.data.tabular import Preparation
from codedfedl.errors import InputError
from codedfedl.io.archives import array_names, read_arrays
from codedfedl.io.names import listed, nearest
from codedfedl.io.tables import (
    cell_refusal,
    check_columns,
    load_table,
    number_column,
    parsed_numbers,
)

TABLES = (".csv", ".parquet")
FILES = (*TABLES, ".npz")
_ARRAYS = ("inputs", "labels", "test_inputs", "test_labels")
_MOST_BYTES = 1 << 33  # of texts

Array = npt.NDArray[Any]
Image = tuple[int, int, int]
"""Height, width and channels."""


class Points(NamedTuple):
    """Points as in a file, and their labels if it has any.

    Attributes
    ----------
    inputs : array of shape (n, d)
        Numbers; or texts, shape (n, 1).
    labels : array of shape (n,) or (n, c)
    columns, label_columns
        Names of the input columns and of the label columns of a table.
    image
        The shape of images, whose pixels are the inputs.
    test
        The file's own test points, and their labels.
    scaled
        Whether inputs are scaled as by `load_dataset`, not raw as in the file.
    """

    inputs: Array
    labels: Array | None
    columns: tuple[str, ...] = ()
    label_columns: tuple[str, ...] = ()
    image: Image | None = None
    test: tuple[Array, Array] | None = None
    scaled: bool = False


def read_file(
    path: Path, label: str | Sequence[str] | None = None, text: str | None = None
) -> Points:
    """Read points with their labels from a file of any kind.

    Parameters
    ----------
    label
        The label column of a table, or several, separated by commas; ``label`` by default.
    text
        The column of a table that holds texts, which are all of a point: no other is read. For an
        ``.npz`` file any name says that its inputs are texts.
    """
    if path.suffix == ".npz":
        return _read_npz(path, text=text is not None)
    names = label_names(label)
    columns = [] if text is None else [text]
    return read_table_points(path, names, columns, text=text is not None)


def label_names(label: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the label columns: of a text those between commas; ``label`` by default."""
    given = label.split(",") if isinstance(label, str) else label or ["label"]
    return tuple(dict.fromkeys(name.strip() for name in given))


def _read_npz(path: Path, *, text: bool) -> Points:
    """Return finite inputs of shape (n, d), or texts of shape (n, 1), and as many labels.

    Inputs of shape (n, height, width) or (n, height, width, channels) are images.
    """
    if not path.is_file():
        raise InputError(f"cannot read {path}: there is no such file")
    names = array_names(path)
    if set(names) not in (set(_ARRAYS[:2]), set(_ARRAYS)):
        raise InputError(
            f"{path} holds {listed(names) or 'nothing'}: it needs the arrays inputs and "
            "labels, and may have both test_inputs and test_labels"
        )
    arrays = read_arrays(path, names)
    image = _image(arrays["inputs"])
    for part in [name.removesuffix("labels") for name in arrays if name.endswith("labels")]:
        inputs, labels = f"{part}inputs", f"{part}labels"
        as_rows = texts if text else _rows
        arrays[inputs] = as_rows(f"{path}: {inputs}", arrays[inputs])
        if arrays[labels].shape[:1] != (len(arrays[inputs]),):
            raise InputError(
                f"{path}: {inputs} has {len(arrays[inputs])} rows and {labels} has shape "
                f"{arrays[labels].shape}: give every point one label"
            )
    test = (arrays["test_inputs"], arrays["test_labels"]) if "test_labels" in arrays else None
    return Points(arrays["inputs"], arrays["labels"], image=image, test=test)


def _image(inputs: Array) -> Image | None:
    if inputs.ndim not in (3, 4):
        return None
    height, width, *channels = inputs.shape[1:]
    return height, width, channels[0] if channels else 1


def _rows(name: str, values: Array) -> Array:
    if values.dtype.kind == "U":
        raise InputError(f"{name} holds texts: say data.text, for an encoder that takes texts")
    numbers = real_numbers(name, values)
    if numbers.ndim < 2 or numbers.size == 0:
        raise InputError(f"{name} has shape {numbers.shape}: give a row of features per point")
    rows = numbers.reshape(len(numbers), -1)
    check_finite(name, rows)
    return rows


def read_table_points(
    path: Path,
    labels: Sequence[str],
    columns: Sequence[str] = (),
    *,
    text: bool = False,
    trained: bool = False,
    preparation: Preparation | None = None,
) -> Points:
    """Read the points of a table.

    Parameters
    ----------
    labels
        The label columns.
    columns
        The inputs, in this order; by default all columns but the labels.
    text
        Whether the first of them holds texts, which are all of a point.
    trained
        Whether a model was trained on these columns: then the labels may be missing.
    preparation
        How the raw columns become inputs; without it they are numbers.
    """
    table = load_table(path)
    there = table.column_names
    what, why = ("column of texts" if text else "column"), ""
    if trained:
        what, why = "column", ", which the model was trained on"
    else:
        check_present(path, labels, there, "label column")
    check_present(path, columns, there, what, why)
    check_columns(path, there, (), there)  # none twice
    inputs = list(columns) or [name for name in there if name not in labels]
    if table.num_rows == 0 or not inputs:
        raise InputError(f"{path} has no points or no inputs: add a line per point")
    if preparation is not None:
        points: Array = preparation.transform(preparation.cells(path, table))
    elif text:
        points = _text_column(path, inputs[0], table[inputs[0]])
    else:
        points = number_columns(path, table, inputs)
    wanted: Array | None = None
    if len(labels) == 1 and labels[0] in there:
        wanted = label_column(path, labels[0], table[labels[0]])
    elif all(name in there for name in labels):
        wanted = number_columns(path, table, labels)
    prepared = preparation is not None
    return Points(points, wanted, tuple(inputs), tuple(labels), scaled=prepared)


def check_present(
    path: Path, names: Sequence[str], there: Sequence[str], what: str, why: str = ""
) -> None:
    """Refuse a table that lacks a column."""
    for name in names:
        if name not in there:
            raise InputError(f"{path} has no {what} {name!r}{why}: {nearest(name, there)}")


def _text_column(path: Path, name: str, column: pa.ChunkedArray) -> npt.NDArray[np.str_]:
    cells = ["" if cell is None else str(cell) for cell in column.to_pylist()]
    empty = np.array([not cell.strip() for cell in cells])
    if empty.any():
        raise cell_refusal(path, name, column, empty, "a text, or leave the point out")
    if (needed := 4 * len(cells) * max(map(len, cells))) > _MOST_BYTES:
        raise InputError(
            f"{path}: {name} would take {needed:,} bytes of memory, since every text is given the "
            "room of the longest: cut long texts"
        )
    return np.array(cells)[:, None]


def number_columns(path: Path, table: pa.Table, names: Sequence[str]) -> FloatArray:
    """Return some columns side by side, shape (n, d), refusing cells that are not numbers."""
    return np.column_stack([number_column(path, name, table[name], finite=True) for name in names])


def label_column(path: Path, name: str, column: pa.ChunkedArray) -> Array:
    """Return whole numbers, decimal numbers or words; a CSV file's cells say which they are."""
    cells = column.to_pylist()
    empty = np.array([cell is None or cell == "" for cell in cells])
    if empty.any():
        raise cell_refusal(path, name, column, empty, "a label")
    if isinstance(cells[0], str):
        words = np.isnan(parsed_numbers(column)[0])
        if path.suffix == ".parquet" or words.all():
            return np.array([cell.strip() for cell in cells])
        if words.any():
            raise cell_refusal(path, name, column, words, "a number, or all labels as words")
    numbers = number_column(path, name, column, finite=True)
    if not all(_is_whole(cell) for cell in cells):
        return numbers
    return numbers.clip(-(2.0**62), 2.0**62).astype(np.int64)


def _is_whole(cell: object) -> bool:
    return cell.strip().lstrip("+-").isdigit() if isinstance(cell, str) else isinstance(cell, int)
