"""A grid in a table and a picture: which setting is best, on either clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from codedfedl.report.curves import COLOURS, log_axis
from codedfedl.report.figures import PAGE
from codedfedl.report.results import Outcome, median_of_all
from codedfedl.report.units import UNITS, Unit
from codedfedl.report.verdict import CLOCKS, best, races, span, verdict
from codedfedl.runs.config import distinct_labels
from codedfedl.runs.grid import RESULTS, SCHEME, KnownCell, names

__all__ = ["sweep_columns", "sweep_figure", "sweep_verdict"]


@dataclass(frozen=True)
class _Place:
    """A setting, where it is in the grid, and its results."""

    cell: KnownCell
    outcome: Outcome

    @property
    def values(self) -> Mapping[str, Any]:
        """Its place on every axis."""
        return self.cell.values


def _placed(outcomes: Sequence[Outcome]) -> list[_Place]:
    return [_Place(o.known, o) for o in outcomes if o.known is not None]


def sweep_columns(outcomes: Sequence[Outcome]) -> dict[str, list[Any]]:
    """Return the grid as a table: a row per setting and seed, with its place on every axis."""
    placed = _placed(outcomes)
    words = names(placed[0].values)
    columns: dict[str, list[Any]] = {}
    for place in placed:
        o = place.outcome
        for s, seed in enumerate(curve.seed for curve in o.seeds):
            axes = {words[key]: value for key, value in place.values.items() if key != SCHEME}
            results = (
                o.setting,
                o.scheme,
                seed,
                o.rounds[s],
                o.training_hours[s],
                o.total_hours[s],
            )
            row = axes | dict(zip(RESULTS, (*results, o.final[s]), strict=True))
            for name, value in row.items():
                columns.setdefault(name.replace(" ", "_"), []).append(value)
    return columns


def sweep_verdict(outcomes: Sequence[Outcome]) -> list[str]:
    """Say which setting is fastest, and the best value of each axis that not all schemes have."""
    sentences, placed = verdict(outcomes), _placed(outcomes)
    words = names(placed[0].values)
    for key in placed[0].values:
        having = [place for place in placed if place.values[key] is not None]
        if len(races(outcomes)) > 1 or len(having) == len(placed):
            continue
        first = best([place.outcome for place in having], "total_hours")
        if first is not None:
            value = next(place.values[key] for place in having if place.outcome is first)
            hours = span(median_of_all(first.total_hours) or 0.0)
            which = f" ({first.setting})" if len(words) > 1 else ""
            sentences.append(
                f"The best {words[key]} is {value}{which}: {hours} with set-up charged."
            )
    return sentences


def sweep_figure(outcomes: Sequence[Outcome], unit: Unit = UNITS[0]) -> Figure:
    """Draw the time to the target against the grid's first axis, a line for all else."""
    placed = _placed(outcomes)
    axes = {key: dict.fromkeys(p.values[key] for p in placed) for key in placed[0].values}
    chosen = next((key for key, values in axes.items() if len(values) > 1), next(iter(axes)))
    lines = _lines(placed, chosen)
    below = -(-len(lines) // 3)  # rows of the legend
    with mpl.rc_context(PAGE):
        figure = Figure(figsize=(11, 4.6 + 0.2 * below), layout="constrained")
        panels = figure.subplots(1, 2)
        for ax, (clock, name) in zip(panels, CLOCKS.items(), strict=True):
            _draw(ax, lines, clock, unit)
            ax.set(xlabel=names(axes)[chosen], title=name.capitalize())
        panels[0].set_ylabel(f"{unit.name} to the target")
        figure.legend(*panels[1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


_Line = list[tuple[Any, Outcome]]  # a place on the axis, and the results there


def _lines(placed: Sequence[_Place], chosen: str) -> dict[str, _Line]:
    """Return what is drawn, by its label: the soonest lines, where there are more than colours."""
    groups: dict[str, list[_Place]] = {}
    for place in placed:
        groups.setdefault(repr(_others(place, chosen)), []).append(place)
    firsts = [group[0] for group in groups.values()]
    labels = distinct_labels(
        [_label(place, chosen) for place in firsts], [_others(place, chosen) for place in firsts]
    )
    lines: dict[str, _Line] = {
        label: [(place.values[chosen], place.outcome) for place in group]
        for label, group in zip(labels, groups.values(), strict=True)
    }
    soonest = {
        label: min((median_of_all(o.total_hours) or np.inf for _, o in line))
        for label, line in lines.items()
    }
    drawn = sorted(lines, key=lambda label: soonest[label])[: len(COLOURS)]
    return {label: line for label, line in lines.items() if label in drawn}


def _others(place: _Place, chosen: str) -> dict[str, Any]:
    """Return what the points of a line share: all settings but the one on the axis."""
    settings = place.cell.settings
    if chosen == SCHEME:
        return {key: value for key, value in settings.items() if not key.startswith("schemes.")}
    return {key: v for key, v in settings.items() if key not in (chosen, f"schemes.{chosen}")}


def _label(place: _Place, chosen: str) -> str:
    words = names(place.values)
    others = [
        f"{words[key]} {value}"
        for key, value in place.values.items()
        if key not in (chosen, SCHEME) and value is not None
    ]
    if chosen == SCHEME:
        return ", ".join(others) or "all"
    if place.values[chosen] is None:  # a scheme without such a setting
        return place.outcome.setting
    return ", ".join([place.outcome.scheme, *others])


def _draw(ax: Axes, lines: Mapping[str, _Line], clock: str, unit: Unit) -> None:
    ticks = list(dict.fromkeys(x for line in lines.values() for x, _ in line if x is not None))
    numbers = all(isinstance(tick, int | float) for tick in ticks)
    where = {str(tick): tick if numbers else place for place, tick in enumerate(ticks)}
    for colour, (label, line) in zip(COLOURS, lines.items(), strict=False):
        if line[0][0] is None:  # a scheme without such a setting
            middle = unit.of_hours(median_of_all(getattr(line[0][1], clock)))
            ax.plot([], [], color=colour, ls="--", label=label)
            if middle:
                ax.axhline(middle, color=colour, lw=1.2, ls="--")
            continue
        points = sorted(
            (where[str(x)], [unit.of_hours(hours) for hours in getattr(o, clock)]) for x, o in line
        )
        _draw_line(ax, points, colour, label)
    if not numbers:
        ax.set_xticks(list(where.values()), list(where))
        ax.margins(x=0.2)
    log_axis(ax, "y")
    if not ax.has_data():
        ax.text(0.5, 0.5, "target not met", ha="center", transform=ax.transAxes)


def _draw_line(
    ax: Axes, points: Sequence[tuple[float, list[float | None]]], colour: str, label: str
) -> None:
    """Draw the median over seeds where all met the target, and a hollow point where some did."""
    whole = [(x, times) for x, times in points if median_of_all(times)]
    for x, times in points:
        met = [time for time in times if time]
        if met and len(met) < len(times):
            ax.plot(x, np.median(met), "o", mfc="none", mec=colour, ms=5, alpha=0.6)
    ax.plot([], [], "o-", color=colour, ms=5, label=label)
    if not whole:
        return
    places = [x for x, _ in whole]
    every = np.array([times for _, times in whole], dtype=float)
    middle = np.median(every, axis=1)
    ax.plot(places, middle, "o-", color=colour, ms=5)
    ax.fill_between(places, every.min(1), every.max(1), color=colour, alpha=0.15, lw=0)
    soonest = int(np.argmin(middle))
    ax.plot(places[soonest], middle[soonest], "o", ms=12, mfc="none", mec=colour)
