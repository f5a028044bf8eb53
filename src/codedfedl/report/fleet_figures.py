"""Figures of fleets: their plan, where their time goes, one client's return, and their fit."""

from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.fleet.delays import DelayModel
from codedfedl.fleet.devices import Fleet
from codedfedl.fleet.measured import rows_by_client
from codedfedl.planning.allocation import best_loads, expected_return
from codedfedl.planning.concave_pieces import piece_peaks
from codedfedl.report.figures import BLUE, GREY, ORANGE, new_figure

if TYPE_CHECKING:
    from codedfedl.fitting.fit import Fit
    from codedfedl.planning.plan import Plan


_LIGHT = "#c9d6e6"
_PART_COLOURS = (BLUE, ORANGE, "#c9a227", GREY)
_MAX_BARS = 120  # With more clients, a bar stands for many.
_MAX_NAMES = 40  # With more clients, bars have no names.
_MAX_CURVE_CLIENTS = 4096  # With more clients, a sample gives the curve.
_MAX_PANELS = 16  # With more clients, those that fit worst are drawn.


def plan_figure(plan: "Plan", model: DelayModel | None = None) -> Figure:
    """Draw loads and return probabilities over the fleet, and expected return against t.

    Parameters
    ----------
    model
        Without the delays, the return against t is not drawn.
    """
    with new_figure(11 if model is not None else 7, 6.2) as figure:
        if model is None:
            axes = figure.subplot_mosaic("A;B")
        else:
            axes = figure.subplot_mosaic("AC;BC", width_ratios=(3, 2))
            _draw_return_against_time(axes["C"], plan, model)
        groups = _groups(np.argsort(-plan.return_probabilities, kind="stable"))
        _draw_loads(axes["A"], plan, groups)
        _draw_probabilities(axes["B"], plan, groups)
    return figure


def fleet_figure(fleet: Fleet) -> Figure:
    """Draw the mean time of every client for all its points, the slowest first."""
    parts = round_parts(fleet)
    groups = _groups(np.argsort(-sum(parts.values(), np.zeros(len(fleet))), kind="stable"))
    with new_figure(9, 3.6) as figure:
        ax = figure.subplots()
        bars, below = np.arange(len(groups)), np.zeros(len(groups))
        for colour, (name, seconds) in zip(_PART_COLOURS, parts.items(), strict=True):
            height = _means(seconds, groups)
            if height.any():
                ax.bar(bars, height, bottom=below, color=colour, label=name)
            below += height
        ax.set(title="Where the time of a round goes", ylabel="seconds, on average")
        _name_clients(ax, fleet.client, groups, "clients with all their points, the slowest first")
        ax.legend(loc="upper right", ncols=len(parts))
    return figure


def round_parts(fleet: Fleet) -> dict[str, FloatArray]:
    """Return the mean seconds of a round in which a client processes all its points, by cause."""
    links = ((fleet.packet_time, fleet.erasure), (fleet.packet_time_up, fleet.erasure_up))
    again = [tau * p / (1 - p) for tau, p in links]
    return {
        "compute": fleet.points / fleet.rate * (1 + 1 / fleet.alpha),
        "send": fleet.packet_time + fleet.packet_time_up,
        "send again": again[0] + again[1],
        "overhead": fleet.overhead,
    }


def _groups(order: IntArray) -> list[IntArray]:
    """Return the clients in an order: each alone, or a hundred groups of them."""
    return np.array_split(order, len(order) if len(order) <= _MAX_BARS else 100)


def _means(values: Any, groups: list[IntArray]) -> FloatArray:
    return np.array([float(values[group].mean()) for group in groups])


def _name_clients(ax: Axes, clients: Any, groups: list[IntArray], order: str) -> None:
    """Label an axis that has a bar for each group of clients."""
    label = f"{len(clients):,} {order}"
    ax.set_xlabel(label if len(groups) == len(clients) else f"{label}; means of groups")
    ax.set_xticks([])
    if len(clients) <= _MAX_NAMES:
        names = [_plain(clients[group[0]]) for group in groups]
        ax.set_xticks(np.arange(len(groups)), names, rotation=90, fontsize=7)


def _plain(name: Any) -> str:
    """Return a client's name, in which nothing is a formula."""
    return str(name).replace("$", r"\$")


