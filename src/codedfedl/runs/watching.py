"""A federation as another process sees it while it runs: read, never locked and never changed.

Every file of a run directory is written under a temporary name and then moved into place. A file
that still cannot be read, on a disk that does not keep this promise, counts as not yet written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from codedfedl.core.record import Record
from codedfedl.errors import InputError
from codedfedl.fitting.traces import read_traces
from codedfedl.fleet.devices import Fleet, read_fleet
from codedfedl.runs.advice import Conduct
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.exchange import Exchange
from codedfedl.runs.grid import known_cells
from codedfedl.runs.journal import Journal, Members
from codedfedl.runs.observing import NamedRound, Status
from codedfedl.runs.tables import Ending, record_tables

_REMEMBERED = 4096  # exchanges


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
        return Conduct(self.records, names, probed_seconds(Journal(self.directory.path)))

    def tables(self) -> dict[str, dict[str, Any]] | None:
        """Return the tables that the run would leave if it ended now; None before a round.

        What only the server knows, such as its plan, is not in them.
        """
        if self.members is None or not any(not record.is_setup for record in self.records):
            return None
        clients = len(self.members.names)
        fleet = _fleet(self.directory.path / "fleet.csv", self.members)
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
    return Exchange.of(Exchange.read(path, gradients=False)).record


def probed_seconds(journal: Journal) -> Mapping[str, float]:
    """Return the longest time that each client took when it was measured, in seconds."""
    if not journal.traces.is_file():
        return {}
    traces = read_traces(journal.traces)
    longest: dict[str, float] = {}
    for client, seconds in zip(traces.client.tolist(), traces.seconds.tolist(), strict=True):
        if np.isfinite(seconds):
            longest[str(client)] = max(seconds, longest.get(str(client), 0.0))
    return longest


def _fleet(path: Path, members: Members) -> Fleet:
    """Return the fleet as it was measured, or one of which only the points are known."""
    try:
        return read_fleet(path)
    except InputError:
        ones = np.ones(len(members.names))
        return Fleet(
            client=members.names,
            points=members.points,
            rate=ones,
            alpha=ones,
            packet_time=ones,
            erasure=0 * ones,
        )
