"""The best load for a given t, on all concave pieces of the expected return (section 4).

With x = ℓ̃/μ, the seconds that a load takes at least, and b_ν = t − ντ, a client's expected return
divided by μ is

    F(x) = Σ_{ν: b_ν > x} h_ν f_ν(x),    f_ν(x) = x(1 − exp(−α(b_ν/x − 1))).

It is concave between neighbouring b_ν, where k transmissions fit, and its slope jumps *up* at each
b_ν, so every local maximum lies inside a piece. There may be hundreds of pieces. Since f_ν is
concave in ν too, Jensen's inequality bounds a piece by a single term that has a closed maximum:

    F(x) ≤ P(N ≤ k)·f_ν̄(x),    ν̄ = E[N | N ≤ k].

So ranges of pieces are bounded, split and discarded, and Newton's method runs on the few that are
left: one or two for most clients.
"""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from codedfedl._types import FloatArray, IntArray
from codedfedl.fleet.devices import DelayParameters, Fleet
from codedfedl.fleet.transmissions import (
    LARGEST_ALPHA,
    answered_by,
    arrived_by,
    late_mass_derivatives,
    mean_transmissions,
    transmissions_within,
    useful_transmissions,
)

__all__ = ["BestLoads", "ConcavePieces", "peak_share", "piece_peaks"]

_TINY = 1e-300
_NEWTON_STEPS = 60
_NEWTON_TOLERANCE = 1e-5  # of the last step; the error left is its square


class BestLoads(NamedTuple):
    """Per client: the best load, the probability of its return, and dE[R]/dt."""

    loads: FloatArray
    return_probabilities: FloatArray
    slopes: FloatArray


def peak_share(alpha: FloatArray) -> FloatArray:
    """Return ℓ*(t, ν)/(μ(t − ντ)), the closed maximum of f_ν (eq. 14), for any α.

    The paper writes it −α/(W₋₁(−e^−(1+α)) + 1). With v = −W₋₁ − 1 that is α/v where
    v − log(1 + v) = α, which Newton's method solves without under- or overflow.
    """
    v = alpha + np.sqrt(2 * alpha)  # above the root, and the function is convex
    for _ in range(_NEWTON_STEPS):
        step = (v - np.log1p(v) - alpha) * (1 + v) / v
        v -= step
        if (np.abs(step) <= 1e-9 * v).all():  # the error left is its square
            break
    return alpha / v


@dataclass(frozen=True)
class ConcavePieces:
    """Symmetric clients, ready to be solved for any t. Every array has shape (n,)."""

    points: FloatArray
    rate: FloatArray
    alpha: FloatArray
    packet_time: FloatArray
    erasure: FloatArray
    overhead: FloatArray
    availability: FloatArray
    cap: FloatArray  # seconds that all points take at least
    last: FloatArray  # the ν beyond which the tail is negligible
    peak: FloatArray  # peak_share(alpha)

    @classmethod
    def of(cls, fleet: DelayParameters, points: FloatArray) -> Self:
        """Compute once what does not depend on t."""
        erasure = np.where(fleet.packet_time > 0, fleet.erasure, 0.0)
        alpha = np.minimum(fleet.alpha, LARGEST_ALPHA)
        return cls(
            points,
            fleet.rate,
            alpha,
            fleet.packet_time,
            erasure,
            fleet.overhead,
            fleet.availability,
            points / fleet.rate,
            useful_transmissions(erasure),
            peak_share(alpha),
        )

    def take(self, clients: IntArray | slice) -> Self:
        """Return some of the clients."""
        return type(self)(*(getattr(self, column.name)[clients] for column in fields(self)))

    def best_loads(self, t: float, *, whole: bool = True) -> BestLoads:
        """Maximise every client's expected return within t seconds."""
        search = _Search(self, t, whole)
        search.run()
        chance = self.availability * search.answered
        slope = self.availability * self.alpha * self.rate * search.late
        asked = chance > 0  # who cannot answer is not asked
        return BestLoads(np.where(asked, search.loads, 0.0), chance, np.where(asked, slope, 0.0))


