"""The best load for a given t, on all concave pieces of the expected return (section 4).

With x = ℓ̃/μ, the seconds that a load takes at least, and b_ν = t − ντ, a client's expected return
divided by μ is

    F(x) = Σ_{ν: b_ν > x} h_ν f_ν(x),    f_ν(x) = x(1 − exp(−α(b_ν/x − 1))).

It is concave between neighbouring b_ν, where k transmissions fit, and its slope jumps *up* at each
b_ν, so every local maximum lies inside a piece. There may be hundreds of pieces. Since f_ν is
concave in ν too, Jensen's inequality bounds a piece by a single term that has a closed maximum:

    F(x) ≤ P(N ≤ k)·f_ν̄(x),    ν̄ = E[N | N ≤ k].

So ranges of pieces are bounded, split and discarded, and Newton's method runs on the few that are
left: one or two for most clients. A range is bounded twice, and the smaller bound counts. Jensen's
needs one exponential, and is loose where many terms differ. The *tangent's* takes apart the terms
that are alive on all of the range, whose sum is concave and lies below its tangent, and those that
die within it: since 1 − e^−y ≤ y, a term that ends at b is at most α(b − x), so they add no more
than a line either.
"""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.fleet.delays import DelayParameters
from codedfedl.fleet.devices import Fleet
from codedfedl.fleet.transmissions import (
    SymmetricLinks,
    answered_by,
    arrived_by,
    late_mass_derivatives,
    mean_transmissions,
    transmissions_within,
)

_TINY = 1e-300
_NEAR_PARTS = 16  # the pieces near the best one are two of so many parts of a range
_NEWTON_STEPS = 60
_NEWTON_TOLERANCE = 1e-5  # of the last step; the error left is its square


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


class BestLoads(NamedTuple):
    """Per client: the best load, the probability of its return, and dE[R]/dt."""

    loads: FloatArray
    return_probabilities: FloatArray
    slopes: FloatArray


class Search:
    """The best load of every client so far: its return, P(T ≤ t), and the mass that is late."""

    def __init__(self, clients: int) -> None:
        self.loads, self.best, self.answered, self.late = np.zeros((4, clients))

    def keep(
        self, who: IntArray, loads: FloatArray, answered: FloatArray, late: FloatArray
    ) -> None:
        """Keep the loads where they return more than the best so far."""
        returned = loads * answered
        np.maximum.at(self.best, who, returned)
        won = np.flatnonzero(returned >= self.best[who])
        who = who[won]
        self.loads[who], self.answered[who], self.late[who] = loads[won], answered[won], late[won]

    def result(self, availability: FloatArray | float, rate: FloatArray | float) -> BestLoads:
        """Return the best loads; `rate` is αμ, by which a return grows with its late mass."""
        chance = availability * self.answered
        asked = (self.loads > 0) & (chance > 0)  # who cannot answer is not asked
        columns = (self.loads, chance, availability * rate * self.late)
        return BestLoads(*(np.where(asked, column, 0.0) for column in columns))


@dataclass(frozen=True)
class SymmetricClients(SymmetricLinks):
    """Clients whose links are the same both ways. Every array has shape (n,)."""

    points: FloatArray
    rate: FloatArray
    overhead: FloatArray
    availability: FloatArray
    cap: FloatArray  # seconds that all points take at least
    peak: FloatArray  # peak_share(alpha)

    @classmethod
    def of(cls, fleet: DelayParameters, points: FloatArray) -> Self:
        """Compute once what does not depend on t."""
        columns = SymmetricLinks.columns(fleet) | {"points": points, "cap": points / fleet.rate}
        kept = {name: getattr(fleet, name) for name in ("rate", "overhead", "availability")}
        return cls(**columns, **kept, peak=peak_share(columns["alpha"]))

    def take(self, clients: IntArray | slice) -> Self:
        """Return some of the clients."""
        return type(self)(*(getattr(self, column.name)[clients] for column in fields(self)))


