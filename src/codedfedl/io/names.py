"""Suggestions for misspelt names."""

from collections.abc import Sequence

__all__ = ["nearest"]


def nearest(name: str, known: Sequence[str]) -> str:
    """Suggest the known name closest to a misspelt one, as the end of a sentence."""
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
