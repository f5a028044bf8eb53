"""The user's own data: arrays in `.npz` files, tables in `.csv` and `.parquet` files."""

from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from codedfedl.arrays import FloatArray
from codedfedl.data.dataset import check_finite, real_numbers, texts
from codedfedl.errors import InputError
from codedfedl.io.archives import array_names, read_arrays
from codedfedl.io.names import listed, nearest, shortened
from codedfedl.io.tables import check_columns, load_table

__all__ = [
    "TABLES",
    "Image",
    "Points",
    "input_columns",
    "label_column",
    "label_names",
    "number_columns",
    "read_npz",
    "read_points",
]

TABLES = (".csv", ".parquet")
_ARRAYS = ("inputs", "labels", "test_inputs", "test_labels")
_MOST_BYTES = 1 << 33  # of texts

Array = npt.NDArray[Any]
Image = tuple[int, int, int]
"""Height, width and channels."""


def read_npz(path: Path, *, text: bool = False) -> tuple[dict[str, Array], Image | None]:
    """Return the arrays of a file: finite inputs of shape (n, d), and as many labels.

    Inputs of shape (n, height, width) or (n, height, width, channels) are images, whose shape is
    returned too. With `text` they are texts, shape (n, 1).
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
    return arrays, image


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


class Points(NamedTuple):
    """The inputs of a table, shape (n, d), its labels, shape (n,) or (n, c), and their names."""

    inputs: Array
    labels: Array
    columns: tuple[str, ...]
    label_columns: tuple[str, ...]


def label_names(label: str | Sequence[str] | None) -> list[str]:
    """Return the names of the label columns: ``label`` by default."""
    given = label.split(",") if isinstance(label, str) else label or ["label"]
    return list(dict.fromkeys(name.strip() for name in given))


def read_points(path: Path, label: str | Sequence[str] | None, text: str | None = None) -> Points:
    """Read the points of a table and their labels; `text` names the column that is all of a point.

    With it, the other columns are not read.
    """
    names = label_names(label)
    table = load_table(path)
    columns = table.column_names
    for name in names:
        if name not in columns:
            raise InputError(f"{path} has no label column {name!r}: {nearest(name, columns)}")
    check_columns(path, columns, names, columns)
    features = [name for name in columns if name not in names] if text is None else [text]
    if table.num_rows == 0 or not features:
        raise InputError(f"{path} has no points or no features: add a line per point")
    inputs = input_columns(path, table, features, text=text is not None)
    single = len(names) == 1
    labels = label_column(path, table, names[0]) if single else number_columns(path, table, names)
    return Points(inputs, labels, tuple(features), tuple(names))


def input_columns(path: Path, table: pa.Table, names: Sequence[str], *, text: bool) -> Array:
    """Return the inputs, shape (n, d): numbers, or the texts of the one column, shape (n, 1)."""
    return _text_column(path, table, names[0]) if text else number_columns(path, table, names)


def _text_column(path: Path, table: pa.Table, name: str) -> npt.NDArray[np.str_]:
    if name not in table.column_names:
        raise InputError(
            f"{path} has no column of texts {name!r}: {nearest(name, table.column_names)}"
        )
    column = table[name]
    cells = ["" if cell is None else str(cell) for cell in column.to_pylist()]
    empty = np.array([not cell.strip() for cell in cells])
    if empty.any():
        raise _refusal(path, name, column, empty, "a text, or leave the point out")
    if (needed := 4 * len(cells) * max(map(len, cells))) > _MOST_BYTES:
        raise InputError(
            f"{path}: {name} would take {needed:,} bytes of memory, since every text is given the "
            "room of the longest: cut long texts"
        )
    return np.array(cells)[:, None]


def number_columns(path: Path, table: pa.Table, names: Sequence[str]) -> FloatArray:
    """Return some columns side by side, shape (n, d), refusing cells that are not numbers."""
    return np.column_stack([_number_column(path, name, table[name]) for name in names])


def _number_column(path: Path, name: str, column: pa.ChunkedArray) -> FloatArray:
    numbers = _parsed(column)
    if not np.isfinite(numbers).all():
        raise _refusal(path, name, column, ~np.isfinite(numbers), "a finite number")
    return numbers


def label_column(path: Path, table: pa.Table, name: str) -> Array:
    """Return whole numbers, decimal numbers or words; a CSV file's cells say which they are."""
    column = table[name]
    cells = column.to_pylist()
    empty = np.array([cell is None or cell == "" for cell in cells])
    if empty.any():
        raise _refusal(path, name, column, empty, "a label")
    if isinstance(cells[0], str):
        no_number = np.isnan(_parsed(column))
        if path.suffix == ".parquet" or no_number.all():
            return np.array([cell.strip() for cell in cells])
        if no_number.any():
            raise _refusal(path, name, column, no_number, "a number, or all labels as words")
    numbers = _number_column(path, name, column)
    if not all(_is_whole(cell) for cell in cells):
        return numbers
    return numbers.clip(-(2.0**62), 2.0**62).astype(np.int64)


def _is_whole(cell: object) -> bool:
    return cell.strip().lstrip("+-").isdigit() if isinstance(cell, str) else isinstance(cell, int)


def _parsed(column: pa.ChunkedArray) -> FloatArray:
    """Return a column's numbers, with NaN for cells that are not numbers."""
    try:
        if not column.null_count:
            return np.asarray(column.cast(pa.float64()).to_numpy())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass  # Python reads a few more, such as those with a space before
    return np.array([_number(cell) for cell in column.to_pylist()])


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return nan


def _refusal(
    path: Path, name: str, column: pa.ChunkedArray, wrong: npt.NDArray[np.bool_], remedy: str
) -> InputError:
    row = int(np.argmax(wrong))
    cell = column[row].as_py()
    where = f"line {row + 2}" if path.suffix == ".csv" else f"row {row + 1}"
    what = "is empty" if cell in (None, "") else f"is {shortened(cell)}"
    return InputError(f"{path}, {where}: {name} {what}: write {remedy}")
