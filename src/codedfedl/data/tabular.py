"""How the columns of a table become inputs: categories, missing values and scales.

A `Preparation` holds public constants alone. They are fitted to training rows that are all here, or
written down beforehand; whoever has them turns the raw cells of any table into the same inputs.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from codedfedl.arrays import FloatArray
from codedfedl.errors import InputError
from codedfedl.io.files import replacing
from codedfedl.io.names import shortened
from codedfedl.io.tables import cell_refusal, parsed_numbers

MISSING = ("", "?", "na", "n/a", "nan", "null")
"""Cells that hold nothing, in small letters and without spaces around."""

LIMIT = 3.0  # standard deviations: a number farther from the mean counts as that far
RARE_ROWS, RARE_SHARE = 5, 0.005  # A rarer word shares its input with the other rare ones.
MAX_WORDS = 50  # with an input each
_TYPING_ERRORS = 0.05  # share of a column of numbers that may be words before they are categories
_LEAST_ROWS = 20  # with fewer, words among numbers are always typing errors
_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T]\d{1,2}:\d{2}.*)?")

Array = npt.NDArray[Any]
Cells = Mapping[str, Array]
"""Columns by name: numbers, NaN where there is none, or words, empty where there is none."""


@dataclass(frozen=True)
class TableColumn:
    """How one column becomes inputs.

    Attributes
    ----------
    words
        The categories that have an input each; None for a column of numbers.
    other
        Whether all other words share an input.
    low, span
        A number becomes (number − low) / span.
    fill
        What a missing number is replaced by.
    indicator
        Whether an input says that the number was missing.
    """

    name: str
    words: tuple[str, ...] | None = None
    other: bool = False
    low: float = 0.0
    span: float = 1.0
    fill: float = 0.0
    indicator: bool = False

    def __post_init__(self) -> None:
        finite = np.isfinite([self.low, self.span, self.fill]).all()
        if not (finite and self.span > 0) or (self.words is not None and not self.words):
            raise InputError(
                f"column {self.name!r} has the scale ({self.low}, {self.span}), fills with "
                f"{self.fill} and has the words {self.words}: give finite numbers, a span above 0, "
                "and a word or more"
            )

    @property
    def inputs(self) -> int:
        """How many inputs it becomes."""
        if self.words is not None:
            return len(self.words) + self.other
        return 1 + self.indicator

    def transform(self, cells: Array, limit: float | None) -> FloatArray:
        """Return the inputs of some cells, shape (n, inputs)."""
        if self.words is not None:
            one_hot = cells[:, None] == np.array(self.words, dtype=np.str_)
            if self.other:
                one_hot = np.column_stack([one_hot, ~one_hot.any(axis=1)])
            return np.asarray(one_hot, np.float64)
        empty = np.isnan(cells)
        with np.errstate(over="ignore"):  # what overflows is cut off
            scaled = (np.where(empty, self.fill, cells) - self.low) / self.span
        if limit is not None:
            scaled = np.clip(scaled, -limit, limit)
        return np.column_stack([scaled] + [empty] * self.indicator).astype(np.float64)


@dataclass(frozen=True)
class Preparation:
    """How the raw columns of a table become inputs, in this order.

    Attributes
    ----------
    limit
        No number is farther than that from 0 once it is scaled; None stands for no limit.
    classes
        The words of the labels, in the order of their numbers; empty where labels are numbers.
    """

    columns: tuple[TableColumn, ...]
    limit: float | None = LIMIT
    classes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the raw columns."""
        return tuple(column.name for column in self.columns)

    @property
    def inputs(self) -> int:
        """Number of inputs of a point."""
        return sum(column.inputs for column in self.columns)

    def transform(self, cells: Cells) -> FloatArray:
        """Return the inputs of all rows, shape (n, inputs)."""
        parts = [column.transform(cells[column.name], self.limit) for column in self.columns]
        return np.concatenate(parts, axis=1)

    def rows(self, values: npt.ArrayLike) -> FloatArray:
        """Return the inputs of rows that have a value for each raw column, of any kind."""
        given = np.asarray(values)
        if given.ndim != 2 or given.shape[1] != len(self.columns):
            raise InputError(
                f"inputs has shape {given.shape} where the model was trained on the "
                f"{len(self.columns)} columns {', '.join(c.name for c in self.columns[:5])}, …: "
                "give a value of each for every point"
            )
        columns = {
            column.name: pa.chunked_array([[_cell(value) for value in given[:, k].tolist()]])
            for k, column in enumerate(self.columns)
        }
        return self.transform(self.cells(Path("inputs"), columns))

    def cells(self, path: Path, table: Any) -> Cells:
        """Return the cells of a table's columns, refusing words where there should be numbers."""
        return {
            column.name: number_cells(path, column.name, table[column.name])
            if column.words is None
            else word_cells(table[column.name])
            for column in self.columns
        }

    def write(self, path: Path) -> None:
        """Write it as JSON, for `read_preparation`."""
        with replacing(path) as partial:
            partial.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def _cell(value: Any) -> str | None:
    return None if value is None else str(value)


