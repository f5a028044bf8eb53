"""`codedfedl reproduce frontier`: every scheme at its best, against what it discloses."""

import csv
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from codedfedl.cli.beyond import Reproduction
from codedfedl.cli.output import results, save_pictures
from codedfedl.core.disclosure import listed
from codedfedl.errors import InputError
from codedfedl.io.files import make_folder, replacing
from codedfedl.io.names import nearest
from codedfedl.report.comparison import unit_for
from codedfedl.report.frontier import Place, frontier_rows, places
from codedfedl.report.results import outcomes, written

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
_IN_FULL = ("mnist", "fashion-mnist")


def frontier(job: Reproduction) -> dict[str, Any]:
    """Run what is asked for, or everything; print the table and draw the picture."""
    from codedfedl.report.frontier import frontier_figure

    for name, given, known in (("fleet", job.fleet, FLEETS), ("dataset", job.dataset, DATASETS)):
        if given is not None and given not in known:
            raise InputError(f"--{name} {given}: {nearest(given, list(known))}")
    rows: list[dict[str, Any]] = []
    skipped: list[str] = []
    for fleet in [job.fleet] if job.fleet else list(FLEETS):
        panels = []
        for dataset in [job.dataset] if job.dataset else _of(fleet):
            if dataset in skipped or not _has(job, dataset):
                skipped = list(dict.fromkeys([*skipped, dataset]))
                continue
            found = _places(job, fleet, dataset)
            rows += frontier_rows(found)
            if any(place.hours is not None for place in found):
                panels.append((f"{dataset}, {_words(found)}", found))
            if not job.quiet:
                results.print(Text(f"\n{dataset}, {fleet} fleet", style="bold"), _table(found))
        if panels:
            save_pictures(frontier_figure(panels), job.out / f"frontier-{fleet}")
    return {"rows": rows, "skipped": skipped}


def _has(job: Reproduction, dataset: str) -> bool:
    """Return whether a data set is available; one that was asked for by name must be."""
    if job.dataset is not None:
        return True  # loading it raises an error if it is missing
    return job.has(dataset, partial(_diamonds_file, job) if dataset == _DIAMONDS else None)


def _of(fleet: str) -> Sequence[str]:
    return list(DATASETS) if fleet == "paper" else _IN_FULL[:1]


def _places(job: Reproduction, fleet: str, dataset: str) -> list[Place]:
    changes: Mapping[str, Any] = FLEETS[fleet] | DATASETS[dataset]
    full = fleet == "paper" and dataset in _IN_FULL
    name = dataset if dataset != _DIAMONDS else _diamonds(job)
    own: dict[str, Any] = {"data.name": name, **changes}
    if dataset not in _IN_FULL:
        own |= {"training.target": None}
    experiments = {
        f"{experiment}-{fleet}-{dataset}": job.built_in(experiment, own)
        for experiment in (_FULL if full else ("frontier-short",))
    }
    runs = job.run(experiments).values()
    return places(fleet, [outcome for run in runs for outcome in outcomes(run)])


def _diamonds_file(job: Reproduction) -> Path:
    """Return where the table is, beside the other data."""
    place = Path(job.data or os.environ.get("CODEDFEDL_DATA", ".")) / "diamonds.csv"
    if not place.is_file():
        raise InputError(
            f"{place} does not exist: take diamonds.csv from the source package of pydataset"
        )
    return place


def _diamonds(job: Reproduction) -> str:
    """Return the table with its ordered words as numbers, and without its row numbers."""
    with _diamonds_file(job).open(newline="") as file:
        (_, *names), *lines = csv.reader(file)
    made = job.out / "diamonds.csv"
    make_folder(job.out)
    with replacing(made) as place, place.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(names)
        for _, *values in lines:
            cells = zip(names, values, strict=True)
            table.writerow([_ORDERED[n].index(v) if n in _ORDERED else v for n, v in cells])
    return str(made)


def _words(found: Sequence[Place]) -> str:
    first = found[0].outcome
    return f"{first.metric} {written(first.metric, first.target)}"


def _table(found: Sequence[Place]) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bold")
    unit = unit_for(place.hours or 0.0 for place in found)
    for name in ("setting", "leaves a client", "points a row", unit.name, "over seeds", "final"):
        table.add_column(name)
    table.add_column("best rival that discloses no more")
    table.add_column("gain")
    for place in sorted(found, key=lambda one: one.hours or float("inf")):
        one = place.outcome
        met = [t * unit.per_hour for t in one.total_hours if t is not None]
        final = sorted(one.final)[len(one.final) // 2]
        table.add_row(
            one.setting,
            listed(one.disclosure),
            "" if one.points_per_parity_row is None else f"{one.points_per_parity_row:.0f}",
            "not met" if place.hours is None else f"{place.hours * unit.per_hour:.4g}",
            f"{min(met):.4g} – {max(met):.4g}" if met else "",
            written(one.metric, final),
            "" if place.rival is None else place.rival.setting,
            "–" if place.gain is None else f"{place.gain:.2f}×",
        )
    return table
