"""The best whole loads for a given t where uplink and downlink differ.

As in `concave_pieces`, a client's expected return divided by μ is

    F(x) = Σ_{b > x} h_b f_b(x),    f_b(x) = x(1 − exp(−α(b/x − 1))),

where b is what the attempts on both links leave of t, with probability h_b. There may be as many
pieces as pairs of attempts. So loads are bisected, and an interval from x₀ to x₁ is bounded without
its pieces: the terms that are still alive at x₁ are concave on all of it, and lie below their
tangent there; each of the others is at most the peak of f at the largest b that it may have, and at
most α(b − x).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.fleet.delays import DelayParameters
from codedfedl.fleet.round_time import asymmetric_parts
from codedfedl.fleet.transmissions import LARGEST_ALPHA
from codedfedl.planning.concave_pieces import BestLoads
from codedfedl.planning.piece_ranges import peak_share

__all__ = ["AsymmetricLinks"]

_NEGLIGIBLE_GAIN_SHARE = 1e-9  # of a return, where it would take millions of loads to find it


@dataclass(frozen=True, eq=False)
class AsymmetricLinks:
    """Clients with any links, ready to be solved for any t. Every array has shape (n,)."""

    fleet: DelayParameters
    points: FloatArray
    peak: FloatArray  # peak_share(alpha)

    @classmethod
    def of(cls, fleet: DelayParameters, points: FloatArray) -> "AsymmetricLinks":
        """Compute once what does not depend on t."""
        return cls(fleet, points, peak_share(np.minimum(fleet.alpha, LARGEST_ALPHA)))

    def best_loads(self, t: float) -> BestLoads:
        """Maximise every client's expected return within t seconds."""
        search = _Search(self, t)
        search.run()
        chance = self.fleet.availability * search.answered
        slope = self.fleet.availability * search.alpha * self.fleet.rate * search.late
        asked = chance > 0  # who cannot answer is not asked
        return BestLoads(np.where(asked, search.loads, 0.0), chance, np.where(asked, slope, 0.0))


class _At(NamedTuple):
    """What is known of the expected return at a load, per client."""

    load: FloatArray
    answered: FloatArray  # P(T ≤ t)
    sent: FloatArray  # probability that the links alone would have been in time
    slope: FloatArray  # F'(x) of the terms that are alive there


class _Search:
    """Bisection with bounds, for all clients at once."""

    def __init__(self, clients: AsymmetricLinks, t: float) -> None:
        self.fleet, self.points, self.peak = clients.fleet, clients.points, clients.peak
        self.alpha = np.minimum(self.fleet.alpha, LARGEST_ALPHA)
        self.time = t - self.fleet.overhead
        # The most that is left for computing: one attempt on each link.
        self.longest = self.time - self.fleet.packet_time - self.fleet.packet_time_up
        # The best load so far, its return, P(T ≤ t), and the mass that is late with it.
        self.loads, self.best, self.answered, self.late = np.zeros((4, len(self.points)))

    def run(self) -> None:
        most = np.minimum(self.points, np.ceil(np.maximum(self.longest, 0.0) * self.fleet.rate))
        who = np.flatnonzero(most > 0)
        high = self.attempt(who, most[who])
        # A load of ℓ − 1 or fewer returns at most ℓ − 1. In a plan these are most of the clients.
        open_ = np.flatnonzero(self.best[who] < high.load - 1)
        who, high = who[open_], _part(high, open_)
        ones = np.ones(len(who))
        low = _At(np.zeros(len(who)), ones, ones, ones)
        while len(who):
            gain = self.bounds(who, low, high) > self.best[who] * (1 + _NEGLIGIBLE_GAIN_SHARE)
            open_ = np.flatnonzero((high.load - low.load >= 2) & gain)
            who, low, high = who[open_], _part(low, open_), _part(high, open_)
            middle = self.attempt(who, np.floor((low.load + high.load) / 2))
            who = np.concatenate([who, who])
            low, high = _both(low, middle), _both(middle, high)

    def attempt(self, who: IntArray, load: FloatArray) -> _At:
        """Keep the loads where they return more than the best so far."""
        fleet, alpha = self.fleet.take(who), self.alpha[who]
        compute = load / fleet.rate
        parts = asymmetric_parts(fleet, self.time[who], compute)
        returned = load * parts.answered
        np.maximum.at(self.best, who, returned)
        won = np.flatnonzero(returned >= self.best[who])
        for known, new in ((self.loads, load), (self.answered, parts.answered)):
            known[who[won]] = new[won]
        self.late[who[won]] = parts.late[won]
        slope = parts.sent - parts.late - alpha / compute * parts.moment
        return _At(load, parts.answered, parts.sent, slope)

    def bounds(self, who: IntArray, low: _At, high: _At) -> FloatArray:
        """Bound the return of every whole load between two, both excluded."""
        rate, alpha = self.fleet.rate[who], self.alpha[who]
        least = low.load + 1
        returned = high.load * high.answered
        at_least = returned - high.slope * (high.load - least)  # on the tangent
        dying = np.maximum(low.sent - high.sent, 0.0)
        cap = np.minimum(high.load, self.longest[who] * rate)
        at = np.clip(self.peak[who] * cap, least, np.maximum(cap, least))
        peak = at * -np.expm1(-alpha * np.maximum(cap / at - 1, 0.0))
        apart = np.maximum(at_least, returned) + dying * peak
        line = np.maximum(at_least + dying * alpha * np.maximum(cap - least, 0.0), returned)
        bound = np.minimum(np.minimum(apart, line), (high.load - 1) * low.answered)
        return np.asarray(bound, dtype=np.float64)


def _part(known: _At, which: IntArray) -> _At:
    return _At(*(column[which] for column in known))


def _both(left: _At, right: _At) -> _At:
    return _At(*(np.concatenate(columns) for columns in zip(left, right, strict=True)))
