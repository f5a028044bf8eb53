"""What clients work on for an ask, and who of them answered when: all that a virtual clock says."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray, Mask
from codedfedl.core.protocol import Ask
from codedfedl.core.record import ARRIVED, DROPPED, LATE, NOT_ASKED
from codedfedl.core.work import Work
from codedfedl.fitting.drift import Timings
from codedfedl.random import stream


@dataclass(frozen=True)
class Assignment:
    """What a client works on: in which round and when it was asked, and when it is done."""

    client: int
    round: int
    work: Work
    load: int
    finished: float
    asked: float = 0.0


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Who arrived, and when: all that a virtual clock says of an ask.

    Attributes
    ----------
    arrived, outcome, loads, arrival_times : arrays of shape (n,)
    kept
        The jobs whose answers came, those to earlier asks too, where late ones are kept.
    server_done
        Whether the server finished its own work while it waited.
    part
        How many exchanges of the set-up came before; 0 in a round.
    """

    ask: Ask
    round: int
    seconds: float
    arrived: Mask
    outcome: npt.NDArray[np.int8]
    loads: IntArray
    arrival_times: FloatArray
    kept: Sequence[Assignment] | None = None
    server_done: bool = True
    part: int = 0

    def luck(self, seed: int, purpose: str) -> np.random.Generator:
        """Return the random stream that this exchange has for a purpose."""
        return stream(seed, purpose, self.round + 1, *([self.part] if self.part else []))

    def jobs(self, clients: Mask, now: float = 0.0) -> list[Assignment]:
        """Return this ask as the work of these clients."""
        return [
            Assignment(j, self.round, self.ask.work, int(self.loads[j]), now + float(seconds), now)
            for j, seconds in zip(
                np.flatnonzero(clients).tolist(), self.arrival_times[clients], strict=True
            )
        ]

    @property
    def done(self) -> Sequence[Assignment]:
        """The jobs whose answers came, by client."""
        return self.jobs(self.arrived) if self.kept is None else self.kept

    @property
    def timings(self) -> Timings:
        """How long clients took for such work, as the server sees it.

        Of those who are still busy with an earlier ask, nothing is said.
        """
        if self.kept is None:
            loads = np.where(self.outcome == NOT_ASKED, 0, self.loads)
            return Timings.until(loads, self.arrival_times, self.arrived, self.seconds)
        loads, seconds = np.zeros_like(self.loads), np.zeros(len(self.loads))
        for job in (j for j in self.kept if j.work.kind == self.ask.work.kind):
            loads[job.client], seconds[job.client] = job.load, job.finished - job.asked
        return Timings(loads, seconds, loads > 0)


def outcome_of(wanted: Mask, seconds: FloatArray, arrived: Mask) -> npt.NDArray[np.int8]:
    """Set the outcome of each client: `seconds` is ∞ for those from whom nothing will come."""
    coming = np.isfinite(seconds)
    others = np.where(coming, LATE, np.where(wanted, DROPPED, NOT_ASKED))
    return np.where(arrived, ARRIVED, others).astype(np.int8)
