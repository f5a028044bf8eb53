"""What a client's measurements can separate, and notes on what they cannot."""

import numpy as np

from codedfedl.arrays import FloatArray
from codedfedl.fitting.estimates import Link, Shape, fit_link

__all__ = ["measured_link", "note_hidden", "reply_limits", "shape_of"]

NO_LINK = Link(0.0, 0.0, np.full(2, np.nan), np.full(2, np.nan), hidden=True)


def measured_link(
    seconds: FloatArray | None, retries: FloatArray | None, name: str, notes: list[str]
) -> tuple[FloatArray | float, Link]:
    """Return the seconds on a link, 0 if they were not measured, and the link fitted to them."""
    if seconds is not None:
        return seconds, fit_link(seconds, retries)
    if retries is not None:
        notes.append(f"retries_{name} are not usable without the seconds {name}: measure those too")
    return 0.0, NO_LINK


def shape_of(
    load: FloatArray, computed: bool, points: float, notes: list[str]
) -> tuple[Shape, bool]:
    """Choose the form of the deterministic part, and note what cannot be identified."""
    if len(np.unique(load)) != 1:
        return "line", True
    if computed:
        notes.append(
            "compute was measured at a single load: a fixed part cannot be identified; measure at "
            "two or more loads"
        )
        return "per point", True
    why = "totals at a single load do not separate compute from link and overhead: "
    if points > load[0]:
        notes.append(
            f"{why}all of it is assumed to grow with the load, since more points are planned than "
            "were measured; measure at two or more loads"
        )
        return "per point", False
    notes.append(
        f"{why}the deterministic part is assumed to be overhead, so that no smaller load is "
        "promised to be faster than measured; measure at two or more loads"
    )
    return "fixed", False


def note_hidden(down: Link, up: Link, notes: list[str]) -> None:
    """Note which parts of the link cannot be identified."""
    if down is NO_LINK and up is NO_LINK:
        notes.append(
            "retransmissions are hidden in the times, as with TCP: the link counts as overhead, "
            "with erasure 0; measure the seconds down and up to separate them"
        )
        return
    for name, link in (("down", down), ("up", up)):
        if link is NO_LINK:
            notes.append(f"the seconds {name} were not measured: they count as overhead")
        elif link.hidden:
            notes.append(
                f"the seconds {name} are not multiples of a packet time: retransmissions are "
                "hidden, as with TCP; packet_time is their mean, with erasure 0"
            )


def reply_limits(seconds: FloatArray, waited: FloatArray, never_waited: FloatArray) -> FloatArray:
    """Return when the server stopped waiting for each reply; ∞ where it waited for ever.

    Where a reply has no such time, it is taken to be the longest of those that never came.
    """
    longest = np.nanmax(np.append(never_waited, 0.0))
    limit = np.where(np.isnan(waited), longest, waited)
    return np.where(seconds <= limit, limit, np.inf)
