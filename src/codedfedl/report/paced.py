"""The page of an app that was paced: its rounds, its nodes, and the time that was saved."""

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from codedfedl.core.record import ARRIVED, DROPPED, LATE, NOT_ASKED, Record
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
    nodes = list(dict.fromkeys(node for facts in rounds for node in _named(facts)))
    position = {node: j for j, node in enumerate(nodes)}
    records = []
    for facts in rounds:
        outcome = np.full(len(nodes), NOT_ASKED, dtype=np.int8)
        arrival_times = np.full(len(nodes), inf)
        for kind, name in ((LATE, "missing"), (DROPPED, "lost")):
            outcome[[position[node] for node in facts[name]]] = kind
        for answer in facts["answers"]:
            if not answer["late"]:
                outcome[position[answer["node"]]] = ARRIVED
                arrival_times[position[answer["node"]]] = answer["seconds"]
        deadline = facts["seconds"] if facts["deadline"] is None else facts["deadline"]
        loads = (outcome != NOT_ASKED).astype(np.int64)
        records.append(
            Record(facts["round"] - 1, deadline, facts["seconds"], loads, outcome, arrival_times)
        )
    return records


def _named(facts: dict[str, Any]) -> list[Any]:
    return [*(a["node"] for a in facts["answers"]), *facts["missing"], *facts["lost"]]
