"""Figures, drawn without any global state and the same to the last byte every time."""

from pathlib import Path
from typing import Any, BinaryIO

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from codedfedl.arrays import IntArray
from codedfedl.fleet.delays import DelayModel
from codedfedl.fleet.devices import Fleet
from codedfedl.io.files import FIGURE_SUFFIXES, check_destination, replacing
from codedfedl.planning.allocation import best_loads, expected_return
from codedfedl.planning.concave_pieces import piece_peaks
from codedfedl.planning.plan import Plan

__all__ = ["INK", "PAGE", "STYLE", "plan_figure", "return_figure", "save_figure"]

_BLUE, _ORANGE, _GREY, _LIGHT = "#1f5fa8", "#d9541e", "#5b6570", "#c9d6e6"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 10,
    "axes.edgecolor": _GREY,
    "legend.frameon": False,
    "svg.hashsalt": "codedfedl",
    "svg.fonttype": "path",
}
INK = "#0a0b0c"  # stands for the colour of a page's text
PAGE: dict[Any, Any] = STYLE | {
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
"""For figures in a page, light or dark."""
_DRAWN_CLIENTS = 120  # with more, a bar stands for many
_CURVE_CLIENTS = 4096  # with more, a sample gives the curve


def save_figure(figure: Figure, path: str | Path | BinaryIO, form: str | None = None) -> None:
    """Write a figure without a time stamp, so that the same figure is the same file.

    Parameters
    ----------
    form
        ``png``, ``svg`` or ``pdf``; by default the path's ending.
    """
    if isinstance(path, str | Path):
        check_destination(path, FIGURE_SUFFIXES)
        with replacing(Path(path)) as partial, partial.open("wb") as file:
            save_figure(figure, file, Path(path).suffix[1:])
        return
    stamps = {"svg": ("Date", "Creator", "Format", "Type"), "pdf": ("CreationDate",)}
    without = dict.fromkeys(stamps.get(form or "", ()))
    with mpl.rc_context(STYLE):
        figure.savefig(
            path, format=form, dpi=160, metadata=without or None, transparent=form == "svg"
        )


def plan_figure(plan: Plan, model: DelayModel | None = None) -> Figure:
    """Draw loads and return probabilities over the fleet, and expected return against t.

    Parameters
    ----------
    model
        Without the delays, the return against t is not drawn.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11 if model is not None else 7, 6.2), layout="constrained")
        if model is None:
            axes = figure.subplot_mosaic("A;B")
        else:
            axes = figure.subplot_mosaic("AC;BC", width_ratios=(3, 2))
            _draw_return_against_time(axes["C"], plan, model)
        groups = _in_order(plan)
        _draw_loads(axes["A"], plan, groups)
        _draw_probabilities(axes["B"], plan, groups)
    return figure


def _in_order(plan: Plan) -> list[IntArray]:
    """Return the clients, the most reliable first: each alone, or a hundred groups of them."""
    order = np.argsort(-plan.return_probabilities, kind="stable")
    return np.array_split(order, len(order) if len(order) <= _DRAWN_CLIENTS else 100)


def _draw_loads(ax: Axes, plan: Plan, groups: list[IntArray]) -> None:
    place = np.arange(len(groups))
    points = [float(plan.points[group].mean()) for group in groups]
    loads = [float(plan.loads[group].mean()) for group in groups]
    ax.bar(place, points, color=_LIGHT, label="points it has")
    ax.bar(place, loads, color=_BLUE, label="load")
    ax.set(title="Who does how much", ylabel="points per round", xticks=[])
    ax.set_ylim(0, 1.18 * max(points))
    ax.legend(loc="upper right", ncols=2)


def _draw_probabilities(ax: Axes, plan: Plan, groups: list[IntArray]) -> None:
    place = np.arange(len(groups))
    answers = np.array([plan.return_probabilities[group].mean() for group in groups])
    ax.bar(place, answers, color=np.where(answers < 0.5, _ORANGE, _BLUE).tolist())
    ax.set(title="Who answers in time", ylabel="probability", ylim=(0, 1.02))
    clients = f"{len(plan.client):,} clients, the most reliable first"
    ax.set_xlabel(clients if len(groups) == len(plan.client) else f"{clients}; means of groups")
    ax.set_xticks([])
    if len(plan.client) <= 40:
        names = [str(plan.client[group[0]]).replace("$", r"\$") for group in groups]  # no formulas
        ax.set_xticks(place, names, rotation=90, fontsize=7)


def _draw_return_against_time(ax: Axes, plan: Plan, model: DelayModel) -> None:
    every = slice(None, None, -(-len(model) // _CURVE_CLIENTS))
    sample, points = model.take(every), plan.points[every]
    scale = plan.points.sum() / points.sum()
    horizon = 2.5 * plan.deadline or 1.0
    times = np.linspace(horizon / 120, horizon, 120)
    returned = [scale * best_loads(sample, t, points=points).expected_return for t in times]
    wanted = plan.total_points - plan.parity_rows * plan.server_return_probability
    ax.plot(times, returned, color=_BLUE, lw=2)
    ax.axhline(plan.total_points, color=_GREY, lw=0.8, ls=":")
    ax.annotate(f"m = {plan.total_points:,}", (horizon, plan.total_points), **_beside(ha="right"))
    ax.axhline(wanted, color=_ORANGE, lw=0.8, ls="--")
    ax.annotate(f"m − u = {wanted:,.0f}", (horizon, wanted), **_beside(ha="right", va="top", up=-4))
    ax.axvline(plan.deadline, color=_ORANGE, lw=1.2)
    ax.plot(plan.deadline, wanted, "o", color=_ORANGE)
    label = f"deadline\n{plan.deadline:,.4g} s"
    ax.annotate(label, (plan.deadline, 0), **_beside(ha="left", right=6))
    ax.set(title="Expected return against waiting time", xlabel="t, seconds", xlim=(0, horizon))
    ax.set(ylabel="points per round, at the best loads", ylim=(0, 1.1 * plan.total_points))
    for axis, largest in ((ax.xaxis, horizon), (ax.yaxis, plan.total_points)):
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}" if largest > 10 else "{x:g}"))


def _beside(
    ha: str = "center", va: str = "bottom", right: float = 0, up: float = 4
) -> dict[str, Any]:
    """Place a label beside the point that it belongs to."""
    return {"xytext": (right, up), "textcoords": "offset points", "ha": ha, "va": va}


def return_figure(client: Fleet, t: float) -> Figure:
    """Draw one client's expected return against its load at t, and its best against t.

    With the client and t of the paper's figure 1, this is that figure.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 4), layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw_pieces(left, client, t)
        _draw_best_return(right, client, 10 * t)
        erasure, tau, rate, alpha = (
            float(column[0])
            for column in (client.erasure, client.packet_time, client.rate, client.alpha)
        )
        given = f"p = {erasure:g}, τ = {tau:.4g} s, μ = {rate:g} points/s"
        figure.suptitle(f"One client: {given}, α = {alpha:g}", fontsize=9, color=_GREY)
    return figure


def _draw_pieces(ax: Axes, client: Fleet, t: float) -> None:
    model, rate, tau = client, float(client.rate[0]), float(client.packet_time[0])
    loads = np.linspace(0, rate * (t - 2 * tau), 2000)
    ax.plot(loads, expected_return(model, loads[:, None], t)[:, 0], color=_BLUE, lw=1.6)
    peaks = piece_peaks(client, t)
    returns = expected_return(model, peaks[:, None], t)[:, 0]
    for transmissions in range(2, 2 + len(peaks)):
        ax.axvline(rate * (t - transmissions * tau), color=_GREY, lw=0.7, ls=":")
    ax.plot(peaks, returns, "o", color=_ORANGE, ms=5, label="optimum of a concave piece")
    best = int(np.argmax(returns))
    ax.annotate(f"ℓ* = {peaks[best]:.2f}", (peaks[best], returns[best]), **_beside(up=6))
    ax.set(title=f"(a) Piecewise concave in the load, t = {t:g} s", xlabel="load ℓ̃, points")
    ax.set(ylabel="E[R(t; ℓ̃)], points", xlim=(0, None), ylim=(0, 1.2 * returns.max()))
    ax.legend(loc="upper right")


def _draw_best_return(ax: Axes, client: Fleet, horizon: float) -> None:
    times = np.linspace(horizon / 200, horizon, 200)
    best = [best_loads(client, t, whole=False).expected_return for t in times]
    ax.plot(times, best, color=_BLUE, lw=1.6)
    ax.set(title="(b) At the best load, rising with the waiting time", xlabel="t, seconds")
    ax.set(ylabel="E[R(t; ℓ*(t))], points", xlim=(0, None), ylim=(0, None))
