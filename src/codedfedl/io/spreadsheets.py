"""CSV files as spreadsheets write them: semicolons or tabs between cells, and decimal commas."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from codedfedl.errors import InputError

__all__ = ["cell_delimiter", "with_decimal_points"]

_DELIMITERS = (",", ";", "\t")
_QUOTED = re.compile(r'"[^"]*"')
_DECIMAL_COMMA = r"^\s*[+-]?\d*(,\d+)?([eE][+-]?\d+)?\s*$"


def cell_delimiter(path: Path) -> str:
    """Return what stands between the cells of a CSV file's header: a comma, semicolon or tab."""
    with path.open("rb") as file:
        first = file.readline()
    if first.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"cannot read {path}: it is UTF-16; save it as CSV in UTF-8")
    bare = _QUOTED.sub("", first.decode("utf-8", "replace"))
    return max(_DELIMITERS, key=bare.count)  # the first of equals: a comma


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
