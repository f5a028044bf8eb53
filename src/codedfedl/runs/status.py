"""`status.json`: what a run is doing, for whoever follows it from another process."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from codedfedl.errors import InputError
from codedfedl.io.files import read_json, replacing

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
    def facts(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "state": self.state,
            "text": self.details,
            "updated": self.updated,
            "round": self.round,
            "rounds": self.rounds,
            "metric": self.metric,
        }

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
        known = metric is not None and math.isfinite(metric)
        numbers = {"round": round_, "rounds": rounds, "metric": metric if known else None}
        given: dict[str, Any] = {name: v for name, v in numbers.items() if v is not None}
        self._write(replace(self._last, state="running", doing=doing, error=None, **given))

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
