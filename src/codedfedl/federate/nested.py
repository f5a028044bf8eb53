"""Which sums a node may send, so that no difference of two reveals single points.

Gradients over 100 and over 101 points reveal that of the 101st point. Every answer is a sum over an
interval of a node's points, in their fixed order. Adding and subtracting answers gives the sum
between any two ends that are connected by intervals. So all connected ends must be far apart: by
`least` points, and by a tenth of the points before them.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from codedfedl.errors import InputError
from codedfedl.io.files import durable, make_folder

__all__ = ["Nested"]

_SHARE = 0.1


class Nested:
    """The sums that a node has given in one federation, on its own disk."""

    def __init__(self, folder: Path, least: int) -> None:
        self.path, self.least = folder / "sums.json", least

    def size(self, start: int, wanted: int, *, elastic: bool) -> int:
        """Return how many points from `start` on an answer may cover, and record it.

        Parameters
        ----------
        elastic
            Whether a smaller answer will do: it then covers the points of an earlier one, if
            `wanted` would be too close to that.
        """
        groups = self._groups()
        ends = sorted(end for group in groups if start in group for end in group if end > start)
        for size in [wanted, *[end - start for end in reversed(ends) if elastic]]:
            if size > wanted:
                continue
            joined = {start, start + size}.union(*(g for g in groups if {start, start + size} & g))
            if self._apart(sorted(joined)):
                kept = [group for group in groups if not group & joined]
                self._keep([*kept, joined], groups)
                return size
        near = min((abs(start + wanted - end), end - start) for end in ends)
        raise InputError(
            f"a sum over {wanted} points, after one over {near[1]}, would show the {near[0]} "
            f"points between them: ask for the same points, or for {self._more(near[1])} more or "
            "fewer"
        )

    def _apart(self, ends: Sequence[int]) -> bool:
        first = ends[0]
        return all(b - a >= self._more(a - first) or len(ends) == 2 for a, b in pairwise(ends))

    def _more(self, size: int) -> int:
        return max(self.least, -int(-_SHARE * size // 1))

    def _groups(self) -> list[set[int]]:
        if not self.path.is_file():
            return []
        try:
            return [set(map(int, group)) for group in json.loads(self.path.read_text("utf-8"))]
        except (ValueError, TypeError):
            raise InputError(
                f"{self.path} is damaged, so that this node cannot tell what it gave already: "
                "delete the folder, and begin a new federation"
            ) from None

    def _keep(self, groups: Sequence[set[int]], before: Sequence[set[int]]) -> None:
        if sorted(map(sorted, groups)) != sorted(map(sorted, before)):
            make_folder(self.path.parent)
            with durable(self.path) as file:
                file.write(json.dumps([sorted(group) for group in groups]).encode())
