"""The frontier: hours to the target against what leaves a client, every scheme at its best."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from codedfedl.core.disclosure import discloses_no_more
from codedfedl.report.curves import COLOURS, log_axis
from codedfedl.report.figures import STYLE
from codedfedl.report.results import Outcome, median_of_all
from codedfedl.report.rows import outcome_rows

__all__ = ["Place", "at_their_best", "frontier_figure", "frontier_rows", "places"]

_TRAINED = 0.2  # relative excess of the training objective, by which knobs are compared
_BANDS = (  # who may see what, the most telling first
    ({"raw"}, "raw points leave"),
    ({"mixed", "statistics"}, "parity or Gram matrices leave"),
    ({"gradients", "models"}, "a client's gradients or models leave"),
    ({"sums", "dp"}, "sums leave"),
)


@dataclass(frozen=True)
class Place:
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
        """How many times sooner than the rival: the median over seeds of the same luck."""
        if self.rival is None:
            return None
        pairs = zip(self.rival.total_hours, self.outcome.total_hours, strict=True)
        return median_of_all([None if not b or a is None else a / b for a, b in pairs])


def at_their_best(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Keep of each scheme, optimiser and mixing the setting that trains fastest.

    It is the first to bring the *training* objective within 20% of its minimum, in the median over
    seeds; or the one that comes closest to it. Test points play no part.
    """
    kept: dict[tuple[Any, ...], Outcome] = {}
    for one in outcomes:
        key = (one.scheme, one.optimiser, one.points_per_parity_row)
        if key not in kept or _slowness(one) < _slowness(kept[key]):
            kept[key] = one
    return list(kept.values())


def _slowness(outcome: Outcome) -> tuple[float, float]:
    hours, lowest = [], []
    for curve in outcome.seeds:
        excess = np.where(np.isnan(curve.excess), np.inf, curve.excess)
        there = np.flatnonzero(excess <= _TRAINED)
        hours.append(float(curve.total_hours[there[0]]) if len(there) else np.inf)
        lowest.append(float(excess.min(initial=np.inf)))
    return float(np.median(hours)), float(np.median(lowest))


def places(fleet: str, outcomes: Sequence[Outcome]) -> list[Place]:
    """Find for each the soonest other scheme that discloses the same or less."""
    every = [Place(fleet, one) for one in at_their_best(outcomes)]
    found = []
    for place in every:
        mine = place.outcome
        rivals = [
            other
            for other in every
            if other.outcome.scheme != mine.scheme
            and other.hours is not None
            and discloses_no_more(other.outcome.disclosure, mine.disclosure)
        ]
        best = min(rivals, key=lambda other: other.hours or np.inf, default=None)
        found.append(replace(place, rival=None if best is None else best.outcome))
    return found


def frontier_rows(found: Sequence[Place]) -> list[dict[str, Any]]:
    """Return the rows of the contract, with the rival and the gain over it."""
    rows = outcome_rows([place.outcome for place in found])
    return [
        row
        | {
            "fleet": place.fleet,
            "rival": None if place.rival is None else place.rival.setting,
            "gain_over_rival": place.gain,
            "hours_interval": [list(pair) for pair in place.outcome.hours_interval],
        }
        for row, place in zip(rows, found, strict=True)
    ]


def frontier_figure(panels: Sequence[tuple[str, Sequence[Place]]]) -> Figure:
    """Draw hours to the target, the schemes in bands by what leaves a client; a panel per data set.

    A dot is the median over seeds, a line all seeds and the error of the test set.
    """
    most = max(len(_drawn(found)) for _, found in panels)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.2 * len(panels), 1.6 + 0.26 * most), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for ax, (title, found) in zip(axes, panels, strict=True):
            _panel(ax, title, _drawn(found))
    return figure


def _drawn(found: Sequence[Place]) -> list[tuple[int, Place]]:
    """Return who meets the target, by band and hours."""
    met = [(_band(place), place) for place in found if place.hours is not None]
    return sorted(met, key=lambda one: (one[0], one[1].hours or 0.0))


def _band(place: Place) -> int:
    told = set(place.outcome.disclosure)
    return next(band for band, (kinds, _) in enumerate(_BANDS) if kinds & told)


def _panel(ax: Axes, title: str, drawn: Sequence[tuple[int, Place]]) -> None:
    labels = []
    for line, (band, place) in enumerate(drawn):
        colour, outcome = COLOURS[band], place.outcome
        times = [t for t in outcome.total_hours if t is not None]
        times += [t for pair in outcome.hours_interval for t in pair if t is not None]
        ax.plot([min(times), max(times)], [line, line], color=colour, lw=2, alpha=0.4)
        ax.plot([place.hours or 0.0], [line], "o", color=colour, ms=6)
        ax.annotate(
            _hours(place.hours or 0.0),
            (max(times), line),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            color="#5b6570",
        )
        labels.append(_label(outcome))
    for band, (_, words) in enumerate(_BANDS):
        lines = [line for line, (b, _) in enumerate(drawn) if b == band]
        if lines:
            ax.axhspan(lines[0] - 0.5, lines[-1] + 0.5, color=COLOURS[band], alpha=0.06, lw=0)
            ax.text(
                0.99, lines[-1] + 0.42, words, transform=ax.get_yaxis_transform(), ha="right",
                va="bottom", fontsize=7, style="italic", color=COLOURS[band],
            )  # fmt: skip
    ax.set_yticks(range(len(labels)), labels, fontsize=8)
    ax.set(ylim=(len(labels) - 0.4, -0.6), title=title)
    ax.set_xlabel("hours to the target, set-up charged")
    ax.grid(visible=False, axis="y")
    log_axis(ax)
    low, high = ax.get_xlim()
    ax.set_xlim(low, high * 4)  # room for the words


def _hours(hours: float) -> str:
    return f"{hours:,.0f} h" if hours >= 100 else f"{hours:.2g} h"


def _label(outcome: Outcome) -> str:
    mixing = outcome.points_per_parity_row
    rows = "" if mixing is None else f", {mixing:.0f} points a row"
    return f"{outcome.scheme} ({outcome.optimiser}{rows})"
