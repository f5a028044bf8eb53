"""The user's own data: arrays in `.npz` files, tables in `.csv` and `.parquet` files."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from codedfedl.data.dataset import check_finite, real_numbers
from codedfedl.errors import InputError
from codedfedl.tables import _check_columns, _is_number, _load, _numbers, nearest

__all__ = ["TABLES", "read_npz", "read_points"]

TABLES = (".csv", ".parquet")
_ARRAYS = ("inputs", "labels", "test_inputs", "test_labels")

Array = npt.NDArray[Any]


def read_npz(path: Path) -> dict[str, Array]:
    """Return the arrays of a file: finite inputs of shape (n, d), and as many labels."""
    if not path.is_file():
        raise InputError(f"cannot read {path}: there is no such file")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (OSError, ValueError, EOFError, TypeError, BadZipFile, zlib.error) as error:
        raise InputError(f"cannot read {path}: {error}; write it with numpy.savez") from None
    if set(arrays) not in (set(_ARRAYS[:2]), set(_ARRAYS)):
        raise InputError(
            f"{path} holds {', '.join(arrays) or 'nothing'}: it needs the arrays inputs and "
            "labels, and may have both test_inputs and test_labels"
        )
    for part in [name.removesuffix("labels") for name in arrays if name.endswith("labels")]:
        inputs, labels = f"{part}inputs", f"{part}labels"
        arrays[inputs] = _rows(f"{path}: {inputs}", arrays[inputs])
        if arrays[labels].shape[:1] != (len(arrays[inputs]),):
            raise InputError(
                f"{path}: {inputs} has {len(arrays[inputs])} rows and {labels} has shape "
                f"{arrays[labels].shape}: give every point one label"
            )
    return arrays


def _rows(name: str, values: Array) -> Array:
    numbers = real_numbers(name, values)
    if numbers.ndim < 2 or numbers.size == 0:
        raise InputError(f"{name} has shape {numbers.shape}: give a row of features per point")
    rows = numbers.reshape(len(numbers), -1)
    check_finite(name, rows)
    return rows


def read_points(path: Path, label: str | Sequence[str] | None) -> tuple[Array, Array]:
    """Return the features of a table, shape (n, d), and its labels, shape (n,) or (n, c)."""
    names = (label or "label").split(",") if isinstance(label, str | None) else list(label)
    names = [name.strip() for name in names]
    table = _load(path)
    found = table.column_names
    for name in names:
        if name not in found:
            raise InputError(f"{path} has no label column {name!r}: {nearest(name, found)}")
    _check_columns(path, found, names, found)
    features = [name for name in found if name not in names]
    if table.num_rows == 0 or not features:
        raise InputError(f"{path} has no points or no features: add a line per point")
    inputs = np.column_stack([_number_column(path, name, table[name]) for name in features])
    if len(names) == 1:
        return inputs, _label_column(path, names[0], table[names[0]])
    return inputs, np.column_stack([_number_column(path, name, table[name]) for name in names])


def _number_column(path: Path, name: str, column: pa.ChunkedArray) -> Array:
    numbers = _numbers(path, name, column)
    wrong = ~np.isfinite(numbers)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{_place(path, row)}: {name} is {numbers[row]}: write a finite number")
    return numbers


def _label_column(path: Path, name: str, column: pa.ChunkedArray) -> Array:
    """Return whole numbers, decimal numbers or words; a CSV file's cells say which they are."""
    cells = column.to_pylist()
    if None in cells or "" in cells:
        row = next(row for row, cell in enumerate(cells) if cell in (None, ""))
        raise InputError(f"{_place(path, row)}: {name} is empty: write a label")
    text = path.suffix == ".csv"
    numeric = [_is_number(cell) if text else not isinstance(cell, str) for cell in cells]
    if not any(numeric):
        return np.asarray(cells, dtype=str)
    if not all(numeric):
        row = numeric.index(False)
        raise InputError(
            f"{_place(path, row)}: {name} is {cells[row]!r} among numbers: write either numbers or "
            "words"
        )
    whole = all(cell.lstrip("+-").isdigit() if text else isinstance(cell, int) for cell in cells)
    numbers = _number_column(path, name, column)
    return numbers.astype(np.int64) if whole else numbers


def _place(path: Path, row: int) -> str:
    return f"{path}, " + (f"line {row + 2}" if path.suffix == ".csv" else f"row {row + 1}")
