"""Which sums a node may send, so that no difference of two reveals single points.

Gradients over 100 and over 101 points reveal that of the 101st point. Every answer is a sum over an
interval of a node's points, in their fixed order. Adding and subtracting answers gives the sum
between any two ends that are connected by intervals. So all connected ends must be far apart: by
`least` points, and by a tenth of the points before them, or of the longest interval if that is
shorter. The mini-batches of an epoch are such intervals, one after the other.
"""

import json
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path

from codedfedl.errors import InputError
from codedfedl.io.files import durable, make_folder

__all__ = ["Nested"]

_PART = 10  # a tenth


_Interval = tuple[int, int]


class Nested:
    """The sums that a node has given in one federation, on its own disk."""

    def __init__(self, folder: Path, least: int) -> None:
        self.path, self.least = folder / "sums.json", least

    def size(self, start: int, wanted: int, *, elastic: bool) -> int:
        """Return how many points from `start` on an answer may cover, and record it.

        Parameters
        ----------
        elastic
            Whether a smaller answer will do: it then covers the points of earlier ones, if `wanted`
            would be too close to those.
        """
        given, end = self._given(), start + wanted
        reached = _ends(_connected((start, start), given))
        if end in reached:  # the sum is known already, from others
            return wanted
        linked = _connected((start, end), given)
        if self._apart(linked):
            self._keep([*given, (start, end)])
            return wanted
        if elastic and (smaller := [known for known in reached if start < known < end]):
            return max(smaller) - start
        others = _ends(linked) - {start, end}
        near = min((abs(end - other), abs(other - start)) for other in others)
        raise InputError(
            f"a sum over {wanted} points, after one over {near[1]}, would show the {near[0]} "
            f"points between them: ask for the same points, or for {self._more(near[1])} more or "
            "fewer"
        )

    def _apart(self, intervals: Sequence[_Interval]) -> bool:
        ends = sorted(_ends(intervals))
        longest = max(end - start for start, end in intervals)
        first = ends[0]
        return len(ends) == 2 or all(
            b - a >= self._more(min(a - first, longest)) for a, b in pairwise(ends)
        )

    def _more(self, size: int) -> int:
        return max(self.least, -(-size // _PART))

    def _given(self) -> list[_Interval]:
        if not self.path.is_file():
            return []
        try:
            found = json.loads(self.path.read_text("utf-8"))
            return [(int(start), int(end)) for start, end in found]
        except (ValueError, TypeError):
            raise InputError(
                f"{self.path} is damaged, so that this node cannot tell what it gave already: "
                "delete the folder, and begin a new federation"
            ) from None

    def _keep(self, given: Sequence[_Interval]) -> None:
        make_folder(self.path.parent, private=True)
        with durable(self.path) as file:
            file.write(json.dumps(sorted(given)).encode())


def _ends(intervals: Collection[_Interval]) -> set[int]:
    return {end for interval in intervals for end in interval}


def _connected(asked: _Interval, given: Collection[_Interval]) -> list[_Interval]:
    """Return an interval, and all that are connected with it by common ends."""
    found, rest = [asked], set(given)
    while touching := {interval for interval in rest if _ends(found) & set(interval)}:
        found += touching
        rest -= touching
    return found
