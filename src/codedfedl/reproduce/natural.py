"""Natural federations: tables with their own clients, on three fleets, seen and unseen clients."""

import os
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from codedfedl.core.columns import POOLED
from codedfedl.errors import InputError
from codedfedl.fleet.devices import Devices
from codedfedl.report.outcome_tables import outcome_rows
from codedfedl.report.results import Outcome, median_of_all, outcomes, written
from codedfedl.reproduce.reproduction import Reproduction

DATASETS: dict[str, dict[str, Any]] = {
    "wisdm": {"data.label": "activity", "data.client": "person"},
    "heart": {"data.label": "disease", "data.client": "hospital"},
    "parkinson": {
        "data.label": "total_updrs",
        "data.client": "patient",
        "data.drop": ["motor_updrs"],  # the label's larger part
    },
}
"""Files ``NAME.csv`` in the folder of the data, or its folder ``natural``, and their columns."""

FLEETS = ("paper", "phones", "hospitals")
_STRONG, _SLOW = {"mac_rate": 1e10, "bit_rate": 1e8}, {"bit_rate": 2e6}
SPLITS = {"points": "points of every client", "clients": "clients left out"}
_NETWORK: dict[str, Any] = {
    "model": {"kind": "torch", "module": "mlp"},
    "features": {"kind": "identity"},
    "schemes": [{"name": "paced"}, {"name": "tangent-newton"}],
}
_BOUNDED: dict[str, dict[str, Any]] = {  # of which bounds are public: shares, m/s², milliseconds
    "wisdm": {
        "data.low": [0.0] * 30 + [-20.0] * 3 + [0.0] * 10,
        "data.high": [1.0] * 30 + [20.0] * 3 + [1e4] * 3 + [20.0] * 6 + [40.0],
        "features.sigma": 1.0,
        "schemes": [{"name": "private"}],
    },
}
_LISTS = ("rounds", "training_hours", "total_hours", "final", "excess")

Rows = list[dict[str, Any]]


def natural(job: Reproduction) -> dict[str, Any]:
    """Run every scheme on every table, fleet and split; print the table."""
    rows: Rows = []
    skipped = []
    for dataset in [job.dataset] if job.dataset else DATASETS:
        path = partial(_file, job, dataset)
        if not job.has(dataset, path):
            skipped.append(dataset)
            continue
        for split, words in SPLITS.items():
            for fleet in FLEETS:
                added = _rows(job, path(), dataset, split, fleet)
                rows += added
                job.show(Text(f"\n{dataset}, {words}, {fleet} fleet", style="bold"))
                job.show([_shown(row) for row in added])
    return {"rows": rows, "skipped": skipped}


def _file(job: Reproduction, dataset: str) -> Path:
    """Return where a table is."""
    folder = Path(job.data or os.environ.get("CODEDFEDL_DATA", "."))
    places = [folder / f"{dataset}.csv", folder / "natural" / f"{dataset}.csv"]
    for path in places:
        if path.is_file():
            return path
    raise InputError(f"{' and '.join(map(str, places))} do not exist: see docs/howto/data.md")


def _rows(job: Reproduction, path: Path, dataset: str, split: str, fleet: str) -> Rows:
    """Run a case with each seed, which holds out another part; return a row for each scheme."""
    changes: dict[str, Any] = {"data.name": str(path), "data.test": split, **DATASETS[dataset]}
    case = f"natural-{dataset}-{split}-{fleet}"
    experiments = {}
    for seed in range(job.seeds):
        fold = {"seeds": [seed], "data.fold": seed % 5, **_fleet(job, path, dataset, fleet, seed)}
        experiments[f"{case}-{seed}"] = job.built_in("natural", changes | fold)
        apart = {"network": _NETWORK} if find_spec("torch") else {}
        bounded = _BOUNDED.get(dataset) if find_spec("dp_accounting") else None
        apart |= {} if bounded is None else {"private": bounded}
        for name, change in apart.items():
            experiments[f"{case}-{name}-{seed}"] = job.built_in("natural", changes | fold | change)
    every: dict[str, Rows] = {}
    reference: Outcome | None = None
    for name, run in job.run(experiments).items():
        is_apart = not name.removeprefix(f"{case}-").isdigit()
        if not is_apart:
            reference = outcomes(run)[0]
        assert reference is not None
        for outcome in outcomes(run, reference.target):
            (row,) = outcome_rows([outcome])
            if is_apart:  # gains are over the linear model that waits for all
                row |= {"gain": None, "gain_total": _gain(reference, outcome)}
            row["pooled"] = {fact: reference.fact(fact)[0] for fact in POOLED}
            every.setdefault(outcome.scheme, []).append(row)
    where = {"dataset": dataset, "fleet": fleet, "split": split}
    return [_joined(rows) | where for rows in every.values()]


def _gain(reference: Outcome, outcome: Outcome) -> float | None:
    """Return how many times sooner a setting is at the target than the reference, charged."""
    (before,), (after,) = reference.total_hours, outcome.total_hours
    return before / after if before is not None and after else None


def _fleet(job: Reproduction, path: Path, dataset: str, fleet: str, seed: int) -> dict[str, Any]:
    """Return what makes a fleet: `hospitals` are strong sites, the last on a slow link."""
    if fleet != "hospitals":
        return {"fleet.name": fleet}
    from pyarrow import csv

    column = csv.read_csv(path, csv.ReadOptions())[DATASETS[dataset]["data.client"]]
    names = np.unique(np.array(column.to_pylist()).astype(str))
    slow = np.random.default_rng(seed).permutation(len(names)) == 0
    columns = {key: np.where(slow, _SLOW.get(key, value), value) for key, value in _STRONG.items()}
    file = job.out / f"natural-{dataset}-hospitals-{seed}.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    Devices(**columns, alpha=2.0, erasure=0.01, client=names).write(file)
    return {"fleet.name": str(file)}


def _joined(rows: Rows) -> dict[str, Any]:
    """Join the rows of one scheme, a seed each; the best pooled baseline is the same for all."""
    joined = dict(rows[0])
    for name in _LISTS:
        joined[name] = [value for row in rows for value in row[name]]
    for name in ("gain", "gain_total"):
        joined[name] = median_of_all([row[name] for row in rows])
    targets = [row["target"] for row in rows if row["target"] is not None]
    joined["target"] = float(np.mean(targets)) if targets else None
    means = {name: np.mean([row["pooled"][name] or np.nan for row in rows]) for name in POOLED}
    best = max(means, key=lambda name: means[name])
    linear = {name: float(means[name]) for name in POOLED}
    return joined | {"pooled": linear[best], "pooled_model": POOLED[best], "baselines": linear}


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    metric = str(row["metric"])
    hours = median_of_all(row["total_hours"])
    return {
        "scheme": row["scheme"],
        "final": written(metric, float(np.mean(row["final"]))),
        **{words: written(metric, row["baselines"][name]) for name, words in POOLED.items()},
        "hours to the target": "not met" if hours is None else hours,
        "gain": row["gain_total"],
    }
