"""Who answers, who is late, refused or suspected: a federation's clients, round after round."""

import math
from typing import Any

import numpy as np

from codedfedl.core.record import ARRIVED, NOT_ASKED, PARTS, Record
from codedfedl.report.federation import SHOWN_ROUNDS
from codedfedl.runs.advice import Conduct

__all__ = ["MARKS", "client_marks", "deadline_sentence"]

_KINDS = {outcome: part for part, outcomes in PARTS.items() for outcome in outcomes}
MARKS = {"arrived": "●", "late": "×", "dropped": "■", "refused": "!"}
"""The parts of a round and their signs, which are distinct without colour too."""


def client_marks(conduct: Conduct) -> list[dict[str, Any]]:
    """Return a row per client: its last rounds, and how it has answered; troubled ones first."""
    rounds = conduct.rounds[-SHOWN_ROUNDS:]
    rows = []
    for j, name in enumerate(conduct.names):
        seen = conduct.answer_seconds.get(j, [])
        asked = [record for record in conduct.rounds if record.outcome[j] != NOT_ASKED]
        last = _kind(rounds[-1], j)
        rows.append(
            {
                "client": name,
                "last": _told(rounds[-1], j),
                "kind": last,
                "suspected": j in rounds[-1].suspects,
                "seconds": float(np.median(seen)) if seen else None,
                "in_time": sum(int(record.outcome[j] == ARRIVED) for record in asked),
                "asked": len(asked),
                "marks": [
                    {
                        "kind": _kind(record, j),
                        "sign": MARKS[_kind(record, j)],
                        "title": f"round {record.round + 1}: {_told(record, j)}",
                    }
                    for record in rounds
                ],
            }
        )
    calm = [rounds[-1].outcome[j] in (ARRIVED, NOT_ASKED) for j in range(len(rows))]
    order = sorted(range(len(rows)), key=lambda j: calm[j] and not rows[j]["suspected"])
    return [rows[j] for j in order]


def _kind(record: Record, j: int) -> str:
    return _KINDS[int(record.outcome[j])]


def _told(record: Record, j: int) -> str:
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
    told = f"Deadline {conduct.deadline:.3g} s: {came} of {expected} expected answers met it"
    if not math.isfinite(seconds):
        return f"{told}; late answers are not received. Try {suggested:g} s."
    source = "came" if conduct.answer_seconds else "to the probes came"
    return f"{told}; nine in ten {source} within {seconds:.3g} s. Suggested: {suggested:g} s."
