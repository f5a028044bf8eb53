"""A plan and a fitted fleet as the terminal shows them: sentences, and rows."""

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

if TYPE_CHECKING:
    from codedfedl.fitting.fit import Fit
    from codedfedl.planning.plan import Plan


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


def _right(text: str) -> Text:
    return Text(text, justify="right")


def duration(seconds: float) -> str:
    """Write a time as people say it: seconds, and minutes or hours where they help."""
    if seconds == np.inf:
        return "forever"
    if seconds < 120 or seconds > 1e12:
        return f"{seconds:.4g} s"
    if seconds < 7200:
        return f"{seconds:,.0f} s ({seconds / 60:.1f} min)"
    return f"{seconds:,.0f} s ({seconds / 3600:,.1f} h)"


def plan_views(plan: "Plan", wait_for_all: float) -> list[Any]:
    """Return a plan's summary and its clients, those least likely to answer first."""
    share = plan.expected_return / plan.total_points
    summary: dict[str, str | Text] = {
        "Deadline": Text(duration(plan.deadline), style="bold green"),
        "Gain": _gain(plan, wait_for_all),
        "Parity": f"{plan.parity_rows:,} rows for {plan.total_points:,} points "
        f"({plan.redundancy:.1%})",
        "Server": f"{plan.server_return_probability:.1%} done with them by the deadline; divide "
        "the coded gradient by that",
        "Expected return": f"{plan.expected_return:,.1f} points a round ({share:.1%})",
        "Who does how much": _division(plan),
    }
    if plan.server_return_probability >= 1:
        del summary["Server"]
    lines = [Text.assemble((f"{name:<19}", "bold"), value) for name, value in summary.items()]
    order = np.lexsort((np.arange(len(plan.loads)), plan.return_probabilities))
    title = f"The {_MAX_ROWS} of {len(order):,} clients least likely to answer"
    rows = [_client(plan, j) for j in order[:_MAX_ROWS]]
    return [*lines, *([title] if len(order) > _MAX_ROWS else [""]), rows]


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


def _client(plan: "Plan", j: int) -> dict[str, Any]:
    load, points, probability = (
        int(plan.loads[j]),
        int(plan.points[j]),
        plan.return_probabilities[j],
    )
    style = "red" if probability < _UNLIKELY else "yellow" if probability < 0.9 else "green"
    likely = Text(f"{probability:7.2%}  ", style=style) + _bar(probability, style)
    return {
        "client": str(plan.client[j]),
        "points": points,
        "load": load or _right("–"),
        "share": _bar(load / points if points else 0.0),
        "answers in time": likely if load else Text("not asked", style="dim"),
    }


def _bar(share: float, style: str = "cyan") -> Text:
    eighths = round(80 * share)
    text = "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")
    return Text(text.ljust(10, "·") if share < 1 else text, style=style)


def fit_rows(fit: "Fit") -> list[dict[str, Any]]:
    """Return a row per client: estimates, with their intervals below."""
    shown = [name for name in _FIT_COLUMNS if not np.isnan(fit.intervals[name]).all()]
    return [
        {
            "client": str(client),
            "replies": _right(f"{int(fit.n[j] - fit.never_came[j])}/{fit.n[j]}"),
            **{_FIT_COLUMNS[name]: _estimate(fit, name, j) for name in shown},
            "does the model fit?": _fits(fit, j),
        }
        for j, client in enumerate(fit.fleet.client)
    ]


def _estimate(fit: "Fit", name: str, j: int) -> Text:
    low, high = fit.intervals[name][j]
    value = getattr(fit.fleet, name)[j]
    if np.isnan(low) and not value:
        return _right("–")
    unknown = high == np.inf or (name == "alpha" and fit.intervals["rate"][j, 1] == np.inf)
    interval = "" if np.isnan(low) else f"\n{low:.3g} – {high:.3g}"
    return _right("unknown" if unknown else f"{value:.3g}") + Text(interval, style="dim")


def _fits(fit: "Fit", j: int) -> Text:
    p = fit.p_value[j]
    if fit.never_came[j] == fit.n[j]:
        return Text("never answered", style="red")
    if np.isnan(p):
        return Text("too few to judge", style="yellow")
    return Text(f"yes, p = {p:.2g}", "green") if fit.fits[j] else Text(f"no, p = {p:.2g}", "red")
