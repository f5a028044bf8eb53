"""The page of an app that was paced: its rounds, its nodes, and the time that was saved."""

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from codedfedl.core.record import ARRIVED, DROPPED, LATE, Record
from codedfedl.report.arrivals import LAST_ROUNDS, answers_figure
from codedfedl.report.figures import page_svg
from codedfedl.report.html import rendered

__all__ = ["paced_page"]

SHOWN_CLIENTS = 40

_Rows = Sequence[dict[str, Any]]


def paced_page(title: str, headline: str, rounds: _Rows, clients: _Rows, *, running: bool) -> str:
    """Return the page.

    Parameters
    ----------
    rounds
        As `codedfedl.pacing` keeps them in its journal.
    clients
        A row for each node: the slowest first.
    running
        Whether to load the page again from time to time.
    """
    return rendered(
        "paced.html.j2",
        {},
        title=title,
        live="",
        running=running,
        headline=headline,
        figure=page_svg(answers_figure(_records(rounds[-LAST_ROUNDS:]))),
        rounds=rounds[: -LAST_ROUNDS - 1 : -1],
        clients=clients[:SHOWN_CLIENTS],
        slowest=max((row["seconds"] for row in clients), default=1.0),
    )


def _records(rounds: _Rows) -> list[Record]:
    """Return what was asked in each round: nodes that were busy are not in its record."""
    records = []
    for facts in rounds:
        arrived = [answer["seconds"] for answer in facts["answers"] if not answer["late"]]
        outcome = np.repeat(
            np.array([ARRIVED, LATE, DROPPED], np.int8),
            [len(arrived), len(facts["missing"]), len(facts["lost"])],
        )
        arrival_times = np.full(len(outcome), inf)
        arrival_times[: len(arrived)] = arrived
        deadline = facts["seconds"] if facts["deadline"] is None else facts["deadline"]
        loads = np.ones(len(outcome), np.int64)
        records.append(
            Record(facts["round"] - 1, deadline, facts["seconds"], loads, outcome, arrival_times)
        )
    return records
