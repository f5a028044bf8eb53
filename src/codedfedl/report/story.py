"""What a report tells of one run: who won, its clients, rounds, set-up and plans."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.core.record import Record
from codedfedl.errors import InputError
from codedfedl.report.results import Curve, Outcome, curves, median_of_all, outcomes, read_columns
from codedfedl.report.verdict import best
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.journal import Journal

__all__ = ["PARTS", "SHOWN_CLIENTS", "Story", "distinct"]

SHOWN_CLIENTS = 40
PARTS = {
    "compute": "compute_s",
    "link": "link_s",
    "retransmissions": "retransmission_s",
    "overhead": "overhead_s",
}
"""Where a client's time goes, and in which column that is."""
_SHOWN_SCHEMES = ("uncoded", "coded", "coded-newton")  # of whom rounds and clients are shown

Columns = dict[str, npt.NDArray[Any]]
Row = dict[str, Any]


@dataclass(frozen=True)
class Story:
    """One run, as a report tells it.

    Attributes
    ----------
    name
        What the run is called among others.
    """

    name: str
    directory: RunDirectory

    @cached_property
    def experiment(self) -> Experiment:
        """What was run."""
        return self.directory.experiment()

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """What came of every setting."""
        return outcomes(self.directory)

    @cached_property
    def curves(self) -> list[Curve]:
        """What happened in every round."""
        return curves(self.directory)

    @property
    def title(self) -> str:
        """What the run is about."""
        return self.experiment.title or self.experiment.data.name

    @cached_property
    def records(self) -> list[Record]:
        """What real clients were asked, in a federation; nothing in a simulation."""
        if self.experiment.federation is None:
            return []
        exchanges = Journal(self.directory.path).exchanges(gradients=False)
        return [exchange.record for exchange in exchanges]

    @property
    def config(self) -> str:
        """The resolved configuration."""
        return (self.directory.path / "config.toml").read_text("utf-8")

    @property
    def environment(self) -> dict[str, Any]:
        """What it ran on."""
        return self.directory.environment()

    def rows(self, table: str) -> list[Row]:
        """Return a table of the run directory, row by row."""
        columns = self._table(table)
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    @cached_property
    def shown(self) -> list[str]:
        """The settings whose rounds and clients are shown: the best of the schemes that matter."""
        rivals = [o for o in self.outcomes if o.setting in set(self._clients["setting"].tolist())]
        found = []
        for scheme in _SHOWN_SCHEMES:
            same = [o for o in rivals if o.scheme == scheme]
            if same:
                found.append((best(same, "total_hours") or same[0]).setting)
        return found or [rivals[0].setting]

    @property
    def clients(self) -> dict[str, list[Row]]:
        """The clients under each shown setting, of the first seed: the slowest processor first."""
        columns, told = self._clients, {}
        first = columns["seed"] == columns["seed"].min()
        for setting in reversed(self.shown):
            rows = np.flatnonzero((columns["setting"] == setting) & first)
            fast = columns["rate"] if "rate" in columns else -columns["compute_s"]
            slowest = rows[np.argsort(fast[rows], kind="stable")]
            told[setting] = [_client(columns, row) for row in slowest[:SHOWN_CLIENTS]]
        return told

    @property
    def client_count(self) -> int:
        """How many clients there are."""
        first = self._clients["setting"] == self._clients["setting"][0]
        return int((first & (self._clients["seed"] == self._clients["seed"].min())).sum())

    @property
    def timelines(self) -> dict[str, Columns]:
        """The first rounds of each shown setting that has any: when each answer came."""
        path = self.directory.path / "timeline.parquet"
        if not path.is_file():
            return {}
        columns, found = read_columns(path), {}
        for setting in self.shown:
            rows = columns["setting"] == setting
            if rows.any():
                found[setting] = {name: values[rows] for name, values in columns.items()}
        return found

    @property
    def setups(self) -> list[Row]:
        """What every setting does before the first round: its slowest client, median of seeds."""
        columns, found = self._clients, []
        for setting in dict.fromkeys(columns["setting"].tolist()):
            longest = []
            for seed in np.unique(columns["seed"]):
                rows = (columns["setting"] == setting) & (columns["seed"] == seed)
                parts = [columns[f"setup_{part}_s"][rows] for part in ("compute", "upload")]
                slowest = int(np.argmax(parts[0] + parts[1]))
                longest.append([part[slowest] / 3600 for part in parts])
            compute, upload = np.median(longest, axis=0)
            found.append({"setting": setting, "compute": float(compute), "upload": float(upload)})
        return found

    @property
    def plans(self) -> list[Row]:
        """What was planned for every setting that plans, and what came of it."""
        return [row for o in self.outcomes if (row := self._plan(o.setting))["round_deadline_s"]]

    def _plan(self, setting: str) -> Row:
        mine = [curve for curve in self.curves if curve.setting == setting]
        clients = self._clients["setting"] == setting
        share = self._clients.get("planned_share", np.full(len(clients), np.nan))[clients]
        asked = self._clients["load"][clients] > 0

        def middle(name: str) -> float | None:
            return median_of_all([curve.facts.get(name) for curve in mine])

        return {
            "setting": setting,
            "planned_share": _mean(share[asked]),
            "arrived_share": _mean(self._clients["arrived_share"][clients][asked]),
            "found_excess": median_of_all([curve.excess_at_plan for curve in mine]),
        } | {
            name: middle(name)
            for name in (
                "round_deadline_s",
                "setup_deadline_s",
                "parity_rows",
                "points_per_parity_row",
                "expected_return",
                "planned_rounds",
                "planned_excess",
            )
        }

    @property
    def sigma(self) -> float | None:
        """The kernel's width, where the features have one."""
        return self.curves[0].facts.get("sigma")

    @cached_property
    def _clients(self) -> Columns:
        return self._table("clients")

    def _table(self, name: str) -> Columns:
        return read_columns(self.directory.path / f"{name}.parquet")


def _mean(values: npt.NDArray[np.float64]) -> float | None:
    return float(values.mean()) if len(values) and not np.isnan(values).any() else None


def _client(columns: Columns, row: int) -> Row:
    """Return a client's row, with its time in a round and the share of each part of it."""
    told = {name: columns[name][row] for name in columns}
    parts = {name: float(told.get(column, 0.0)) for name, column in PARTS.items()}
    told["seconds"] = sum(parts.values())
    told["parts"] = parts
    told["load_share"] = float(told["load"] / told["points"]) if told["points"] else 0.0
    planned = float(told.get("planned_share", np.nan))
    told["planned"] = None if np.isnan(planned) or told["load"] == 0 else planned
    return told


def distinct(runs: Sequence[RunDirectory]) -> list[str]:
    """Name runs by their folders, or by whole paths where two folders have the same name."""
    places = [run.path.resolve() for run in runs]
    if len(set(places)) < len(places):
        raise InputError("a run is named twice: compare different ones")
    names = [place.name for place in places]
    return names if len(set(names)) == len(names) else [str(place) for place in places]
