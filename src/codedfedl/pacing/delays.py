"""How long nodes take: what was seen of each, and draws of what comes next.

A delay is the seconds from question to answer. Of a node that reports how long it computed, it is
an overhead (link, queue, start) and the seconds of a full pass, which a window may cut short; of
any other node, all of it is overhead. Draws are a node's last delays, each spread by a lognormal
kernel: no form of the distribution is assumed.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, Self

import numpy as np
import numpy.typing as npt

__all__ = ["NextDelays", "NodeTimes", "Times", "draws_of"]

Times = npt.NDArray[np.float64]

REMEMBERED = 32  # Answers of a node that count.
PRIOR_SPREAD = 0.15  # Of the logarithm of a delay, while little was seen.
PRIOR_ANSWERS = 2.0  # The prior weighs as much as so many answers.
GONE = 3.0  # A node that is silent for this many times its longest delay is not planned with.

_KEPT = ("examples", "planned", "part", "counted", "expected", "reach")


@dataclass
class NodeTimes:
    """What was seen of a node.

    Attributes
    ----------
    seen
        Seconds of overhead, and of a full pass, of its last answers; ∞ for an answer that never
        came.
    examples
        The weight of its last answer; None before the first.
    planned, part
        π, and the part of a full pass, by the last plan that it was in.
    counted, expected
        Answers that counted, and that the plans expected to; old ones fade.
    reach
        The length of its last whole update, over the median of that round's; None: not known.
    missed
        Questions that were given up since its last answer.
    """

    seen: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    examples: float | None = None
    planned: float = 1.0
    part: float = 1.0
    counted: float = 0.0
    expected: float = 0.0
    reach: float | None = None
    missed: int = 0

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return what `document` returned."""
        seen = ((inf if first is None else first, full) for first, full in document["seen"])
        kept: dict[str, Any] = {name: document.get(name) for name in _KEPT}
        return cls(deque(seen, maxlen=REMEMBERED), **kept)

    def document(self) -> dict[str, Any]:
        """Return everything but what is missing now, for JSON."""
        seen = [[s if isfinite(s) else None for s in row] for row in self.seen]
        return {"seen": seen} | {name: getattr(self, name) for name in _KEPT}

    @property
    def heard(self) -> bool:
        """Whether it has ever answered."""
        return self.examples is not None

    @property
    def longest(self) -> float:
        """The longest of its delays, for a full pass."""
        return max((sum(row) for row in self.seen if row[0] < inf), default=inf)

    def is_gone(self, silent: float) -> bool:
        """Whether it is silent for much longer than it ever took."""
        return silent > GONE * self.longest

    def rows(self, silent: float = 0.0) -> Times:
        """Return its delays; one that is silent for longer takes twice as long as so far."""
        rows = list(self.seen)
        if silent > self.longest:
            rows.append((2 * silent, 0.0))
        return np.array(rows, dtype=np.float64)


@dataclass(frozen=True)
class NextDelays:
    """Delays of the next rounds, shape (rounds, nodes).

    Attributes
    ----------
    overhead, full
        Seconds beside computing, and of a full pass; 0 where a node reports no computing.
    """

    overhead: Times
    full: Times

    @property
    def total(self) -> Times:
        """Seconds of whole delays."""
        return self.overhead + self.full


def draws_of(rows: Sequence[Times], rounds: int, seed: int = 0) -> NextDelays:
    """Draw delays for each node from its rows of overhead and compute, equally often from each."""
    rng = np.random.default_rng(seed)
    even = (np.arange(rounds) + 0.5) / rounds
    drawn = np.empty((rounds, len(rows), 2))
    for j, its in enumerate(rows):
        chosen = its[(rng.permutation(even) * len(its)).astype(int)]
        drawn[:, j] = chosen * np.exp(_spread(its) * rng.standard_normal((rounds, 2)))
    return NextDelays(drawn[..., 0], drawn[..., 1])


def _spread(rows: Times) -> float:
    """Return the width of the kernel, for the logarithm of a delay."""
    total = rows.sum(axis=1)
    logs = np.log(total[np.isfinite(total)])
    if not len(logs):
        return PRIOR_SPREAD
    robust = 1.4826 * float(np.median(np.abs(logs - np.median(logs))))
    kernel = robust * len(logs) ** -0.2
    prior = PRIOR_ANSWERS * PRIOR_SPREAD**2
    return float(np.sqrt((prior + len(logs) * kernel**2) / (PRIOR_ANSWERS + len(logs))))
