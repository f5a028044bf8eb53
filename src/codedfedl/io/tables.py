"""Columns of numbers in CSV and Parquet files, read strictly and written whole or not at all."""

import csv
import itertools
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from codedfedl.errors import InputError
from codedfedl.io.files import TABLE_SUFFIXES, check_destination, check_room, replacing
from codedfedl.io.names import listed, nearest, shortened

_log = logging.getLogger(__name__)

MAX_HEADER_BYTES = 1 << 24  # a million columns
BYTES_READ_AT_ONCE = 1 << 20
_DELIMITERS = (",", ";", "\t")
_MISSPELT = 0.75  # similarity to a column that is not there
_QUOTED = re.compile(r'"[^"]*"')
_DECIMAL_COMMA = r"^\s*[+-]?\d*(,\d+)?([eE][+-]?\d+)?\s*$"


def column_names(path: str | Path) -> list[str]:
    """Return the names of a file's columns."""
    path = Path(path)
    with _readable(path):
        if path.suffix == ".parquet":
            return list(pa.parquet.read_schema(path).names)
        with pa.csv.open_csv(path, parse_options=_cells(path)) as reader:
            return list(reader.schema.names)


def read_table(
    path: str | Path,
    required: Sequence[str],
    optional: Sequence[str] = (),
    *,
    blank: Collection[str] = (),
    others: bool = False,
) -> dict[str, npt.NDArray[Any]]:
    """Read named columns; all but ``client`` must hold numbers.

    Parameters
    ----------
    path
        A ``.csv`` or ``.parquet`` file.
    required, optional
        The columns that must and that may be there.
    blank
        The columns in which a cell may be empty, which is NaN.
    others
        Whether other columns are ignored, unless they look misspelt; else they are refused.

    Returns
    -------
    dict
        Arrays of float64, one per column found; ``client`` holds integers where every name is
        one, and strings elsewhere.
    """
    path = Path(path)
    table = load_table(path)
    check_columns(path, table.column_names, required, optional, others=others)
    table = table.select([name for name in table.column_names if name in {*required, *optional}])
    if table.num_rows == 0:
        raise InputError(f"{path} has a header and no rows: add a line for each client")
    columns: dict[str, npt.NDArray[Any]] = {}
    for name in table.column_names:
        if name == "client":
            columns[name] = _names(path, table[name])
        else:
            columns[name] = number_column(path, name, table[name], blank=name in blank)
    return columns


def write_table(
    path: str | Path,
    columns: Mapping[str, npt.ArrayLike],
    metadata: Mapping[str, object] | None = None,
) -> None:
    """Write columns to a ``.csv`` or ``.parquet`` file, replacing it only once all is written.

    Parameters
    ----------
    metadata
        Facts about the table as a whole. Parquet keeps them in its schema; CSV has no place
        for them.
    """
    path = Path(path)
    check_destination(path, TABLE_SUFFIXES)
    table = pa.table({name: np.asarray(values) for name, values in columns.items()})
    with replacing(path) as partial:
        if path.suffix == ".csv":
            pa.csv.write_csv(table, partial, pa.csv.WriteOptions(quoting_style="needed"))
        else:
            facts = {str(key): str(value) for key, value in (metadata or {}).items()}
            pa.parquet.write_table(table.replace_schema_metadata(facts), partial)


