"""The metric against time and against rounds: in pictures, and in the charts of the page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from codedfedl.report.comparison import Unit
from codedfedl.report.figures import COLOURS, DASHES, GREY, log_axis, new_figure, scheme_colour
from codedfedl.report.reading import Curve
from codedfedl.report.results import Outcome, median_hours

LARGE_RATIO = 10.0
"""Where the longest time is this many times the shortest, time is logarithmic."""

_MAX_LINES = 10
_MAX_POINTS = 400  # A screen cannot show more points of a line.


PANELS = {
    "training_hours": "hours of training, the paper's clock",
    "total_hours": "hours with set-up charged",
    "rounds": "mini-batch updates",
}
"""What the metric is drawn against, in the words of an axis."""

_INCHES = 4.0  # width of a panel
_NARROW_INCHES = 3.0  # A panel that is narrower has a smaller legend, below it.


def curve_figure(
    curves: Sequence[Curve],
    title: str,
    target: float | None,
    panels: Sequence[str] = tuple(PANELS),
    width: float | None = None,
) -> Figure:
    """Draw the metric against training hours, hours with set-up, and rounds; bands over seeds.

    Parameters
    ----------
    panels
        Some of `PANELS`, in their order from the left.
    width : inches
        By default 4 for each panel.
    """
    inches = (width or _INCHES * len(panels)) / len(panels)
    narrow = inches < _NARROW_INCHES or len(panels) == 1
    with new_figure(inches * len(panels), min(4.2, 0.85 * inches + narrow)) as figure:
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for ax, clock in zip(axes, panels, strict=True):
            _draw(ax, curves, clock, target)
            ax.set_xlabel(PANELS[clock])
            if clock != "rounds":
                log_axis(ax)
        axes[0].set(ylabel=f"{curves[0].metric_name} on the test set", title=title)
        axes[0].set_ylim(_lowest(curves, target), None)
        if narrow:
            handles = axes[0].get_legend_handles_labels()
            figure.legend(*handles, loc="outside lower center", fontsize=7, ncols=2)
        else:
            axes[-1].legend(loc="lower right", fontsize=8)
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
    with new_figure(9, 5) as figure:
        ax = figure.subplots()
        _draw(ax, curves, "total_hours", target)
        top = max(float(np.nanmax(curve.metric)) for curve in curves)
        ax.set(xlabel="hours from a cold start, set-up charged", title=title)
        ax.set(ylabel=f"{curves[0].metric_name} on the test set", ylim=(target - 0.12, top + 0.02))
        _mark_paper(ax, paper_hours, target)
        log_axis(ax)
        ax.legend(loc="lower left", fontsize=8)
    return figure


def _mark_paper(ax: Axes, hours: Sequence[float], target: float) -> None:
    """Put a star where the paper meets the target on its own clock."""
    labels = (("uncoded", 10, "left"), ("coded", -10, "right"))
    for hour, (name, right, side) in zip(hours, labels, strict=False):
        ax.plot(hour, target, "*", color="black", ms=11, zorder=5)
        ax.annotate(
            f"the paper, {name}:\n{hour:.0f} h without set-up",
            (hour, target),
            xytext=(right, 22),
            textcoords="offset points",
            ha=side,
            fontsize=7,
            arrowprops={"arrowstyle": "-", "lw": 0.5},
        )


def price_figure(panels: Sequence[tuple[str, float, Sequence[Curve]]]) -> Figure:
    """Draw accuracy against time for some ε, a panel for every data set: title, target, curves."""
    with new_figure(5.4 * len(panels), 4.4) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for ax, (title, target, curves) in zip(axes, panels, strict=True):
            _draw(ax, curves, "total_hours", target, _guarantee)
            ax.set(title=title, ylabel="accuracy on the test set")
            ax.set(xlabel="hours, with the set-up charged", ylim=(max(0.0, target - 0.2), None))
            log_axis(ax)
            ax.legend(loc="lower right", fontsize=8)
    return figure


def _guarantee(curve: Curve) -> str:
    """Say under which guarantee, which is the curve's fact; or which scheme has none."""
    if "delta" not in curve.facts or not np.isfinite(curve.facts["delta"]):
        return curve.setting
    epsilon = curve.facts.get("epsilon", np.nan)
    return f"ε = {epsilon:.3g}, δ = {curve.facts['delta']:g}" if epsilon < np.inf else "no noise"


def _draw(
    ax: Axes,
    curves: Sequence[Curve],
    clock: str,
    target: float | None,
    name: Callable[[Curve], str] = lambda curve: curve.setting,
) -> None:
    """Draw every setting's median over seeds with its range, and the target."""
    settings: dict[str, list[Curve]] = {}
    for curve in curves:
        settings.setdefault(curve.cell.id, []).append(curve)
    for colour, seeds in zip(cycle(COLOURS), settings.values(), strict=False):
        hours, middle, low, high = _over_seeds(seeds, clock)
        mark = "D" if len(hours) == 1 else "-"  # one answer is no curve
        ax.plot(hours, middle, mark, color=colour, lw=1.5, label=name(seeds[0]))
        ax.fill_between(hours, low, high, color=colour, alpha=0.15, lw=0)
    if target is not None and np.isfinite(target):
        ax.axhline(target, color=GREY, lw=0.8, ls=":")


