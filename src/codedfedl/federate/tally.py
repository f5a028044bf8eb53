"""What is known of an exchange while it is under way."""

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from codedfedl.core.record import ARRIVED, DROPPED, LATE, NOT_ASKED, Record
from codedfedl.federate.transport import Arrival

__all__ = ["Tally"]


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

    def refused(self, client: int, why: str) -> None:
        """Note an answer that does not count."""
        self.outcome[client] = DROPPED
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
