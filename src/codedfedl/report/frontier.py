"""The frontier: hours to the target against what leaves a client, every scheme at its best."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from codedfedl.core.disclosure import discloses_no_more
from codedfedl.learning.metrics import telling_excess
from codedfedl.report.comparison import Unit, unit_for
from codedfedl.report.figures import COLOURS, GREY, log_axis, new_figure
from codedfedl.report.outcome_tables import outcome_rows
from codedfedl.report.results import Outcome, median_of_all

__all__ = ["FrontierPoint", "at_their_best", "frontier_figure", "frontier_points", "frontier_rows"]

_TRAINED_EXCESS = 0.2  # Settings are compared by when the objective's excess falls below it.
_BANDS = (  # who may see what, the most telling first
    ({"raw"}, "raw points leave"),
    ({"mixed", "statistics"}, "parity or Gram matrices leave"),
    ({"gradients", "models"}, "a client's gradients or models leave"),
    ({"sums", "dp"}, "sums leave"),
)


@dataclass(frozen=True)
class FrontierPoint:
    """A setting on the frontier, and the best rival that discloses the same or less."""

    fleet: str
    outcome: Outcome
    rival: Outcome | None = None

    @property
    def hours(self) -> float | None:
        """Charged hours to the target: the median over seeds, None where one does not meet it."""
        return median_of_all(self.outcome.total_hours)

    @property
    def gain(self) -> float | None:
        """How many times sooner than the rival: the median over seeds, with the same delays."""
        if self.rival is None:
            return None
        pairs = zip(self.rival.total_hours, self.outcome.total_hours, strict=True)
        return median_of_all([None if not b or a is None else a / b for a, b in pairs])


def at_their_best(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Keep of each scheme, optimiser and mixing the setting that trains fastest.

    It is the first to bring the *training* objective within 20% of its minimum, or closer where the
    minimum explains little, in the median over seeds; or the one that comes closest to it. Test
    points play no part.
    """
    kept: dict[tuple[Any, ...], Outcome] = {}
    for o in outcomes:
        key = (o.scheme, o.cell.optimiser, o.points_per_parity_row)
        if key not in kept or _slowness(o) < _slowness(kept[key]):
            kept[key] = o
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


def frontier_points(fleet: str, outcomes: Sequence[Outcome]) -> list[FrontierPoint]:
    """Find for each the soonest other scheme that discloses the same or less."""
    every = [FrontierPoint(fleet, outcome) for outcome in at_their_best(outcomes)]
    result = []
    for point in every:
        mine = point.outcome
        rivals = [
            other
            for other in every
            if other.outcome.scheme != mine.scheme
            and other.hours is not None
            and discloses_no_more(other.outcome.cell.disclosure, mine.cell.disclosure)
        ]
        best = min(rivals, key=lambda other: other.hours or np.inf, default=None)
        result.append(replace(point, rival=None if best is None else best.outcome))
    return result


def frontier_rows(frontier: Sequence[FrontierPoint]) -> list[dict[str, Any]]:
    """Return the rows of the contract, with the rival and the gain over it."""
    rows = outcome_rows([point.outcome for point in frontier])
    return [
        row
        | {
            "fleet": point.fleet,
            "rival": None if point.rival is None else point.rival.setting,
            "gain_over_rival": point.gain,
            "hours_interval": [list(pair) for pair in point.outcome.hours_interval],
        }
        for row, point in zip(rows, frontier, strict=True)
    ]


def frontier_figure(panels: Sequence[tuple[str, Sequence[FrontierPoint]]]) -> Figure:
    """Draw the time to the target, schemes in bands by what leaves a client; a panel per data set.

    A dot is the median over seeds, a line all seeds and the error of the test set.
    """
    drawn = [(title, _by_band(frontier)) for title, frontier in panels]
    unit = unit_for(point.hours or 0.0 for _, frontier in panels for point in frontier)
    pairs = [drawn[first : first + 2] for first in range(0, len(drawn), 2)]
    heights = [1.6 + 0.26 * max(len(lines) for _, lines in pair) for pair in pairs]
    with new_figure(6.2 * len(pairs[0]), sum(heights)) as figure:
        grid = figure.add_gridspec(len(pairs), len(pairs[0]), height_ratios=heights)
        for row, pair in enumerate(pairs):
            for column, (title, lines) in enumerate(pair):
                _draw(figure.add_subplot(grid[row, column], title=title), lines, unit)
    return figure


def _by_band(frontier: Sequence[FrontierPoint]) -> list[tuple[int, FrontierPoint]]:
    """Return who meets the target, by band and hours."""
    met = [(_band(point), point) for point in frontier if point.hours is not None]
    return sorted(met, key=lambda pair: (pair[0], pair[1].hours or 0.0))


def _band(point: FrontierPoint) -> int:
    disclosed = set(point.outcome.cell.disclosure)
    return next(band for band, (kinds, _) in enumerate(_BANDS) if kinds & disclosed)


def _draw(ax: Axes, lines: Sequence[tuple[int, FrontierPoint]], unit: Unit) -> None:
    small: dict[str, Any] = {"fontsize": 7}
    for line, (band, point) in enumerate(lines):
        intervals = [t for pair in point.outcome.hours_interval for t in pair]
        hours = [t for t in [*point.outcome.total_hours, *intervals] if t is not None]
        times, middle = [t * unit.per_hour for t in hours], (point.hours or 0.0) * unit.per_hour
        ax.plot([min(times), max(times)], [line, line], color=COLOURS[band], lw=2, alpha=0.4)
        ax.plot([middle], [line], "o", color=COLOURS[band], ms=6)
        time = f"{middle:,.0f}" if middle >= 100 else f"{middle:.2g}"
        beside: dict[str, Any] = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
        ax.annotate(f"{time} {unit.sign}", (max(times), line), color=GREY, **beside, **small)
    right: dict[str, Any] = {"transform": ax.get_yaxis_transform(), "ha": "right", "va": "top"}
    for band, (_, words) in enumerate(_BANDS):
        rows, colour = [line for line, (b, _) in enumerate(lines) if b == band], COLOURS[band]
        if rows:
            ax.axhspan(rows[0] - 0.5, rows[-1] + 0.5, color=colour, alpha=0.06, lw=0)
            ax.text(0.99, rows[0] - 0.42, words, style="italic", color=colour, **right, **small)
    ax.set_yticks(range(len(lines)), [_label(point.outcome) for _, point in lines], fontsize=8)
    ax.set(ylim=(len(lines) - 0.4, -0.6), xlabel=f"{unit.name} to the target, set-up charged")
    ax.grid(visible=False, axis="y")
    log_axis(ax)
    low, high = ax.get_xlim()
    ax.set_xlim(low, high * 4)  # room for the words


def _label(outcome: Outcome) -> str:
    mixing = outcome.points_per_parity_row
    rows = "" if mixing is None else f", {mixing:.0f} points per row"
    return f"{outcome.scheme} ({outcome.cell.optimiser}{rows})"
