"""The tables of a run: the same columns in a simulation and a federation, for one report."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
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
from codedfedl.core.record import Record, metric_name
from codedfedl.errors import InputError
from codedfedl.fleet.devices import Fleet
from codedfedl.io.tables import repeated
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.federation import federation_schedule
from codedfedl.runs.grid import KnownCell, cells
from codedfedl.runs.journal import Journal, Members


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


@dataclass(frozen=True, eq=False)
class Ending:
    """A federation that has played its rounds.

    Attributes
    ----------
    fleet
        As it was measured.
    planned_share : array of shape (n,)
        The share of rounds in which each client was planned to arrive; NaN: not planned.
    facts
        Of the scheme, the test points and the training, as far as they are known.
    model
        The last one.
    """

    members: Members
    fleet: Fleet
    planned_share: FloatArray
    facts: Mapping[str, float]
    model: npt.NDArray[Any]


def write_records(
    directory: RunDirectory, experiment: Experiment, journal: Journal, ending: Ending
) -> None:
    """Write the tables of the run, and its refusals."""
    step = federation_schedule(experiment).step
    facts = {
        "sigma": getattr(experiment.feature_map(), "sigma", np.nan),
        "step": step if np.isfinite(step) else np.nan,
        "diverged": float(not np.isfinite(ending.model).all()),
    }
    (cell,), seed = cells(experiment), experiment.seeds[0]
    known = replace(ending, facts={**ending.facts, **facts})
    for name, columns in record_tables(cell, seed, journal.records(), known).items():
        directory.write(f"{name}.parquet", columns)


def record_tables(
    cell: KnownCell, seed: int, records: Sequence[Record], ending: Ending
) -> dict[str, dict[str, Any]]:
    """Return the tables of the run by their names, with refusals and distances."""
    names, clients = ending.members.names, _client_columns(ending, records)
    run = CellRun(cell, seed, metric_name(ending.members.classes), records, clients, ending.facts)
    refusals = [(record.round, j, why) for record in records for j, why in record.refusals]
    distances = [
        (record.round, j, distance)
        for record in records
        for j, distance in record.known_distances[0].items()
    ]
    return tables_of([run]) | {
        "refusals": _event_columns("reason", refusals, names),
        "distances": _event_columns("distance", distances, names),
    }


def _event_columns(
    value: str, events: Sequence[tuple[int, int, Any]], names: Sequence[str]
) -> dict[str, Any]:
    return {
        "round": np.array([round_ + 1 for round_, _, _ in events]),
        "client": np.array([names[j] for _, j, _ in events]),
        value: np.array([fact for _, _, fact in events]),
    }


def _client_columns(ending: Ending, records: Sequence[Record]) -> dict[str, Any]:
    in_setup = np.array([record.is_setup for record in records])
    times = np.array([record.arrival_times for record in records])
    compute = np.array([record.compute for record in records])
    loads = np.array([record.loads for record in records])
    arrived = np.array([record.arrived for record in records])
    answered = in_setup[:, None] & np.isfinite(times)
    setup_compute = np.where(answered, np.nan_to_num(compute), 0.0).sum(0)
    setup_seconds = np.where(answered, times, 0.0).sum(0)
    rounds = np.full_like(in_setup, True) if in_setup.all() else ~in_setup
    times, compute, loads, arrived = times[rounds], compute[rounds], loads[rounds], arrived[rounds]
    compute_seconds = _mean(compute, arrived & np.isfinite(compute))
    unknown = np.zeros(len(ending.members.names))
    return {
        "client": np.array(ending.members.names),
        "rate": ending.fleet.rate,
        "points": np.array(ending.members.points),
        "load": loads.max(0),
        "planned_share": ending.planned_share,
        "arrived_share": _mean(arrived, loads > 0),
        "compute_s": compute_seconds,
        "link_s": np.maximum(_mean(times, arrived) - compute_seconds, 0.0),
        "retransmission_s": unknown,  # the transport hides them
        "overhead_s": unknown,  # is part of the link's seconds
        "setup_compute_s": setup_compute,
        "setup_upload_s": setup_seconds - setup_compute,
    }


def _mean(values: Any, counted: Any) -> Any:
    """Return the mean over rounds of what is counted; 0 where nothing is."""
    return np.where(counted, values, 0.0).sum(0) / np.maximum(counted.sum(0), 1)
