"""Changes to an experiment: typed values by dotted keys; text is read where a user typed it."""

import tomllib
from collections.abc import Iterable
from typing import Any

from codedfedl.errors import InputError
from codedfedl.io.toml import parse_toml

__all__ = ["parse_overrides", "parse_value", "set_key"]


def parse_overrides(texts: Iterable[str], option: str = "--set") -> dict[str, Any]:
    """Read what a user typed as ``key.sub=value``; of a key that comes twice the last counts.

    Examples
    --------
    >>> parse_overrides(["training.epochs=7", "data.name=mnist"])
    {'training.epochs': 7, 'data.name': 'mnist'}
    """
    changes = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(
                f"{option} {text!r} has no '=': write key=value, such as data.name=mnist"
            )
        changes[key.strip()] = parse_value(value)
    return changes


def parse_value(text: str) -> Any:
    """Read a value as TOML does; a bare word is a string."""
    try:
        return parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def set_key(document: dict[str, Any], key: str, value: Any) -> None:
    """Set ``table.key`` of a document."""
    *tables, last = key.split(".")
    for table in tables:
        document = document.setdefault(table, {})
        if not isinstance(document, dict):
            raise InputError(f"cannot set {key!r}: {table} is not a table")
    document[last] = value
