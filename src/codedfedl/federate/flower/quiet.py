"""Sentences that others can cause at will, told once a minute with a count."""

import time
from collections.abc import Callable

__all__ = ["quietly"]

QUIET = 60.0
"""Seconds between two sentences."""


def quietly(
    say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Callable[[str], None]:
    """Return a way to say sentences of which at most one a minute is told; the others count."""
    last, untold = -QUIET, 0

    def speak(sentence: str) -> None:
        nonlocal last, untold
        untold += 1
        if clock() - last >= QUIET:
            more = f", and {untold - 1} more since the last" if untold > 1 else ""
            say(f"{sentence}{more}")
            last, untold = clock(), 0

    return speak
