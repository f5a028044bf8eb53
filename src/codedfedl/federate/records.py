"""A federation's records, in the tables that a simulation writes: one report serves both."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from codedfedl.io.tables import repeated
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.journal import ARRIVED, DROPPED, LATE, SETUP, Exchange, Members

__all__ = ["write_records"]


def write_records(
    directory: RunDirectory,
    experiment: Experiment,
    members: Members,
    exchanges: Sequence[Exchange],
    gone: Sequence[int],
) -> None:
    """Write rounds, clients, settings and refusals; `gone` were not there in the end."""
    chosen = experiment.schemes[0]
    common = {
        "setting": chosen.label,
        "scheme": chosen.name,
        "redundancy": float(chosen.settings.get("redundancy", np.nan)),
        "as_in_paper": False,
        "seed": experiment.seeds[0],
    }
    setups = [e for e in exchanges if e.round == SETUP]
    rounds = _without_the_gone([e for e in exchanges if e.round != SETUP], gone)
    setup_seconds = sum(e.seconds for e in setups)
    metric = {"metric_name": "accuracy" if members.classes else "R²"}
    directory.write(
        "rounds.parquet", repeated(common | metric, _round_columns(rounds, setup_seconds))
    )
    directory.write("clients.parquet", repeated(common, _client_columns(members, setups, rounds)))
    embedded = sum(float(e.blocks[j]) for e in setups for j in e.blocks)
    directory.write("settings.parquet", repeated(common, {"embedded_points": np.array([embedded])}))
    refusals = [(e.round + 1, members.names[j], why) for e in exchanges for j, why in e.refusals]
    names = ("round", "client", "reason")
    columns = {name: [row[place] for row in refusals] for place, name in enumerate(names)}
    directory.write("refusals.parquet", columns)


def _without_the_gone(rounds: list[Exchange], gone: Sequence[int]) -> list[Exchange]:
    """Call those dropped, not late, who never came back."""
    changed = []
    left = set(gone)
    for exchange in reversed(rounds):
        outcome = exchange.outcome.copy()
        left -= set(np.flatnonzero(outcome == ARRIVED).tolist())
        for j in left:
            outcome[j] = DROPPED if outcome[j] == LATE else outcome[j]
        changed.append(replace(exchange, outcome=outcome))
    return changed[::-1]


def _round_columns(rounds: Sequence[Exchange], setup_seconds: float) -> dict[str, Any]:
    seconds = np.array([e.seconds for e in rounds])
    hours = np.cumsum(seconds) / 3600
    count = {
        name: np.array([int((e.outcome == kind).sum()) for e in rounds])
        for name, kind in (("arrived", ARRIVED), ("late", LATE), ("dropped", DROPPED))
    }
    return {
        "round": np.array([e.round + 1 for e in rounds]),
        "deadline_s": np.array([e.deadline for e in rounds]),
        "seconds": seconds,
        "training_hours": hours,
        "total_hours": hours + setup_seconds / 3600,
        **count,
        "refused": np.array([len(e.refusals) for e in rounds]),
        "excess": np.full(len(rounds), np.nan),
        "metric": np.array([e.metric for e in rounds]),
    }


def _client_columns(
    members: Members, setups: Sequence[Exchange], rounds: Sequence[Exchange]
) -> dict[str, Any]:
    when = np.array([e.when for e in rounds])
    compute = np.array([e.compute for e in rounds])
    loads = np.array([e.loads for e in rounds])
    arrived = np.array([e.arrived for e in rounds])
    busy = _mean(compute, arrived & np.isfinite(compute))
    set_up = np.zeros(len(members.names)), np.zeros(len(members.names))
    for e in setups:
        there = np.isfinite(e.when)
        spent = np.where(there, np.nan_to_num(e.compute), 0.0)
        set_up[0][:] += spent
        set_up[1][:] += np.where(there, e.when, 0.0) - spent
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
