"""The deadline that makes the most progress per second: the next rounds, played under each.

An answer of node j that counts is weighed by 1/π_j, where π_j is the share of rounds in which one
counts. With equal and orthogonal updates, the worst case of shards that have nothing in common, the
variance of their weighted sum is V = Σp²/π / Σp² − 1 times the square of its mean (p: shares of the
examples). Late answers are A rounds old on average. A round in which nodes do f of a full pass then
makes the progress

    f / (1 + V + A),

as in the rates of asynchronous SGD, whose terms of variance and of age add up. Progress over
seconds is what a deadline maximises, among those that leave out the least of the data. Where
answers are only counted (evaluation), the share of the examples behind them is the progress.

How long nodes take: a delay is the seconds from question to answer. Of a node that reports how long
it computed, it is an overhead (link, queue, start) and the seconds of a full pass, which a window
may cut short; of any other node, all of it is overhead. Draws are a node's last delays, each spread
by a lognormal kernel: no form of the distribution is assumed.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, Self

import numpy as np
import numpy.typing as npt

__all__ = [
    "DeadlineChoice",
    "NextDelays",
    "NodeTimes",
    "Times",
    "choose",
    "draws_of",
    "windows_for",
]

Times = npt.NDArray[np.float64]

REMEMBERED = 32  # Answers of a node that count.
PRIOR_SPREAD = 0.15  # Of the logarithm of a delay, while little was seen.
PRIOR_ANSWERS = 2.0  # The prior weighs as much as so many answers.
GONE = 3.0  # A node that is silent for this many times its longest delay is not planned with.

_KEPT = ("examples", "planned", "part", "counted", "expected", "reach")

CANDIDATES = 24
NEAR_BEST = 0.99  # Of deadlines whose progress is as good as this share of the best, the longest.
SAME_LOSS = 0.01  # Shares of the data left out that differ by less are the same.
LEAST_SHARE = 0.02  # Of a pass: a window is at least so long.


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


@dataclass(frozen=True)
class DeadlineChoice:
    """What a deadline leads to.

    Attributes
    ----------
    deadline
        ∞: wait for all.
    seconds
        Of a round, on average.
    shares : shape (n,)
        π: in which share of rounds an answer of each node counts.
    windows, work : shape (n,)
        Seconds that each may compute (∞: a full pass), and the part of a pass that it does.
    gain
        Progress per second over waiting for all.
    """

    deadline: float
    seconds: float
    shares: Times
    windows: Times
    work: Times
    gain: float


def choose(
    draws: NextDelays,
    weights: Times,
    *,
    drop: bool,
    cap: float,
    unbiased: bool = True,
    deadline: float | None = None,
) -> DeadlineChoice:
    """Return the best deadline, or what comes of a given one.

    Parameters
    ----------
    weights : shape (n,)
        Examples of each node.
    drop
        Whether late answers are lost.
    cap
        The largest 1/π. Where it binds, data of the node are left out in part.
    unbiased
        Whether to leave out as little of the data as any deadline does; otherwise answers are only
        counted.
    """
    tried = np.array([deadline]) if deadline is not None else _candidates(draws)
    tried = np.append(tried, inf)
    windows = np.stack([windows_for(draws, t) for t in tried])
    seconds, shares, ages = _play(draws, tried, windows, drop)
    work = np.minimum(1.0, windows[:, None] / np.maximum(draws.full, 1e-12)).mean(axis=1)
    p = weights / weights.sum()
    left_out = ((1 - np.minimum(1.0, shares * cap)) * p).sum(axis=1)
    variance = (p**2 / np.maximum(shares, 1 / cap)).sum(axis=1) / (p**2).sum() - 1
    progress = work @ p / (1 + variance + ages @ p) if unbiased else shares @ p
    progress = progress / seconds
    allowed = left_out <= left_out.min() + SAME_LOSS if unbiased else np.ones(len(tried), bool)
    good = np.flatnonzero(allowed & (progress >= NEAR_BEST * progress[allowed].max()))
    best = 0 if deadline is not None else min(int(good[-1]), max(len(tried) - 2, 0))
    gain = float(progress[best] / progress[-1])
    return DeadlineChoice(
        float(tried[best]), float(seconds[best]), shares[best], windows[best], work[best], gain
    )


def windows_for(draws: NextDelays, deadline: float) -> Times:
    """Return the seconds that nodes should compute so that most of their work is back in time.

    Each maximises the part of a pass that it does, times the probability of being back; nodes that
    do a full pass in time anyway, or do not report their computing, have no window (∞).
    """
    if deadline == inf:
        return np.full(draws.full.shape[1], inf)
    overhead = np.sort(draws.overhead, axis=0)
    back = (np.arange(len(overhead)) + 0.5) / len(overhead)
    full = draws.full.sum(axis=0) / np.maximum((draws.full > 0).sum(axis=0), 1)
    least = LEAST_SHARE * full
    tried = np.maximum(deadline - overhead, least)  # (rounds, n)
    done = np.minimum(1.0, tried / np.maximum(full, 1e-12)) * back[:, None]
    best = np.take_along_axis(tried, done.argmax(axis=0)[None], axis=0)[0]
    free = (full <= 0) | (best >= draws.full.max(axis=0))
    return np.where(free, inf, best)


def _candidates(draws: NextDelays) -> Times:
    known = draws.total[np.isfinite(draws.total)]
    if not len(known):
        return np.empty(0)
    least = np.median(draws.overhead, axis=0).min()  # whoever computes has a window beside it
    most = max(float(known.max()), 1e-6)
    return np.geomspace(max(min(float(least), most), 1e-6), 1.01 * most, CANDIDATES)


def _play(
    draws: NextDelays, deadlines: Times, windows: Times, drop: bool
) -> tuple[Times, Times, Times]:
    """Play rounds under each deadline; return seconds, shares of rounds, and ages of answers."""
    shape = (len(deadlines), draws.full.shape[1])
    clock = np.zeros((len(deadlines), 1))
    back, asked = np.zeros(shape), np.zeros(shape)
    counted, ages = np.zeros(shape), np.zeros(shape)
    for k, (overhead, full) in enumerate(zip(draws.overhead, draws.full, strict=True)):
        idle = back <= clock
        takes = overhead + np.minimum(full, windows)
        lost = ~np.isfinite(takes)
        back, asked = np.where(idle, clock + takes, back), np.where(idle, k, asked)
        waited = np.where(idle, takes, 0.0).max(axis=1)
        soonest = np.where(idle, inf, back).min(axis=1) - clock[:, 0]
        length = np.minimum(deadlines, np.where(idle.any(axis=1), waited, soonest))
        length = np.where(np.isfinite(length), length, _longest(takes))[:, None]
        end = clock + length
        now: npt.NDArray[np.bool_] = (back > clock) & (back <= end * (1 + 1e-12))
        counted += now
        ages += now * (k - asked)
        back = np.where(drop | (idle & lost), 0.0, back)
        clock = end
    rounds = len(draws.full)
    seconds = np.maximum(clock[:, 0] / rounds, 1e-9)
    return seconds, counted / rounds, ages / np.maximum(counted, 1)


def _longest(takes: Times) -> Times:
    """Return the longest time that is finite, for whoever waits for all."""
    return np.asarray(np.where(np.isfinite(takes), takes, 0.0).max(axis=1))
