"""Accuracy against time and against iteration: the paper's figures 2 and 3."""

from collections.abc import Sequence
from itertools import cycle
from typing import Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from codedfedl.report.figures import PAGE, STYLE
from codedfedl.report.reading import Curve

__all__ = [
    "COLOURS",
    "cold_start_figure",
    "curve_figure",
    "curve_panel",
    "log_axis",
    "lowest",
]

COLOURS = (
    *("#1f5fa8", "#d9541e", "#2b8a5b", "#8a4fbf", "#b0892c"),
    *("#5b6570", "#c2407e", "#1397a8", "#7b3f1d", "#8fae1b"),
)


def curve_figure(curves: Sequence[Curve], title: str, target: float | None) -> Figure:
    """Draw the metric against training hours, hours with set-up, and rounds; bands over seeds."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(12, 4.2), layout="constrained")
        axes = figure.subplots(1, 3, sharey=True)
        panels = (
            ("training_hours", "hours of training, the paper's clock"),
            ("total_hours", "hours with set-up charged"),
            ("rounds", "mini-batch updates"),
        )
        for ax, (clock, label) in zip(axes, panels, strict=True):
            for colour, seeds in _coloured(curves):
                _draw(ax, seeds, clock, colour)
            if target is not None and np.isfinite(target):
                ax.axhline(target, color="#5b6570", lw=0.8, ls=":")
            ax.set_xlabel(label)
            if clock != "rounds":
                log_axis(ax)
        axes[0].set(ylabel=f"{curves[0].metric_name} on the test set", title=title)
        axes[0].set_ylim(lowest(curves, target), None)
        axes[2].legend(loc="lower right", fontsize=8)
    return figure


def curve_panel(
    drawn: Sequence[tuple[str, Sequence[int], Sequence[Curve]]],
    clock: str,
    label: str,
    target: float | None,
    scale: float | None,
) -> Figure:
    """Draw the metric against one clock, for a page that has its own legend.

    Parameters
    ----------
    drawn
        The colour, the dash and the seeds of each line.
    scale
        How many units of time an hour has; None for rounds.
    """
    everything = [curve for *_, seeds in drawn for curve in seeds]
    with mpl.rc_context(PAGE):
        figure = Figure(figsize=(5, 3.6), layout="constrained")
        ax = figure.subplots()
        for colour, dash, seeds in drawn:
            _draw(ax, seeds, clock, colour, dash, scale or 1.0)
        if target is not None and np.isfinite(target):
            ax.axhline(target, color="#8a94a0", lw=0.8, ls=":")
        ax.set(xlabel=label, ylabel=f"{everything[0].metric_name} on the test set")
        ax.set_ylim(lowest(everything, target), None)
        if scale is not None:
            log_axis(ax)
    return figure


def cold_start_figure(
    curves: Sequence[Curve], title: str, target: float, paper_hours: Sequence[float]
) -> Figure:
    """Draw the metric against hours from a cold start, and what the paper gives without set-up.

    Parameters
    ----------
    paper_hours
        Of `uncoded` and `coded`, in its Table 1.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 5), layout="constrained")
        ax = figure.subplots()
        for colour, seeds in _coloured(curves):
            _draw(ax, seeds, "total_hours", colour)
        ax.axhline(target, color="#5b6570", lw=0.8, ls=":")
        top = max(float(np.nanmax(curve.metric)) for curve in curves)
        ax.set(xlabel="hours from a cold start, set-up charged", title=title)
        ax.set(ylabel=f"{curves[0].metric_name} on the test set", ylim=(target - 0.12, top + 0.02))
        _mark_paper(ax, paper_hours, target)
        log_axis(ax)
        ax.legend(loc="lower left", fontsize=8)
    return figure


def _mark_paper(ax: Axes, hours: Sequence[float], target: float) -> None:
    """Put a star where the paper meets the target on its own clock."""
    labels = (("uncoded", 10, 22, "left"), ("coded", -10, 22, "right"))
    for hour, (name, right, up, side) in zip(hours, labels, strict=False):
        ax.plot(hour, target, "*", color="black", ms=11, zorder=5)
        ax.annotate(
            f"the paper, {name}:\n{hour:.0f} h without set-up",
            (hour, target),
            xytext=(right, up),
            textcoords="offset points",
            ha=side,
            fontsize=7,
            arrowprops={"arrowstyle": "-", "lw": 0.5},
        )


def log_axis(ax: Axes, which: Literal["x", "y"] = "x") -> None:
    """Make an axis logarithmic, with plain numbers, and more of them on a short one.

    Where nothing above 0 is drawn it stays as it is.
    """
    low, high = getattr(ax.dataLim, f"interval{which}")
    if not 0 < high < np.inf:
        return
    ax.set(**{f"{which}scale": "log"})
    axis = ax.xaxis if which == "x" else ax.yaxis
    low, high = axis.get_view_interval()
    plain = StrMethodFormatter("{x:,g}")
    axis.set_major_formatter(plain)
    if high < 100 * low:
        axis.set_minor_locator(LogLocator(subs=(2, 3, 5, 7) if high < 10 * low else (2, 5)))
        axis.set_minor_formatter(plain)
    else:
        axis.set_minor_formatter(NullFormatter())


def _coloured(curves: Sequence[Curve]) -> list[tuple[str, list[Curve]]]:
    """Return the seeds of each setting, with its colour."""
    cells: dict[str, list[Curve]] = {}
    for curve in curves:
        cells.setdefault(curve.cell, []).append(curve)
    return list(zip(cycle(COLOURS), cells.values(), strict=False))


def lowest(curves: Sequence[Curve], target: float | None) -> float | None:
    """Return the lower end of the axis, a little below the target; at least 0 for an accuracy."""
    tops = [curve.metric[np.isfinite(curve.metric)].max(initial=-np.inf) for curve in curves]
    wanted = float(max(tops)) if target is None or not np.isfinite(target) else target
    if not np.isfinite(wanted):
        return None
    least = wanted - max(0.25, 0.25 * abs(wanted))
    return max(0.0, least) if curves[0].metric_name == "accuracy" else least


def _draw(
    ax: Axes,
    seeds: Sequence[Curve],
    clock: str,
    colour: str,
    dash: Sequence[int] = (),
    scale: float = 1.0,
) -> None:
    """Draw the median over seeds after each round, at the median hour of that round."""
    rounds = min(len(curve.metric) for curve in seeds)  # a plan may differ from seed to seed
    hours = scale * np.median([getattr(curve, clock)[:rounds] for curve in seeds], axis=0)
    metric = np.array([curve.metric[:rounds] for curve in seeds])
    middle, label = np.median(metric, axis=0), seeds[0].setting
    if len(middle) == 1:  # one answer, no curve
        ax.plot(hours, middle, "D", color=colour, label=label)
        return
    style = (0, [length / 2 for length in dash]) if dash else "-"
    ax.plot(hours, middle, color=colour, lw=1.5, ls=style, label=label)
    ax.fill_between(hours, metric.min(axis=0), metric.max(axis=0), color=colour, alpha=0.15, lw=0)
