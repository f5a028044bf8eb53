"""Who does how much by when: the two-step optimisation of section 3.3.

Step 1, `best_loads`: for a given t, the load of every client that maximises its expected return
ℓ̃·P(T ≤ t). Step 2, `minimum_deadline`: the smallest t at which the best loads return a wanted
number of points in expectation.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray, Mask
from codedfedl.errors import InputError
from codedfedl.fleet.delays import FOREVER, DelayModel, DelayParameters, points_of
from codedfedl.planning.asymmetric import AsymmetricLinks
from codedfedl.planning.concave_pieces import ConcavePieces

__all__ = ["Allocation", "best_loads", "expected_return", "minimum_deadline"]

DEADLINE_TOLERANCE = 1e-7
"""How far the deadline may lie above the smallest one, relative to it."""

_CLIENTS_PER_CHUNK = 1 << 16  # large enough to hide the interpreter, small enough for the cache
_NEGLIGIBLE_GAIN_SHARE = 1e-9  # of a return, where it would take millions of loads to find it
_MAX_SLOW_STEPS = 4  # Newton steps that need not halve the bracket
_CLIENTS_PER_SAMPLE = 1 << 12  # a sample of this size finds where to begin the search


@dataclass(frozen=True, eq=False)
class Allocation:
    """The best loads for a waiting time t.

    Attributes
    ----------
    t : float, seconds
    loads : array of shape (n,)
        Points per round that each client processes.
    return_probabilities : array of shape (n,)
        P(T_j ≤ t) at those loads; 0 for a client without a load, from whom nothing can come.
    slope : float, points per second
        dE[R]/dt, or 0 if the model does not provide it.
    """

    t: float
    loads: FloatArray
    return_probabilities: FloatArray
    slope: float

    @property
    def expected_return(self) -> float:
        """E[R_U(t)], points per round."""
        return float(self.loads @ self.return_probabilities)


def expected_return(delays: DelayModel, loads: npt.ArrayLike, t: npt.ArrayLike) -> FloatArray:
    """E[R_j(t; ℓ̃)] = ℓ̃·P(T_j ≤ t) of the Theorem, points, shape (…, n)."""
    return np.asarray(loads, dtype=np.float64) * delays.cdf(loads, t)


def best_loads(
    delays: DelayModel, t: float, *, points: npt.ArrayLike | None = None, whole: bool = True
) -> Allocation:
    """Maximise every client's expected return for a given t (eq. 9).

    Parameters
    ----------
    delays
        A `Fleet`, or any other delay model.
    points : array of shape (n,), optional
        Points of each client, the maximum that it can process; by default the model's own.
    whole
        Loads are whole points. False gives the paper's continuous optimum, which only the
        paper's own delay model with symmetric links has.
    """
    return _solver(delays, points_of(delays, points), whole)(t)


def minimum_deadline(
    delays: DelayModel, target: float, *, points: npt.ArrayLike | None = None, whole: bool = True
) -> Allocation:
    """Find the smallest t at which the best loads return `target` points in expectation.

    This is eq. 10 with ε = 0: the return at the deadline is never below the target.

    Parameters
    ----------
    target
        m − u. It must be below the points that return when the server waits for ever.
    delays, points, whole
        As in `best_loads`.
    """
    if not target > 0:
        raise InputError(f"the target is {target:g} points: must be above 0")
    held = points_of(delays, points)
    reachable = _limit(delays, held)
    # The paper's model approaches its limit and never reaches it; measured delays do.
    if target > reachable or (target == reachable and isinstance(delays, DelayParameters)):
        raise InputError(
            f"an expected return of {target:g} points is out of reach: {reachable:g} of "
            f"{held.sum():g} return however long the server waits; raise the redundancy above "
            f"{1 - reachable / held.sum():.4g}, or the availability"
        )
    start = _starting_time(delays, held, target, whole)
    return _smallest(_solver(delays, held, whole), target, start)


def _limit(model: DelayModel, points: FloatArray) -> float:
    """Return the points that come back when the server waits for ever."""
    if isinstance(model, DelayParameters):
        return float(points @ model.availability)
    return float(expected_return(model, points, FOREVER).sum())


def _starting_time(model: DelayModel, points: FloatArray, target: float, whole: bool) -> float:
    """Guess the deadline from a sample of a large fleet, in the units of its time."""
    if len(points) > _CLIENTS_PER_SAMPLE:
        every_sixteenth = slice(None, None, 16)
        sample, held = model.take(every_sixteenth), points[every_sixteenth]
        share = held.sum() / points.sum()
        if _limit(sample, held) > target * share:
            return minimum_deadline(sample, target * share, points=held, whole=whole).t
    return 1.0


def _smallest(solve: Callable[[float], Allocation], target: float, start: float) -> Allocation:
    """Newton's method on E[R(t)] = target, inside a bracket that is halved where Newton is slow.

    With whole loads and a nearly deterministic processor the return climbs in steps: Newton's
    method creeps up their edges, and needs the bracket.
    """
    low, high, t, best = 0.0, np.inf, start, None
    width, patience = np.inf, _MAX_SLOW_STEPS
    while best is None or high - low > DEADLINE_TOLERANCE * high:
        trial = solve(t)
        gap = target - trial.expected_return
        if gap <= 0:
            high, best = t, trial
        else:
            low = t
        step = gap / trial.slope if trial.slope > 0 else np.inf
        # Aim a little past the root, so that the next time closes the bracket's other side.
        aim = t + step + math.copysign(0.4 * DEADLINE_TOLERANCE * t, gap or -1.0)
        patience -= 1
        if high < np.inf and high - low <= width / 2:
            width, patience = high - low, _MAX_SLOW_STEPS
        if patience == 0 or not low < aim < high or abs(step) > 3 * t:
            aim, patience = _between(low, high), _MAX_SLOW_STEPS
        t = aim
    return best


def _between(low: float, high: float) -> float:
    if high == np.inf:
        return max(8 * low, 1.0)
    if low < high / 8:
        return max(high / 8, math.sqrt(low * high))
    return (low + high) / 2


def _solver(model: DelayModel, points: FloatArray, whole: bool) -> Callable[[float], Allocation]:
    """Return t ↦ the best loads, by the fastest method that the model allows."""
    if isinstance(model, DelayParameters):
        symmetric = model.symmetric
        if symmetric.all():
            return _in_chunks(model, points, whole)
        if whole and symmetric.any():
            return _in_two_parts(model, points, symmetric)
        if whole:
            return _of_asymmetric(AsymmetricLinks.of(model, points))
    if not whole:
        raise InputError("continuous loads need symmetric links and the paper's delay model")
    return lambda t: _by_bisection(model, points, t)


def _of_asymmetric(clients: AsymmetricLinks) -> Callable[[float], Allocation]:
    def solve(t: float) -> Allocation:
        loads, probabilities, slopes = clients.best_loads(t)
        return Allocation(t, loads, probabilities, float(slopes.sum()))

    return solve


def _in_two_parts(
    model: DelayModel, points: FloatArray, symmetric: Mask
) -> Callable[[float], Allocation]:
    clients = [np.flatnonzero(part) for part in (symmetric, ~symmetric)]
    parts = [(who, _solver(model.take(who), points[who], True)) for who in clients]

    def solve(t: float) -> Allocation:
        loads, probabilities = np.zeros((2, len(points)))
        slope = 0.0
        for who, solve_part in parts:
            part = solve_part(t)
            loads[who], probabilities[who] = part.loads, part.return_probabilities
            slope += part.slope
        return Allocation(t, loads, probabilities, slope)

    return solve


def _in_chunks(
    fleet: DelayParameters, points: FloatArray, whole: bool
) -> Callable[[float], Allocation]:
    """Solve a large fleet in parts that fit the cache.

    Threads do not help: each array operation is about as short as a change of thread.
    """
    starts = range(0, len(fleet), _CLIENTS_PER_CHUNK)
    parts = [slice(start, start + _CLIENTS_PER_CHUNK) for start in starts]
    chunks = [ConcavePieces.of(fleet.take(part), points[part]) for part in parts]

    def solve(t: float) -> Allocation:
        best = [chunk.best_loads(t, whole=whole) for chunk in chunks]
        loads, probabilities, slopes = (np.concatenate(c) for c in zip(*best, strict=True))
        return Allocation(t, loads, probabilities, float(slopes.sum()))

    return solve


def _by_bisection(model: DelayModel, points: FloatArray, t: float) -> Allocation:
    """Find the best whole loads of any delay model, knowing only that its cdf falls in the load.

    No load in (low, high) returns more than (high − 1)·P(T(low) ≤ t): intervals that cannot beat
    the best load so far are discarded, the others halved.
    """
    who = np.arange(len(points))
    low, high = np.zeros_like(points), points.copy()
    loads, best = np.zeros_like(low), np.zeros_like(low)

    def attempt(who: IntArray, load: FloatArray) -> FloatArray:
        probability = model.take(who).cdf(load, t)
        returned = load * probability
        np.maximum.at(best, who, returned)
        won = returned >= best[who]
        loads[who[won]] = load[won]
        return probability

    attempt(who, high)
    at_low = model.cdf(low, t)
    while len(who):
        promising = (high - 1) * at_low > best[who] * (1 + _NEGLIGIBLE_GAIN_SHARE)
        open_ = (high - low >= 2) & promising
        who, low, high, at_low = who[open_], low[open_], high[open_], at_low[open_]
        middle = np.floor((low + high) / 2)
        at_middle = attempt(who, middle)
        who = np.concatenate([who, who])
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
        at_low = np.concatenate([at_low, at_middle])
    probabilities = np.where(loads > 0, model.cdf(loads, t), 0.0)
    loads = np.where(probabilities > 0, loads, 0.0)
    return Allocation(t, loads, probabilities, 0.0)