def _draw_loads(ax: Axes, plan: "Plan", groups: list[IntArray]) -> None:
    bars, points = np.arange(len(groups)), _means(plan.points, groups)
    ax.bar(bars, points, color=_LIGHT, label="points it has")
    ax.bar(bars, _means(plan.loads, groups), color=BLUE, label="load")
    ax.set(title="Who does how much", ylabel="points per round", xticks=[])
    ax.set_ylim(0, 1.18 * max(points))
    ax.legend(loc="upper right", ncols=2)


def _draw_probabilities(ax: Axes, plan: "Plan", groups: list[IntArray]) -> None:
    answers = _means(plan.return_probabilities, groups)
    colours = np.where(answers < 0.5, ORANGE, BLUE).tolist()
    ax.bar(np.arange(len(groups)), answers, color=colours)
    ax.set(title="Who answers in time", ylabel="probability", ylim=(0, 1.02))
    _name_clients(ax, plan.client, groups, "clients, the most reliable first")


def _draw_return_against_time(ax: Axes, plan: "Plan", model: DelayModel) -> None:
    every = slice(None, None, -(-len(model) // _MAX_CURVE_CLIENTS))
    sample, points = model.take(every), plan.points[every]
    scale = plan.points.sum() / points.sum()
    horizon = 2.5 * plan.deadline or 1.0
    times = np.linspace(horizon / 120, horizon, 120)
    returned = [scale * best_loads(sample, t, points=points).expected_return for t in times]
    wanted = plan.total_points - plan.parity_rows * plan.server_return_probability
    ax.plot(times, returned, color=BLUE, lw=2)
    ax.axhline(plan.total_points, color=GREY, lw=0.8, ls=":")
    _label(ax, f"m = {plan.total_points:,}", horizon, plan.total_points, ha="right")
    ax.axhline(wanted, color=ORANGE, lw=0.8, ls="--")
    _label(ax, f"m − u = {wanted:,.0f}", horizon, wanted, up=-4, ha="right", va="top")
    ax.axvline(plan.deadline, color=ORANGE, lw=1.2)
    ax.plot(plan.deadline, wanted, "o", color=ORANGE)
    _label(ax, f"deadline\n{plan.deadline:,.4g} s", plan.deadline, 0, right=6, ha="left")
    ax.set(title="Expected return against waiting time", xlabel="t, seconds", xlim=(0, horizon))
    ax.set(ylabel="points per round, at the best loads", ylim=(0, 1.1 * plan.total_points))
    for axis, largest in ((ax.xaxis, horizon), (ax.yaxis, plan.total_points)):
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}" if largest > 10 else "{x:g}"))


def _label(
    ax: Axes, text: str, x: float, y: float, right: float = 0, up: float = 4, **style: Any
) -> None:
    """Write beside a point."""
    style = {"ha": "center", "va": "bottom"} | style
    ax.annotate(text, (x, y), xytext=(right, up), textcoords="offset points", **style)


def return_figure(client: Fleet, t: float) -> Figure:
    """Draw one client's expected return against its load at t, and its best against t.

    With the client and t of the paper's figure 1, this is that figure.
    """
    with new_figure(10, 4) as figure:
        left, right = figure.subplots(1, 2)
        _draw_pieces(left, client, t)
        _draw_best_return(right, client, 10 * t)
        columns = (client.erasure, client.packet_time, client.rate, client.alpha)
        erasure, tau, rate, alpha = (float(column[0]) for column in columns)
        given = f"p = {erasure:g}, τ = {tau:.4g} s, μ = {rate:g} points/s"
        figure.suptitle(f"One client: {given}, α = {alpha:g}", fontsize=9, color=GREY)
    return figure


def _draw_pieces(ax: Axes, client: Fleet, t: float) -> None:
    model, rate, tau = client, float(client.rate[0]), float(client.packet_time[0])
    loads = np.linspace(0, rate * (t - 2 * tau), 2000)
    ax.plot(loads, expected_return(model, loads[:, None], t)[:, 0], color=BLUE, lw=1.6)
    peaks = piece_peaks(client, t)
    returns = expected_return(model, peaks[:, None], t)[:, 0]
    for transmissions in range(2, 2 + len(peaks)):
        ax.axvline(rate * (t - transmissions * tau), color=GREY, lw=0.7, ls=":")
    ax.plot(peaks, returns, "o", color=ORANGE, ms=5, label="optimum of a concave piece")
    best = int(np.argmax(returns))
    _label(ax, f"ℓ* = {peaks[best]:.2f}", peaks[best], returns[best], up=6)
    ax.set(title=f"(a) Piecewise concave in the load, t = {t:g} s", xlabel="load ℓ̃, points")
    ax.set(ylabel="E[R(t; ℓ̃)], points", xlim=(0, None), ylim=(0, 1.2 * returns.max()))
    ax.legend(loc="upper right")


def _draw_best_return(ax: Axes, client: Fleet, horizon: float) -> None:
    times = np.linspace(horizon / 200, horizon, 200)
    best = [best_loads(client, t, whole=False).expected_return for t in times]
    ax.plot(times, best, color=BLUE, lw=1.6)
    ax.set(title="(b) At the best load, rising with the waiting time", xlabel="t, seconds")
    ax.set(ylabel="E[R(t; ℓ*(t))], points", xlim=(0, None), ylim=(0, None))


def fit_figure(fit: "Fit") -> Figure:
    """Draw the share of measurements that were back by t, and the fitted probability of it.

    With many clients, those that fit worst.
    """
    n = len(fit.fleet)
    judged = np.where(np.isnan(fit.p_value), 1.0, fit.p_value)
    shown = np.sort(np.argsort(judged, kind="stable")[:_MAX_PANELS])
    across = min(4, len(shown))
    down = ceil(len(shown) / across)
    with new_figure(max(2.9 * across, 6.0), 2.3 * down + 0.9) as figure:
        panels = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
        _, rows = rows_by_client(fit.traces.client)
        for ax, j in zip(panels, shown, strict=False):
            _draw_fit(ax, fit, int(j), rows[j])
        for ax in panels[len(shown) :]:
            ax.set_axis_off()
        title = "Share of measurements back by t: measured (steps) and fitted (lines)"
        which = f"\nthe {_MAX_PANELS} of {n:,} clients that fit worst" if n > _MAX_PANELS else ""
        figure.suptitle(title + which, fontsize=10, color=GREY)
        figure.supxlabel("t, seconds", fontsize=9)
    return figure


def _draw_fit(ax: Axes, fit: "Fit", j: int, rows: IntArray) -> None:
    """Draw one client; measurements at different loads are taken together, in both curves."""
    traces = fit.traces
    seconds, load, waited = traces.seconds[rows], traces.load[rows], traces.waited[rows]
    back = np.sort(seconds[np.isfinite(seconds)])
    name = str(fit.fleet.client[j])
    ax.set_title(_plain(name if len(name) <= 24 else f"{name[:23]}…"), fontsize=9)
    if not len(back):
        ax.annotate("never answered", (0.5, 0.5), xycoords="axes fraction", ha="center")
        ax.set(ylim=(0, 1.03), xticks=[])
        return
    margin = 0.08 * (back[-1] - back[0]) or 0.05 * back[-1]
    times = np.linspace(max(back[0] - 2 * margin, 0.0), back[-1] + 3 * margin, 300)
    share = np.arange(len(back) + 2).clip(max=len(back)) / len(rows)
    ax.step([times[0], *back, times[-1]], share, where="post", color=GREY, lw=1.1)
    limit = np.where(np.isnan(waited) | (seconds > waited) & np.isfinite(seconds), np.inf, waited)
    model = fit.fleet.take(np.array([j]))
    fitted = model.cdf(load[:, None, None], np.minimum(times[:, None], limit[:, None, None]))
    p, fits = fit.p_value[j], bool(fit.fits[j])
    verdict = f"p = {p:.2g}" if fits else f"does not fit\np = {p:.2g}"
    colour = BLUE if fits else ORANGE
    ax.plot(times, fitted[..., 0].mean(0), color=colour, lw=1.6)
    ax.set(xlim=(times[0], times[-1]), ylim=(0, 1.03))
    corner: dict[str, Any] = {"xycoords": "axes fraction", "ha": "right", "color": colour}
    ax.annotate("too few to judge" if np.isnan(p) else verdict, (0.97, 0.06), **corner)