def read_preparation(path: str | Path) -> Preparation:
    """Read the public constants of a table's columns, as `Preparation.write` wrote them."""
    from pydantic import TypeAdapter  # which a node loads only where there is one

    try:
        kind = TypeAdapter(Preparation)
        return kind.validate_json(Path(path).read_text(encoding="utf-8"), strict=True)
    except (OSError, ValueError) as error:
        reason = "; ".join(str(error).splitlines()[:3])
        raise InputError(
            f"cannot read the preparation {path}: {reason}; write it with codedfedl federate split"
        ) from None


def missing_cells(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return which cells of a column hold nothing."""
    if pa.types.is_string(column.type):
        column = pc.utf8_lower(pc.utf8_trim_whitespace(column))
        empty = pc.is_in(column, value_set=pa.array(MISSING))
        return np.array(pc.or_kleene(empty, pc.is_null(column)))
    return np.array(pc.is_null(column, nan_is_null=pa.types.is_floating(column.type)))


def number_cells(path: Path, name: str, column: pa.ChunkedArray) -> FloatArray:
    """Return numbers, NaN where a cell is empty."""
    numbers, wrong = parsed_numbers(column)
    empty = missing_cells(column)
    numbers = np.where(empty, np.nan, numbers)
    wrong = (wrong & ~empty) | np.isinf(numbers)
    if wrong.any():
        wanted = "a finite number"
        if "," in str(column[int(np.argmax(wrong))].as_py()):
            wanted += " with a point, such as 1.5"
        raise cell_refusal(path, name, column, wrong, wanted)
    return numbers


def word_cells(column: pa.ChunkedArray) -> npt.NDArray[np.str_]:
    """Return words without spaces around, empty where a cell is; 3.0 is the word 3."""
    empty, words = missing_cells(column), [str(cell).strip() for cell in column.to_pylist()]
    plain = [re.sub(r"^([+-]?\d+)\.0*$", r"\1", word) for word in words]
    return np.where(empty, "", np.array(plain, dtype=np.str_))


def holds_numbers(path: Path, name: str, column: pa.ChunkedArray) -> bool:
    """Whether a column's cells are numbers; a few words among them are left to be refused."""
    if pa.types.is_temporal(column.type):
        raise _dates_refused(path, name, column[0].as_py())
    if not pa.types.is_string(column.type):
        return True
    present = ~missing_cells(column)
    words = present & np.isnan(parsed_numbers(column)[0])
    if not words.any():
        return True
    cells = column.filter(pa.array(words)).to_pylist()
    if all(_DATE.fullmatch(cell.strip()) for cell in cells):
        raise _dates_refused(path, name, cells[0])
    return bool(words.sum() <= _TYPING_ERRORS * present.sum() or len(words) < _LEAST_ROWS) and bool(
        (present & ~words).any()
    )


def _dates_refused(path: Path, name: str, cell: Any) -> InputError:
    return InputError(
        f"{path}: {name} holds dates, such as {shortened(str(cell))}: write numbers instead, such "
        f"as days since a fixed one, or leave the column out with data.drop = [{name!r}]"
    )


def fitted(
    cells: Cells,
    rows: npt.NDArray[np.bool_],
    bounds: tuple[FloatArray, FloatArray] | None = None,
    classes: Sequence[str] = (),
) -> Preparation:
    """Choose the constants of every column from the training rows.

    Parameters
    ----------
    cells
        The raw columns, all rows of them.
    rows : array of shape (n,)
        Which rows are for training.
    bounds
        The lowest and the highest number of each column of numbers, or of all, that are known
        without the data: these scale to [0, 1], and a missing number counts as their middle.
    """
    numeric = [name for name, values in cells.items() if values.dtype.kind == "f"]
    sides = None
    if bounds is not None:
        sides = [np.broadcast_to(side, len(numeric)).tolist() for side in bounds]
    columns = []
    for name, values in cells.items():
        if values.dtype.kind != "f":
            columns.append(_category(name, values[rows]))
        elif sides is None:
            columns.append(_standardised(name, values[rows]))
        else:
            low, high = (side[numeric.index(name)] for side in sides)
            empty = bool(np.isnan(values).any())
            columns.append(
                TableColumn(name, None, False, low, high - low, (low + high) / 2, indicator=empty)
            )
    return Preparation(tuple(columns), LIMIT if bounds is None else None, tuple(classes))


def _standardised(name: str, values: FloatArray) -> TableColumn:
    """Return a column of numbers with their mean and standard deviation."""
    present = values[~np.isnan(values)]
    if not len(present):
        return TableColumn(name)
    largest = float(np.abs(present).max()) or 1.0
    mean = float((present / largest).mean()) * largest
    spread = float(np.std(present / largest)) * largest
    varies = spread > 1e-9 * abs(mean)
    return TableColumn(
        name, None, False, mean, spread if varies else 1.0, mean, len(present) < len(values)
    )


def _category(name: str, values: Array) -> TableColumn:
    """Return a column of words: the frequent ones have an input each."""
    words, counts = np.unique(values, return_counts=True)
    frequent = words[counts >= max(RARE_ROWS, RARE_SHARE * len(values))]
    if len(frequent) == 0:
        frequent = words[np.argsort(-counts, kind="stable")]
    if len(frequent) > MAX_WORDS:
        most = dict(zip(words.tolist(), counts.tolist(), strict=True))
        frequent = np.array(sorted(frequent.tolist(), key=lambda word: -most[word])[:MAX_WORDS])
    kept = tuple(sorted(frequent.tolist()))
    return TableColumn(name, kept, other=len(kept) < len(words))
