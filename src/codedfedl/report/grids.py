"""A grid in a table and a picture: which setting is best, on either clock."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from codedfedl.report.comparison import CLOCKS, UNITS, Unit, best, races, span, verdict
from codedfedl.report.figures import COLOURS, PAGE, log_axis, new_figure
from codedfedl.report.results import Outcome, median_hours, median_of_all
from codedfedl.runs.config import distinct_labels
from codedfedl.runs.grid import SCHEME, names


def sweep_verdict(outcomes: Sequence[Outcome]) -> list[str]:
    """Say which setting is fastest, and the best value of each axis that not all schemes have."""
    sentences, words = verdict(outcomes), names(outcomes[0].cell.values)
    for key, word in words.items():
        having = [o for o in outcomes if o.cell.values[key] is not None]
        if len(races(outcomes)) > 1 or len(having) == len(outcomes):
            continue
        if (first := best(having, "total_hours")) is not None:
            which = f" ({first.setting})" if len(words) > 1 else ""
            hours = span(median_hours(first))
            sentences.append(
                f"The best {word} is {first.cell.values[key]}{which}: {hours} with set-up charged."
            )
    return sentences


def sweep_figure(outcomes: Sequence[Outcome], unit: Unit = UNITS[0]) -> Figure:
    """Draw the time to the target against the grid's first axis, a line for all else."""
    axes = {key: {o.cell.values[key] for o in outcomes} for key in outcomes[0].cell.values}
    chosen = next((key for key, values in axes.items() if len(values) > 1), next(iter(axes)))
    lines = _lines(outcomes, chosen)
    below = -(-len(lines) // 3)  # rows of the legend
    with new_figure(11, 4.6 + 0.2 * below, PAGE) as figure:
        panels = figure.subplots(1, 2)
        for ax, (clock, name) in zip(panels, CLOCKS.items(), strict=True):
            _draw(ax, lines, chosen, clock, unit)
            ax.set(xlabel=names(axes)[chosen], title=name.capitalize())
        panels[0].set_ylabel(f"{unit.name} to the target")
        figure.legend(*panels[1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _lines(outcomes: Sequence[Outcome], chosen: str) -> dict[str, list[Outcome]]:
    """Return what is drawn, by its label: the soonest lines, where there are more than colours."""
    groups: dict[str, list[Outcome]] = {}
    for o in outcomes:
        groups.setdefault(repr(_others(o, chosen)), []).append(o)
    firsts = [group[0] for group in groups.values()]
    labels = distinct_labels(
        [_label(o, chosen) for o in firsts], [_others(o, chosen) for o in firsts]
    )
    lines = dict(zip(labels, groups.values(), strict=True))
    drawn = sorted(lines, key=lambda label: min(map(median_hours, lines[label])))[: len(COLOURS)]
    return {label: line for label, line in lines.items() if label in drawn}


def _others(outcome: Outcome, chosen: str) -> dict[str, Any]:
    """Return what the points of a line share: all settings but the one on the axis."""
    settings = outcome.cell.settings.items()
    if chosen == SCHEME:
        return {key: value for key, value in settings if not key.startswith("schemes.")}
    return {key: value for key, value in settings if key not in (chosen, f"schemes.{chosen}")}


def _label(outcome: Outcome, chosen: str) -> str:
    values = outcome.cell.values
    words = names(values)
    others = [
        f"{words[key]} {value}"
        for key, value in values.items()
        if key not in (chosen, SCHEME) and value is not None
    ]
    if chosen == SCHEME:
        return ", ".join(others) or "all"
    if values[chosen] is None:  # a scheme without such a setting
        return outcome.setting
    return ", ".join([outcome.scheme, *others])


def _draw(
    ax: Axes, lines: Mapping[str, Sequence[Outcome]], chosen: str, clock: str, unit: Unit
) -> None:
    values = [o.cell.values[chosen] for line in lines.values() for o in line]
    ticks = list(dict.fromkeys(value for value in values if value is not None))
    numbers = all(isinstance(tick, int | float) for tick in ticks)
    where = {str(tick): tick if numbers else at for at, tick in enumerate(ticks)}
    for colour, (label, line) in zip(COLOURS, lines.items(), strict=False):
        hours = [[t and t * unit.per_hour for t in getattr(o, clock)] for o in line]
        places: list[Any] = [where.get(str(o.cell.values[chosen])) for o in line]
        if places[0] is None:  # a scheme without such a setting
            ax.plot([], [], color=colour, ls="--", label=label)
            if middle := median_of_all(hours[0]):
                ax.axhline(middle, color=colour, lw=1.2, ls="--")
            continue
        _draw_line(ax, sorted(zip(places, hours, strict=True)), colour)
        ax.plot([], [], "o-", color=colour, ms=5, label=label)
    if not numbers:
        ax.set_xticks(list(where.values()), list(where))
        ax.margins(x=0.2)
    log_axis(ax, "y")
    if not ax.has_data():
        ax.text(0.5, 0.5, "target not met", ha="center", transform=ax.transAxes)


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