@dataclass(frozen=True)
class _Ranges:
    """Ranges of neighbouring pieces, `first` to `final` transmissions, of the clients `who`."""

    clients: ConcavePieces
    who: IntArray
    time: FloatArray
    last: FloatArray
    first: FloatArray
    final: FloatArray

    def take(self, which: IntArray) -> "_Ranges":
        return _Ranges(
            self.clients.take(which),
            self.who[which],
            self.time[which],
            self.last[which],
            self.first[which],
            self.final[which],
        )

    def where(self, condition: npt.NDArray[np.bool_]) -> "_Ranges":
        return self.take(np.flatnonzero(condition))

    def interval(self) -> tuple[FloatArray, FloatArray]:
        """Seconds of compute with which at least `first` and at most `final` transmissions fit."""
        c = self.clients
        low = np.where(self.final < self.last, self.time - (self.final + 1) * c.packet_time, 0.0)
        return low, np.minimum(self.time - self.first * c.packet_time, c.cap)

    def bounds(self) -> tuple[FloatArray, FloatArray]:
        """Bound the expected return by Jensen's inequality, and say at which x it would be."""
        c = self.clients
        low, high = self.interval()
        mean = self.time - mean_transmissions(c.erasure, self.first) * c.packet_time
        x = np.maximum(np.minimum(c.peak * mean, high), low)
        f = x * -np.expm1(-c.alpha * np.maximum(mean / x - 1, 0.0))
        reached = arrived_by(c.erasure, self.final) * c.rate * f
        return np.where(low < high, reached, 0.0), x

    def peaks(self, start: FloatArray) -> FloatArray:
        """Find the x of the largest expected return, on ranges of a single piece.

        Newton's method for F'(x) = P(N ≤ k) − E(r) = 0 with r = 1/x and E = A − rA', on log E,
        which is nearly linear: three or four steps from Jensen's guess.
        """
        x = np.empty_like(start)
        todo, left, at = self, np.arange(len(x)), start
        low, high = self.interval()
        # Every term rises up to its own peak, and the last one's is the first.
        c = self.clients
        first_peak = c.peak * (self.time - self.final * c.packet_time)
        low = np.minimum(np.maximum(low, first_peak), high)
        for _ in range(_NEWTON_STEPS):
            new = np.clip(todo.newton_step(at, high), low, high)
            x[left] = new
            moving = np.flatnonzero(np.abs(new - at) > _NEWTON_TOLERANCE * new)
            if not len(moving):
                break
            at = new
            if len(moving) < len(new) / 2:  # dropping the others costs as much as half a step
                todo, left, at = todo.take(moving), left[moving], at[moving]
                low, high = low[moving], high[moving]
        return x

    def newton_step(self, x: FloatArray, highest: FloatArray) -> FloatArray:
        c, r = self.clients, 1 / x
        late, slope, curvature = late_mass_derivatives(
            self.time, self.final, r, c.alpha, c.packet_time, c.erasure
        )
        missed = np.maximum(late - r * slope, _TINY)  # 0 far left of the peak
        excess = np.log(missed / arrived_by(c.erasure, self.final))
        step = missed * excess / np.maximum(r * curvature, _TINY)
        return 1 / np.maximum(r + step, 1 / highest)

    def halves(self) -> "_Ranges":
        middle = np.floor((self.first + self.final) / 2)
        twice = self.take(np.tile(np.arange(len(self.who)), 2))
        return replace(
            twice,
            first=np.concatenate([self.first, middle + 1]),
            final=np.concatenate([middle, self.final]),
        )