@dataclass(frozen=True)
class Ranges:
    """Ranges of neighbouring pieces, `first` to `final` transmissions, of the clients `who`."""

    clients: SymmetricClients
    who: IntArray
    time: FloatArray
    last: FloatArray
    first: FloatArray
    final: FloatArray

    def take(self, which: IntArray) -> "Ranges":
        """Return some of the ranges."""
        first, final = self.first[which], self.final[which]
        time, last = self.time[which], self.last[which]
        return Ranges(self.clients.take(which), self.who[which], time, last, first, final)

    def where(self, condition: npt.NDArray[np.bool_]) -> "Ranges":
        """Return the ranges for which a condition holds."""
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

    def tangent_bounds(self, x: FloatArray) -> FloatArray:
        """Bound the expected return by the tangent at x of the terms alive on all of the range."""
        c, r = self.clients, 1 / x
        low, high = self.interval()
        late, slope, _ = late_mass_derivatives(c, self.time, self.first, r)
        alive = arrived_by(c.erasure, self.first)
        at_x, rise = x * np.maximum(alive - late, 0.0), alive - late + r * slope
        # The terms that end within the range, at b and before.
        dying = np.maximum(arrived_by(c.erasure, self.final) - alive, 0.0)
        b = self.time - (self.first + 1) * c.packet_time
        ends = [
            rise * (end - x) + dying * c.alpha * np.maximum(b - end, 0.0) for end in (low, high)
        ]
        return np.asarray(c.rate * (at_x + np.maximum(*ends)), dtype=np.float64)

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
        """Return the next x, in single pieces."""
        c, r = self.clients, 1 / x
        late, slope, curvature = late_mass_derivatives(c, self.time, self.final, r)
        missed = np.maximum(late - r * slope, _TINY)  # 0 far left of the peak
        excess = np.log(missed / arrived_by(c.erasure, self.final))
        step = missed * excess / np.maximum(r * curvature, _TINY)
        return 1 / np.maximum(r + step, 1 / highest)

    def parts(self, best: FloatArray) -> "Ranges":
        """Split each range into the pieces near the `best` one so far, those before and after.

        A range without it is cut into thirds.
        """
        inside = (self.first <= best) & (best <= self.final)
        centre = np.where(inside, best, np.floor((self.first + self.final) / 2))
        width = np.floor((self.final - self.first) / np.where(inside, _NEAR_PARTS, 6))
        low = np.maximum(centre - width, self.first)
        high = np.minimum(centre + width, self.final)
        thrice = self.take(np.tile(np.arange(len(self.who)), 3))
        first = np.concatenate([self.first, low, high + 1])
        final = np.concatenate([low - 1, high, self.final])
        return replace(thrice, first=first, final=final).where(first <= final)


_SURE = 1e200  # an α with which nothing is random any more


def concave_best_loads(clients: SymmetricClients, t: float, *, whole: bool = True) -> BestLoads:
    """Maximise every client's expected return within t seconds."""
    search = _PieceSearch(clients, t, whole)
    search.run()
    alpha = np.minimum(clients.alpha, _SURE)
    return search.result(clients.availability, alpha * clients.rate)


