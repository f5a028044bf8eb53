"""What a client's measurements let be told apart, and notes on what they do not."""

import numpy as np

from codedfedl._types import FloatArray
from codedfedl.fitting.estimates import Link, Shape, fit_link

__all__ = ["measured_link", "note_hidden", "reply_limits", "shape_of"]

NO_LINK = Link(0.0, 0.0, np.full(2, np.nan), np.full(2, np.nan), hidden=True)


def measured_link(
    seconds: FloatArray | None, retries: FloatArray | None, name: str, notes: list[str]
) -> tuple[FloatArray | float, Link]:
    """Return the seconds on a link, 0 where they were not measured, and what they say of it."""
    if seconds is not None:
        return seconds, fit_link(seconds, retries)
    if retries is not None:
        notes.append(f"retries_{name} tell nothing without the seconds {name}: measure those too")
    return 0.0, NO_LINK


def shape_of(
    load: FloatArray, computed: bool, points: float, notes: list[str]
) -> tuple[Shape, bool]:
    """Choose what the certain part of the work may be, and say what cannot be told."""
    if len(np.unique(load)) != 1:
        return "line", True
    if computed:
        notes.append(
            "compute was measured at a single load: a fixed part of it would not be seen; measure "
            "two loads or more"
        )
        return "per point", True
    why = "totals at a single load do not separate compute from link and overhead: "
    if points > load[0]:
        notes.append(
            f"{why}all of it is taken to grow with the load, since more points are planned than "
            "were measured; measure two loads or more"
        )
        return "per point", False
    notes.append(
        f"{why}what is certain of it is taken to be overhead, so that no smaller load is promised "
        "to be faster than was seen; measure two loads or more"
    )
    return "fixed", False


def note_hidden(down: Link, up: Link, notes: list[str]) -> None:
    """Say which parts of the link cannot be seen."""
    if down is NO_LINK and up is NO_LINK:
        notes.append(
            "retransmissions are hidden in the times, as TCP does: the link counts as overhead, "
            "with erasure 0; measure the seconds down and up to tell them apart"
        )
        return
    for name, link in (("down", down), ("up", up)):
        if link is NO_LINK:
            notes.append(f"the seconds {name} were not measured: they count as overhead")
        elif link.hidden:
            notes.append(
                f"the seconds {name} are no multiples of a packet's time: retransmissions are "
                "hidden, as TCP does; packet_time is their mean, with erasure 0"
            )


def reply_limits(seconds: FloatArray, waited: FloatArray, never_waited: FloatArray) -> FloatArray:
    """Return when the server stopped waiting for each reply; ∞ where it waited for ever.

    Where a reply has no such time, it is taken to be the longest of those that never came.
    """
    longest = np.nanmax(np.append(never_waited, 0.0))
    limit = np.where(np.isnan(waited), longest, waited)
    return np.where(seconds <= limit, limit, np.inf)
