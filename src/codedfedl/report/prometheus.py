"""A federation's state in Prometheus' text format, version 0.0.4."""

import math
from collections.abc import Mapping
from datetime import datetime

from codedfedl.core.record import PARTS, metric_name
from codedfedl.runs.directory import Status
from codedfedl.runs.watching import Sight

__all__ = ["metrics_text"]

_STATES = ("running", "done", "failed", "stopped")
_Labelled = list[tuple[dict[str, str], float | None]]


def metrics_text(sight: Sight) -> str:
    """Return gauges and counters of a federation, as a scraper reads them."""
    status, members = sight.status or Status("running", ""), sight.members
    updated = datetime.fromisoformat(status.updated).timestamp() if status.updated else None
    metric = {"name": metric_name(members.classes) if members is not None else ""}
    states: _Labelled = [({"state": name}, float(name == status.state)) for name in _STATES]
    conduct, rounds = sight.conduct, sight.conduct.rounds
    seconds, deadline = (rounds[-1].seconds, rounds[-1].deadline) if rounds else (None, None)
    setup = sum(record.seconds for record in sight.records if record.is_setup)
    total = sum(record.seconds for record in rounds)
    families: list[tuple[str, str, str, float | _Labelled | None]] = [
        ("state", "gauge", "1 for the state that the run is in.", states),
        ("rounds_planned", "gauge", "Rounds planned.", status.rounds),
        ("updated_timestamp_seconds", "gauge", "When the run last said something.", updated),
        ("metric", "gauge", "Of the last model on the test points.", [(metric, status.metric)]),
        ("rounds_total", "counter", "Rounds finished.", len(rounds)),
        ("rounds_seconds_total", "counter", "Seconds spent in rounds.", total),
        ("setup_seconds", "gauge", "Seconds before the first round.", setup),
        ("round_seconds", "gauge", "Seconds of the last round.", seconds),
        ("deadline_seconds", "gauge", "Deadline of the last round.", deadline),
        (
            "suggested_deadline_seconds",
            "gauge",
            "Deadline that nine in ten answers would meet.",
            conduct.suggested,
        ),
        *_clients(sight),
    ]
    return "".join(_family(*family) for family in families)


def _clients(sight: Sight) -> list[tuple[str, str, str, _Labelled]]:
    rounds = [exchange for exchange in sight.named() if exchange.round]
    names = [] if sight.members is None else sight.members.names
    last = rounds[-1] if rounds else None
    answers: _Labelled = [
        ({"client": name, "outcome": part}, float(sum(name in getattr(r, part) for r in rounds)))
        for name in names
        for part in PARTS
    ]
    seconds: _Labelled = [({"client": n}, last.arrived.get(n)) for n in names if last]
    suspected: _Labelled = [({"client": n}, float(n in last.suspected)) for n in names if last]
    return [
        ("answers_total", "counter", "Questions in rounds by what became of them.", answers),
        ("answer_seconds", "gauge", "Seconds of the answers in the last round.", seconds),
        ("suspected", "gauge", "1 for clients whose answers are almost refused.", suspected),
    ]


def _family(name: str, kind: str, text: str, values: float | _Labelled | None) -> str:
    """Write a metric with its help and type; nothing where no value is known."""
    full = f"codedfedl_{name}"
    lines = [
        f"{full}{_labels(labels)} {value:.10g}\n"
        for labels, value in (values if isinstance(values, list) else [({}, values)])
        if value is not None and math.isfinite(value)
    ]
    return f"# HELP {full} {text}\n# TYPE {full} {kind}\n{''.join(lines)}" if lines else ""


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{','.join(pairs)}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