def _over_seeds(seeds: Sequence[Curve], clock: str) -> tuple[npt.NDArray[np.float64], ...]:
    """Return the median time after each round, and the metric's median, minimum and maximum."""
    rounds = min(len(curve.metric) for curve in seeds)  # a plan may differ from seed to seed
    times = np.median([getattr(curve, clock)[:rounds] for curve in seeds], axis=0)
    metric = np.array([curve.metric[:rounds] for curve in seeds])
    return times, np.median(metric, axis=0), metric.min(axis=0), metric.max(axis=0)


def _lowest(curves: Sequence[Curve], target: float | None) -> float | None:
    """Return the lower end of the axis, a little below the target; at least 0 for an accuracy."""
    tops = [curve.metric[np.isfinite(curve.metric)].max(initial=-np.inf) for curve in curves]
    wanted = float(max(tops)) if target is None or not np.isfinite(target) else target
    if not np.isfinite(wanted):
        return None
    least = wanted - max(0.25, 0.25 * abs(wanted))
    return max(0.0, least) if curves[0].metric_name == "accuracy" else least


@dataclass(frozen=True)
class Line:
    """A setting in the page's charts: its run and the run's number, its results, its colour."""

    run: str
    number: int
    outcome: Outcome
    colour: str

    @property
    def key(self) -> str:
        """What the line is called in all charts and tables of the page, wherever the run lies."""
        return f"{self.number}/{self.outcome.cell.id}"

    @property
    def dash(self) -> tuple[int, ...]:
        """The dash of its run."""
        return DASHES[self.number % len(DASHES)]


def drawn_lines(runs: Sequence[tuple[str, Sequence[Outcome]]]) -> list[Line]:
    """Choose which settings of runs, given by name, are drawn and how: of many the soonest."""
    every = [(number, o) for number, (_, outcomes) in enumerate(runs) for o in outcomes]
    soonest = sorted(range(len(every)), key=lambda at: median_hours(every[at][1]))
    shades: dict[str, list[str]] = {}
    lines = []
    for number, o in (every[at] for at in sorted(soonest[:_MAX_LINES])):
        settings = shades.setdefault(o.scheme, [])
        if o.setting not in settings:
            settings.append(o.setting)
        colour = scheme_colour(o.scheme, settings.index(o.setting))
        lines.append(Line(runs[number][0], number, o, colour))
    return lines


def large_gains(outcomes: Sequence[Outcome]) -> bool:
    """Say whether the times to the target differ so much that only a logarithm shows them all."""
    hours = [hour for o in outcomes for hour in o.total_hours if hour]
    return bool(hours) and max(hours) > LARGE_RATIO * min(hours)


def curve_charts(lines: Sequence[Line], target: float | None, unit: Unit) -> list[dict[str, Any]]:
    """Return the metric against time with set-up, against training time, and against rounds."""
    common = {
        "metric": lines[0].outcome.metric,
        "yMin": _lowest([curve for line in lines for curve in line.outcome.seeds], target),
        "target": target if target is not None and np.isfinite(target) else None,
    }
    logarithmic = large_gains([line.outcome for line in lines])
    axes = (
        ("total_hours", f"{unit.name} with set-up charged", unit.sign, logarithmic),
        ("training_hours", f"{unit.name} of training, the paper's clock", unit.sign, logarithmic),
        ("rounds", "rounds", "", False),
    )
    several = len({line.run for line in lines}) > 1
    charts = []
    for clock, label, sign, log in axes:
        scale = unit.per_hour if sign else 1.0
        series = [_series(line, clock, scale, several) for line in lines]
        axis = {"xLabel": label, "xUnit": sign, "xLog": log}
        charts.append(common | axis | {"lines": series})
    return charts


def _series(line: Line, clock: str, scale: float, several: bool) -> dict[str, Any]:
    """Return the median over seeds after each round, at its median time, and the range."""
    times, *metrics = _over_seeds(line.outcome.seeds, clock)
    shown = np.linspace(0, len(times) - 1, min(len(times), _MAX_POINTS)).round().astype(int)
    x, middle, low, high = (
        _numbers(values[np.unique(shown)]) for values in (times * scale, *metrics)
    )
    many = len(line.outcome.seeds) > 1
    return {
        "name": line.outcome.setting + (f' (run "{line.run}")' if several else ""),
        "key": line.key,
        "colour": line.colour,
        "dash": list(line.dash),
        "x": x,
        "y": middle,
        "low": low if many else None,
        "high": high if many else None,
    }


def _numbers(values: npt.NDArray[Any]) -> list[float | None]:
    """Return numbers as briefly as a screen needs them; JSON has no NaN."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values]
