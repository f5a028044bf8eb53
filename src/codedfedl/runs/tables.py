"""The tables of a run, written in one place: the same columns in a simulation and a federation."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray
from codedfedl.core.columns import (
    CLIENT_COLUMNS,
    COMMON,
    FACTS,
    RUN_FACTS,
    round_columns,
    timeline_columns,
)
from codedfedl.core.protocol import Scheme, State
from codedfedl.core.record import Record
from codedfedl.errors import InputError
from codedfedl.io.tables import repeated
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.grid import KnownCell

__all__ = ["CellRun", "planned_share", "stated_facts", "tables_of", "write_tables"]


@dataclass(frozen=True, eq=False)
class CellRun:
    """One cell with one seed, and what happened.

    Attributes
    ----------
    metric
        ``accuracy`` or ``R²``.
    clients
        Per client, by the names in `core.columns.CLIENT_COLUMNS`.
    facts
        By the names in `core.columns.FACTS` and `RUN_FACTS`, as far as they apply, and any others
        that the scheme states.
    """

    cell: KnownCell
    seed: int
    metric: str
    records: Sequence[Record]
    clients: Mapping[str, npt.NDArray[Any]]
    facts: Mapping[str, float]

    @property
    def setup_seconds(self) -> float:
        """How long the set-up took."""
        return sum(record.seconds for record in self.records if record.is_setup)


def write_tables(directory: RunDirectory, runs: Sequence[CellRun]) -> None:
    """Write rounds, clients, settings, and the time line of the first seed."""
    for name, columns in tables_of(runs).items():
        directory.write(f"{name}.parquet", columns)


def tables_of(runs: Sequence[CellRun]) -> dict[str, dict[str, Any]]:
    """Return the tables that `write_tables` writes, by their names."""
    parts: dict[str, list[dict[str, Any]]] = {}
    stated = (name for run in runs for name in _checked(run.cell.scheme, run.facts))
    facts = tuple(dict.fromkeys((*FACTS, *RUN_FACTS, *stated)))
    for run in runs:
        for name, columns in _columns(run, facts).items():
            if name != "timeline" or run.seed == runs[0].seed:
                parts.setdefault(name, []).append(columns)
    return {
        name: {key: np.concatenate([table[key] for table in tables]) for key in tables[0]}
        for name, tables in parts.items()
    }


def stated_facts(scheme: Scheme, state: State) -> dict[str, float]:
    """Return the facts that a scheme states; refuse names that have another meaning."""
    return _checked(scheme.info.name, scheme.describe(state).facts, (*COMMON, *RUN_FACTS))


def _checked(
    scheme: str, facts: Mapping[str, Any], taken: Collection[str] = COMMON
) -> dict[str, float]:
    """Return facts as numbers; refuse what is not a number, and names that are taken."""
    numbers = {}
    for name, value in facts.items():
        if name in taken:
            raise InputError(
                f"scheme {scheme!r} states a fact {name!r}, which another column is called: choose "
                "another name"
            )
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            raise InputError(
                f"scheme {scheme!r} states {name} = {value!r}: must be a number"
            ) from None
    return numbers


def planned_share(scheme: Scheme, state: State) -> FloatArray:
    """Return the share of rounds in which each client was planned to arrive; NaN: not planned."""
    unplanned = np.full(state.task.clients, np.nan)
    return np.asarray(getattr(scheme.describe(state).plan, "return_probabilities", unplanned))


def _columns(run: CellRun, names_of_facts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the rows of one cell and seed, table by table."""
    cell = run.cell
    common = {
        "cell": cell.id,
        "setting": cell.label,
        "group": cell.group,
        "scheme": cell.scheme,
        "redundancy": np.nan if cell.redundancy is None else float(cell.redundancy),
        "as_in_paper": cell.as_in_paper,
        "seed": run.seed,
    }
    clients = {name: np.asarray(run.clients[name], dtype=np.float64) for name in CLIENT_COLUMNS}
    names = np.asarray(run.clients["client"]).astype(str)
    facts = {
        name: np.array([run.facts.get(name, np.nan)], dtype=np.float64) for name in names_of_facts
    }
    rounds = round_columns(run.records)
    return {
        "rounds": repeated(common | {"metric_name": run.metric}, rounds),
        "clients": repeated(common, {"client": names} | clients),
        "settings": repeated(common, facts),
        "timeline": repeated(common, timeline_columns(run.records, names)),
    }
