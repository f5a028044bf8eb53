"""A federation as another process sees it while it runs: read, never locked and never changed.

Every file of a run directory is written under a temporary name and then moved into place. A file
that still cannot be read, on a disk that does not keep this promise, counts as not yet written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from codedfedl.core.record import PARTS, Record
from codedfedl.errors import InputError
from codedfedl.fleet.devices import read_fleet
from codedfedl.io.archives import read_arrays
from codedfedl.runs.advice import Conduct
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.exchange import ANSWERS, record_in
from codedfedl.runs.grid import known_cells
from codedfedl.runs.journal import Journal, Members
from codedfedl.runs.status import Status
from codedfedl.runs.tables import Ending, record_tables

_REMEMBERED = 4096  # exchanges
MAX_NAMES_IN_SENTENCE = 8


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
            ended=record.ended,
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


def listed(names: Sequence[str]) -> str:
    """Write names in a sentence, of many the first few."""
    if len(names) <= MAX_NAMES_IN_SENTENCE:
        return ", ".join(names)
    shown = names[: MAX_NAMES_IN_SENTENCE - 1]
    return f"{', '.join(shown)} and {len(names) - len(shown)} others"


@dataclass(frozen=True, eq=False)
class Sight:
    """A federation at one moment.

    Attributes
    ----------
    status
        What it is doing; None before it has said anything.
    members
        Who takes part; None before that is known.
    happened
        Records of the exchanges that are finished, as they were when each ended.
    records
        The same with what was known later, as tables have them.
    """

    directory: RunDirectory
    status: Status | None
    members: Members | None
    happened: list[Record]
    records: list[Record]

    def named(self, first: int = 0) -> list[NamedRound]:
        """Return the exchanges from some place on with the clients' names, the set-up too."""
        names = [] if self.members is None else self.members.names
        return [NamedRound.of(record, names) for record in self.happened[first:]]

    @cached_property
    def conduct(self) -> Conduct:
        """How the clients have answered."""
        names = [] if self.members is None else self.members.names
        return Conduct(self.records, names, Journal(self.directory.path).probed_seconds())

    def tables(self) -> dict[str, dict[str, Any]] | None:
        """Return the tables that the run would leave if it ended now; None before a round.

        What only the server knows, such as its plan, is not in them.
        """
        if self.members is None or not any(not record.is_setup for record in self.records):
            return None
        clients = len(self.members.names)
        fleet = read_fleet(self.directory.path / "fleet.csv")
        unknown = np.full(clients, np.nan)
        ending = Ending(self.members, fleet, unknown, {}, np.zeros(0))
        experiment = self.directory.experiment()
        known = known_cells(self.directory.path, experiment)
        if len(known) != 1:
            raise InputError(
                f"{self.directory.path} says of {len(known)} settings what they are, where a "
                "federation has one: report it once it has ended"
            )
        return record_tables(known[0], experiment.seeds[0], self.records, ending)


def look(directory: RunDirectory) -> Sight:
    """Return a federation as it is now; each exchange is read once."""
    journal = Journal(directory.path)
    status, members = directory.status.read(), journal.members()
    records: list[Record] = []
    for path in journal.paths() if members is not None else []:
        try:
            file = path.stat()
            records.append(_record(path, file.st_mtime_ns, file.st_size))
        except (OSError, ValueError, KeyError):
            break  # not whole yet: it is read the next time
    return Sight(directory, status, members, records, journal.with_later_facts(records))


@lru_cache(_REMEMBERED)
def _record(path: Path, _changed: int, _size: int) -> Record:
    """Read the record of an exchange; a file that was changed since is another."""
    return record_in(read_arrays(path, skip=ANSWERS))
