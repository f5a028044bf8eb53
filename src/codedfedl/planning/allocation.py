"""Who does how much by when: the two-step optimisation of section 3.3.

Step 1, `best_loads`: for a given t, the load of every client that maximises its expected return
ℓ̃·P(T ≤ t). Step 2, `minimum_deadline`: the smallest t at which the best loads return a wanted
number of points in expectation.

Most clients have concave pieces (`concave_pieces`). For any other delay model, and for links that
differ, loads are bisected. Where uplink and downlink differ, a client's expected return divided by
μ is, as in `concave_pieces`,

    F(x) = Σ_{b > x} h_b f_b(x),    f_b(x) = x(1 − exp(−α(b/x − 1))),

where b is what the attempts on both links leave of t, with probability h_b. There may be as many
pieces as pairs of attempts. So an interval from x₀ to x₁ is bounded without its pieces: the terms
that are still alive at x₁ are concave on all of it, and lie below their tangent there; each of the
others is at most the peak of f at the largest b that it may have, and at most α(b − x).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel, DelayParameters, points_of
from codedfedl.fleet.round_time import asymmetric_parts
from codedfedl.fleet.transmissions import LARGEST_ALPHA
from codedfedl.planning.concave_pieces import (
    BestLoads,
    Search,
    SymmetricClients,
    concave_best_loads,
    peak_share,
)

_NEGLIGIBLE_GAIN_SHARE = 1e-9  # of a return, where it would take millions of loads to find it

DEADLINE_TOLERANCE = 1e-7
"""How far the deadline may lie above the smallest one, relative to it."""

_CLIENTS_PER_CHUNK = 1 << 16  # large enough to hide the interpreter, small enough for the cache
_MAX_SLOW_STEPS = 4  # Newton steps that need not halve the bracket
_CLIENTS_PER_SAMPLE = 1 << 12  # a sample of this size finds where to begin the search


class _At(NamedTuple):
    """What is known of the expected return at a load, per client."""

    load: FloatArray
    answered: FloatArray  # P(T ≤ t)
    sent: FloatArray  # probability that the links alone would have been in time
    slope: FloatArray  # F'(x) of the terms that are alive there


class Bisection:
    """Clients of any delay model, of which it is only known that its cdf falls in the load.

    No load in (low, high) returns more than (high − 1)·P(T(low) ≤ t): intervals that cannot beat
    the best load so far are discarded, the others halved.
    """

    def __init__(self, model: DelayModel, points: FloatArray) -> None:
        self.model, self.points = model, points

    def best_loads(self, t: float) -> BestLoads:
        """Maximise every client's expected return within t seconds."""
        search = Search(len(self.points))
        most, low = self.limits(t)
        who = np.flatnonzero(most > 0)
        high = self.attempt(search, who, most[who], t)
        # A load of ℓ − 1 or fewer returns at most ℓ − 1. In a plan these are most of the clients.
        open_ = np.flatnonzero(search.best[who] < high.load - 1)
        who, low, high = who[open_], _part(low, who[open_]), _part(high, open_)
        while len(who):
            gain = self.bounds(who, low, high, t) > search.best[who] * (1 + _NEGLIGIBLE_GAIN_SHARE)
            open_ = np.flatnonzero((high.load - low.load >= 2) & gain)
            who, low, high = who[open_], _part(low, open_), _part(high, open_)
            middle = self.attempt(search, who, np.floor((low.load + high.load) / 2), t)
            who = np.concatenate([who, who])
            low, high = _both(low, middle), _both(middle, high)
        return self.result(search)

    def limits(self, t: float) -> tuple[FloatArray, _At]:
        """Return the most points that each client may do in time, and what no load returns."""
        none = np.zeros(len(self.points))
        return self.points, _At(none, self.model.cdf(none, t), none, none)

    def attempt(self, search: Search, who: IntArray, load: FloatArray, t: float) -> _At:
        """Keep the loads where they return more than the best so far."""
        answered, none = self.model.take(who).cdf(load, t), np.zeros(len(who))
        search.keep(who, load, answered, none)
        return _At(load, answered, none, none)

    def bounds(self, who: IntArray, low: _At, high: _At, t: float) -> FloatArray:
        """Bound the return of every whole load between two, both excluded."""
        return (high.load - 1) * low.answered

    def result(self, search: Search) -> BestLoads:
        """Return the best loads."""
        return search.result(1.0, 0.0)


