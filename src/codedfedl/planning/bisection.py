"""The best whole loads for a given t by bisection: of any delay model, and of links that differ.

Where uplink and downlink differ, a client's expected return divided by μ is, as in
`concave_pieces`,

    F(x) = Σ_{b > x} h_b f_b(x),    f_b(x) = x(1 − exp(−α(b/x − 1))),

where b is what the attempts on both links leave of t, with probability h_b. There may be as many
pieces as pairs of attempts. So loads are bisected, and an interval from x₀ to x₁ is bounded without
its pieces: the terms that are still alive at x₁ are concave on all of it, and lie below their
tangent there; each of the others is at most the peak of f at the largest b that it may have, and at
most α(b − x).
"""

from typing import NamedTuple

import numpy as np

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.fleet.delays import DelayModel, DelayParameters
from codedfedl.fleet.round_time import asymmetric_parts
from codedfedl.fleet.transmissions import LARGEST_ALPHA
from codedfedl.planning.piece_ranges import BestLoads, Search, peak_share

_NEGLIGIBLE_GAIN_SHARE = 1e-9  # of a return, where it would take millions of loads to find it


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
