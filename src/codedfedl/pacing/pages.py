"""What a person sees of a paced run: tables, a fleet to plan with, and a page.

All of it is made from the facts of the rounds, and again whenever there are new ones: in a thread,
while the server waits for answers anyway. The libraries of tables and figures are imported there.
"""

import atexit
import logging
import threading
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from codedfedl.core.record import ARRIVED, DROPPED, LATE, Record
from codedfedl.io.names import count_of

__all__ = ["Pages", "client_rows", "headline", "round_columns", "trace_columns"]

SECONDS_BETWEEN_PAGES = 20.0
SHOWN_CLIENTS = 40
BOOTSTRAP_CLIENTS = 200  # A fleet is fitted to no more: each takes some tenths of a second.

Facts = dict[str, Any]
SHOWN_CLIENTS = 40

_log = logging.getLogger("flwr")


class Pages:
    """The tables and the page of a run.

    Attributes
    ----------
    rounds
        The facts of its rounds.
    """

    def __init__(self, folder: Path, rounds: list[Facts]) -> None:
        self.folder, self.rounds, self.evaluation_seconds = folder, rounds, 0.0
        self._thread: threading.Thread | None = None
        self._written, self._problem, self._pause = 0, "", threading.Event()

    def write_in_background(self) -> None:
        """Bring everything up to date, unless that is being done."""
        if self._thread is None and self.rounds:
            atexit.register(self.close)
            self._thread = threading.Thread(target=self._keep_writing, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write the last state."""
        atexit.unregister(self.close)
        self._pause.set()
        if self._thread is not None:
            self._thread.join()
        self.write(running=False)

    def _keep_writing(self) -> None:
        while not self._pause.is_set():
            if len(self.rounds) > self._written:
                self.write(running=True)
            self._pause.wait(SECONDS_BETWEEN_PAGES)

    def write(self, *, running: bool) -> None:
        """Write all there is; a page that cannot be written is no reason to stop training."""
        rounds = list(self.rounds)
        if not rounds or not self.folder.is_dir():
            return
        try:
            self._write(rounds, running)
            self._written = len(rounds)
        except Exception as error:
            if str(error) != self._problem:  # said once
                _log.warning("paced: tables and page are not written (%s)", error)
            self._problem = str(error)

    def _write(self, rounds: list[Facts], running: bool) -> None:
        from codedfedl.fitting.fit import fit
        from codedfedl.fitting.traces import Traces
        from codedfedl.io.files import replacing
        from codedfedl.io.tables import write_table

        write_table(self.folder / "rounds.parquet", round_columns(rounds))
        if columns := trace_columns(rounds):
            traces = Traces(**columns)
            traces.write(self.folder / "traces.parquet")
            if not running and len(set(columns["client"])) <= BOOTSTRAP_CLIENTS:
                fit(traces).fleet.write(self.folder / "fleet.csv")
        with replacing(self.folder / "report.html") as partial:
            title = self.folder.resolve().name
            partial.write_text(paced_page(title, rounds, running=running), "utf-8")


def paced_page(title: str, rounds: Sequence[Facts], *, running: bool) -> str:
    """Return the page: its rounds, its nodes, and the time that was saved.

    Parameters
    ----------
    running
        Whether to load the page again from time to time.
    """
    from codedfedl.report.arrivals import LAST_ROUNDS, answers_figure
    from codedfedl.report.figures import page_svg
    from codedfedl.report.html import rendered

    clients = client_rows(rounds)
    return rendered(
        "paced.html.j2",
        {},
        title=title,
        live="",
        running=running,
        headline=headline(rounds),
        figure=page_svg(answers_figure(_records(rounds[-LAST_ROUNDS:]))),
        rounds=rounds[: -LAST_ROUNDS - 1 : -1],
        clients=clients[:SHOWN_CLIENTS],
        slowest=max((row["seconds"] for row in clients), default=1.0),
    )


def _records(rounds: Sequence[Facts]) -> list[Record]:
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


def round_columns(rounds: Sequence[Facts]) -> dict[str, Any]:
    """Return a row per round."""
    counts = {name: [len(r[name]) for r in rounds] for name in ("missing", "busy", "lost")}
    answers = [[a for a in r["answers"] if a["factor"] > 0] for r in rounds]
    return {
        "round": [r["round"] for r in rounds],
        "deadline_s": [inf if r["deadline"] is None else r["deadline"] for r in rounds],
        "seconds": [r["seconds"] for r in rounds],
        "waiting_for_all_s": [max(r["waiting"], 0.0) for r in rounds],
        "arrived": [sum(not a["late"] for a in r["answers"]) for r in rounds],
        "late_counted": [sum(a["late"] > 0 for a in each) for each in answers],
        "late": counts["missing"],
        "busy": counts["busy"],
        "failed": counts["lost"],
        "largest_weight": [max((a["factor"] for a in each), default=np.nan) for each in answers],
        "why": [r["why"] for r in rounds],
    }


def trace_columns(rounds: Sequence[Facts]) -> dict[str, Any]:
    """Return a row per answer, as `codedfedl fit` reads measurements."""
    rows = [a for r in rounds for a in r["answers"]]
    if not rows:
        return {}
    points = {a["node"]: max(1.0, a["examples"]) for a in rows}
    compute = np.array([np.nan if a["compute"] is None else a["compute"] for a in rows])
    total = np.array([a["seconds"] for a in rows])
    return {
        "client": np.array([str(a["node"]) for a in rows]),
        "load": np.array([max(1.0, points[a["node"]] * (a["share"] or 1.0)) for a in rows]),
        "compute": np.where(compute > 0, compute, np.nan),
        "down": np.where(compute > 0, 0.0, np.nan),
        "up": np.where(compute > 0, np.maximum(total - compute, 0.0), np.nan),
        "total": total,
    }


def headline(rounds: Sequence[Facts]) -> str:
    """Say how long the run took, and how long waiting for all would have taken."""
    took = sum(r["seconds"] for r in rounds)
    waiting = sum(max(r["waiting"], r["seconds"] if r["deadline"] is None else 0) for r in rounds)
    sentence = f"{count_of(len(rounds), 'round')} in {_duration(took)}."
    if waiting > took > 0:
        than = f"{_duration(waiting)}: {waiting / took:.1f} times as long"
        sentence += f" Waiting for all would have taken {than}."
    if rounds[-1]["deadline"] is None and rounds[-1]["gain"] > 1:
        sentence += f" Paced, it would make {rounds[-1]['gain']:.1f} × the progress a second."
    return sentence


def _duration(seconds: float) -> str:
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def client_rows(rounds: Sequence[Facts]) -> list[Facts]:
    """Return a row per node: the slowest first."""
    nodes: dict[Any, list[Facts]] = {}
    for facts in rounds:
        for answer in facts["answers"]:
            nodes.setdefault(answer["node"], []).append(answer)
    rows = []
    for node, answers in nodes.items():
        computed = [a["compute"] for a in answers if a["compute"] is not None]
        seconds = float(np.median([a["seconds"] for a in answers]))
        compute = float(np.median(computed)) if computed else None
        rows.append(
            {
                "client": str(node),
                "examples": answers[-1]["examples"],
                "seconds": seconds,
                "compute": compute,
                "link": None if compute is None else max(seconds - compute, 0.0),
                "share": float(np.mean([a["share"] or 1.0 for a in answers])),
                "counted": sum(a["factor"] > 0 for a in answers),
                "late": sum(a["late"] > 0 for a in answers),
                "weight": float(np.mean([a["factor"] for a in answers])),
            }
        )
    return sorted(rows, key=lambda row: -row["seconds"])
