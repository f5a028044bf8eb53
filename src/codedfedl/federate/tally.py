"""What is known of an exchange while it is under way."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import Array, IntArray
from codedfedl.core.protocol import Reply
from codedfedl.core.record import ARRIVED, DROPPED, LATE, NOT_ASKED, REFUSED, Record
from codedfedl.core.work import Work
from codedfedl.federate.evidence import Measured
from codedfedl.federate.transport import Arrival
from codedfedl.fitting.drift import Timings

__all__ = ["Pending", "Taken", "Tally"]


@dataclass(frozen=True, eq=False)
class Pending:
    """A question that is not answered yet, and the model that it is about."""

    client: int
    round: int
    model: Array | None
    work: Work
    load: int
    asked: float


@dataclass(frozen=True, eq=False)
class Taken:
    """An answer in the right form, and the arrival that brought it in time."""

    reply: Reply
    measured: Measured | None
    arrival: Arrival | None = None


@dataclass
class Tally:
    """What is known of an exchange while it is under way."""

    began: float
    loads: npt.NDArray[np.int64]
    when: npt.NDArray[np.float64]
    compute: npt.NDArray[np.float64]
    outcome: npt.NDArray[np.int8]
    refusals: list[tuple[int, str]]
    distances: npt.NDArray[np.float64]
    problems: dict[int, str] = field(default_factory=dict)
    suspects: tuple[int, ...] = ()
    busy: tuple[int, ...] = ()
    late_answers: list[tuple[int, float]] = field(default_factory=list)

    @classmethod
    def start(cls, loads: npt.NDArray[np.int64], began: float) -> "Tally":
        """Begin: whoever is asked for points is late until it answers."""
        n = len(loads)
        outcome = np.where(loads > 0, LATE, NOT_ASKED).astype(np.int8)
        return cls(
            began,
            loads,
            np.full(n, np.inf),
            np.full(n, np.nan),
            outcome,
            [],
            np.full((2, n), np.nan),
        )

    def arrived(self, arrival: Arrival) -> None:
        """Note an answer that counts."""
        self.outcome[arrival.client] = ARRIVED
        self.when[arrival.client] = arrival.when - self.began
        seconds = arrival.facts.get("seconds")
        if isinstance(seconds, float) and 0 <= seconds < np.inf:
            self.compute[arrival.client] = seconds

    def answered_before(self, client: int) -> None:
        """Note an answer that was here before the ask."""
        self.outcome[client], self.when[client] = ARRIVED, 0.0

    @property
    def arrived_already(self) -> int:
        """How many answers were here before the ask."""
        return int(((self.outcome == ARRIVED) & (self.when == 0.0)).sum())

    def dropped(self, client: int) -> None:
        """Note a client from which nothing will come."""
        self.outcome[client] = DROPPED

    def timings(self, length: float) -> Timings:
        """Return how long clients took in a round of some length, as far as it tells.

        Clients that were refused, or busy with an earlier round, tell nothing.
        """
        loads = np.where(self.outcome == NOT_ASKED, 0, self.loads)
        loads[[*self.busy, *(client for client, _ in self.refusals)]] = 0
        return Timings.until(loads, self.when, self.outcome == ARRIVED, length)

    def timings_of_all(self, replies: Iterable[Reply], held: IntArray) -> Timings:
        """Return the same where clients choose their points, late answers included.

        Whoever may embed more points first takes longer for that, which is no delay. So only
        answers for all points of a client are timed.
        """
        loads, seconds = np.zeros_like(self.loads), self.when.copy()
        for reply in replies:
            whole = reply.points == held[reply.client]
            loads[reply.client] = reply.points if whole else 0
        for client, late in self.late_answers:
            seconds[client] = late
        loads[~np.isfinite(seconds)] = 0
        return Timings(loads, np.where(loads > 0, seconds, 0.0), loads > 0)

    def refused(self, client: int, why: str) -> None:
        """Note an answer that does not count."""
        self.outcome[client] = REFUSED
        self.refusals.append((client, why))

    def has_refused(self, client: int) -> bool:
        """Say whether an answer of a client was refused."""
        return any(client == one for one, _ in self.refusals)

    def record(self, round_: int, deadline: float, now: float, gone: Collection[int]) -> Record:
        """Close the exchange: late clients that are no longer connected count as dropped."""
        for j in gone:
            if self.outcome[j] == LATE:
                self.dropped(j)
        return Record(
            round=round_,
            deadline=deadline,
            seconds=now - self.began,
            loads=self.loads,
            outcome=self.outcome,
            arrival_times=self.when,
            compute=self.compute,
            refusals=tuple(self.refusals),
            distances=self.distances,
            suspects=self.suspects,
            busy=self.busy,
            late_answers=tuple(self.late_answers),
        )
