"""What a report says of one run: who won, its clients, rounds, set-up and plans."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.core.record import Record
from codedfedl.errors import InputError
from codedfedl.report.arrivals import distance_rows
from codedfedl.report.comparison import best
from codedfedl.report.reading import Columns, RunTables
from codedfedl.report.results import Outcome, median_of_all, outcomes_of
from codedfedl.runs.advice import Conduct
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.journal import Journal
from codedfedl.runs.status import Status

SHOWN_CLIENTS = 40
TIME_COLUMNS = {
    "compute": "compute_s",
    "link": "link_s",
    "retransmissions": "retransmission_s",
    "overhead": "overhead_s",
}
"""Where a client's time goes, and in which column that is."""

_PLANNED = (
    *("round_deadline_s", "setup_deadline_s", "parity_rows", "points_per_parity_row"),
    *("expected_return", "planned_rounds", "planned_excess"),
)

Row = dict[str, Any]


@dataclass(frozen=True)
class Story(RunTables):
    """One run in a report.

    Attributes
    ----------
    name
        What the run is called among others.
    """

    name: str = ""

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """The results of every setting."""
        return outcomes_of(self)

    @property
    def title(self) -> str:
        """What the run is about."""
        return self.experiment.title or self.experiment.data.name

    @cached_property
    def records(self) -> list[Record]:
        """What real clients were asked, in a federation; nothing in a simulation."""
        if self.experiment.federation is None:
            return []
        if self.sight is not None:
            return self.sight.records
        return Journal(self.directory.path).records()

    @cached_property
    def conduct(self) -> Conduct:
        """How the clients of a federation have answered."""
        probed = Journal(self.directory.path).probed_seconds()
        return Conduct(self.records, self.client_names, probed)

    @property
    def client_names(self) -> list[str]:
        """The clients of the first setting and seed, in their order."""
        return [str(name) for name in self.clients_of(self.curves[0])["client"]]

    @property
    def progress(self) -> Status | None:
        """What a federation is doing, or why it ended early; None of a run that is done."""
        return None if self.sight is None else self.sight.status

    @property
    def config(self) -> str:
        """The resolved configuration."""
        return (self.directory.path / "config.toml").read_text("utf-8")

    @property
    def distances(self) -> list[Row]:
        """Distance of the clients' answers from their parity, in a federation with parity."""
        if not self.records:
            return []
        return distance_rows(self.records, self.client_names)[:SHOWN_CLIENTS]

    @cached_property
    def shown(self) -> list[Outcome]:
        """The settings whose rounds and clients are shown: the best of each featured scheme."""
        featured = [outcome for outcome in self.outcomes if outcome.cell.featured]
        by_scheme: dict[str, list[Outcome]] = {}
        for outcome in sorted(featured, key=lambda o: (not o.cell.baseline, o.scheme)):
            by_scheme.setdefault(outcome.scheme, []).append(outcome)
        fastest = [best(same, "total_hours") or same[0] for same in by_scheme.values()]
        return fastest or self.outcomes[:1]

    @property
    def client_rows(self) -> list[list[Row]]:
        """The clients in each shown setting, of the first seed: the slowest processor first."""
        shown = []
        for outcome in reversed(self.shown):
            columns = self.clients_of(min(outcome.seeds, key=lambda curve: curve.seed))
            slowest = np.argsort(columns["rate"], kind="stable")[:SHOWN_CLIENTS]
            shown.append([_client(columns, row) for row in slowest])
        return shown

    @property
    def timelines(self) -> dict[str, Columns]:
        """The first rounds of each shown cell that has any: when each answer came."""
        columns = self.timeline
        rows = {outcome.cell.id: columns["cell"] == outcome.cell.id for outcome in self.shown}
        return {
            cell: {name: values[here] for name, values in columns.items()}
            for cell, here in rows.items()
            if here.any()
        }

    @property
    def setups(self) -> list[Row]:
        """What every setting does before the first round: its slowest client, median of seeds."""
        rows = []
        for o in self.outcomes:
            hours = []
            for columns in map(self.clients_of, o.seeds):
                parts = np.stack([columns["setup_compute_s"], columns["setup_upload_s"]]) / 3600
                hours.append(parts[:, parts.sum(0).argmax()])
            compute, upload = np.median(hours, axis=0).tolist()
            rows.append({"setting": o.setting, "compute": compute, "upload": upload})
        return rows

    @property
    def plans(self) -> list[Row]:
        """What was planned for every setting that plans, and what happened."""
        rows = []
        for o in self.outcomes:
            row: Row = {name: median_of_all(o.fact(name)) for name in _PLANNED}
            if row["round_deadline_s"]:
                clients = [self.clients_of(curve) for curve in o.seeds]
                for name in ("planned_share", "arrived_share"):
                    row[name] = _mean([columns[name][columns["load"] > 0] for columns in clients])
                row["excess"] = median_of_all([curve.excess_at_plan for curve in o.seeds])
                rows.append(row | {"setting": o.setting})
        return rows

    @property
    def facts(self) -> list[Row]:
        """What schemes state that the plans do not show, by name: medians over seeds."""
        return [
            {"setting": o.setting, "name": name, "value": _median(values)}
            for o in self.outcomes
            for name, values in o.scheme_facts.items()
        ]


def _mean(parts: Sequence[npt.NDArray[np.float64]]) -> float | None:
    values = np.concatenate(parts)
    return float(values.mean()) if len(values) and not np.isnan(values).any() else None


def _median(values: Sequence[float | None]) -> float:
    """Return the median over the seeds for which it applies."""
    return float(np.median([value for value in values if value is not None]))


def _client(columns: Columns, row: int) -> Row:
    """Return a client's row, with its time in a round and the share of each part of it."""
    client = {name: columns[name][row] for name in columns}
    parts = {name: float(client[column]) for name, column in TIME_COLUMNS.items()}
    known = not any(np.isnan(seconds) for seconds in parts.values())  # measured delays have none
    planned = float(client["planned_share"])
    return client | {
        "seconds": sum(parts.values()) if known else None,
        "parts": parts if known else {},
        "load_share": float(client["load"] / client["points"]) if client["points"] else 0.0,
        "planned": None if np.isnan(planned) or client["load"] == 0 else planned,
    }


def stories_of(runs: Sequence[RunDirectory]) -> list[Story]:
    """Name runs by their folders, or by whole paths where two folders have the same name."""
    paths = [run.path.resolve() for run in runs]
    if len(set(paths)) < len(paths):
        raise InputError("a run is named twice: name different runs")
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    return [Story(run, name) for name, run in zip(names, runs, strict=True)]
