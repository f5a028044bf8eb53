"""Run directories as reports read them: tables, brought to today's columns, and curves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.core.columns import COMMON, FINITE, FLAG, NUMBER, TABLES, TEXT, WHOLE
from codedfedl.errors import InputError
from codedfedl.io.tables import load_table
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.grid import KnownCell, known_cells
from codedfedl.runs.watching import Sight, look

_SERIES = ("training_hours", "total_hours", "arrived", "excess")

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Curve:
    """One setting of one seed, round after round.

    Attributes
    ----------
    facts
        What was planned and predicted, where it applies.
    """

    cell: KnownCell
    seed: int
    rounds: npt.NDArray[np.int64]
    training_hours: npt.NDArray[np.float64]
    total_hours: npt.NDArray[np.float64]
    arrived: npt.NDArray[np.int64]
    metric: npt.NDArray[np.float64]
    metric_name: str
    excess: npt.NDArray[np.float64]
    facts: dict[str, float]

    @property
    def setting(self) -> str:
        """What people call the setting."""
        return self.cell.label

    @property
    def chance_bound(self) -> float:
        """What is clearly above chance: more than chance and three standard errors of the test set.

        For R² that is 0; of a run that does not say what chance gives, everything is above it. A
        model without a single error is above it too, however few points there are to test with.
        """
        chance, tested = self.facts.get("chance"), self.facts.get("test_points")
        if chance is None or tested is None:
            return -np.inf
        bound = chance + 3 * float(np.sqrt(chance * (1 - chance) / tested))
        return max(chance, min(bound, 1 - 0.5 / tested))

    @property
    def excess_at_plan(self) -> float | None:
        """Excess of the objective when the plan said it would be done, or in the end."""
        planned = self.facts.get("predicted_hours", np.inf)
        there = np.flatnonzero(self.total_hours <= planned * (1 + 1e-9))
        value = self.excess[there[-1]] if len(there) else np.nan
        return None if np.isnan(value) else float(value)

    def at(self, hours: float) -> float | None:
        """Return the metric of the last model that is there after so many hours, set-up charged."""
        there = np.flatnonzero(self.total_hours <= hours * (1 + 1e-9))
        return float(self.metric[there[-1]]) if len(there) else None

    def reaches(self, target: float) -> int | None:
        """Return the place of the first round at which the target is met."""
        met = np.flatnonzero(self.metric >= target)
        return int(met[0]) if len(met) else None

    def clock_at(self, target: float, clock: str) -> Any:
        """Return what a clock shows when the target is met: a name of its series; None before."""
        first = self.reaches(target)
        return None if first is None else getattr(self, clock)[first].item()


@dataclass(frozen=True)
class RunTables:
    """The experiment of a run, its cells and its tables.

    The tables of a federation that has not ended are made from its journal.
    """

    directory: RunDirectory

    @cached_property
    def experiment(self) -> Experiment:
        """What was run."""
        return self.directory.experiment()

    @cached_property
    def cells(self) -> dict[str, KnownCell]:
        """The settings by their ids, as far as they are known."""
        return {cell.id: cell for cell in known_cells(self.directory.path, self.experiment)}

    @cached_property
    def sight(self) -> Sight | None:
        """A federation that has not ended, as far as it is now; None of any other run."""
        status = self.directory.status.read()
        if self.experiment.federation is None or status is None or status.state == "done":
            return None
        return look(self.directory)

    @cached_property
    def _unfinished(self) -> dict[str, Columns] | None:
        """The tables of a federation that has not ended, from its journal."""
        return None if self.sight is None else self.sight.tables()

    @property
    def has_no_round(self) -> bool:
        """Whether this is a federation that has not finished a round yet."""
        return self.sight is not None and self._unfinished is None

    @cached_property
    def rounds(self) -> Columns:
        """A row for each cell, seed and round."""
        return self._read("rounds")

    @cached_property
    def clients(self) -> Columns:
        """A row for each cell, seed and client."""
        return self._read("clients")

    @cached_property
    def settings(self) -> Columns:
        """A row for each cell and seed."""
        return self._read("settings")

    @cached_property
    def timeline(self) -> Columns:
        """A row for each cell, client and one of the first rounds; none in the earliest runs."""
        there = (self.directory.path / "timeline.parquet").is_file()
        if self._unfinished is None and not there:
            return {"cell": np.empty(0, dtype=str)}
        return self._read("timeline")

    @cached_property
    def refusals(self) -> Columns:
        """A row for each refused answer, in a federation."""
        return self._table("refusals")

    @cached_property
    def curves(self) -> list[Curve]:
        """Every setting and seed, round after round."""
        columns, facts, curves = self.rounds, self._facts(), []
        pairs = _pairs(columns)
        if not pairs.keys() <= facts.keys() & _pairs(self.clients).keys():
            raise InputError(
                f"{self.directory.path}: its tables are not about the same settings and seeds: "
                "restore them, or run it again"
            )
        for cell, seed in pairs:
            rows = _rows(columns, cell, seed)
            known = self.cells.get(cell) or _cell_of(rows, self.experiment)
            curve = Curve(
                cell=known,
                seed=seed,
                rounds=rows["round"],
                metric=rows["metric"].astype(np.float64),
                metric_name=str(rows["metric_name"][0]),
                facts=facts[cell, seed],
                **{name: rows[name] for name in _SERIES},
            )
            curves.append(curve)
        return curves

    def clients_of(self, curve: Curve) -> Columns:
        """Return a row for each client of a setting and seed."""
        return _rows(self.clients, curve.cell.id, curve.seed)

    def _facts(self) -> dict[tuple[str, int], dict[str, float]]:
        """Return what was planned and predicted for every cell and seed, where it applies."""
        columns = self.settings
        numbers = {name: values for name, values in columns.items() if name not in COMMON}
        return {
            pair: {name: float(v[row]) for name, v in numbers.items() if not np.isnan(v[row])}
            for row, pair in enumerate(_pairs(columns))
        }

    def _read(self, name: str) -> Columns:
        every = list(self.cells.values())  # first: it refuses what is not a run directory
        columns = self._table(name)
        _check_kinds(self.directory.path / f"{name}.parquet", name, columns)
        return upgraded(name, columns, every)

    def _table(self, name: str) -> Columns:
        """Return a table as it was written, or as it would be if the run ended now."""
        if self._unfinished is not None:
            return self._unfinished[name]
        return _columns(self.directory, name)


def curves(directory: RunDirectory) -> list[Curve]:
    """Read every setting and seed, round after round."""
    return RunTables(directory).curves


def _pairs(columns: Columns) -> dict[tuple[str, int], None]:
    """Return the cells and seeds of a table, each once, in their order."""
    return dict.fromkeys(zip(columns["cell"].tolist(), columns["seed"].tolist(), strict=True))


def _rows(columns: Columns, cell: str, seed: int) -> Columns:
    mask = (columns["cell"] == cell) & (columns["seed"] == seed)
    return {name: values[mask] for name, values in columns.items()}


def _cell_of(rows: Columns, experiment: Experiment) -> KnownCell:
    """Return a setting that only its tables know: of an earlier version, with a user's modules."""
    redundancy = float(rows["redundancy"][0])
    return KnownCell(
        id=str(rows["cell"][0]),
        label=str(rows["setting"][0]),
        group=str(rows["group"][0]),
        values={},
        settings={},
        dataset=experiment.data.name,
        fleet=experiment.fleet.name,
        target=experiment.training.target,
        redundancy=None if np.isnan(redundancy) else redundancy,
        scheme=str(rows["scheme"][0]),
        features=experiment.features.kind,
        as_in_paper=bool(rows["as_in_paper"][0]),
    )


