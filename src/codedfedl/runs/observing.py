"""What others see of a run: its status, and the rounds of a federation with the clients' names.

`status.json` says what a run is doing, for whoever follows it from another process.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from codedfedl.core.record import DROPPED, PARTS, REFUSED, Record
from codedfedl.errors import InputError
from codedfedl.io.files import read_json, replacing

AT_DEADLINE = 0.999
"""The share of a deadline after which it counts as reached: clocks differ by less."""

MAX_NAMES_IN_SENTENCE = 8
SECONDS_BETWEEN_UPDATES = 1.0
_BUG = "this is a bug: "


@dataclass(frozen=True)
class Status:
    """What a run is doing, or how it ended.

    Attributes
    ----------
    doing
        In words, for people.
    round, rounds
        Rounds that are finished, and planned; None before the first.
    metric
        Of the last model on the test points; None where there is none.
    updated
        When this was written: UTC, ISO 8601.
    error
        Why it failed.
    """

    state: Literal["running", "done", "failed", "stopped"]
    doing: str
    round: int | None = None
    rounds: int | None = None
    metric: float | None = None
    updated: str = ""
    error: str | None = None

    def __str__(self) -> str:
        """Return a sentence for people."""
        progress = "" if self.round is None else f" after round {self.round} of {self.rounds}"
        return f"{self.state}{progress} ({self.details}), last updated {self.updated}"

    @property
    def details(self) -> str:
        """What it is doing, or why it failed."""
        return str(self.error) if self.state == "failed" else self.doing

    @property
    def is_bug(self) -> bool:
        """Whether it failed by a defect of ours, whose traceback is in the log."""
        return self.state == "failed" and str(self.error).startswith(_BUG)


class StatusFile:
    """The file, replaced as a whole at every update."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = Status("running", "starting")
        self._written = -math.inf

    def read(self) -> Status | None:
        """Return the status; None for a run that has none, as those of earlier versions."""
        if not self.path.is_file():
            return None
        document = read_json(self.path, "delete it")
        known = {field.name for field in fields(Status)}
        if not isinstance(document, dict) or not {"state", "doing"} <= document.keys():
            raise InputError(f"cannot read {self.path}: it is not a status; delete it")
        return Status(**{key: value for key, value in document.items() if key in known})

    @property
    def due(self) -> bool:
        """Whether the last update is long enough ago, where there are many."""
        return time.monotonic() - self._written > SECONDS_BETWEEN_UPDATES

    def running(
        self,
        doing: str,
        *,
        round_: int | None = None,
        rounds: int | None = None,
        metric: float | None = None,
    ) -> None:
        """Say what is being done; numbers that are not given stay as they were."""
        metric = metric if metric is not None and math.isfinite(metric) else None
        given = {"round": round_, "rounds": rounds, "metric": metric}
        known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self._write(replace(self._last, state="running", doing=doing, error=None, **known))

    def done(self) -> None:
        """Say that everything is written."""
        self._write(replace(self._last, state="done", doing="done", error=None))

    def stopped(self) -> None:
        """Say that the operator ended the run; it can be continued."""
        self._write(replace(self._last, state="stopped"))

    def failed(self, error: str) -> None:
        """Say why the run ended early."""
        before = self._last if self._written > -math.inf else self.read() or self._last
        self._write(replace(before, state="failed", error=error))

    @contextmanager
    def tracked(self) -> Iterator["StatusFile"]:
        """Write that a run is running, and in the end that it is done or why it failed."""
        self.running("starting")
        try:
            yield self
        except BaseException as error:
            with suppress(InputError):  # the first error counts
                self.failed(reason(error))
            raise
        if self._last.state == "running":
            self.done()

    def _write(self, status: Status) -> None:
        self._last = replace(status, updated=datetime.now(UTC).isoformat(timespec="seconds"))
        with replacing(self.path) as partial:
            partial.write_text(json.dumps(asdict(self._last), indent=1), "utf-8")
        self._written = time.monotonic()


def reason(error: BaseException) -> str:
    """Return in one sentence why a run ended."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return "interrupted"
    return f"{_BUG}{type(error).__name__}: {error}"


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
    if len(names) <= MAX_NAMES_IN_SENTENCE:
        return ", ".join(names)
    shown = names[: MAX_NAMES_IN_SENTENCE - 1]
    return f"{', '.join(shown)} and {len(names) - len(shown)} others"
