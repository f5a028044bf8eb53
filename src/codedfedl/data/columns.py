"""What the columns of a table are for: labels, clients and inputs; and which only name rows."""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from codedfedl.data.files import check_present, label_column, number_columns
from codedfedl.data.tabular import Cells, Preparation, holds_numbers, number_cells, word_cells
from codedfedl.errors import InputError
from codedfedl.io.tables import cell_refusal, check_columns, load_table

_log = logging.getLogger(__name__)

Task = Literal["classification", "regression"]
Array = npt.NDArray[Any]

MAX_CLASSES = 20
"""Whole numbers with more values than that may be classes or amounts: the user says which."""
_LEAST_ROWS = 20  # of which values that all differ say something
_ID = re.compile(r"(^|_|\W)(id|index|key|number|nr|row|unnamed.*)$|^$", re.IGNORECASE)
_CLIENTS = (
    "client",
    "hospital",
    "patient",
    "person",
    "site",
    "user",
    "subject",
    "device",
    "clinic",
)


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are for.

    Attributes
    ----------
    labels
        The label columns.
    client
        The column that names each row's client.
    columns
        The inputs; by default all other columns.
    drop
        Columns that are left out.
    categories
        Inputs that hold categories although they are written as numbers.
    task
        What whole numbers as labels mean.
    """

    labels: Sequence[str] = ("label",)
    client: str | None = None
    columns: Sequence[str] = ()
    drop: Sequence[str] = ()
    categories: Sequence[str] = ()
    task: Task | None = None

    def inputs(self, path: Path, there: Sequence[str]) -> list[str]:
        """Return the names of the inputs among the columns of a file."""
        known = [*self.labels, *([] if self.client is None else [self.client])]
        for key in ("drop", "columns", "categories"):
            names = getattr(self, key)
            check_present(path, names, there, f"column, which data.{key} names,")
            if twice := [name for name in names if name in known]:
                raise InputError(
                    f"data.{key} names {twice[0]!r}, which holds labels or clients: leave it out"
                )
        if both := [name for name in self.columns if name in self.drop]:
            raise InputError(f"data.columns and data.drop both name {both[0]!r}: remove one")
        chosen = self.columns or [name for name in there if name not in (*known, *self.drop)]
        return list(chosen)


@dataclass(frozen=True)
class RawTable:
    """A table with its columns by their roles.

    Attributes
    ----------
    labels : array of shape (n,) or (n, c)
    owners : array of shape (n,), optional
        The client of each row.
    """

    cells: Cells
    labels: Array
    owners: npt.NDArray[np.str_] | None


def read_raw_table(
    path: Path, roles: Roles, preparation: Preparation | None = None, *, quiet: bool = False
) -> RawTable:
    """Read a table whose columns have roles, and warn of columns that look wrong as inputs.

    Parameters
    ----------
    preparation
        What the inputs are, where that is known already.
    quiet
        Whether nothing is warned of.
    """
    table = load_table(path)
    there = table.column_names
    check_columns(path, there, (), there)  # none twice
    check_present(path, roles.labels, there, "label column")
    if roles.client is not None:
        check_present(path, [roles.client], there, "column of clients")
    owners = None if roles.client is None else _owners(path, roles.client, table[roles.client])
    if preparation is not None:
        names = [column.name for column in preparation.columns]
        check_present(path, names, there, "column", ", which data.preparation names")
        cells = preparation.cells(path, table)
    else:
        names = roles.inputs(path, there)
        cells = {name: _cells(path, name, table[name], roles) for name in names}
        if not roles.columns and not quiet:
            cells = _without_names(path, cells, roles, owners)
    if table.num_rows == 0 or not cells:
        raise InputError(f"{path} has no points or no inputs: add a line per point")
    if len(roles.labels) == 1:
        labels = label_column(path, roles.labels[0], table[roles.labels[0]])
    else:
        labels = number_columns(path, table, roles.labels)
    return RawTable(cells, _of_task(path, labels, roles), owners)


def _cells(path: Path, name: str, column: pa.ChunkedArray, roles: Roles) -> Array:
    if name not in roles.categories and holds_numbers(path, name, column):
        return number_cells(path, name, column)
    return word_cells(column)


def _owners(path: Path, name: str, column: pa.ChunkedArray) -> npt.NDArray[np.str_]:
    words = word_cells(column)
    if (words == "").any():
        raise cell_refusal(path, name, column, words == "", "the client's name")
    return words


def _without_names(
    path: Path, cells: Cells, roles: Roles, owners: npt.NDArray[np.str_] | None
) -> dict[str, Array]:
    """Return the columns without those that only name a row or a client; warn of all that may."""
    kept: dict[str, Array] = {}
    for name, values in cells.items():
        what = _names_what(name, values, owners)
        if what is None or len(cells) == 1:
            kept[name] = values
            if owners is None and name.lower() in _CLIENTS:
                _log.warning(
                    '%s: if %s names the clients, write data.client = "%s"; it is an input now',
                    path, name, name,
                )  # fmt: skip
        else:
            _log.warning(
                "%s: %s is left out, since it %s; to keep it, list all inputs in data.columns",
                path, name, what,
            )  # fmt: skip
    return kept


def _names_what(name: str, values: Array, owners: npt.NDArray[np.str_] | None) -> str | None:
    """Say what a column names, if it names rows or clients rather than measures anything."""
    is_number = values.dtype.kind == "f"
    present = values[~np.isnan(values)] if is_number else values[values != ""]
    if not len(present):
        return "is empty"
    if len(present) < _LEAST_ROWS or (is_number and (present != np.floor(present)).any()):
        return None
    different = len(np.unique(present))
    counts = is_number and different == len(values) == np.ptp(present) + 1
    if different == len(present) and (_ID.search(name) or not is_number or counts):
        return "has another value on every row, like an id"
    if not is_number and different > len(present) / 2:
        return "has another word on most rows, like a name or a text"
    if owners is not None and len(present) == len(owners):
        clients = len(np.unique(owners))
        pairs = len(set(zip(owners.tolist(), present.tolist(), strict=True)))
        if different == clients == pairs > 2 and not is_number:
            return "names the clients, as data.client does"
    return None


def _of_task(path: Path, labels: Array, roles: Roles) -> Array:
    """Return labels as the task needs them: classes as words, numbers to predict as decimals."""
    if roles.task == "regression":
        if labels.dtype.kind == "U":
            raise InputError(
                f"data.task is 'regression', and {path} has words in {roles.labels[0]!r}, such as "
                f"{str(labels[0])!r}: write numbers, or choose 'classification'"
            )
        return labels.astype(np.float64)
    if labels.ndim > 1 or labels.dtype.kind == "U":
        return labels
    values = np.unique(labels)
    if roles.task is None and labels.dtype.kind in "iu" and len(values) > MAX_CLASSES:
        raise InputError(
            f"{path}: {roles.labels[0]} holds {len(values)} different whole numbers, from "
            f"{values[0]} to {values[-1]}: write data.task = 'regression' to predict a number, or "
            "'classification' if each is a class"
        )
    contiguous = values[0] == 0 and values[-1] == len(values) - 1
    is_class = labels.dtype.kind in "iu" and 2 * len(values) <= len(labels)
    if contiguous or not (roles.task == "classification" or is_class):
        return labels.astype(np.int64) if roles.task == "classification" else labels
    words = [str(int(v)) if float(v).is_integer() else str(v) for v in values.tolist()]
    return np.array(words)[np.searchsorted(values, labels)]