def _columns(directory: RunDirectory, name: str) -> Columns:
    """Read a table of a run directory, as it is."""
    path = directory.path / f"{name}.parquet"
    if not path.is_file():
        status = directory.status.read()
        state = "" if status is None else f": it is {status}"
        raise InputError(
            f"{path} is not there: the run is not finished{state}; continue with --resume"
        )
    table = load_table(path)
    return {name: table[name].to_numpy() for name in table.column_names}


def upgraded(
    name: str, columns: Mapping[str, npt.NDArray[Any]], every: Sequence[KnownCell]
) -> Columns:
    """Return a table with today's columns, whichever version wrote it.

    Settings once had a label and no id, and an id may change with what an experiment says: then
    the label leads to the cell.
    """
    rows, new = len(columns["setting"]), dict(columns)
    if "cell" not in new or not set(new["cell"]) <= {cell.id for cell in every}:
        ids = {cell.label: cell.id for cell in every}
        new["cell"] = np.array([ids.get(label, label) for label in new["setting"]])
    if name == "clients" and "rate" not in new:  # only the order of the clients was known
        with np.errstate(divide="ignore"):
            new["rate"] = 1 / new["compute_s"]
    for key, column in TABLES[name].items():
        if key not in new:
            new[key] = np.full(rows, column.missing)
        elif isinstance(column.missing, float):
            new[key] = new[key].astype(np.float64)
    return new


def _check_kinds(path: Path, name: str, columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """Refuse a table that lacks a column, or has one of another kind: it may be anybody's."""
    table = TABLES[name]
    if missing := [key for key, col in table.items() if col.missing is None and key not in columns]:
        raise InputError(f"{path} lacks the column {missing[0]}: restore it, or run it again")
    if name != "timeline" and not len(columns["setting"]):
        raise InputError(f"{path} has no rows: restore it, or run it again")
    for key, values in columns.items():
        kind = table[key].holds if key in table else NUMBER
        if not _holds(values, kind):
            raise InputError(f"{path}: {key} does not hold {kind}: restore it, or run it again")


def _holds(values: npt.NDArray[Any], kind: str) -> bool:
    stored = values.dtype.kind
    if kind == TEXT:
        return stored == "U" or (stored == "O" and all(isinstance(value, str) for value in values))
    if kind == FINITE:
        return stored in "iuf" and bool(np.isfinite(values).all())
    return stored in {WHOLE: "iu", NUMBER: "iuf", FLAG: "b"}[kind]
