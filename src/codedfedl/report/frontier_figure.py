"""The picture of the frontier: hours to the target, in bands by what leaves a client."""

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from codedfedl.report.curves import COLOURS, log_axis
from codedfedl.report.figures import STYLE
from codedfedl.report.frontier import Place
from codedfedl.report.results import Outcome
from codedfedl.report.units import Unit, unit_for

__all__ = ["frontier_figure"]

_BANDS = (  # who may see what, the most telling first
    ({"raw"}, "raw points leave"),
    ({"mixed", "statistics"}, "parity or Gram matrices leave"),
    ({"gradients", "models"}, "a client's gradients or models leave"),
    ({"sums", "dp"}, "sums leave"),
)


_COLUMNS = 2


def frontier_figure(panels: Sequence[tuple[str, Sequence[Place]]]) -> Figure:
    """Draw the time to the target, schemes in bands by what leaves a client; a panel per data set.

    A dot is the median over seeds, a line all seeds and the error of the test set.
    """
    drawn = [(title, _drawn(found)) for title, found in panels]
    unit = unit_for(place.hours or 0.0 for _, found in panels for place in found)
    pairs = [drawn[first : first + _COLUMNS] for first in range(0, len(drawn), _COLUMNS)]
    heights = [1.6 + 0.26 * max(len(lines) for _, lines in pair) for pair in pairs]
    with mpl.rc_context(STYLE):
        size = (6.2 * len(pairs[0]), sum(heights))
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.add_gridspec(len(pairs), len(pairs[0]), height_ratios=heights)
        for row, pair in enumerate(pairs):
            for column, (title, lines) in enumerate(pair):
                _panel(figure.add_subplot(grid[row, column]), title, lines, unit)
    return figure


def _drawn(found: Sequence[Place]) -> list[tuple[int, Place]]:
    """Return who meets the target, by band and hours."""
    met = [(_band(place), place) for place in found if place.hours is not None]
    return sorted(met, key=lambda one: (one[0], one[1].hours or 0.0))


def _band(place: Place) -> int:
    told = set(place.outcome.disclosure)
    return next(band for band, (kinds, _) in enumerate(_BANDS) if kinds & told)


def _panel(ax: Axes, title: str, drawn: Sequence[tuple[int, Place]], unit: Unit) -> None:
    labels = []
    for line, (band, place) in enumerate(drawn):
        colour, outcome = COLOURS[band], place.outcome
        hours = [t for t in outcome.total_hours if t is not None]
        hours += [t for pair in outcome.hours_interval for t in pair if t is not None]
        times, middle = [t * unit.per_hour for t in hours], (place.hours or 0.0) * unit.per_hour
        ax.plot([min(times), max(times)], [line, line], color=colour, lw=2, alpha=0.4)
        ax.plot([middle], [line], "o", color=colour, ms=6)
        ax.annotate(
            f"{_rounded(middle)} {unit.sign}",
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
                0.99, lines[0] - 0.42, words, transform=ax.get_yaxis_transform(), ha="right",
                va="top", fontsize=7, style="italic", color=COLOURS[band],
            )  # fmt: skip
    ax.set_yticks(range(len(labels)), labels, fontsize=8)
    ax.set(ylim=(len(labels) - 0.4, -0.6), title=title)
    ax.set_xlabel(f"{unit.name} to the target, set-up charged")
    ax.grid(visible=False, axis="y")
    log_axis(ax)
    low, high = ax.get_xlim()
    ax.set_xlim(low, high * 4)  # room for the words


def _rounded(time: float) -> str:
    return f"{time:,.0f}" if time >= 100 else f"{time:.2g}"


def _label(outcome: Outcome) -> str:
    mixing = outcome.points_per_parity_row
    rows = "" if mixing is None else f", {mixing:.0f} points per row"
    return f"{outcome.scheme} ({outcome.optimiser}{rows})"
