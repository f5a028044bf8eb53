"""The picture of a fit: what was measured against what the model says, client by client."""

from math import ceil

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from codedfedl.fitting.fit import Fit
from codedfedl.fleet.measured import rows_by_client
from codedfedl.report.figures import STYLE

__all__ = ["fit_figure"]

_BLUE, _ORANGE, _GREY = "#1f5fa8", "#d9541e", "#5b6570"
_MOST_PANELS = 16


def fit_figure(found: Fit) -> Figure:
    """Draw the share of measurements that were back by t, and the fitted probability of it.

    With many clients, those that fit worst.
    """
    n = len(found.fleet)
    judged = np.where(np.isnan(found.p_value), 1.0, found.p_value)
    shown = np.arange(n)
    if n > _MOST_PANELS:
        shown = np.sort(np.argsort(judged, kind="stable")[:_MOST_PANELS])
    across = min(4, len(shown))
    down = ceil(len(shown) / across)
    with mpl.rc_context(STYLE):
        size = (max(2.9 * across, 6.0), 2.3 * down + 0.9)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
        _, rows = rows_by_client(found.traces.client)
        for ax, j in zip(panels, shown, strict=False):
            _draw_client(ax, found, int(j), rows[j])
        for ax in panels[len(shown) :]:
            ax.set_axis_off()
        title = "Share of measurements back by t: measured (steps) and fitted (lines)"
        which = f"\nthe {_MOST_PANELS} of {n:,} clients that fit worst" if n > _MOST_PANELS else ""
        figure.suptitle(title + which, fontsize=10, color=_GREY)
        figure.supxlabel("t, seconds", fontsize=9)
    return figure


def _draw_client(ax: Axes, found: Fit, j: int, rows: np.ndarray) -> None:
    """Draw one client; measurements at different loads are taken together, in both curves."""
    traces = found.traces
    seconds, load, waited = traces.seconds[rows], traces.load[rows], traces.waited[rows]
    back = np.sort(seconds[np.isfinite(seconds)])
    colour = _BLUE if found.fits[j] else _ORANGE
    name = str(found.fleet.client[j]).replace("$", r"\$")  # no formulas
    ax.set_title(name if len(name) <= 24 else f"{name[:23]}…", fontsize=9)
    if not len(back):
        ax.annotate("never answered", (0.5, 0.5), xycoords="axes fraction", ha="center")
        ax.set(ylim=(0, 1.03), xticks=[])
        return
    margin = 0.08 * (back[-1] - back[0]) or 0.05 * back[-1]
    times = np.linspace(max(back[0] - 2 * margin, 0.0), back[-1] + 3 * margin, 300)
    share = np.arange(len(back) + 2).clip(max=len(back)) / len(rows)
    ax.step([times[0], *back, times[-1]], share, where="post", color=_GREY, lw=1.1)
    limit = np.where(np.isnan(waited) | (seconds > waited) & np.isfinite(seconds), np.inf, waited)
    one = found.fleet.take(np.array([j]))
    fitted = one.cdf(load[:, None, None], np.minimum(times[:, None], limit[:, None, None]))
    ax.plot(times, fitted[..., 0].mean(0), color=colour, lw=1.6)
    ax.set(xlim=(times[0], times[-1]), ylim=(0, 1.03))
    ax.annotate(
        _verdict(found, j), (0.97, 0.06), xycoords="axes fraction", ha="right", color=colour
    )


def _verdict(found: Fit, j: int) -> str:
    p = found.p_value[j]
    if np.isnan(p):
        return "too few to judge"
    return f"p = {p:.2g}" if found.fits[j] else f"does not fit\np = {p:.2g}"
