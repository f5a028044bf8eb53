"""Names in sentences, suggestions for misspelt ones, and objects that a user names."""

import importlib
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from codedfedl.errors import InputError

MAX_NAMES = 20  # in a sentence
MAX_NAME_CHARACTERS = 40
MAX_NAMES_COMPARED = 1000
MAX_VALUE_CHARACTERS = 200
_OBEYED = re.compile(  # control characters but newline and tab, direction marks, half characters
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def nearest(name: str, known: Sequence[str]) -> str:
    """Suggest the known name closest to a misspelt one, as the end of a sentence."""
    import difflib

    close = difflib.get_close_matches(name[:MAX_NAME_CHARACTERS], known[:MAX_NAMES_COMPARED], n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known is {known[0]!r}" if len(known) == 1 else f"known are {listed(known)}"


def listed(names: Sequence[str]) -> str:
    """Write names in a sentence: of many the first, of a long one its beginning."""
    shown = [
        name if len(name) <= MAX_NAME_CHARACTERS else f"{name[:MAX_NAME_CHARACTERS]}…"
        for name in names
    ]
    more = len(names) - MAX_NAMES
    return ", ".join(shown[:MAX_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def count_of(number: int, noun: str) -> str:
    """Write a number and its noun, which agree.

    Examples
    --------
    >>> count_of(1, "node"), count_of(2000, "node")
    ('1 node', '2,000 nodes')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shortened(value: Any) -> str:
    """Return a value as Python writes it, of a long one the beginning: a sentence has one line."""
    text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}…"


def printable(text: str) -> str:
    r"""Escape what a terminal would obey rather than show.

    Examples
    --------
    >>> printable("phone\x1b[2J")
    'phone\\x1b[2J'
    """
    return _OBEYED.sub(lambda match: ascii(match[0])[1:-1], text)


def member_of(name: str, what: str) -> Any:
    """Return what ``module:member`` names, or None where the module has no such member.

    The module lies in the current folder or is installed; `what` is named by it, for the error.
    """
    module, _, member = name.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)  # a file beside the experiment need not be installed
    try:
        return getattr(importlib.import_module(module), member, None)
    except (ImportError, ValueError) as error:
        raise InputError(
            f"{what} {name!r} cannot be imported ({error}): write module:name, with the module in "
            "this folder or installed"
        ) from None
    finally:
        with suppress(ValueError):
            sys.path.remove(here)
