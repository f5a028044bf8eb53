"""When answers came, round by round: in the first rounds of a simulation, and in a federation."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from codedfedl.arrays import FloatArray
from codedfedl.core.record import ARRIVED, NOT_ASKED, PARTS, Record
from codedfedl.io.names import count_of
from codedfedl.report.comparison import Unit
from codedfedl.report.figures import GREY, ORANGE, PAGE, new_figure
from codedfedl.report.reading import Columns
from codedfedl.report.results import Outcome, written
from codedfedl.runs.advice import Conduct

LAST_ROUNDS = 40
"""Number of last rounds of which a page shows every answer."""

MARKS = {"arrived": "●", "late": "×", "dropped": "■", "refused": "!"}
"""The parts of a round and their signs, which are distinct without colour too."""

TIMELINE = {
    "busy, and there in time": "#3d7cc9",
    "the answer to an earlier round": "#8fb8e8",
    "cut off by the deadline": "#d9541e",
}
"""What a bar stands for, and its colour."""

_MAX_LANES = 30  # A larger fleet is shown by so many of its clients.
_FEW_LANES = 5  # Clients of a figure that is lower than its longer label is long.
_BLUE = "#3d7cc9"
_PALE = "#8a94a0"
_MISSING = {"late": ("x", ORANGE), "dropped": ("s", GREY), "refused": ("^", "#b3261e")}
_KINDS = {outcome: part for part, outcomes in PARTS.items() for outcome in outcomes}


def federation_figure(records: Sequence[Record], metric: str) -> Figure:
    """Draw every round's answers and its deadline, and the metric against real seconds."""
    rounds = _rounds(records)
    with new_figure(12, _height(rounds), PAGE) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _draw_answers(left, rounds)
        _draw_metric(right, records, metric)
    return figure


def answers_figure(records: Sequence[Record]) -> Figure:
    """Draw the answers and deadlines of the last rounds, for a small screen too."""
    rounds = _rounds(records)[-LAST_ROUNDS:]
    with new_figure(5.4, _height(rounds), PAGE) as figure:
        _draw_answers(figure.subplots(), rounds)
    return figure


def _rounds(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if not record.is_setup]


def _height(rounds: Sequence[Record]) -> float:
    return min(max(3.2, 0.16 * len(rounds) + 1.6), 14.0)


def _draw_metric(ax: Axes, records: Sequence[Record], metric: str) -> None:
    rounds = _rounds(records)
    setup = sum(record.seconds for record in records if record.is_setup)
    ends = setup + np.cumsum([record.seconds for record in rounds])
    ax.plot(ends, [record.metric for record in rounds], "o-", ms=4, color=_BLUE)
    ax.axvspan(0, setup, color=GREY, alpha=0.12, lw=0)
    if setup > 0.15 * ends[-1]:  # room for words
        style: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": "center"}
        ax.annotate("features\nand parity", (setup / 2, 0.03), color=GREY, fontsize=8, **style)
    ax.set(xlim=(0, None), xlabel="seconds since the first question", ylabel=metric)
    ax.set_title(f"{metric.capitalize()} on the test points")


def _draw_answers(ax: Axes, rounds: Sequence[Record]) -> None:
    numbers = np.array([record.round + 1 for record in rounds])
    lasted = [record.seconds for record in rounds]
    ax.hlines(numbers, 0, lasted, color=GREY, lw=0.6, alpha=0.6, zorder=1)
    answers = [_arrivals(record) for record in rounds]
    _draw_marks(ax, numbers, answers, "an answer", ("o", _BLUE), alpha=0.75)
    for part, mark in _MISSING.items():
        _draw_marks(ax, numbers, [_beyond(record, part) for record in rounds], part, mark)
    ends = [record.deadline for record in rounds]
    ax.step([*ends, ends[-1]], [*(numbers - 0.5), numbers[-1] + 0.5], color=ORANGE, lw=1.4)
    ax.plot([], [], "_", color=ORANGE, ls="", label="deadline")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5, fontsize=8)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="seconds in the round", ylabel="round", xlim=(0, None))
    ax.set_ylim(numbers[-1] + 0.7, numbers[0] - 0.7)


