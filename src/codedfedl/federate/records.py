"""A federation's records, in the tables that a simulation writes: one report serves both."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from codedfedl.core.record import (
    ARRIVED,
    DROPPED,
    FACTS,
    LATE,
    Record,
    round_columns,
    timeline_columns,
)
from codedfedl.io.tables import repeated
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.journal import Journal, Members

__all__ = ["write_records"]


def write_records(
    directory: RunDirectory,
    experiment: Experiment,
    members: Members,
    journal: Journal,
    facts: Mapping[str, float],
    gone: Sequence[int],
) -> None:
    """Write the tables of a run, and its refusals; `gone` were not there in the end."""
    chosen = experiment.schemes[0]
    common = {
        "setting": chosen.label,
        "group": "",
        "scheme": chosen.plain_name,
        "redundancy": float(chosen.settings.get("redundancy", np.nan)),
        "as_in_paper": False,
        "seed": experiment.seeds[0],
    }
    every = [exchange.record for exchange in journal.exchanges(gradients=False)]
    records = _without_the_gone([replace(one, has_model=not one.is_setup) for one in every], gone)
    setup_seconds = sum(record.seconds for record in records if record.is_setup)
    metric = {"metric_name": "accuracy" if members.classes else "R²"}
    rounds = round_columns(records, setup_seconds)
    names = np.array(members.names)
    tables = {
        "rounds": repeated(common | metric, rounds),
        "clients": repeated(common, _client_columns(members, records)),
        "settings": repeated(common, {name: np.array([facts.get(name, np.nan)]) for name in FACTS}),
        "timeline": repeated(common, timeline_columns(records, names)),
    }
    for name, table in tables.items():
        directory.write(f"{name}.parquet", table)
    refusals = [(e.round + 1, members.names[j], why) for e in records for j, why in e.refusals]
    columns = ("round", "client", "reason")
    directory.write(
        "refusals.parquet",
        {name: [row[place] for row in refusals] for place, name in enumerate(columns)},
    )


def _without_the_gone(records: Sequence[Record], gone: Sequence[int]) -> list[Record]:
    """Call those dropped, not late, who never came back."""
    changed = []
    left = set(gone)
    for record in reversed(records):
        outcome = record.outcome.copy()
        left -= set(np.flatnonzero(outcome == ARRIVED).tolist())
        for j in left:
            outcome[j] = DROPPED if outcome[j] == LATE else outcome[j]
        changed.append(replace(record, outcome=outcome))
    return changed[::-1]


def _client_columns(members: Members, records: Sequence[Record]) -> dict[str, Any]:
    setups = [record for record in records if record.is_setup]
    rounds = [record for record in records if not record.is_setup]
    when = np.array([record.arrival_times for record in rounds])
    compute = np.array([record.compute for record in rounds])
    loads = np.array([record.loads for record in rounds])
    arrived = np.array([record.arrived for record in rounds])
    busy = _mean(compute, arrived & np.isfinite(compute))
    set_up = np.zeros(len(members.names)), np.zeros(len(members.names))
    for record in setups:
        assert record.arrival_times is not None
        assert record.compute is not None
        there = np.isfinite(record.arrival_times)
        spent = np.where(there, np.nan_to_num(record.compute), 0.0)
        set_up[0][:] += spent
        set_up[1][:] += np.where(there, record.arrival_times, 0.0) - spent
    return {
        "client": np.array(members.names),
        "points": np.array(members.points, dtype=np.float64),
        "load": loads.max(0).astype(np.float64),
        "arrived_share": _mean(arrived.astype(float), loads > 0),
        "compute_s": busy,
        "link_s": np.maximum(_mean(when, arrived) - busy, 0.0),
        "retransmission_s": np.zeros(len(members.names)),  # the transport hides them
        "setup_compute_s": set_up[0],
        "setup_upload_s": set_up[1],
    }


def _mean(values: Any, counted: Any) -> Any:
    """Return the mean over rounds of what is counted; 0 where nothing is."""
    total = np.where(counted, values, 0.0).sum(0)
    return total / np.maximum(counted.sum(0), 1)
