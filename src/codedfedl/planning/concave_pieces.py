"""The best load for a given t, on all concave pieces of the expected return (section 4).

With x = ℓ̃/μ, the seconds that a load takes at least, and b_ν = t − ντ, a client's expected return
divided by μ is

    F(x) = Σ_{ν: b_ν > x} h_ν f_ν(x),    f_ν(x) = x(1 − exp(−α(b_ν/x − 1))).

It is concave between neighbouring b_ν, where k transmissions fit, and its slope jumps *up* at each
b_ν, so every local maximum lies inside a piece. There may be hundreds of pieces. Since f_ν is
concave in ν too, Jensen's inequality bounds a piece by a single term that has a closed maximum:

    F(x) ≤ P(N ≤ k)·f_ν̄(x),    ν̄ = E[N | N ≤ k].

So ranges of pieces are bounded, split and discarded (`piece_ranges`), and Newton's method runs on
the few that are left: one or two for most clients.
"""

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.fleet.devices import Fleet
from codedfedl.fleet.transmissions import answered_by, transmissions_within
from codedfedl.planning.piece_ranges import BestLoads, Ranges, Search, SymmetricClients


def concave_best_loads(clients: SymmetricClients, t: float, *, whole: bool = True) -> BestLoads:
    """Maximise every client's expected return within t seconds."""
    search = _PieceSearch(clients, t, whole)
    search.run()
    return search.result(clients.availability, clients.alpha * clients.rate)


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