def repeated(common: Mapping[str, Any], columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns, and before them what is the same on every row."""
    rows = len(next(iter(columns.values())))
    return {name: np.full(rows, value) for name, value in common.items()} | dict(columns)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    if path.suffix not in TABLE_SUFFIXES:
        raise InputError(f"cannot read {path}: its name must end in {' or '.join(TABLE_SUFFIXES)}")
    if not path.is_file():
        what = "it is a folder" if path.is_dir() else "there is no such file"
        raise InputError(f"cannot read {path}: {what}")
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in reason:
            raise InputError(f"cannot read {path}: it is not UTF-8; save it as UTF-8") from None
        raise InputError(f"cannot read {path}: {reason}; give a table with a header line") from None


def load_table(path: Path) -> pa.Table:
    """Read a whole file; the cells of a CSV file as text."""
    with _readable(path):
        if path.suffix == ".parquet":
            return _read_parquet(path)
        check_room(path, 2 * path.stat().st_size)
        # As text, so that a cell that is not a number can be named with its line.
        text = dict.fromkeys(column_names(path), pa.string())
        cells = _cells(path)
        _refuse_nul(path)
        as_text = pa.csv.ConvertOptions(column_types=text)
        table = pa.csv.read_csv(path, parse_options=cells, convert_options=as_text)
        return table if cells.delimiter == "," else _with_decimal_points(table)


def _read_parquet(path: Path) -> pa.Table:
    """Read a file that fits by its metadata; texts by their dictionaries, as a few may repeat."""
    with pa.parquet.ParquetFile(path) as file:
        facts, schema = file.metadata, file.schema_arrow
    for field in schema:
        if pa.types.is_nested(field.type):  # a row of it may have any number of values
            raise InputError(
                f"{path}: {listed([field.name])} holds {field.type}, not numbers or texts: leave "
                "that column out"
            )
    groups = (facts.row_group(group) for group in range(facts.num_row_groups))
    packed = sum(group.total_byte_size for group in groups)
    check_room(path, max(packed, 8 * facts.num_rows * facts.num_columns))
    words = [field.name for field in schema if pa.types.is_string(field.type)]
    table = pa.parquet.read_table(path, read_dictionary=words)
    table.validate(full=True)  # texts that are not UTF-8
    check_room(path, table.nbytes + sum(_unpacked_bytes(column) for column in table.columns))
    return table.cast(pa.schema([field.remove_metadata() for field in schema]))


def _unpacked_bytes(column: pa.ChunkedArray) -> int:
    """Return the bytes of a column of texts, each written out; 0 of any other."""
    if not pa.types.is_dictionary(column.type):
        return 0
    return sum(
        pc.sum(pc.take(pc.binary_length(chunk.dictionary), chunk.indices)).as_py() or 0
        for chunk in column.chunks
    )


def _cells(path: Path) -> pa.csv.ParseOptions:
    return pa.csv.ParseOptions(delimiter=_cell_delimiter(path))


def check_columns(
    path: Path,
    names: Sequence[str],
    required: Sequence[str],
    optional: Sequence[str],
    *,
    others: bool = False,
) -> None:
    """Refuse a table that lacks a column, has an unknown one, or has one twice.

    With `others`, unknown ones are refused only where they look like misspelt ones.
    """
    known = [*required, *optional]
    present, expected = set(names), set(known)
    if len(present) < len(names):
        twice, _ = Counter(names).most_common(1)[0]
        raise InputError(f"{path} has the column {shortened(twice)} twice: remove one")
    absent = [name for name in known if name not in present]
    for name in [name for name in names if name not in expected]:
        if not others or get_close_matches(name, absent, cutoff=_MISSPELT):
            hint = nearest(name, known)
            raise InputError(f"{path} has the unknown column {shortened(name)}: {hint}")
        _log.warning("%s: the column %s is ignored", path, shortened(name))
    if missing := [name for name in required if name not in present]:
        noun, columns = "columns" if missing[1:] else "column", ", ".join(map(repr, missing))
        raise InputError(f"{path} lacks the {noun} {columns}: it needs {', '.join(required)}")


def row_in_file(path: Path, row: int) -> str:
    """Say where a row of the table, counted from 0, is in the file, blank lines counted."""
    if path.suffix != ".csv":
        return f"row {row + 1}"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            lines = (reader.line_num for cells in reader if cells)
            return f"line {next(itertools.islice(lines, row + 1, None))}"
    except (csv.Error, StopIteration):  # quotes or cells that Python's reader takes otherwise
        return f"row {row + 1}"


def _names(path: Path, column: pa.ChunkedArray) -> npt.NDArray[Any]:
    try:
        listed = pc.cast(column, pa.string()).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InputError(f"{path}: client holds {column.type}: write names or numbers") from None
    for row, name in enumerate(listed):
        if not name or "\0" in name:  # NumPy's texts end there
            what = "holds a NUL" if name else "is empty"
            raise InputError(f"{path}, {row_in_file(path, row)}: client {what}: give it a name")
    names = np.asarray(listed, dtype=str)
    try:
        numbers = names.astype(np.int64)
    except (ValueError, OverflowError):
        return names
    return numbers if np.array_equal(numbers.astype(str), names) else names


def number_column(
    path: Path, name: str, column: pa.ChunkedArray, *, blank: bool = False, finite: bool = False
) -> npt.NDArray[np.float64]:
    """Return a column's numbers, or say which cell holds none.

    Parameters
    ----------
    blank
        Whether a cell may be empty, which is NaN.
    finite
        Whether NaN and infinity are refused too.
    """
    numbers, wrong = parsed_numbers(column)
    if blank and wrong.any():
        wrong &= [bool(str(cell or "").strip()) for cell in column.to_pylist()]
    if finite:
        wrong |= ~np.isfinite(numbers)
    if wrong.any():
        comma = "," in str(column[int(np.argmax(wrong))].as_py())
        wanted = "a finite number" if finite else "a number"
        remedy = f"{wanted} with a point, such as 1.5" if comma else wanted
        raise cell_refusal(path, name, column, wrong, remedy)
    return numbers


def parsed_numbers(
    column: pa.ChunkedArray,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return a column's numbers, and which cells hold none; these are NaN."""
    if pa.types.is_string(column.type):
        column = pc.utf8_trim_whitespace(column)
        column = pc.if_else(pc.equal(column, ""), None, column)
    try:
        numbers = pc.cast(column, pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        numbers = pa.array([_number(cell) for cell in column.to_pylist()], pa.float64())
    return np.array(numbers, dtype=np.float64), np.array(numbers.is_null())


def _number(cell: Any) -> float | None:
    """Return the number in a cell, as Python reads it; 1_000 is a number."""
    try:
        return float(cell)
    except (TypeError, ValueError):
        return None


def cell_refusal(
    path: Path, name: str, column: pa.ChunkedArray, wrong: npt.NDArray[np.bool_], remedy: str
) -> InputError:
    """Return an error that names the first of the wrong cells, and what to write instead."""
    row = int(np.argmax(wrong))
    cell = column[row].as_py()
    what = "is empty" if cell in (None, "") else f"is {shortened(cell)}"
    return InputError(f"{path}, {row_in_file(path, row)}: {name} {what}: write {remedy}")


def _cell_delimiter(path: Path) -> str:
    """Return what stands between the cells of a CSV file's header: a comma, semicolon or tab."""
    with path.open("rb") as file:
        first = file.readline(MAX_HEADER_BYTES + 1)
    if len(first) > MAX_HEADER_BYTES:
        raise InputError(
            f"cannot read {path}: its first line has more than {MAX_HEADER_BYTES:,} bytes; give a "
            "table with a header line"
        )
    if first.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"cannot read {path}: it is UTF-16; save it as CSV in UTF-8")
    try:
        bare = _QUOTED.sub("", first.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"cannot read {path}: it is not UTF-8; save it as UTF-8") from None
    return max(_DELIMITERS, key=bare.count)  # the first of equals: a comma


def _refuse_nul(path: Path) -> None:
    """Refuse a file of bytes that no text has: it is not a CSV file, or is in UTF-16."""
    with path.open("rb") as file:
        while part := file.read(BYTES_READ_AT_ONCE):
            if b"\0" in part:
                raise InputError(
                    f"cannot read {path}: it holds NUL bytes, as no text does; save it as UTF-8"
                )


def _with_decimal_points(table: pa.Table) -> pa.Table:
    """Turn ``1,5`` into ``1.5`` in every column of text that holds nothing but such numbers.

    For files without commas between cells. A column with thousands separators, such as
    ``1.234,5``, stays text: it is refused where numbers are wanted.
    """
    for index, name in enumerate(table.column_names):
        column = table.column(index)
        commas = pc.any(pc.match_substring(column, ",")).as_py()
        if commas and pc.all(pc.match_substring_regex(column, _DECIMAL_COMMA)).as_py():
            table = table.set_column(index, name, pc.replace_substring(column, ",", "."))
    return table
