"""Every scheme at its best: hours to the target against what it discloses."""

import csv
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.text import Text

from codedfedl.core.disclosure import listed
from codedfedl.errors import InputError
from codedfedl.io.files import make_folder, replacing
from codedfedl.io.names import nearest
from codedfedl.report.comparison import unit_for
from codedfedl.report.frontier import FrontierPoint, frontier_points, frontier_rows
from codedfedl.report.results import outcomes, written
from codedfedl.reproduce.reproduction import PAPER_DATASETS, Reproduction

__all__ = ["DATASETS", "FLEETS", "frontier"]

FLEETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "homogeneous": {"fleet.k1": 1.0, "fleet.k2": 1.0},
    "thousand": {
        "fleet.clients": 1000,
        "fleet.k1": 0.99846,  # 0.95^(30/1000)
        "fleet.k2": 0.99333,  # 0.8^(30/1000)
        "data.batches": 1,
        "training.epochs": 500,
        "training.decay_epochs": [200, 325],
    },
    "phones": {"fleet.name": "phones", "fleet.clients": 100},
}
"""Fleets by name: the paper's, thirty equal clients, a thousand with sixty points each, phones."""

_TABLE = {"features.sigma": "auto", "training.step": "auto", "training.decay_epochs": []}
DATASETS: dict[str, dict[str, Any]] = {
    "mnist": {},
    "fashion-mnist": {"training.target": 0.842},
    "digits-halves": _TABLE
    | {"features.n_components": 500, "data.batches": 1, "training.ridge": 1e-4}
    | {"training.epochs": 2000},
    "diamonds": _TABLE
    | {"features.n_components": 400, "data.batches": 1, "training.ridge": 1e-5}
    | {"data.label": "cut", "data.partition": "iid", "training.epochs": 2000},
}
"""Data sets by name, with what differs from MNIST."""

_DIAMONDS = "diamonds"
_ORDERED = {  # from the worst to the best
    "color": list("JIHGFED"),
    "clarity": ["I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"],
}
_FULL = ("frontier", "frontier-tables", "frontier-events")


def frontier(job: Reproduction) -> dict[str, Any]:
    """Run what is asked for, or everything; print the table and draw the picture."""
    from codedfedl.report.frontier import frontier_figure

    for name, given, known in (("fleet", job.fleet, FLEETS), ("dataset", job.dataset, DATASETS)):
        if given is not None and given not in known:
            raise InputError(f"--{name} {given}: {nearest(given, list(known))}")
    rows: list[dict[str, Any]] = []
    skipped: dict[str, None] = {}
    for fleet in [job.fleet] if job.fleet else FLEETS:
        panels = []
        by_default = list(DATASETS) if fleet == "paper" else PAPER_DATASETS[:1]
        for dataset in [job.dataset] if job.dataset else by_default:
            if dataset in skipped or not _has(job, dataset):
                skipped[dataset] = None
                continue
            settings = _places(job, fleet, dataset)
            rows += frontier_rows(settings)
            if any(entry.hours is not None for entry in settings):
                panels.append((f"{dataset}, {_target(settings)}", settings))
            job.show(Text(f"\n{dataset}, {fleet} fleet", style="bold"))
            job.show(_rows(settings))
        if panels:
            job.save_pictures(frontier_figure(panels), f"frontier-{fleet}")
    return {"rows": rows, "skipped": list(skipped)}


def _has(job: Reproduction, dataset: str) -> bool:
    """Return whether a data set is available; one that was asked for by name must be."""
    if job.dataset is not None:
        return True  # loading it raises an error if it is missing
    return job.has(dataset, partial(_diamonds_file, job) if dataset == _DIAMONDS else None)


def _places(job: Reproduction, fleet: str, dataset: str) -> list[FrontierPoint]:
    is_paper_data = dataset in PAPER_DATASETS
    name = dataset if dataset != _DIAMONDS else _diamonds(job)
    changes: dict[str, Any] = {"data.name": name, **FLEETS[fleet], **DATASETS[dataset]}
    if not is_paper_data:
        changes |= {"training.target": None}
    experiments = {
        f"{experiment}-{fleet}-{dataset}": job.built_in(experiment, changes)
        for experiment in (_FULL if fleet == "paper" and is_paper_data else ("frontier-short",))
    }
    runs = job.run(experiments).values()
    return frontier_points(fleet, [outcome for run in runs for outcome in outcomes(run)])


def _diamonds_file(job: Reproduction) -> Path:
    """Return where the table is, beside the other data."""
    path = Path(job.data or os.environ.get("CODEDFEDL_DATA", ".")) / "diamonds.csv"
    if not path.is_file():
        raise InputError(
            f"{path} does not exist: take diamonds.csv from the source package of pydataset"
        )
    return path


def _diamonds(job: Reproduction) -> str:
    """Return the table with its ordered words as numbers, and without its row numbers."""
    with _diamonds_file(job).open(newline="") as file:
        (_, *names), *lines = csv.reader(file)
    numbered = job.out / "diamonds.csv"
    make_folder(job.out)
    with replacing(numbered) as path, path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(names)
        for _, *values in lines:
            cells = zip(names, values, strict=True)
            table.writerow([_ORDERED[n].index(v) if n in _ORDERED else v for n, v in cells])
    return str(numbered)


def _target(settings: Sequence[FrontierPoint]) -> str:
    first = settings[0].outcome
    return f"{first.metric} {written(first.metric, first.target)}"


def _rows(settings: Sequence[FrontierPoint]) -> list[dict[str, Any]]:
    """Return what people read of a fleet and a data set, the fastest first."""
    unit = unit_for(entry.hours or 0.0 for entry in settings)
    rows = []
    for entry in sorted(settings, key=lambda entry: entry.hours or float("inf")):
        outcome = entry.outcome
        met = [t * unit.per_hour for t in outcome.total_hours if t is not None]
        density = outcome.points_per_parity_row
        rows.append(
            {
                "setting": outcome.setting,
                "leaves a client": listed(outcome.cell.disclosure),
                "points a row": "" if density is None else f"{density:.0f}",
                unit.name: "not met" if entry.hours is None else entry.hours * unit.per_hour,
                "over seeds": f"{min(met):.4g} – {max(met):.4g}" if met else "",
                "final": written(outcome.metric, sorted(outcome.final)[len(outcome.final) // 2]),
                "best rival that discloses no more": entry.rival.setting if entry.rival else "",
                "gain": None if entry.gain is None else f"{entry.gain:.2f}×",
            }
        )
    return rows
