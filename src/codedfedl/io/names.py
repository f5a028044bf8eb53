"""Names in sentences, suggestions for misspelt ones, and names that a terminal would obey."""

import re
from collections.abc import Sequence
from typing import Any

__all__ = ["listed", "nearest", "printable", "shortened"]

_MOST_NAMES = 20  # in a sentence
_LONGEST = 40  # characters of one
_MOST_COMPARED = 1000
_LONGEST_VALUE = 200
_OBEYED = re.compile(  # control characters but newline and tab, direction marks, half characters
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def nearest(name: str, known: Sequence[str]) -> str:
    """Suggest the known name closest to a misspelt one, as the end of a sentence."""
    import difflib

    close = difflib.get_close_matches(name[:_LONGEST], known[:_MOST_COMPARED], n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known is {known[0]!r}" if len(known) == 1 else f"known are {listed(known)}"


def listed(names: Sequence[str]) -> str:
    """Write names in a sentence: of many the first, of a long one its beginning."""
    shown = [name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…" for name in names]
    more = len(names) - _MOST_NAMES
    return ", ".join(shown[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def shortened(value: Any) -> str:
    """Return a value as Python writes it, of a long one the beginning: a sentence has one line."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def printable(text: str) -> str:
    r"""Escape what a terminal would obey rather than show.

    Examples
    --------
    >>> printable("phone\x1b[2J")
    'phone\\x1b[2J'
    """
    return _OBEYED.sub(lambda match: ascii(match[0])[1:-1], text)