class AsymmetricLinks(Bisection):
    """Clients of the paper's delay model, with any links."""

    model: DelayParameters

    def __init__(self, model: DelayParameters, points: FloatArray) -> None:
        super().__init__(model, points)
        self.alpha = np.minimum(model.alpha, LARGEST_ALPHA)
        self.peak = peak_share(self.alpha)

    def longest(self, t: float) -> FloatArray:
        """Return the most seconds left for computing: after one attempt on each link."""
        links = self.model.packet_time + self.model.packet_time_up
        return t - self.model.overhead - links

    def limits(self, t: float) -> tuple[FloatArray, _At]:
        """Return the most points that each client may do in time, and what no load returns."""
        most = np.ceil(np.maximum(self.longest(t), 0.0) * self.model.rate)
        ones = np.ones(len(self.points))
        return np.minimum(self.points, most), _At(np.zeros(len(ones)), ones, ones, ones)

    def attempt(self, search: Search, who: IntArray, load: FloatArray, t: float) -> _At:
        """Keep the loads where they return more than the best so far."""
        fleet, compute = self.model.take(who), load / self.model.rate[who]
        parts = asymmetric_parts(fleet, t - fleet.overhead, compute)
        search.keep(who, load, parts.answered, parts.late)
        slope = parts.sent - parts.late - self.alpha[who] / compute * parts.moment
        return _At(load, parts.answered, parts.sent, slope)

    def bounds(self, who: IntArray, low: _At, high: _At, t: float) -> FloatArray:
        """Bound the return of every whole load between two, both excluded."""
        alpha = self.alpha[who]
        least = low.load + 1
        returned = high.load * high.answered
        at_least = returned - high.slope * (high.load - least)  # on the tangent
        dying = np.maximum(low.sent - high.sent, 0.0)
        cap = np.minimum(high.load, (self.longest(t) * self.model.rate)[who])
        at = np.clip(self.peak[who] * cap, least, np.maximum(cap, least))
        peak = at * -np.expm1(-alpha * np.maximum(cap / at - 1, 0.0))
        apart = np.maximum(at_least, returned) + dying * peak
        line = np.maximum(at_least + dying * alpha * np.maximum(cap - least, 0.0), returned)
        at_most = super().bounds(who, low, high, t)
        return np.asarray(np.minimum(np.minimum(apart, line), at_most), dtype=np.float64)

    def result(self, search: Search) -> BestLoads:
        """Return the best loads."""
        return search.result(self.model.availability, self.alpha * self.model.rate)


def _part(known: _At, which: IntArray) -> _At:
    return _At(*(column[which] for column in known))


def _both(left: _At, right: _At) -> _At:
    return _At(*(np.concatenate(columns) for columns in zip(left, right, strict=True)))


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
        m − u. It must be below the points that return when the server waits forever.
    delays, points, whole
        As in `best_loads`.
    """
    if not target > 0:
        raise InputError(f"the target is {target:g} points: must be above 0")
    held = points_of(delays, points)
    reachable = float(held @ delays.availability)
    # The paper's model approaches its limit and never reaches it; measured delays do.
    if target > reachable or (target == reachable and delays.parameters is not None):
        raise InputError(
            f"an expected return of {target:g} points is out of reach: {reachable:g} of "
            f"{held.sum():g} return however long the server waits; raise the redundancy above "
            f"{1 - reachable / held.sum():.4g}, or the availability"
        )
    start = _starting_time(delays, held, target, whole)
    return _smallest(_solver(delays, held, whole), target, start)


def _starting_time(model: DelayModel, points: FloatArray, target: float, whole: bool) -> float:
    """Guess the deadline from a sample of a large fleet, in the units of its time."""
    if len(points) > _CLIENTS_PER_SAMPLE:
        every_sixteenth = slice(None, None, 16)
        sample, held = model.take(every_sixteenth), points[every_sixteenth]
        share = held.sum() / points.sum()
        if held @ sample.availability > target * share:
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
    """Return t ↦ the best loads."""
    parts = _parts(model, points, whole)

    def solve(t: float) -> Allocation:
        loads, probabilities, slopes = np.zeros((3, len(points)))
        for who, method in parts:
            loads[who], probabilities[who], slopes[who] = method(t)
        return Allocation(t, loads, probabilities, float(slopes.sum()))

    return solve


def _parts(
    model: DelayModel, points: FloatArray, whole: bool
) -> list[tuple[IntArray, Callable[[float], BestLoads]]]:
    """Return clients, and t ↦ their best loads, by the fastest method that their model allows.

    Many clients with symmetric links are solved in parts that fit the cache. Threads do not help:
    each array operation is about as short as a change of thread.
    """
    everybody, formula = np.arange(len(points)), model.parameters
    if not whole and (formula is None or not formula.symmetric.all()):
        raise InputError("continuous loads need symmetric links and the paper's delay model")
    if formula is None:
        return [(everybody, Bisection(model, points).best_loads)]
    symmetric, others = everybody[formula.symmetric], everybody[~formula.symmetric]
    parts: list[tuple[IntArray, Callable[[float], BestLoads]]] = []
    for start in range(0, len(symmetric), _CLIENTS_PER_CHUNK):
        who = symmetric[start : start + _CLIENTS_PER_CHUNK]
        clients = SymmetricClients.of(formula.take(who), points[who])
        parts.append((who, partial(concave_best_loads, clients, whole=whole)))
    if len(others):
        parts.append((others, AsymmetricLinks(formula.take(others), points[others]).best_loads))
    return parts