def _draw_marks(
    ax: Axes,
    numbers: Any,
    seconds: Sequence[FloatArray],
    label: str,
    mark: tuple[str, str],
    alpha: float = 1.0,
) -> None:
    """Draw a mark for each answer of a kind, round by round."""
    rows = np.repeat(numbers, [len(each) for each in seconds])
    shape, colour = mark
    ax.plot(np.concatenate(seconds), rows, shape, color=colour, ms=5, alpha=alpha, zorder=3)
    ax.plot([], [], shape, color=colour, label=label)


def _arrivals(record: Record) -> FloatArray:
    assert record.arrival_times is not None
    return np.asarray(record.arrival_times[record.arrived])


def _beyond(record: Record, part: str) -> FloatArray:
    """Return places behind the deadline for answers that do not count, late ones first."""
    counts, parts = record.counts(), list(_MISSING)
    before = sum(counts[other] for other in parts[: parts.index(part)])
    places = before + np.arange(1, counts[part] + 1)
    return np.asarray(record.deadline * (1 + 0.02 * places))


def distance_rows(records: Sequence[Record], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the distance of every client's answers from its parity, the largest first."""
    distances: dict[int, list[float]] = {}
    for record in records:
        for j, distance in record.known_distances[0].items():
            distances.setdefault(j, []).append(distance)
    rows: list[dict[str, Any]] = [
        {"client": names[j], "answers": len(its), "mean": float(np.mean(its)), "largest": max(its)}
        for j, its in distances.items()
    ]
    return sorted(rows, key=lambda row: -row["mean"])


def federation_headline(outcome: Outcome, records: Sequence[Record]) -> str:
    """Say in two sentences what a federation did, and how its clients behaved."""
    rounds, final = _rounds(records), outcome.final[0]
    result = "" if np.isnan(final) else f"{outcome.metric} {written(outcome.metric, final)} after "
    seconds, in_rounds = (sum(record.seconds for record in part) for part in (records, rounds))
    asked = sum(int((record.loads > 0).sum()) for record in rounds)
    arrived = sum(int(record.arrived.sum()) for record in rounds)
    refused = sum(record.counts()["refused"] for record in records)
    return (
        f"{outcome.setting} on {len(records[0].loads)} real clients: {result}"
        f"{count_of(len(rounds), 'round')} in {in_rounds:.0f} s, {seconds:.0f} s with set-up. "
        f"{arrived} of {asked} answers came in time, and "
        f"{refused or 'none'} {'was' if refused == 1 else 'were'} refused."
    )


def client_marks(conduct: Conduct) -> list[dict[str, Any]]:
    """Return a row per client: its last rounds, and how it has answered; troubled ones first."""
    rows = [_client_row(conduct, j) for j in range(len(conduct.names))]
    return sorted(rows, key=lambda row: row["calm"])


def _client_row(conduct: Conduct, j: int) -> dict[str, Any]:
    rounds = conduct.rounds[-LAST_ROUNDS:]
    last, seen = rounds[-1], conduct.answer_seconds.get(j, [])
    asked = [record for record in conduct.rounds if record.outcome[j] != NOT_ASKED]
    marks = []
    for record in rounds:
        kind = _kind(record, j)
        title = f"round {record.round + 1}: {_outcome(record, j)}"
        marks.append({"kind": kind, "sign": MARKS[kind], "title": title})
    suspected = j in last.suspects
    return {
        "client": conduct.names[j],
        "last": _outcome(last, j),
        "kind": _kind(last, j),
        "suspected": suspected,
        "calm": last.outcome[j] in (ARRIVED, NOT_ASKED) and not suspected,
        "seconds": float(np.median(seen)) if seen else None,
        "in_time": sum(int(record.outcome[j] == ARRIVED) for record in asked),
        "asked": len(asked),
        "marks": marks,
    }


def _kind(record: Record, j: int) -> str:
    return _KINDS[int(record.outcome[j])]


def _outcome(record: Record, j: int) -> str:
    """Return the outcome of a question: the seconds of an answer, or why there is none."""
    kind = _kind(record, j)
    if kind == "late" and j in record.busy:
        return "late (busy)"
    if record.outcome[j] == NOT_ASKED:
        return "dropped (not asked)"
    if kind != "arrived":
        return kind
    assert record.arrival_times is not None
    return f"{record.arrival_times[j]:.2f} s"


def deadline_sentence(conduct: Conduct) -> str:
    """Say how long rounds wait, how many answers meet that, and which deadline would suffice."""
    came, expected = conduct.in_time
    suggested, seconds = conduct.suggested, conduct.nine_in_ten
    if suggested is None or not expected:
        return ""
    met = f"Deadline {conduct.deadline:.3g} s: {came} of {expected} expected answers met it"
    if not math.isfinite(seconds):
        return f"{met}; late answers are not received. Try {suggested:g} s."
    source = "came" if conduct.answer_seconds else "to the probes came"
    return f"{met}; nine in ten {source} within {seconds:.3g} s. Suggested: {suggested:g} s."


def timeline_figure(rows: Columns, seconds: float, unit: Unit) -> Figure:
    """Draw the rounds of one setting, a lane per client, the slowest at the bottom.

    Parameters
    ----------
    rows
        One per round and client: round, client, seconds, round_seconds, deadline_s, arrived.
    seconds
        How much of it is drawn.
    unit
        The unit of the axis.
    """
    clients, scale = len(set(rows["client"].tolist())), unit.per_hour / 3600
    busy, arrived = (rows[name].reshape(-1, clients) for name in ("seconds", "arrived"))
    lasted = scale * rows["round_seconds"][::clients]
    ends, drawn = np.cumsum(lasted), scale * seconds
    order = np.argsort(np.median(busy, axis=0), kind="stable")
    lanes = order[
        np.unique(np.linspace(0, clients - 1, min(_MAX_LANES, clients)).round().astype(int))
    ]
    with new_figure(9, 0.9 + 0.13 * len(lanes), PAGE) as figure:
        ax = figure.subplots()
        for begin, end, times, there in zip(
            ends - lasted, ends, scale * busy, arrived, strict=True
        ):
            if begin < drawn:
                _draw_round(ax, begin, end, times[lanes], there[lanes])
        ax.set(xlim=(0, drawn), ylim=(len(lanes) - 0.4, -0.6), yticks=[])
        ylabel = "clients, fastest first" if len(lanes) > _FEW_LANES else "clients"
        ax.set(xlabel=f"{unit.name} since the first round began", ylabel=ylabel)
        if ends[-1] < 0.97 * drawn:
            ax.axvspan(ends[-1], drawn, color=_PALE, alpha=0.12, lw=0)
    return figure


def _draw_round(
    ax: Axes, begin: float, end: float, busy: FloatArray, arrived: npt.NDArray[np.bool_]
) -> None:
    """Draw a bar for each client from the beginning of a round on, its colour by the outcome."""
    answered = begin + busy <= end * (1 + 1e-9)
    kinds = (arrived, ~arrived & answered, ~arrived & ~answered)
    for colour, chosen in zip(TIMELINE.values(), kinds, strict=True):
        bars = [
            Rectangle((begin, lane - 0.36), min(begin + busy[lane], end) - begin, 0.72)
            for lane in np.flatnonzero(chosen & np.isfinite(busy))
        ]
        ax.add_collection(PatchCollection(bars, facecolor=colour, lw=0))
    ax.axvline(end, color=_PALE, lw=1.0)
