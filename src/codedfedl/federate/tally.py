"""What is known of an exchange while it goes on."""

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from codedfedl.federate.collect import Arrival
from codedfedl.runs.journal import ARRIVED, DROPPED, LATE, NOT_ASKED

__all__ = ["Tally"]


@dataclass
class Tally:
    """What is known of an exchange while it goes on."""

    began: float
    loads: npt.NDArray[np.int64]
    when: npt.NDArray[np.float64]
    compute: npt.NDArray[np.float64]
    outcome: npt.NDArray[np.int64]
    refusals: list[tuple[int, str]]

    @classmethod
    def start(cls, loads: npt.NDArray[np.int64]) -> "Tally":
        """Begin: whoever is asked for points is late until it answers."""
        n = len(loads)
        outcome = np.where(loads > 0, LATE, NOT_ASKED)
        return cls(time.monotonic(), loads, np.full(n, np.inf), np.full(n, np.nan), outcome, [])

    def arrived(self, arrival: Arrival) -> None:
        """Note an answer that counts."""
        self.outcome[arrival.client] = ARRIVED
        self.when[arrival.client] = arrival.when - self.began
        seconds = arrival.facts.get("seconds")
        if isinstance(seconds, float) and 0 <= seconds < np.inf:
            self.compute[arrival.client] = seconds

    def dropped(self, client: int) -> None:
        """Note a client from which nothing will come."""
        self.outcome[client] = DROPPED

    def refused(self, client: int, why: str) -> None:
        """Note an answer that does not count."""
        self.outcome[client] = DROPPED
        self.refusals.append((client, why))
