"""The columns that a report needs of a run's tables, which may be anybody's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.errors import InputError

__all__ = ["check_kinds"]

_TEXT, _WHOLE, _NUMBER, _FINITE, _FLAG = (
    "texts",
    "whole numbers",
    "numbers",
    "finite numbers",
    "true or false",
)
_COMMON = {
    "setting": _TEXT,
    "scheme": _TEXT,
    "redundancy": _NUMBER,
    "seed": _WHOLE,
}
_NEEDED: dict[str, dict[str, str]] = {
    "rounds": _COMMON
    | {"round": _WHOLE, "seconds": _FINITE, "training_hours": _FINITE, "total_hours": _FINITE}
    | {"arrived": _WHOLE, "metric": _NUMBER},
    "clients": _COMMON | {"client": _TEXT},
    "settings": _COMMON,
    "timeline": _COMMON
    | {"round": _WHOLE, "client": _TEXT, "round_seconds": _FINITE, "seconds": _NUMBER}
    | {"arrived": _FLAG},
}
"""Columns that every version has written, and what they hold."""

_OPTIONAL = dict.fromkeys(("cell", "group", "metric_name"), _TEXT) | {"as_in_paper": _FLAG}
_OPTIONAL |= dict.fromkeys(("late", "dropped", "refused"), _WHOLE)


def check_kinds(path: Path, name: str, columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """Refuse a table that lacks a column, or has one of another kind; any other holds numbers."""
    needed = _NEEDED[name]
    if missing := [key for key in needed if key not in columns]:
        raise InputError(f"{path} lacks the column {missing[0]}: restore it, or run it again")
    if name != "timeline" and not len(columns["setting"]):
        raise InputError(f"{path} has no rows: restore it, or run it again")
    for key, values in columns.items():
        wanted = needed.get(key) or _OPTIONAL.get(key, _NUMBER)
        if not _holds(values, wanted):
            raise InputError(f"{path}: {key} does not hold {wanted}: restore it, or run it again")


def _holds(values: npt.NDArray[Any], wanted: str) -> bool:
    kind = values.dtype.kind
    if wanted == _TEXT:
        return kind == "U" or (kind == "O" and all(isinstance(value, str) for value in values))
    if wanted == _FINITE:
        return kind in "iuf" and bool(np.isfinite(values).all())
    return kind in {_WHOLE: "iu", _NUMBER: "iuf", _FLAG: "b"}[wanted]