class _Search:
    """Branch and bound over the ranges of pieces, for all clients at once."""

    def __init__(self, clients: ConcavePieces, t: float, whole: bool) -> None:
        self.clients, self.whole = clients, whole
        self.time = t - clients.overhead
        fit = transmissions_within(self.time, clients.packet_time)
        self.last = np.where(clients.points > 0, np.minimum(fit, clients.last), 0.0)
        # The best load so far, its return, P(T ≤ t) and A(r).
        self.loads, self.best, self.answered, self.late = np.zeros((4, len(clients.points)))

    def run(self) -> None:
        if self.whole:
            self.settle_full_loads()
        for start in (self.lowest_pieces(), self.other_pieces()):
            ranges = start
            bounds, x = ranges.bounds()
            self.attempt(ranges, ranges.clients.rate * x)  # a good load soon discards many ranges
            while len(ranges.who):
                if self.whole:
                    ranges, bounds, x = self.without_few_loads(ranges, bounds, x)
                self.solve(ranges, bounds, x)
                several = ranges.first < ranges.final
                ranges = ranges.where(several & self.promising(ranges, bounds)).halves()
                bounds, x = ranges.bounds()

    def settle_full_loads(self) -> None:
        """Give all points to clients that return them so surely that one point less returns less.

        A load of ℓ − 1 or fewer returns at most ℓ − 1. In a plan these are most of the clients.
        """
        points, answering = self.clients.points, self.lowest_pieces()
        self.attempt(answering, answering.clients.points)
        settled = self.best >= points - 1
        self.last = np.where(settled, 0.0, self.last)

    def ranges(self, who: IntArray, first: FloatArray, final: FloatArray) -> _Ranges:
        clients, time, last = self.clients, self.time, self.last
        if len(who) < len(self.last):
            clients, time, last = clients.take(who), time[who], last[who]
        return _Ranges(clients, who, time, last, first, final)

    def lowest_pieces(self) -> _Ranges:
        """Return the piece of the smallest loads, of every client that can answer at all."""
        who = np.flatnonzero(self.last >= 2)
        return self.ranges(who, self.last[who], self.last[who])

    def other_pieces(self) -> _Ranges:
        """Return all other pieces as one range, where there are any below the cap."""
        c = self.clients
        who = np.flatnonzero((self.last >= 3) & (self.time - self.last * c.packet_time < c.cap))
        last = self.last[who]
        return self.ranges(who, np.full_like(last, 2.0), last - 1)

    def without_few_loads(
        self, ranges: _Ranges, bounds: FloatArray, x: FloatArray
    ) -> tuple[_Ranges, FloatArray, FloatArray]:
        """Try the loads of ranges with no more than two whole ones, and return the other ranges.

        Where packets are short, a whole load has many pieces, and most pieces no whole load.
        """
        open_ = np.flatnonzero(self.promising(ranges, bounds))
        ranges, bounds, x = ranges.take(open_), bounds[open_], x[open_]
        low, high = ranges.interval()
        rate = ranges.clients.rate
        lowest, highest = np.ceil(low * rate), np.floor(high * rate)
        for loads, missing in ((highest, 0), (lowest, 1)):
            these = np.flatnonzero((highest - lowest <= 1) & (highest - lowest >= missing))
            self.attempt(ranges.take(these), loads[these])
        many = np.flatnonzero(highest - lowest > 1)
        return ranges.take(many), bounds[many], x[many]

    def solve(self, ranges: _Ranges, bounds: FloatArray, x: FloatArray) -> None:
        """Find the best load on every single piece that may hold it."""
        chosen = np.flatnonzero((ranges.first == ranges.final) & self.promising(ranges, bounds))
        pieces = ranges.take(chosen)
        loads = pieces.clients.rate * pieces.peaks(x[chosen])
        self.attempt(pieces, loads)
        if self.whole:
            above = np.flatnonzero(loads < pieces.clients.points)
            self.attempt(pieces.take(above), loads[above] + 1)

    def promising(self, ranges: _Ranges, bounds: FloatArray) -> npt.NDArray[np.bool_]:
        return bounds > self.best[ranges.who] * (1 + 1e-12)

    def attempt(self, ranges: _Ranges, loads: FloatArray) -> None:
        """Keep the loads, whole ones rounded down, where they return more than the best so far."""
        if self.whole:
            loads = np.clip(np.floor(loads), 1.0, ranges.clients.points)
        c = ranges.clients
        answered, late = answered_by(
            ranges.time, loads / c.rate, c.last, c.alpha, c.packet_time, c.erasure
        )
        returned = loads * answered
        np.maximum.at(self.best, ranges.who, returned)
        won = np.flatnonzero(returned >= self.best[ranges.who])
        who = ranges.who[won]
        self.loads[who], self.answered[who], self.late[who] = loads[won], answered[won], late[won]


def piece_peaks(fleet: Fleet, t: float) -> FloatArray:
    """Return the loads at which each concave piece of one client's expected return is largest.

    Parameters
    ----------
    fleet
        A single client with a symmetric link.
    """
    client = ConcavePieces.of(fleet, fleet.points)
    last = int(_Search(client, t, whole=False).last[0])
    pieces = np.arange(2.0, last + 1)
    who = np.zeros(len(pieces), dtype=np.int64)
    time = (t - client.overhead)[who]
    ranges = _Ranges(client.take(who), who, time, np.full_like(time, last), pieces, pieces)
    low, high = ranges.interval()
    ranges = ranges.where(low < high)
    return ranges.clients.rate * ranges.peaks(ranges.bounds()[1])
