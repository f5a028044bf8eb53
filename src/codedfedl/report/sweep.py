"""A grid in a table and a picture: which setting is best, on either clock."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from codedfedl.report.curves import COLOURS, log_axis
from codedfedl.report.figures import PAGE
from codedfedl.report.results import CLOCKS, Outcome, best, median_of_all, outcomes, span, verdict
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.grid import SCHEME, cells, short

__all__ = ["sweep_columns", "sweep_figure", "sweep_verdict"]


def sweep_columns(directory: RunDirectory) -> dict[str, list[Any]]:
    """Return the grid as a table: a row per setting and seed, with its place on every axis."""
    experiment = directory.experiment()
    places = {cell.label: cell.values for cell in cells(experiment)}
    rows = [
        {short(key).replace(" ", "_"): value for key, value in axes}
        | {
            "setting": o.setting,
            "scheme": o.scheme,
            "seed": seed,
            "rounds": o.rounds[s],
            "training_hours": o.training_hours[s],
            "total_hours": o.total_hours[s],
            "final": o.final[s],
        }
        for o in outcomes(directory)
        for axes in [[(k, v) for k, v in places[o.setting].items() if k != SCHEME]]
        for s, seed in enumerate(experiment.seeds)
    ]
    return {name: [row[name] for row in rows] for name in rows[0]}


def sweep_verdict(directory: RunDirectory) -> list[str]:
    """Say who is first of all, and of each axis that not all schemes have, which value is best."""
    found = {o.setting: o for o in outcomes(directory)}
    sentences = verdict(list(found.values()))
    placed = [(cell.values, found[cell.label]) for cell in cells(directory.experiment())]
    for key in placed[0][0]:
        having = [(values[key], outcome) for values, outcome in placed if values[key] is not None]
        first = best([outcome for _, outcome in having], "total_hours")
        if first is not None and len(having) < len(placed):
            value = next(value for value, outcome in having if outcome is first)
            hours = span(median_of_all(first.total_hours) or 0.0)
            sentences.append(f"The best {short(key)} is {value}: {hours} with set-up charged.")
    return sentences


def sweep_figure(directory: RunDirectory) -> Figure:
    """Draw the hours to the target against the grid's first axis, a line for all else."""
    experiment = directory.experiment()
    found = {o.setting: o for o in outcomes(directory)}
    placed = [(cell.values, found[cell.label]) for cell in cells(experiment)]
    axes = {key: list(dict.fromkeys(values[key] for values, _ in placed)) for key in placed[0][0]}
    chosen = next((key for key, values in axes.items() if len(values) > 1), next(iter(axes)))
    with mpl.rc_context(PAGE):
        figure = Figure(figsize=(11, 4.6), layout="constrained")
        panels = figure.subplots(1, 2)
        for ax, (clock, name) in zip(panels, CLOCKS.items(), strict=True):
            _draw(ax, placed, chosen, clock)
            ax.set(xlabel=short(chosen), title=name.capitalize())
        first = placed[0][1]
        panels[0].set_ylabel(f"hours to {first.metric} {first.target:g}")
        panels[1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def _draw(
    ax: Axes, placed: Sequence[tuple[Mapping[str, Any], Outcome]], chosen: str, clock: str
) -> None:
    ticks = list(dict.fromkeys(v[chosen] for v, _ in placed if v[chosen] is not None))
    numbers = all(isinstance(tick, int | float) for tick in ticks)
    where = {str(tick): tick if numbers else place for place, tick in enumerate(ticks)}
    lines: dict[str, list[tuple[Any, Outcome]]] = {}
    for values, outcome in placed:
        others = [
            f"{short(k)} {v}"
            for k, v in values.items()
            if k not in (chosen, SCHEME) and v is not None
        ]
        label = (
            ", ".join([outcome.scheme, *others]) if values[chosen] is not None else outcome.setting
        )
        lines.setdefault(label, []).append((values[chosen], outcome))
    for k, (label, points) in enumerate(lines.items()):
        colour = COLOURS[k % len(COLOURS)]
        met = [(x, [h for h in getattr(o, clock) if h is not None]) for x, o in points]
        middle = [
            (x, float(np.median(hours))) for x, hours in met if hours and np.median(hours) > 0
        ]
        if not middle:
            ax.plot([], [], color=colour, label=f"{label}: not met")
        elif middle[0][0] is None:  # a scheme without such a setting
            ax.axhline(middle[0][1], color=colour, lw=1.2, ls="--", label=label)
        else:
            places = [where[str(x)] for x, _ in middle]
            ax.plot(places, [hours for _, hours in middle], "o-", color=colour, ms=5, label=label)
            low, high = ([f(h) for _, h in met if h and np.median(h) > 0] for f in (min, max))
            ax.fill_between(places, low, high, color=colour, alpha=0.15, lw=0)
            best_x, best_hours = min(middle, key=lambda point: point[1])
            ax.plot(where[str(best_x)], best_hours, "o", ms=12, mfc="none", mec=colour)
    if not numbers:
        ax.set_xticks(list(where.values()), list(where))
    log_axis(ax, "y")
