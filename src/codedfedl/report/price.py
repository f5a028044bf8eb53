"""The price of privacy in hours: accuracy against time, for some ε."""

from collections.abc import Sequence
from itertools import cycle

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from codedfedl.report.curves import COLOURS, log_axis
from codedfedl.report.figures import STYLE
from codedfedl.report.reading import Curve

__all__ = ["price_figure"]


def price_figure(panels: Sequence[tuple[str, float, Sequence[Curve]]]) -> Figure:
    """Draw a panel for every data set: its title, its target, and all curves."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.4 * len(panels), 4.4), layout="constrained")
        for ax, (title, target, curves) in zip(
            np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True
        ):
            _panel(ax, curves, target)
            ax.set(title=title, ylabel="accuracy on the test set")
            ax.set_xlabel("hours, everything charged")
    return figure


def _panel(ax: Axes, curves: Sequence[Curve], target: float) -> None:
    cells: dict[str, list[Curve]] = {}
    for curve in curves:
        cells.setdefault(curve.cell, []).append(curve)
    for colour, seeds in zip(cycle(COLOURS), cells.values(), strict=False):
        rounds = min(len(curve.metric) for curve in seeds)  # plans differ from seed to seed
        hours = np.median([curve.total_hours[:rounds] for curve in seeds], axis=0)
        metric = np.array([curve.metric[:rounds] for curve in seeds])
        style = "D" if rounds == 1 else "-"
        ax.plot(hours, np.median(metric, axis=0), style, color=colour, label=_name(seeds[0]))
        low, high = metric.min(axis=0), metric.max(axis=0)
        ax.fill_between(hours, low, high, color=colour, alpha=0.15, lw=0)
    ax.axhline(target, color="#5b6570", lw=0.8, ls=":")
    ax.set_ylim(max(0.0, target - 0.2), None)
    log_axis(ax)
    ax.legend(loc="lower right", fontsize=8)


def _name(curve: Curve) -> str:
    """Say under which guarantee, which is the curve's fact; or which scheme has none."""
    if "delta" not in curve.facts or not np.isfinite(curve.facts["delta"]):
        return curve.setting
    epsilon = curve.facts.get("epsilon", np.nan)
    return f"ε = {epsilon:.3g}, δ = {curve.facts['delta']:g}" if epsilon < np.inf else "no noise"
