"""Every scheme at its best: hours to the target against what it discloses."""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.text import Text

from codedfedl.core.disclosure import discloses_no_more, listed
from codedfedl.errors import InputError
from codedfedl.io.files import make_folder, replacing
from codedfedl.io.names import nearest
from codedfedl.learning.metrics import telling_excess
from codedfedl.report.comparison import Unit, three_digits, unit_for
from codedfedl.report.figures import COLOURS, GREY, log_axis, new_figure
from codedfedl.report.outcome_tables import outcome_rows
from codedfedl.report.results import Outcome, median_hours, median_of_all, outcomes, written
from codedfedl.reproduce.reproduction import PAPER_DATASETS, Reproduction

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

_TRAINED_EXCESS = 0.2  # Settings are compared by when the objective's excess falls below it.
_BANDS = (  # who may see what, the most telling first
    ({"raw"}, "raw points leave"),
    ({"mixed", "statistics"}, "parity or Gram matrices leave"),
    ({"gradients", "models"}, "a client's gradients or models leave"),
    ({"sums", "dp"}, "sums leave"),
)


@dataclass(frozen=True)
class _Point:
    """A setting on the frontier, and the best rival that discloses the same or less."""

    outcome: Outcome
    rival: Outcome | None = None

    @property
    def hours(self) -> float:
        """Charged hours to the target: the median over seeds, ∞ where one does not meet it."""
        return median_hours(self.outcome)

    @property
    def gain(self) -> float | None:
        """How many times sooner than the rival: the median over seeds, with the same delays."""
        if self.rival is None:
            return None
        pairs = zip(self.rival.total_hours, self.outcome.total_hours, strict=True)
        return median_of_all([None if not b or a is None else a / b for a, b in pairs])


def frontier(job: Reproduction) -> dict[str, Any]:
    """Run what is asked for, or everything; print the table and draw the picture."""
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
            points = _points(_run(job, fleet, dataset))
            rows += [_document(point, fleet) for point in points]
            if any(point.hours < np.inf for point in points):
                first = points[0].outcome
                target = f"{first.metric} {written(first.metric, first.target)}"
                panels.append((f"{dataset}, {target}", points))
            job.show(Text(f"\n{dataset}, {fleet} fleet", style="bold"))
            job.show(_rows(points))
        if panels:
            job.save_pictures(_figure(panels), f"frontier-{fleet}")
    return {"rows": rows, "skipped": list(skipped)}


def _has(job: Reproduction, dataset: str) -> bool:
    """Return whether a data set is available; one that was asked for by name must be."""
    if job.dataset is not None:
        return True  # loading it raises an error if it is missing
    return job.has(dataset, partial(_diamonds_file, job) if dataset == _DIAMONDS else None)


def _run(job: Reproduction, fleet: str, dataset: str) -> list[Outcome]:
    is_paper_data = dataset in PAPER_DATASETS
    name = dataset if dataset != _DIAMONDS else _diamonds(job)
    changes: dict[str, Any] = {"data.name": name, **FLEETS[fleet], **DATASETS[dataset]}
    if not is_paper_data:
        changes |= {"training.target": None}
    experiments = {
        f"{experiment}-{fleet}-{dataset}": job.built_in(experiment, changes)
        for experiment in (_FULL if fleet == "paper" and is_paper_data else ("frontier-short",))
    }
    return [outcome for run in job.run(experiments).values() for outcome in outcomes(run)]


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


def _at_their_best(every: Sequence[Outcome]) -> list[Outcome]:
    """Keep of each scheme, optimiser and mixing the setting that trains fastest.

    It is the first to bring the *training* objective within 20% of its minimum, or closer where the
    minimum explains little, in the median over seeds; or the one that comes closest to it. Test
    points play no part.
    """
    kept: dict[tuple[Any, ...], Outcome] = {}
    for o in every:
        key = (o.scheme, o.cell.optimiser, o.points_per_parity_row)
        kept[key] = min(kept.get(key, o), o, key=_slowness)
    return list(kept.values())


def _slowness(outcome: Outcome) -> tuple[float, float]:
    hours, lowest = [], []
    for curve in outcome.seeds:
        excess = np.where(np.isnan(curve.excess), np.inf, curve.excess)
        explained = np.nan_to_num(curve.facts.get("explained", np.nan), nan=np.inf)  # if unknown
        there = np.flatnonzero(excess <= telling_excess(_TRAINED_EXCESS, float(explained)))
        hours.append(float(curve.total_hours[there[0]]) if len(there) else np.inf)
        lowest.append(float(excess.min(initial=np.inf)))
    return float(np.median(hours)), float(np.median(lowest))


def _points(every: Sequence[Outcome]) -> list[_Point]:
    """Find for each setting the soonest other scheme that discloses the same or less."""
    points = [_Point(outcome) for outcome in _at_their_best(every)]
    result = []
    for point in points:
        rivals = [
            other
            for other in points
            if other.outcome.scheme != point.outcome.scheme
            and other.hours < np.inf
            and discloses_no_more(other.outcome.cell.disclosure, point.outcome.cell.disclosure)
        ]
        best = min(rivals, key=lambda other: other.hours, default=None)
        result.append(replace(point, rival=None if best is None else best.outcome))
    return result


