"""Rules for values that come over a network: a type, a range, an exact shape."""

from collections.abc import Callable, Mapping
from math import inf
from sys import float_info
from typing import Any

from codedfedl.errors import InputError

MAX_COUNT = 2**40
"""The largest whole number that means anything: points, rounds, attempts."""

_LARGEST = float_info.max  # whole numbers may be larger, and NaN is never between two numbers

Rule = Callable[[str, Any], None]
"""Raises InputError for a value that is not allowed, naming the field."""

Rules = Mapping[str, Rule]


def refuse(name: str, value: Any, must: str) -> None:
    """Say what a value must be."""
    raise InputError(f"{name} is {str(value)[:64]!r}: must be {must}")


def whole(low: int = 0, high: int = MAX_COUNT) -> Rule:
    """Return the rule for a whole number in a range."""

    def rule(name: str, value: Any) -> None:
        if type(value) is not int or not low <= value <= high:
            refuse(name, value, f"a whole number from {low} to {high}")

    return rule


def real(low: float = -inf, high: float = inf, *, above: bool = False) -> Rule:
    """Return the rule for a finite number in a range, whose lower end may be excluded."""

    def rule(name: str, value: Any) -> None:
        number = isinstance(value, int | float) and type(value) is not bool
        if not number or not max(low, -_LARGEST) <= value <= min(high, _LARGEST):
            refuse(name, value, f"a finite number from {low:g} to {high:g}")
        if above and value == low:
            refuse(name, value, f"above {low:g}")

    return rule


def listed(rule: Rule, *lengths: int) -> Rule:
    """Return the rule for a list of one of these lengths, each of whose entries obeys a rule."""

    def check(name: str, value: Any) -> None:
        if type(value) not in (list, tuple) or len(value) not in lengths:
            known = " or ".join(map(str, lengths[:3])) + (", …" if lengths[3:] else "")
            refuse(name, value, f"a list of {known}")
        for entry in value:
            rule(name, entry)

    return check


def one_of(*values: Any) -> Rule:
    """Return the rule for a value out of a few, of the same type."""

    def rule(name: str, value: Any) -> None:
        if not any(type(value) is type(known) and value == known for known in values):
            refuse(name, value, f"one of {', '.join(map(str, values))}")

    return rule


def optional(rule: Rule) -> Rule:
    """Return the rule for a value that may be None."""
    return lambda name, value: None if value is None else rule(name, value)


def record(rules: Rules, *, empty: bool = False) -> Rule:
    """Return the rule for a mapping with exactly these fields; or with none."""

    def rule(name: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            refuse(name, value, "a record of named fields")
        if not (empty and not value):
            check_fields(name, value, rules)

    return rule


def check_fields(name: str, value: Mapping[str, Any], rules: Rules) -> None:
    """Refuse a field that is missing, unknown, or outside its rule."""
    for field in sorted(set(value) ^ set(rules), key=str):
        problem = "is missing" if field in rules else "is unknown"
        raise InputError(
            f"{name}.{str(field)[:64]} {problem}: install the same version of codedfedl on the "
            "server and on all nodes"
        )
    for field, rule in rules.items():
        rule(f"{name}.{field}", value[field])


def text(name: str, value: Any) -> None:
    """Refuse what is no text."""
    if type(value) is not str:
        refuse(name, value, "a text")


def texts(name: str, value: Any) -> None:
    """Refuse what is no list of texts."""
    if type(value) not in (list, tuple):
        refuse(name, value, "a list of texts")
    for entry in value:
        text(name, entry)


def sorted_texts(name: str, value: Any) -> None:
    """Refuse what is no list of different texts in order, so that no two classes become one."""
    texts(name, value)
    if list(value) != sorted(set(value)):
        refuse(name, value, "different texts in order")
