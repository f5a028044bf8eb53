"""Suggestions for misspelt names."""

from collections.abc import Sequence

__all__ = ["nearest"]


def nearest(name: str, known: Sequence[str]) -> str:
    """Suggest the known name closest to a misspelt one, as the end of a sentence."""
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    listed = ", ".join(repr(one) for one in known) if len(known) == 1 else ", ".join(known)
    verb = "is" if len(known) == 1 else "are"
    return f"did you mean {close[0]!r}?" if close else f"known {verb} {listed}"
