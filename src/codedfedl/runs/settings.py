"""Settings of built-in schemes as a file gives them: numbers of the right kind, none below zero."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import NoneType
from typing import Any, get_args

from codedfedl.errors import InputError
from codedfedl.io.names import shortened
from codedfedl.schemes import SCHEMES, Scheme, make_scheme

__all__ = ["checked_scheme", "table_key"]


def checked_scheme(name: str, settings: Mapping[str, Any]) -> Scheme:
    """Return the scheme that a table describes; a scheme of the user's own checks its settings."""
    if name in SCHEMES:
        kinds = {field.name: field.type for field in fields(SCHEMES[name])}  # type: ignore[arg-type]
        for key, value in settings.items():
            if wanted := _wanted(kinds.get(key), value):
                raise InputError(f"scheme {name!r}: {key} is {shortened(value)}: must be {wanted}")
    return make_scheme(name, dict(settings))


def table_key(table: Iterable[tuple[str, Any]]) -> frozenset[tuple[str, Any]]:
    """Return what is the same for two tables that say the same: 0 and 0.0 do."""
    plain = (bool, int, float, str, NoneType)
    return frozenset((key, v if isinstance(v, plain) else repr(v)) for key, v in table)


def _wanted(kind: Any, value: Any) -> str:
    """Say what a setting must be; nothing if it is that, or if numbers are not all it may be."""
    kinds = set(get_args(kind) or (kind,)) - {type(None)}
    if kinds == {bool}:
        return "" if isinstance(value, bool) else "true or false"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kinds == {int}:
        return "" if isinstance(value, int) and number and value >= 0 else "a whole number from 0"
    if kinds == {float}:
        return "" if number and value >= 0 else "a number from 0"
    return ""