class _PieceSearch(Search):
    """Branch and bound over the ranges of pieces, for all clients at once."""

    def __init__(self, clients: SymmetricClients, t: float, whole: bool) -> None:
        super().__init__(len(clients.points))
        self.clients, self.whole = clients, whole
        self.time = t - clients.overhead
        fit = transmissions_within(self.time, clients.packet_time)
        self.last = np.where(clients.points > 0, np.minimum(fit, clients.last), 0.0)

    def run(self) -> None:
        if self.whole:
            self.settle_full_loads()
        for start in (self.lowest_pieces(), self.other_pieces()):
            ranges, bounds, x = start, *start.bounds()
            self.attempt(ranges, ranges.clients.rate * x)  # a good load soon discards many ranges
            while len(ranges.who):
                ranges, x = self.without_hopeless(ranges, bounds, x)
                single = ranges.first == ranges.final
                self.solve(ranges.where(single), x[single])
                several = np.flatnonzero(~single)
                ranges, x = ranges.take(several), x[several]
                self.attempt(ranges, ranges.clients.rate * x)
                ranges = ranges.parts(self.best_piece(ranges))
                bounds, x = ranges.bounds()

    def settle_full_loads(self) -> None:
        """Give all points to clients that return them so surely that one point less returns less.

        A load of ℓ − 1 or fewer returns at most ℓ − 1. In a plan these are most of the clients.
        """
        points, answering = self.clients.points, self.lowest_pieces()
        self.attempt(answering, answering.clients.points)
        settled = self.best >= points - 1
        self.last = np.where(settled, 0.0, self.last)

    def ranges(self, who: IntArray, first: FloatArray, final: FloatArray) -> Ranges:
        clients, time, last = self.clients, self.time, self.last
        if len(who) < len(self.last):
            clients, time, last = clients.take(who), time[who], last[who]
        return Ranges(clients, who, time, last, first, final)

    def lowest_pieces(self) -> Ranges:
        """Return the piece of the smallest loads, of every client that can answer at all."""
        who = np.flatnonzero(self.last >= 2)
        return self.ranges(who, self.last[who], self.last[who])

    def other_pieces(self) -> Ranges:
        """Return all other pieces as one range, where there are any below the cap."""
        c = self.clients
        who = np.flatnonzero((self.last >= 3) & (self.time - self.last * c.packet_time < c.cap))
        last = self.last[who]
        at_cap = transmissions_within(self.time[who] - c.cap[who], c.packet_time[who])
        return self.ranges(who, np.clip(at_cap, 2.0, last - 1), last - 1)

    def without_hopeless(
        self, ranges: Ranges, bounds: FloatArray, x: FloatArray
    ) -> tuple[Ranges, FloatArray]:
        """Return the ranges, and x in them, that may hold a better load, by both bounds."""
        open_ = np.flatnonzero(self.promising(ranges, bounds))
        ranges, x = ranges.take(open_), x[open_]
        if self.whole:
            ranges, x = self.without_few_loads(ranges, x)
        open_ = np.flatnonzero(self.promising(ranges, ranges.tangent_bounds(x)))
        return ranges.take(open_), x[open_]

    def without_few_loads(self, ranges: Ranges, x: FloatArray) -> tuple[Ranges, FloatArray]:
        """Try the loads of ranges with no more than two whole ones, and return the other ranges.

        Where packets are short, a whole load has many pieces, and most pieces no whole load.
        """
        low, high = ranges.interval()
        rate = ranges.clients.rate
        lowest, highest = np.ceil(low * rate), np.floor(high * rate)
        for loads, missing in ((highest, 0), (lowest, 1)):
            these = np.flatnonzero((highest - lowest <= 1) & (highest - lowest >= missing))
            self.attempt(ranges.take(these), loads[these])
        many = np.flatnonzero(highest - lowest > 1)
        return ranges.take(many), x[many]

    def solve(self, pieces: Ranges, x: FloatArray) -> None:
        """Find the best load on single pieces, from a guess of the seconds that it takes."""
        loads = pieces.clients.rate * pieces.peaks(x)
        self.attempt(pieces, loads)
        if self.whole:
            above = np.flatnonzero(loads < pieces.clients.points)
            self.attempt(pieces.take(above), loads[above] + 1)

    def best_piece(self, ranges: Ranges) -> FloatArray:
        """Return the number of transmissions that fit beside the best load so far."""
        c = ranges.clients
        return transmissions_within(ranges.time - self.loads[ranges.who] / c.rate, c.packet_time)

    def promising(self, ranges: Ranges, bounds: FloatArray) -> npt.NDArray[np.bool_]:
        return bounds > self.best[ranges.who] * (1 + 1e-12)

    def attempt(self, ranges: Ranges, loads: FloatArray) -> None:
        """Keep the loads, whole ones rounded down, where they return more than the best so far."""
        if self.whole:
            loads = np.clip(np.floor(loads), 1.0, ranges.clients.points)
        c = ranges.clients
        answered, late = answered_by(c, ranges.time, loads / c.rate)
        self.keep(ranges.who, loads, answered, late)


def piece_peaks(fleet: Fleet, t: float) -> FloatArray:
    """Return the loads at which each concave piece of one client's expected return is largest.

    Parameters
    ----------
    fleet
        A single client with a symmetric link.
    """
    client = SymmetricClients.of(fleet, fleet.points)
    last = int(_PieceSearch(client, t, whole=False).last[0])
    pieces = np.arange(2.0, last + 1)
    who = np.zeros(len(pieces), dtype=np.int64)
    time = (t - client.overhead)[who]
    ranges = Ranges(client.take(who), who, time, np.full_like(time, last), pieces, pieces)
    low, high = ranges.interval()
    ranges = ranges.where(low < high)
    return ranges.clients.rate * ranges.peaks(ranges.bounds()[1])
