"""A round of a federation with names: who answered, who did not, and why the server went on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from codedfedl.core.record import DROPPED, PARTS, REFUSED, Record

__all__ = ["AT_DEADLINE", "NamedRound", "ended", "listed"]

AT_DEADLINE = 0.999
"""The share of a deadline after which it counts as reached: clocks differ by less."""

_MOST_NAMES = 8  # in a sentence


@dataclass(frozen=True)
class NamedRound:
    """The outcome of an exchange, by the clients' names.

    Attributes
    ----------
    round
        Counted from 1; 0 for the set-up.
    deadline_s, seconds
        How long the server would have waited at most, and how long it did.
    ended
        Why it waited no longer.
    arrived
        Seconds until each answer that counts arrived.
    late, dropped
        Clients that had not answered in time, and those from which no answer will come.
    refused
        Clients whose answer does not count, and why. Every client is in one of the four.
    suspected
        Clients whose answers are, on average, almost far enough from their parity to be refused.
    late_answers
        Seconds that answers to earlier questions took, where they came in this round.
    metric
        On the test points; None where there are none.
    """

    round: int
    deadline_s: float
    seconds: float
    ended: str
    arrived: Mapping[str, float]
    late: Sequence[str]
    dropped: Sequence[str]
    refused: Mapping[str, str]
    suspected: Sequence[str]
    late_answers: Mapping[str, float]
    metric: float | None

    @classmethod
    def of(cls, record: Record, names: Sequence[str]) -> "NamedRound":
        """Give the clients of a record their names."""
        reasons = dict(record.refusals)
        times = np.zeros(len(names)) if record.arrival_times is None else record.arrival_times
        metric = float(record.metric)
        return cls(
            round=record.round + 1,
            deadline_s=record.deadline,
            seconds=round(record.seconds, 3),
            ended=ended(record),
            arrived={names[j]: round(float(times[j]), 3) for j in record.part("arrived")},
            late=[names[j] for j in record.part("late")],
            dropped=[names[j] for j in record.part("dropped")],
            refused={names[j]: reasons[j] for j in record.part("refused")},
            suspected=[names[j] for j in record.suspects],
            late_answers={names[j]: round(seconds, 3) for j, seconds in record.late_answers},
            metric=metric if np.isfinite(metric) else None,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """Everything, for JSON; without a deadline, it is null."""
        known = {"deadline_s": self.deadline_s if np.isfinite(self.deadline_s) else None}
        return asdict(self) | known

    def sentence(self, rounds: int) -> str:
        """Return the round as a sentence for people.

        Parameters
        ----------
        rounds
            How many the run has.
        """
        where = f"round {self.round} of {rounds}" if self.round else "set-up"
        groups = {part: list(getattr(self, part)) for part in PARTS}
        parts = [
            f"{len(who)} {part}" + (f" ({listed(who)})" if who else "")
            for part, who in groups.items()
            if who or part == "arrived"
        ]
        result = "" if self.metric is None else f"; {self.metric:.4f} on the test points"
        return (
            f"{where}: {self.seconds:.2f} s of {self.deadline_s:.4g} s, {self.ended}; "
            f"{', '.join(parts)}{result}"
        )


def ended(record: Record) -> str:
    """Say why the server waited no longer."""
    if record.seconds >= AT_DEADLINE * record.deadline:
        return "until the deadline"
    late = set(record.part("late"))
    if late - set(record.busy):
        enough = len(record.part("arrived")) + len(record.late_answers)
        return f"ended early: {enough} answers were enough"
    if late or np.isin(record.outcome, (DROPPED, REFUSED)).any():
        return "ended early: nobody else could answer"
    return "ended early: every answer was in"


def listed(names: Sequence[str]) -> str:
    """Write names in a sentence, of many the first few."""
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: _MOST_NAMES - 1])} and {len(names) - _MOST_NAMES + 1} others"