def _document(point: _Point, fleet: str) -> dict[str, Any]:
    """Return the row of the contract, with the rival and the gain over it."""
    (row,) = outcome_rows([point.outcome])
    return row | {
        "fleet": fleet,
        "rival": None if point.rival is None else point.rival.setting,
        "gain_over_rival": point.gain,
        "hours_interval": [list(pair) for pair in point.outcome.hours_interval],
    }


def _rows(points: Sequence[_Point]) -> list[dict[str, Any]]:
    """Return what people read of a fleet and a data set, the fastest first."""
    unit = unit_for(point.hours for point in points)
    rows = []
    for point in sorted(points, key=lambda point: point.hours):
        outcome = point.outcome
        met = [t * unit.per_hour for t in outcome.total_hours if t is not None]
        density = outcome.points_per_parity_row
        rows.append(
            {
                "setting": outcome.setting,
                "leaves a client": listed(outcome.cell.disclosure),
                "points a row": "" if density is None else f"{density:.0f}",
                unit.name: "not met" if point.hours == np.inf else point.hours * unit.per_hour,
                "over seeds": f"{min(met):.4g} – {max(met):.4g}" if met else "",
                "final": written(outcome.metric, sorted(outcome.final)[len(outcome.final) // 2]),
                "best rival that discloses no more": point.rival.setting if point.rival else "",
                "gain": None if point.gain is None else f"{point.gain:.2f}×",
            }
        )
    return rows


def _figure(panels: Sequence[tuple[str, Sequence[_Point]]]) -> Figure:
    """Draw the time to the target, schemes in bands by what leaves a client; a panel per data set.

    A dot is the median over seeds, a line all seeds and the error of the test set.
    """
    unit = unit_for(point.hours for _, points in panels for point in points)
    drawn = [
        (title, sorted((p for p in points if p.hours < np.inf), key=lambda p: (_band(p), p.hours)))
        for title, points in panels
    ]
    pairs = [drawn[first : first + 2] for first in range(0, len(drawn), 2)]
    heights = [1.6 + 0.26 * max(len(lines) for _, lines in pair) for pair in pairs]
    with new_figure(6.2 * len(pairs[0]), sum(heights)) as figure:
        grid = figure.add_gridspec(len(pairs), len(pairs[0]), height_ratios=heights)
        for row, pair in enumerate(pairs):
            for column, (title, lines) in enumerate(pair):
                _draw(figure.add_subplot(grid[row, column], title=title), lines, unit)
    return figure


def _band(point: _Point) -> int:
    disclosed = set(point.outcome.cell.disclosure)
    return next(band for band, (kinds, _) in enumerate(_BANDS) if kinds & disclosed)


def _draw(ax: Axes, lines: Sequence[_Point], unit: Unit) -> None:
    small: dict[str, Any] = {"fontsize": 7}
    for line, point in enumerate(lines):
        outcome, colour = point.outcome, COLOURS[_band(point)]
        intervals = [t for pair in outcome.hours_interval for t in pair]
        times = [t * unit.per_hour for t in (*outcome.total_hours, *intervals) if t is not None]
        middle = point.hours * unit.per_hour
        ax.plot([min(times), max(times)], [line, line], color=colour, lw=2, alpha=0.4)
        ax.plot([middle], [line], "o", color=colour, ms=6)
        beside: dict[str, Any] = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
        label = f"{three_digits(middle)} {unit.sign}"
        ax.annotate(label, (max(times), line), color=GREY, **beside, **small)
    right: dict[str, Any] = {"transform": ax.get_yaxis_transform(), "ha": "right", "va": "top"}
    for band, (_, words) in enumerate(_BANDS):
        rows = [line for line, point in enumerate(lines) if _band(point) == band]
        if rows:
            style: dict[str, Any] = {"color": COLOURS[band]}
            ax.axhspan(rows[0] - 0.5, rows[-1] + 0.5, alpha=0.06, lw=0, **style)
            ax.text(0.99, rows[0] - 0.42, words, fontstyle="italic", **style, **right, **small)
    ax.set_yticks(range(len(lines)), [_label(point.outcome) for point in lines], fontsize=8)
    ax.set(ylim=(len(lines) - 0.4, -0.6), xlabel=f"{unit.name} to the target, set-up charged")
    ax.grid(visible=False, axis="y")
    log_axis(ax)
    low, high = ax.get_xlim()
    ax.set_xlim(low, high * 4)  # room for the words


def _label(outcome: Outcome) -> str:
    mixing = outcome.points_per_parity_row
    rows = "" if mixing is None else f", {mixing:.0f} points per row"
    return f"{outcome.scheme} ({outcome.cell.optimiser}{rows})"
