"""The window and the deadline of gradient training that take the fewest hours.

In a round every client computes for a window of w seconds, and the server waits d seconds for the
answers. A stratum s is a class (or a client), with a share p_s of all points; n_s are its points
in the answers of a round, weighted so that the sum is right on average. With independent points,
the variance of the mean gradient is that of one point times

    V(w, d) = Σ_s p_s² / E[n_s],

and 1/V is the *effective batch*. The number of steps to a given loss grows with it as

    steps = least steps · (1 + B·V)^a,    B = tr(variance of a point's gradient) / ‖gradient‖².

For plain steps, tuned to their noise, a = 1 (the noise scale of McCandlish et al., arXiv
1812.06162). Adam divides by the root of the mean square, signal and noise together, so that a step
of the same size brings 1/√(1 + B·V) as much, a = ½; and what is left of the noise keeps the loss
up, which makes it 0.6 in rounds of the CNN `cnn`. Points whose answers come A rounds late on
average are for older models, and steps must be 1 + A times as short. The hours are proportional to
d·(1 + B·V)^a·(1 + A), which `plan_windows` minimises on a grid. E[n_s] is counted in a *rehearsal*:
rounds of the fleet's delays, with clients that are still busy, and answers that count when they are
late. `NoiseScale` measures B from the sums of a run, where it grows as the loss falls: longer
windows pay later in training.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from codedfedl.arrays import Array, FloatArray, IntArray
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel

__all__ = ["ADAPTIVE_POWER", "NoiseScale", "Rehearsal", "WindowPlan", "plan_windows", "rehearse"]

ROUNDS, LEAST_ROUNDS_PLAYED = 240, 40
"""Rounds of a rehearsal of up to a hundred clients, and of very many."""
WINDOWS_PER_DOUBLING = 2
WINDOW_RANGE = 512.0
"""The longest window that is tried, in shortest ones."""
ADAPTIVE_POWER = 0.6
"""a of Adam and Yogi."""
DECAY = 0.95
"""γ of the running means of gradients."""
LEAST_ROUNDS = 10
"""Rounds before the noise scale is believed."""
MOST_GROWTH = 4.0
LEAST_COUNTED = 1e-3
"""The share of its weight that a stratum is taken to have at least."""
LINK_SHARES = (0.3, 0.5, 0.65, 0.8, 0.9, 0.96, 0.99)
"""Deadlines that are tried: by the share of clients whose link alone is quicker, on average."""


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """What rounds of a window and a deadline bring, on average.

    Attributes
    ----------
    answers, points : arrays of shape (n,)
        Answers of each client that count, and points behind them, a round.
    age
        By how many rounds these points come late, on average.
    """

    window: float
    deadline: float
    answers: FloatArray
    points: FloatArray
    age: float = 0.0


class WindowPlan(NamedTuple):
    """A window and a deadline, and what they are expected to bring.

    Attributes
    ----------
    window, deadline
        Seconds.
    rehearsal
        Answers and points of each client.
    variance
        V.
    noise_scale
        The B that it was planned for.
    power
        a.
    slowdown
        By points whose answers seldom come, or whose weight is capped.
    """

    window: float
    deadline: float
    rehearsal: Rehearsal
    variance: float
    noise_scale: float
    power: float
    slowdown: float = 1.0

    @property
    def cost(self) -> float:
        """Seconds for as much progress as a step without noise makes."""
        steps = self.slowdown * (1 + self.noise_scale * self.variance) ** self.power
        return float(self.deadline * steps * (1 + self.rehearsal.age))


def rehearse(
    fleet: DelayModel,
    held: IntArray,
    settings: Sequence[tuple[float, float]],
    *,
    least: int = 1,
    blocks: IntArray | int = 1,
    oldest: int = 0,
    keeps: bool = True,
    seed: int = 0,
) -> list[Rehearsal]:
    """Play rounds of every window and deadline in `settings`, on the same random delays.

    Parameters
    ----------
    held : array of shape (n,)
        Points of each client.
    least
        A client with fewer points computes on.
    blocks : int, or array of shape (n,)
        Clients answer for a multiple of so many points, and for one at least.
    oldest
        Answers that come so many rounds late still count.
    keeps
        Whether a client that is late finishes first; otherwise it begins anew in every round.
    """
    rounds = _rounds(fleet)
    chances = fleet.draw(rounds, np.random.default_rng(seed))
    size = np.asarray(held, dtype=np.int64)
    made: dict[float, tuple[IntArray, FloatArray]] = {}
    for window in {window for window, _ in settings}:
        finished = np.minimum(fleet.points_within(window, chances), size)
        finished = np.where(finished < size, finished - finished % blocks, size)
        points = np.maximum(finished, np.minimum(np.maximum(least, blocks), size))
        in_time = fleet.seconds(np.zeros(points.shape), chances) + window
        otherwise = (finished < points) | (finished == size)
        made[window] = points, np.where(otherwise, fleet.seconds(points, chances), in_time)
    points = np.stack([made[window][0] for window, _ in settings])
    deadlines = np.array([deadline for _, deadline in settings])[:, None]
    seconds = np.stack([made[window][1] for window, _ in settings])
    with np.errstate(invalid="ignore"):
        rounds_late = np.maximum(np.ceil(seconds / deadlines[:, None] - 1e-9) - 1, 0.0)
    counts = (points > 0) & (rounds_late <= (oldest if keeps else 0))
    busy_until, shape = np.zeros((len(settings), len(size))), (len(settings), len(size))
    answers, covered, aged = np.zeros(shape), np.zeros(shape), np.zeros(len(settings))
    for k in range(rounds):
        idle = busy_until <= k
        late = rounds_late[:, k]
        counted = idle & counts[:, k]
        answers += counted
        covered += np.where(counted, points[:, k], 0)
        aged += np.where(counted, points[:, k] * late, 0).sum(1)
        if keeps:
            busy_until = np.where(idle & np.isfinite(late), k + late + 1, busy_until)
    return [
        Rehearsal(
            window,
            deadline,
            answers[s] / rounds,
            covered[s] / rounds,
            float(aged[s] / max(covered[s].sum(), 1.0)),
        )
        for s, (window, deadline) in enumerate(settings)
    ]


def _rounds(fleet: DelayModel) -> int:
    return max(LEAST_ROUNDS_PLAYED, min(ROUNDS, 100 * ROUNDS // len(fleet)))


def variance(rehearsal: Rehearsal, counts: FloatArray, cap: float) -> tuple[float, float]:
    """Return V, and how many times as many steps are needed for what counts less than its share.

    A stratum that counts a fraction f of its share learns 1/f times as slowly; the slowdown is the
    mean over all points.

    Parameters
    ----------
    counts : array of shape (n, strata)
        Points of each client in each stratum.
    cap
        No point counts more than this many times the average one.
    """
    held = np.maximum(counts.sum(1), 1.0)
    arriving, totals = counts.T @ (rehearsal.points / held), counts.sum(0)
    seen = arriving > 0
    average = totals.sum() / max(arriving.sum(), 1e-300)
    weights = np.minimum(totals[seen] / arriving[seen], cap * average)
    counted = np.zeros(len(totals))
    counted[seen] = weights * arriving[seen]
    slowdown = float((totals**2 / np.maximum(counted, LEAST_COUNTED * totals)).sum())
    spread = float((weights * counted[seen]).sum())
    return spread / totals.sum() ** 2, slowdown / totals.sum()


def plan_windows(
    fleet: DelayModel,
    held: IntArray,
    counts: FloatArray,
    *,
    noise_scale: float,
    power: float = ADAPTIVE_POWER,
    least: int = 1,
    blocks: IntArray | int = 1,
    oldest: int = 0,
    cap: float = np.inf,
    keeps: bool = True,
    window: float | None = None,
    deadline: float | None = None,
) -> WindowPlan:
    """Choose the window and the deadline that take the fewest hours.

    Parameters
    ----------
    held : array of shape (n,)
    counts : array of shape (n, strata)
        Points of each client in each stratum: in each class, or a diagonal for weights by client.
    noise_scale
        B.
    power
        a: of the optimiser.
    window, deadline
        Seconds, where they are given.
    """
    settings = _settings(fleet, held, window, deadline)
    plans = []
    how: dict[str, Any] = {"least": least, "blocks": blocks, "oldest": oldest, "keeps": keeps}
    for played in rehearse(fleet, held, settings, **how):
        if played.points.any():
            noise, slowdown = variance(played, counts, cap)
            about = (played.window, played.deadline, played, noise, noise_scale, power, slowdown)
            plans.append(WindowPlan(*about))
    if not plans:
        raise InputError(
            "no client answers within any window that was tried: give a longer window and deadline"
        )
    return min(plans, key=lambda plan: plan.cost)


def _settings(
    fleet: DelayModel, held: IntArray, window: float | None, deadline: float | None
) -> list[tuple[float, float]]:
    """Return the windows and deadlines that are worth a rehearsal."""
    chances = fleet.draw(_rounds(fleet), np.random.default_rng(1))
    shape = (_rounds(fleet), len(held))
    links = fleet.seconds(np.zeros(shape), chances)
    known = links[np.isfinite(links)]
    if not len(known):
        raise InputError("no client of the fleet ever answers: give another fleet")
    waits = np.unique(np.quantile(known, LINK_SHARES))
    point = fleet.seconds(np.ones(shape), chances) - links
    quickest = max(float(np.nanmin(np.where(np.isfinite(point), point, np.nan))), 1e-9)
    first = max(quickest, float(waits[0]) / 32)
    count = int(np.log2(WINDOW_RANGE)) * WINDOWS_PER_DOUBLING + 1
    windows = [window] if window else (first * np.geomspace(1, WINDOW_RANGE, count)).tolist()
    if deadline is None:
        return [(w, w + wait) for w in windows for wait in waits.tolist()]
    shorter = [(w, deadline) for w in windows if w < deadline]
    return shorter or [(w, deadline) for w in windows[:1]]


@dataclass(frozen=True, eq=False)
class NoiseScale:
    """B, measured from the gradients of a run, which need be no more than sums.

    The noise of two rounds is independent, so ⟨g, g′⟩ is ‖G‖² on average, but for what one step has
    changed; and ‖g‖² is ‖G‖² + V·(variance of one point's gradient).

    Attributes
    ----------
    last
        g′.
    signal, noise
        Running means of ‖G‖², and of the variance of one point's gradient.
    """

    last: Array = None
    signal: float = 0.0
    noise: float = 0.0
    rounds: int = 0

    def updated(self, gradient: Array, variance: float) -> "NoiseScale":
        """Learn from the mean gradient of a round, whose plan expects the variance V."""
        count = self.rounds + 1
        if self.last is None:
            return NoiseScale(gradient, rounds=count)
        square, product = (float((gradient * other).sum()) for other in (gradient, self.last))
        slow = max(1 / (count - 1), 1 - DECAY)
        signal = self.signal + slow * (product - self.signal)
        noise = self.noise + slow * ((square - product) / variance - self.noise)
        return NoiseScale(gradient, signal, noise, count)

    def value(self, before: float) -> float:
        """Return B, at most `MOST_GROWTH` times what it was believed to be."""
        if self.rounds < LEAST_ROUNDS or self.noise <= 0:
            return before
        return float(np.clip(self.noise / max(self.signal, 1e-300), 0, MOST_GROWTH * before))
