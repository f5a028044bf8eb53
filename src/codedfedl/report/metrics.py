"""A federation's state in Prometheus' text format, version 0.0.4."""

import math
from collections.abc import Iterable, Mapping
from datetime import datetime

from codedfedl.core.record import PARTS, metric_name
from codedfedl.runs.observing import Status
from codedfedl.runs.watching import Sight

__all__ = ["metrics_text"]

_STATES = ("running", "done", "failed", "stopped")
_Labelled = Iterable[tuple[Mapping[str, str], float | None]]


def metrics_text(sight: Sight) -> str:
    """Return gauges and counters of a federation, as a scraper reads them."""
    status = sight.status
    state = "running" if status is None else status.state
    parts = [
        _family(
            "state",
            "gauge",
            "1 for the state that the run is in.",
            (({"state": one}, float(one == state)) for one in _STATES),
        ),
        *_progress(sight),
        *_rounds(sight),
        *_clients(sight),
    ]
    return "".join(parts)


def _progress(sight: Sight) -> list[str]:
    status, members = sight.status or Status("running", ""), sight.members
    updated = datetime.fromisoformat(status.updated).timestamp() if status.updated else None
    name = metric_name(members.classes) if members is not None else ""
    return [
        _single("rounds_planned", "gauge", "Rounds planned.", status.rounds),
        _single("updated_timestamp_seconds", "gauge", "When the run last said something.", updated),
        _family(
            "metric",
            "gauge",
            "Of the last model on the test points.",
            [({"name": name}, status.metric)],
        ),
    ]


def _rounds(sight: Sight) -> list[str]:
    conduct = sight.conduct
    rounds, known = conduct.rounds, bool(conduct.rounds)
    seconds, deadline = (rounds[-1].seconds, rounds[-1].deadline) if known else (None, None)
    setup = sum(record.seconds for record in sight.records if record.is_setup)
    total = sum(record.seconds for record in rounds)
    return [
        _single("rounds_total", "counter", "Rounds finished.", len(rounds)),
        _single("rounds_seconds_total", "counter", "Seconds spent in rounds.", total),
        _single("setup_seconds", "gauge", "Seconds before the first round.", setup),
        _single("round_seconds", "gauge", "Seconds of the last round.", seconds),
        _single("deadline_seconds", "gauge", "Deadline of the last round.", deadline),
        _single(
            "suggested_deadline_seconds",
            "gauge",
            "Deadline that nine in ten answers would meet.",
            conduct.suggested,
        ),
    ]


def _clients(sight: Sight) -> list[str]:
    named = [one for one in sight.named() if one.round]
    names = [] if sight.members is None else sight.members.names
    answers = [
        ({"client": name, "outcome": kind}, float(sum(name in getattr(r, kind) for r in named)))
        for name in names
        for kind in PARTS
    ]
    last = named[-1] if named else None
    seconds = [({"client": name}, last.arrived.get(name)) for name in names] if last else []
    suspected = [({"client": name}, float(name in last.suspected)) for name in names if last]
    return [
        _family("answers_total", "counter", "Questions in rounds by what became of them.", answers),
        _family("answer_seconds", "gauge", "Seconds of the answers in the last round.", seconds),
        _family("suspected", "gauge", "1 for clients whose answers are almost refused.", suspected),
    ]


def _single(name: str, kind: str, text: str, value: float | None) -> str:
    return _family(name, kind, text, [({}, value)])


def _family(name: str, kind: str, text: str, values: _Labelled) -> str:
    """Write a metric with its help and type; nothing where no value is known."""
    full = f"codedfedl_{name}"
    lines = [
        f"{full}{_labels(labels)} {value:.10g}\n"
        for labels, value in values
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
