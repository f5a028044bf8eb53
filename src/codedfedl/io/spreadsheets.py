"""CSV files as spreadsheets write them: semicolons or tabs between cells, and decimal commas."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from codedfedl.errors import InputError

__all__ = ["cell_delimiter", "refuse_nul", "with_decimal_points"]

_LONGEST_HEADER = 1 << 24  # bytes: a million columns
_READ_AT_ONCE = 1 << 20

_DELIMITERS = (",", ";", "\t")
_QUOTED = re.compile(r'"[^"]*"')
_DECIMAL_COMMA = r"^\s*[+-]?\d*(,\d+)?([eE][+-]?\d+)?\s*$"


def cell_delimiter(path: Path) -> str:
    """Return what stands between the cells of a CSV file's header: a comma, semicolon or tab."""
    with path.open("rb") as file:
        first = file.readline(_LONGEST_HEADER + 1)
    if len(first) > _LONGEST_HEADER:
        raise InputError(
            f"cannot read {path}: its first line has more than {_LONGEST_HEADER:,} bytes; give a "
            "table with a header line"
        )
    if first.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"cannot read {path}: it is UTF-16; save it as CSV in UTF-8")
    try:
        bare = _QUOTED.sub("", first.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"cannot read {path}: it is not UTF-8; save it as UTF-8") from None
    return max(_DELIMITERS, key=bare.count)  # the first of equals: a comma


def refuse_nul(path: Path) -> None:
    """Refuse a file of bytes that no text has: it is not a CSV file, or is in UTF-16."""
    with path.open("rb") as file:
        while part := file.read(_READ_AT_ONCE):
            if b"\0" in part:
                raise InputError(
                    f"cannot read {path}: it holds NUL bytes, as no text does; save it as UTF-8"
                )


def with_decimal_points(table: pa.Table) -> pa.Table:
    """Turn ``1,5`` into ``1.5`` in every column of text that holds nothing but such numbers.

    For files without commas between cells. A column with thousands separators, such as
    ``1.234,5``, stays text: it is refused where numbers are wanted.
    """
    for place, name in enumerate(table.column_names):
        column = table.column(place)
        commas = pc.any(pc.match_substring(column, ",")).as_py()
        if commas and pc.all(pc.match_substring_regex(column, _DECIMAL_COMMA)).as_py():
            table = table.set_column(place, name, pc.replace_substring(column, ",", "."))
    return table
