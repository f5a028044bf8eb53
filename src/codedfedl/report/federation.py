"""A federation in a picture: when every answer came, and what the deadline cut off."""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from codedfedl.arrays import FloatArray
from codedfedl.core.record import Record
from codedfedl.report.figures import PAGE

__all__ = [
    "SHOWN_ROUNDS",
    "distance_rows",
    "federation_figure",
    "federation_headline",
    "federation_panels",
]

SHOWN_ROUNDS = 40
"""Number of last rounds of which a page shows every answer."""

_BLUE, _ORANGE, _GREY, _RED = "#3d7cc9", "#d9541e", "#5b6570", "#b3261e"
_MISSING = {"late": ("x", _ORANGE), "dropped": ("s", _GREY), "refused": ("^", _RED)}


def federation_figure(records: Sequence[Record], metric: str) -> Figure:
    """Draw every round's answers and its deadline, and the metric against real seconds."""
    with mpl.rc_context(PAGE):
        figure = Figure(figsize=(12, _height(records)), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _draw_answers(left, _rounds(records))
        _draw_metric(right, records, metric)
    return figure


def federation_panels(records: Sequence[Record], metric: str) -> tuple[Figure, Figure]:
    """Draw the two halves of `federation_figure` for a small screen; of the answers the last."""
    with mpl.rc_context(PAGE):
        size = 5.4, _height(records[-SHOWN_ROUNDS:])
        left, right = (Figure(figsize=size, layout="constrained") for _ in range(2))
        _draw_metric(left.subplots(), records, metric)
        _draw_answers(right.subplots(), _rounds(records)[-SHOWN_ROUNDS:])
    return left, right


def _rounds(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if not record.is_setup]


def _height(records: Sequence[Record]) -> float:
    return min(max(3.2, 0.16 * len(_rounds(records)) + 1.6), 14.0)


def _draw_metric(ax: Axes, records: Sequence[Record], metric: str) -> None:
    rounds = _rounds(records)
    set_up = sum(record.seconds for record in records if record.is_setup)
    ends = set_up + np.cumsum([record.seconds for record in rounds])
    ax.plot(ends, [record.metric for record in rounds], "o-", ms=4, color=_BLUE)
    ax.axvspan(0, set_up, color=_GREY, alpha=0.12, lw=0)
    if set_up > 0.15 * ends[-1]:  # room for words
        place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": "center"}
        ax.annotate("features\nand parity", (set_up / 2, 0.03), color=_GREY, fontsize=8, **place)
    ax.set(xlim=(0, None), xlabel="seconds since the first question", ylabel=metric)
    ax.set_title(f"{metric.capitalize()} on the test points")


def _draw_answers(ax: Axes, rounds: Sequence[Record]) -> None:
    places = np.array([record.round + 1 for record in rounds])
    lasted = [record.seconds for record in rounds]
    ax.hlines(places, 0, lasted, color=_GREY, lw=0.6, alpha=0.6, zorder=1)
    for marker, colour, alpha, times in (
        ("o", _BLUE, 0.75, [_arrivals(record) for record in rounds]),
        *(
            (*sign, 1.0, [_beyond(record, part) for record in rounds])
            for part, sign in _MISSING.items()
        ),
    ):
        rows = np.repeat(places, [len(each) for each in times])
        seconds = np.concatenate(times)
        ax.plot(seconds, rows, marker, color=colour, ms=5, ls="", alpha=alpha, zorder=3)
    ends = [record.deadline for record in rounds]
    ax.step([*ends, ends[-1]], [*(places - 0.5), places[-1] + 0.5], color=_ORANGE, lw=1.4)
    for marker, colour, label in (
        ("o", _BLUE, "an answer"),
        *((*sign, part) for part, sign in _MISSING.items()),
        ("_", _ORANGE, "deadline"),
    ):
        ax.plot([], [], marker, color=colour, ls="", label=label)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5, fontsize=8)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="seconds in the round", ylabel="round", xlim=(0, None))
    ax.set_ylim(places[-1] + 0.7, places[0] - 0.7)


def _arrivals(record: Record) -> FloatArray:
    assert record.arrival_times is not None
    return np.asarray(record.arrival_times[record.arrived])


def _beyond(record: Record, part: str) -> FloatArray:
    """Return places behind the deadline for answers that do not count, late ones first."""
    counts = record.counts()
    before = sum(counts[other] for other in list(_MISSING)[: list(_MISSING).index(part)])
    places = before + np.arange(1, counts[part] + 1)
    return np.asarray(record.deadline * (1 + 0.02 * places))


def distance_rows(records: Sequence[Record], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the distance of every client's answers from its parity, the largest first."""
    found: dict[int, list[float]] = {}
    for record in records:
        for j, distance in record.known_distances[0].items():
            found.setdefault(j, []).append(distance)
    rows = [
        {
            "client": names[j],
            "answers": len(all_of_them),
            "mean": float(np.mean(all_of_them)),
            "largest": max(all_of_them),
        }
        for j, all_of_them in found.items()
    ]
    return sorted(rows, key=lambda row: -float(row["mean"]))


def federation_headline(setting: str, records: Sequence[Record], final: str) -> str:
    """Say in two sentences what a federation did, and how its clients behaved."""
    rounds = [record for record in records if not record.is_setup]
    seconds = [sum(e.seconds for e in part) for part in (records, rounds)]
    asked = sum(int((e.loads > 0).sum()) for e in rounds)
    arrived = sum(int(e.arrived.sum()) for e in rounds)
    refused = sum(e.counts()["refused"] for e in records)
    clients = len(records[0].loads)
    return (
        f"{setting} on {clients} real clients: {final}{len(rounds)} rounds in "
        f"{seconds[1]:.0f} s, {seconds[0]:.0f} s with set-up. {arrived} of {asked} answers came in "
        f"time, and {refused or 'none'} {'was' if refused == 1 else 'were'} refused."
    )
