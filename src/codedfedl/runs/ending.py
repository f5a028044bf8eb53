"""A federation's records, in the tables that a simulation writes: one report serves both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray
from codedfedl.core.record import Record, metric_name
from codedfedl.fleet.devices import Fleet
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.federation import federation_schedule
from codedfedl.runs.grid import KnownCell, cells
from codedfedl.runs.journal import Journal, Members
from codedfedl.runs.tables import CellRun, tables_of

__all__ = ["Ending", "record_tables", "write_records"]


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
    (cell,) = cells(experiment)
    facts = {**ending.facts, **_run_facts(experiment, ending.model)}
    known = replace(ending, facts=facts)
    seed, records = experiment.seeds[0], journal.records()
    for name, columns in record_tables(cell, seed, records, known).items():
        directory.write(f"{name}.parquet", columns)


def record_tables(
    cell: KnownCell, seed: int, records: Sequence[Record], ending: Ending
) -> dict[str, dict[str, Any]]:
    """Return the tables of the run by their names, with refusals and distances."""
    run = CellRun(
        cell=cell,
        seed=seed,
        metric=metric_name(ending.members.classes),
        records=records,
        clients=_client_columns(ending, records),
        facts=ending.facts,
    )
    names = ending.members.names
    refusals = [(e.round + 1, names[j], why) for e in records for j, why in e.refusals]
    distances = [
        (record.round + 1, names[j], distance)
        for record in records
        for j, distance in record.known_distances[0].items()
    ]
    return tables_of([run]) | {
        "refusals": _columns(("round", "client", "reason"), refusals),
        "distances": _columns(("round", "client", "distance"), distances),
    }


def _columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    return {name: np.array([row[place] for row in rows]) for place, name in enumerate(names)}


def _run_facts(experiment: Experiment, model: npt.NDArray[Any]) -> dict[str, float]:
    features = experiment.feature_map()
    step = federation_schedule(experiment).step
    return {
        "sigma": getattr(features, "sigma", np.nan),
        "step": step if np.isfinite(step) else np.nan,
        "diverged": float(not np.isfinite(model).all()),
    }


def _client_columns(ending: Ending, records: Sequence[Record]) -> dict[str, Any]:
    rounds = [record for record in records if not record.is_setup] or list(records)
    arrival_times = np.array([record.arrival_times for record in rounds])
    compute = np.array([record.compute for record in rounds])
    loads = np.array([record.loads for record in rounds])
    arrived = np.array([record.arrived for record in rounds])
    busy = _mean(compute, arrived & np.isfinite(compute))
    unknown = np.zeros(len(ending.members.names))
    setup_compute, setup_upload = _setup_seconds(records)
    return {
        "client": np.array(ending.members.names),
        "rate": ending.fleet.rate,
        "points": np.array(ending.members.points),
        "load": loads.max(0),
        "planned_share": ending.planned_share,
        "arrived_share": _mean(arrived.astype(float), loads > 0),
        "compute_s": busy,
        "link_s": np.maximum(_mean(arrival_times, arrived) - busy, 0.0),
        "retransmission_s": unknown,  # the transport hides them
        "overhead_s": unknown,  # is part of the link's seconds
        "setup_compute_s": setup_compute,
        "setup_upload_s": setup_upload,
    }


def _setup_seconds(records: Sequence[Record]) -> tuple[FloatArray, FloatArray]:
    """Return how long each client computed in the set-up, and how long it sent."""
    compute, upload = np.zeros((2, len(records[0].loads)))
    for record in records:
        if record.is_setup:
            assert record.arrival_times is not None
            assert record.compute is not None
            there = np.isfinite(record.arrival_times)
            spent = np.where(there, np.nan_to_num(record.compute), 0.0)
            compute += spent
            upload += np.where(there, record.arrival_times, 0.0) - spent
    return compute, upload


def _mean(values: Any, counted: Any) -> Any:
    """Return the mean over rounds of what is counted; 0 where nothing is."""
    total = np.where(counted, values, 0.0).sum(0)
    return total / np.maximum(counted.sum(0), 1)
