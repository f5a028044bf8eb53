"""A grid in a table and a picture: which setting is best, on either clock."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from codedfedl.report.comparison import CLOCKS, UNITS, Unit, best, races, span, verdict
from codedfedl.report.figures import COLOURS, PAGE, log_axis, new_figure
from codedfedl.report.results import Outcome, median_of_all
from codedfedl.runs.config import distinct_labels
from codedfedl.runs.grid import RESULTS, SCHEME, KnownCell, names

__all__ = ["sweep_columns", "sweep_figure", "sweep_verdict"]


def _settings(outcomes: Sequence[Outcome]) -> list[tuple[KnownCell, Outcome]]:
    """Return the settings, where they are in the grid, and their results."""
    return [(o.known, o) for o in outcomes if o.known is not None]


def sweep_columns(outcomes: Sequence[Outcome]) -> dict[str, list[Any]]:
    """Return the grid as a table: a row per setting and seed, with its place on every axis."""
    settings = _settings(outcomes)
    words = names(settings[0][0].values)
    columns: dict[str, list[Any]] = {}
    for cell, o in settings:
        axes = {words[key]: value for key, value in cell.values.items() if key != SCHEME}
        seeds = [curve.seed for curve in o.seeds]
        hours = (o.rounds, o.training_hours, o.total_hours, o.final)
        for seed, *results in zip(seeds, *hours, strict=True):
            values = (o.setting, o.scheme, seed, *results)
            for name, value in (axes | dict(zip(RESULTS, values, strict=True))).items():
                columns.setdefault(name.replace(" ", "_"), []).append(value)
    return columns


def sweep_verdict(outcomes: Sequence[Outcome]) -> list[str]:
    """Say which setting is fastest, and the best value of each axis that not all schemes have."""
    sentences, settings = verdict(outcomes), _settings(outcomes)
    words = names(settings[0][0].values)
    for key in settings[0][0].values:
        having = {id(o): cell for cell, o in settings if cell.values[key] is not None}
        if len(races(outcomes)) > 1 or len(having) == len(settings):
            continue
        first = best([o for _, o in settings if id(o) in having], "total_hours")
        if first is not None:
            hours = span(median_of_all(first.total_hours) or 0.0)
            which = f" ({first.setting})" if len(words) > 1 else ""
            value = having[id(first)].values[key]
            sentences.append(
                f"The best {words[key]} is {value}{which}: {hours} with set-up charged."
            )
    return sentences


def sweep_figure(outcomes: Sequence[Outcome], unit: Unit = UNITS[0]) -> Figure:
    """Draw the time to the target against the grid's first axis, a line for all else."""
    settings = _settings(outcomes)
    axes = {key: {cell.values[key] for cell, _ in settings} for key in settings[0][0].values}
    chosen = next((key for key, values in axes.items() if len(values) > 1), next(iter(axes)))
    lines = _lines(settings, chosen)
    below = -(-len(lines) // 3)  # rows of the legend
    with new_figure(11, 4.6 + 0.2 * below, PAGE) as figure:
        panels = figure.subplots(1, 2)
        for ax, (clock, name) in zip(panels, CLOCKS.items(), strict=True):
            _draw(ax, lines, clock, unit)
            ax.set(xlabel=names(axes)[chosen], title=name.capitalize())
        panels[0].set_ylabel(f"{unit.name} to the target")
        figure.legend(*panels[1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


_Line = list[tuple[Any, Outcome]]  # values on the axis, and the results there


def _lines(settings: Sequence[tuple[KnownCell, Outcome]], chosen: str) -> dict[str, _Line]:
    """Return what is drawn, by its label: the soonest lines, where there are more than colours."""
    groups: dict[str, list[tuple[KnownCell, Outcome]]] = {}
    for cell, o in settings:
        groups.setdefault(repr(_others(cell, chosen)), []).append((cell, o))
    firsts = [group[0] for group in groups.values()]
    labels = distinct_labels(
        [_label(cell, o, chosen) for cell, o in firsts],
        [_others(cell, chosen) for cell, _ in firsts],
    )
    lines: dict[str, _Line] = {
        label: [(cell.values[chosen], o) for cell, o in group]
        for label, group in zip(labels, groups.values(), strict=True)
    }

    def soonest(label: str) -> float:
        return min(median_of_all(o.total_hours) or np.inf for _, o in lines[label])

    drawn = sorted(lines, key=soonest)[: len(COLOURS)]
    return {label: line for label, line in lines.items() if label in drawn}


def _others(cell: KnownCell, chosen: str) -> dict[str, Any]:
    """Return what the points of a line share: all settings but the one on the axis."""
    if chosen == SCHEME:
        return {key: v for key, v in cell.settings.items() if not key.startswith("schemes.")}
    return {key: v for key, v in cell.settings.items() if key not in (chosen, f"schemes.{chosen}")}


def _label(cell: KnownCell, outcome: Outcome, chosen: str) -> str:
    words = names(cell.values)
    others = [
        f"{words[key]} {value}"
        for key, value in cell.values.items()
        if key not in (chosen, SCHEME) and value is not None
    ]
    if chosen == SCHEME:
        return ", ".join(others) or "all"
    if cell.values[chosen] is None:  # a scheme without such a setting
        return outcome.setting
    return ", ".join([outcome.scheme, *others])


def _draw(ax: Axes, lines: Mapping[str, _Line], clock: str, unit: Unit) -> None:
    ticks = list(dict.fromkeys(x for line in lines.values() for x, _ in line if x is not None))
    numbers = all(isinstance(tick, int | float) for tick in ticks)
    where = {str(tick): tick if numbers else at for at, tick in enumerate(ticks)}
    for colour, (label, line) in zip(COLOURS, lines.items(), strict=False):
        hours = [_in_unit(getattr(o, clock), unit) for _, o in line]
        if line[0][0] is None:  # a scheme without such a setting
            middle = median_of_all(hours[0])
            ax.plot([], [], color=colour, ls="--", label=label)
            if middle:
                ax.axhline(middle, color=colour, lw=1.2, ls="--")
            continue
        _draw_line(ax, sorted(zip([where[str(x)] for x, _ in line], hours, strict=True)), colour)
        ax.plot([], [], "o-", color=colour, ms=5, label=label)
    if not numbers:
        ax.set_xticks(list(where.values()), list(where))
        ax.margins(x=0.2)
    log_axis(ax, "y")
    if not ax.has_data():
        ax.text(0.5, 0.5, "target not met", ha="center", transform=ax.transAxes)


def _in_unit(hours: Sequence[float | None], unit: Unit) -> list[float | None]:
    return [None if hour is None else hour * unit.per_hour for hour in hours]


def _draw_line(ax: Axes, points: Sequence[tuple[float, list[float | None]]], colour: str) -> None:
    """Draw the median over seeds where all met the target, and a hollow point where some did."""
    whole = [(x, times) for x, times in points if median_of_all(times)]
    for x, times in points:
        met = [time for time in times if time]
        if met and len(met) < len(times):
            ax.plot(x, np.median(met), "o", mfc="none", mec=colour, ms=5, alpha=0.6)
    if not whole:
        return
    places = [x for x, _ in whole]
    every = np.array([times for _, times in whole], dtype=float)
    middle = np.median(every, axis=1)
    ax.plot(places, middle, "o-", color=colour, ms=5)
    ax.fill_between(places, every.min(1), every.max(1), color=colour, alpha=0.15, lw=0)
    soonest = int(np.argmin(middle))
    ax.plot(places[soonest], middle[soonest], "o", ms=12, mfc="none", mec=colour)
