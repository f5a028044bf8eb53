"""A plan and a fitted fleet as tables in the terminal."""

from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from codedfedl.fitting.fit import Fit
    from codedfedl.planning.plan import Plan

__all__ = ["duration", "fit_view", "plan_view"]

_MAX_ROWS = 40  # Of a larger fleet, the clients least likely to answer are listed.
_UNLIKELY = 0.5  # Below it, a client is unlikely to answer in time.
_FIT_COLUMNS = {
    "rate": "rate, points/s",
    "alpha": "alpha",
    "overhead": "overhead, s",
    "packet_time": "packet, s",
    "erasure": "erasure",
    "packet_time_up": "packet up, s",
    "erasure_up": "erasure up",
    "availability": "availability",
}


def duration(seconds: float) -> str:
    """Write a time as people say it: seconds, and minutes or hours where they help."""
    if seconds == np.inf:
        return "for ever"
    if seconds < 120:
        return f"{seconds:.4g} s"
    if seconds < 7200:
        return f"{seconds:,.0f} s ({seconds / 60:.1f} min)"
    return f"{seconds:,.0f} s ({seconds / 3600:,.1f} h)"


def plan_view(plan: "Plan", wait_for_all: float) -> Group:
    """Return a plan's summary and its clients, those least likely to answer first."""
    return Group(_summary(plan, wait_for_all), Text(), _clients(plan))


def _summary(plan: "Plan", wait_for_all: float) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column()
    grid.add_row("Deadline", Text(duration(plan.deadline), style="bold green"))
    grid.add_row("Gain", _gain(plan, wait_for_all))
    rows = f"{plan.parity_rows:,} rows for {plan.total_points:,} points ({plan.redundancy:.1%})"
    grid.add_row("Parity", rows)
    if plan.server_return_probability < 1:
        done = f"{plan.server_return_probability:.1%} done with them by the deadline"
        grid.add_row("Server", f"{done}; divide the coded gradient by that")
    share = plan.expected_return / plan.total_points
    grid.add_row("Expected return", f"{plan.expected_return:,.1f} points a round ({share:.1%})")
    grid.add_row("Who does how much", _division(plan))
    return grid


def _gain(plan: "Plan", wait_for_all: float) -> str:
    if plan.deadline == 0:
        return "the parity represents every point: there is nothing to wait for"
    if wait_for_all == np.inf:
        return "waiting for all clients would never end: some do not always take part"
    waiting = duration(wait_for_all)
    return f"{wait_for_all / plan.deadline:.2f}× over waiting for everybody, {waiting} on average"


def _division(plan: "Plan") -> str:
    asked = plan.loads > 0
    full = int((asked & (plan.loads == plan.points)).sum())
    part = int(asked.sum()) - full
    idle = len(plan.loads) - full - part
    unlikely = int((asked & (plan.return_probabilities < _UNLIKELY)).sum())
    counts = [f"{full:,} clients all their points", f"{part:,} a part", f"{idle:,} none"]
    return f"{', '.join(counts)}; {unlikely:,} asked are unlikely to answer in time"


def _clients(plan: "Plan") -> Table:
    order = np.lexsort((np.arange(len(plan.loads)), plan.return_probabilities))
    shown = order[:_MAX_ROWS]
    title = None
    if len(order) > _MAX_ROWS:
        title = f"The {_MAX_ROWS} of {len(order):,} clients least likely to answer"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2), header_style="bold")
    table.add_column("client")
    for heading in ("points", "load"):
        table.add_column(heading, justify="right")
    table.add_column("share", no_wrap=True)
    table.add_column("answers in time", no_wrap=True)
    for j in shown:
        load, points = int(plan.loads[j]), int(plan.points[j])
        table.add_row(
            Text(str(plan.client[j])),
            f"{points:,}",
            f"{load:,}" if load else "–",
            _bar(load / points if points else 0.0),
            _likelihood(plan.return_probabilities[j]) if load else Text("not asked", style="dim"),
        )
    return table


def _likelihood(probability: float) -> Text:
    style = "red" if probability < _UNLIKELY else "yellow" if probability < 0.9 else "green"
    return Text(f"{probability:7.2%}  ", style=style) + _bar(probability, style)


def _bar(share: float, style: str = "cyan", width: int = 10) -> Text:
    eighths = round(share * width * 8)
    text = "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")
    return Text(text.ljust(width, "·") if share < 1 else text, style=style)


def fit_view(fit: "Fit") -> Table:
    """Return a row per client: estimates, with their intervals below."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("client")
    table.add_column("replies", justify="right")
    shown = [name for name in _FIT_COLUMNS if not np.isnan(fit.intervals[name]).all()]
    for name in shown:
        table.add_column(_FIT_COLUMNS[name], justify="right")
    table.add_column("does the model fit?")
    for j, client in enumerate(fit.fleet.client):
        came = int(fit.n[j] - fit.never_came[j])
        cells = [_estimate(fit, name, j) for name in shown]
        table.add_row(Text(str(client)), f"{came}/{fit.n[j]}", *cells, _fits(fit, j))
    return table


def _estimate(fit: "Fit", name: str, j: int) -> Text:
    low, high = fit.intervals[name][j]
    value = getattr(fit.fleet, name)[j]
    if np.isnan(low) and not value:
        return Text("–")
    unknown = high == np.inf or (name == "alpha" and fit.intervals["rate"][j, 1] == np.inf)
    interval = "" if np.isnan(low) else f"\n{low:.3g} – {high:.3g}"
    return Text("unknown" if unknown else f"{value:.3g}") + Text(interval, style="dim")


def _fits(fit: "Fit", j: int) -> Text:
    p = fit.p_value[j]
    if fit.never_came[j] == fit.n[j]:
        return Text("never answered", style="red")
    if np.isnan(p):
        return Text("too few to judge", style="yellow")
    return Text(f"yes, p = {p:.2g}", "green") if fit.fits[j] else Text(f"no, p = {p:.2g}", "red")
