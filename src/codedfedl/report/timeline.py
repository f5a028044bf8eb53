"""A time line of the first rounds: who is busy until when, and whom the deadline cuts off."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from codedfedl.report.comparison import Unit
from codedfedl.report.figures import PAGE, new_figure

__all__ = ["TIMELINE", "timeline_figure"]

_MAX_LANES = 30  # A larger fleet is shown by so many of its clients.
TIMELINE = {
    "busy, and there in time": "#3d7cc9",
    "the answer to an earlier round": "#8fb8e8",
    "cut off by the deadline": "#d9541e",
}
"""What a bar stands for, and its colour."""

Columns = Mapping[str, npt.NDArray[Any]]


def timeline_figure(rows: Columns, seconds: float, time: Unit) -> Figure:
    """Draw the rounds of one setting, a lane per client, the slowest at the bottom.

    Parameters
    ----------
    rows
        One per round and client: round, client, seconds, round_seconds, deadline_s, arrived.
    seconds
        How much of it is drawn.
    time
        The unit of the axis.
    """
    clients = list(dict.fromkeys(rows["client"].tolist()))
    shape = (-1, len(clients))
    when, arrived = rows["seconds"].reshape(shape), rows["arrived"].reshape(shape)
    ends = np.cumsum(rows["round_seconds"].reshape(shape)[:, 0])
    order = np.argsort(np.median(when, axis=0), kind="stable")
    lanes = order[
        np.unique(np.linspace(0, len(order) - 1, min(_MAX_LANES, len(order))).round().astype(int))
    ]
    unit, name = 3600 / time.per_hour, time.name
    with new_figure(9, 0.9 + 0.13 * len(lanes), PAGE) as figure:
        ax = figure.subplots()
        for r, end in enumerate(ends):
            begin = ends[r - 1] if r else 0.0
            if begin < seconds:
                _draw_round(ax, lanes, when[r], arrived[r], begin / unit, end / unit, unit)
        until = min(seconds, float(ends[-1])) / unit
        ax.set(xlim=(0, seconds / unit), ylim=(len(lanes) - 0.4, -0.6), yticks=[])
        ax.set(xlabel=f"{name} since the first round began", ylabel="clients, fastest first")
        if until < 0.97 * seconds / unit:
            ax.axvspan(until, seconds / unit, color="#8a94a0", alpha=0.12, lw=0)
    return figure


def _draw_round(
    ax: Axes,
    lanes: npt.NDArray[np.int64],
    when: npt.NDArray[np.float64],
    arrived: npt.NDArray[np.bool_],
    begin: float,
    end: float,
    unit: float,
) -> None:
    there = begin + when / unit <= end * (1 + 1e-9)
    kinds = (arrived, ~arrived & there, ~arrived & ~there)
    for colour, chosen in zip(TIMELINE.values(), kinds, strict=True):
        bars = [
            Rectangle((begin, lane - 0.36), min(begin + when[j] / unit, end) - begin, 0.72)
            for lane, j in enumerate(lanes)
            if chosen[j] and np.isfinite(when[j])
        ]
        ax.add_collection(PatchCollection(bars, facecolor=colour, lw=0))
    ax.axvline(end, color="#8a94a0", lw=1.0)
