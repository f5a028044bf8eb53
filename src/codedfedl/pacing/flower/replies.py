"""What is read from replies, which updates may be weighed, and how: x + g·(y − x)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as stock

from codedfedl.errors import InputError
from codedfedl.pacing.flower.batches import RECORD

__all__ = [
    "STATISTICS",
    "Model",
    "Treatment",
    "UnpaceableError",
    "example_count",
    "mean_content",
    "model_of",
    "question",
    "reported_work",
    "stripped",
    "treatment_of",
    "update_length",
    "virtual_seconds",
    "weighed",
]

STATISTICS = r"(running_(mean|var)|moving_(mean|variance)|num_batches_tracked)$"
"""Names of arrays that are no parameters: they are taken as they come, without a factor."""

Model = Mapping[str, npt.NDArray[Any]]


class UnpaceableError(ValueError):
    """Replies that cannot be weighed: the message says why, and what to do about it."""


def question(message: Message, facts: Mapping[str, float], ttl: float | None) -> Message:
    """Return the message with a record of our own beside the app's; its arrays are shared."""
    content = RecordDict(dict(message.content.items()))
    if facts:
        content[RECORD] = ConfigRecord(dict(facts))
    about = message.metadata
    return Message(
        content,
        about.dst_node_id,
        about.message_type,
        ttl=about.ttl if ttl is None else ttl,
        group_id=about.group_id,
    )


def _records(content: RecordDict, kind: type) -> list[tuple[str, Any]]:
    """Return the records of a kind; the views by type would keep the message in memory."""
    return [(name, record) for name, record in content.items() if isinstance(record, kind)]


def model_of(message: Message) -> Model | None:
    """Return the arrays that a message has; None if it has not exactly one record of them."""
    records = _records(message.content, ArrayRecord)
    if len(records) != 1:
        return None
    return {name: array.numpy() for name, array in records[0][1].items()}


def example_count(message: Message, key: str) -> float:
    """Return the weight of a reply."""
    for _, record in _records(message.content, MetricRecord):
        count = record.get(key)
        if isinstance(count, int | float) and isfinite(count) and count >= 0:
            return max(float(count), 1e-9)
        if count is not None:
            raise UnpaceableError(f"reports {key} = {count!r}: report a number from 0")
    raise UnpaceableError(f"reports no {key}: put it into the metrics of the reply")


def reported_work(message: Message) -> tuple[float | None, float | None, str]:
    """Return the part of a pass and the seconds that `timed` reports, and what is wrong with it."""
    for _, record in _records(message.content, MetricRecord):
        if f"{RECORD}-seconds" in record:
            seconds, share = record[f"{RECORD}-seconds"], record.get(f"{RECORD}-share", 0.0)
            if not all(isinstance(v, int | float) and isfinite(v) for v in (seconds, share)):
                return None, None, f"{seconds!r} seconds for {share!r} of a pass"
            if seconds < 0 or share < 0:
                return None, None, f"{seconds:g} seconds for {share:g} of a pass"
            return (float(share), float(seconds), "") if share > 0 else (None, None, "")
    return None, None, ""


def virtual_seconds(message: Message | None) -> float:
    """Return how long a reply took on the clock of its client; errors and evaluations: no time."""
    if message is None or message.has_error():
        return 0.0
    for _, record in _records(message.content, MetricRecord):
        if f"{RECORD}-link" in record:
            seconds = [record.get(f"{RECORD}-{key}", inf) for key in ("seconds", "link")]
            if all(isinstance(value, int | float) and 0 <= value < inf for value in seconds):
                return float(seconds[0] + seconds[1])
            raise InputError(
                f"virtual is True: a client reports {seconds} seconds: report finite ones"
            )
    if message.metadata.message_type.startswith("evaluate"):
        return 0.0
    raise InputError(
        "virtual is True, and a client says no virtual seconds: it should train on "
        "timed(msg, loader, batch_seconds=…), and report its metrics"
    )


def stripped(message: Message) -> Message:
    """Take our own metrics out of a reply: Flower skips replies whose metrics differ."""
    if message.has_error():
        return message
    for name, record in _records(message.content, MetricRecord):
        if any(key.startswith(f"{RECORD}-") for key in record):
            others = {k: v for k, v in record.items() if not k.startswith(f"{RECORD}-")}
            message.content[name] = MetricRecord(others)
    return message


def weighed(
    message: Message, model: Model, asked: Model, factor: float, statistics: str = STATISTICS
) -> tuple[str, ArrayRecord]:
    """Return the reply's arrays as model + factor·(y − asked), where they are parameters.

    Parameters
    ----------
    model, asked
        The model of this round, and the one that the reply is for.
    """
    records = _records(message.content, ArrayRecord)
    if len(records) != 1:
        raise UnpaceableError(f"has {len(records)} records of arrays: reply with one")
    name, record = records[0]
    arrays = {}
    for key, array in record.items():
        value = array.numpy()
        if any(key not in m or m[key].shape != value.shape for m in (model, asked)):
            raise UnpaceableError(f"replies with other arrays than it was sent ({key!r})")
        plain = not np.issubdtype(value.dtype, np.floating) or re.search(statistics, key)
        if not plain:
            exact = np.result_type(value.dtype, np.float32)
            update = value.astype(exact) - asked[key]
            value = np.asarray(model[key] + exact.type(factor) * update).astype(value.dtype)
        arrays[key] = array if plain else Array(value)
    if arrays.keys() != model.keys():
        raise UnpaceableError(f"replies without {sorted(model.keys() - arrays.keys())[0]!r}")
    return name, ArrayRecord(arrays)


def update_length(message: Message, asked: Model, statistics: str = STATISTICS) -> float | None:
    """Return the Euclidean norm of y − asked over all parameters; None if it cannot be known."""
    model, squares = model_of(message) or {}, 0.0
    for key, value in model.items():
        if key not in asked or asked[key].shape != value.shape:
            return None
        if np.issubdtype(value.dtype, np.floating) and not re.search(statistics, key):
            squares += float(np.square(value - asked[key], dtype=np.float64).sum())
    return float(np.sqrt(squares)) if isfinite(squares) else None


def mean_content(replies: Sequence[Message], key: str) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the weighted mean of arrays and metrics, in the very operations of Flower's own mean.

    A strategy that takes a mean gets from one reply with it what it got from all of them.
    """
    weights = [_weight(reply, key) for reply in replies]
    shares = [weight / (sum(weights) or 1.0) for weight in weights]
    arrays: dict[str, Any] = {}
    metrics: dict[str, float] = {}
    for reply, share in zip(replies, shares, strict=True):
        for _, record in _records(reply.content, ArrayRecord):
            for name, array in record.items():
                term = array.numpy() * share
                arrays[name] = arrays[name] + term if name in arrays else term
        for name, value in _numbers(reply):
            metrics[name] = metrics.get(name, 0.0) + value * share
    return arrays, metrics | {key: float(sum(weights))}


def _weight(reply: Message, key: str) -> float:
    return float(dict(_numbers(reply))[key])


def _numbers(reply: Message) -> Iterable[tuple[str, float]]:
    for _, record in _records(reply.content, MetricRecord):
        yield from ((k, v) for k, v in record.items() if isinstance(v, int | float))


@dataclass(frozen=True)
class Treatment:
    """How a strategy is paced.

    Attributes
    ----------
    factors
        Whether updates may be weighed by 1/π: for weighted means, which stay unbiased.
    resumes
        Whether a run can be continued.
    key
        The metric with the weight of a reply.
    why
        The reason for less than everything; empty otherwise.
    waits
        Whether every round must wait for all.
    """

    factors: bool
    resumes: bool
    key: str
    why: str = ""
    waits: bool = False


_DP = "clips updates and adds noise for answers as they are: factors would void its guarantee"
_TREES = "collects trees, which have no mean"
_ORDER = "compares answers with one another, and factors would make outliers of slow nodes"
_OTHERS = {
    "FedMedian": (_ORDER, True),
    "FedTrimmedAvg": (_ORDER, True),
    "MultiKrum": (_ORDER, True),  # and Krum
    "Bulyan": (_ORDER, True),
    "QFedAvg": ("weighs answers by their losses, which factors do not change", False),
    "FedXgbBagging": (_TREES, False),
    "FedXgbCyclic": (_TREES, False),
    "DifferentialPrivacyServerSideFixedClipping": (_DP, False),
    "DifferentialPrivacyClientSideFixedClipping": (_DP, False),
    "DifferentialPrivacyServerSideAdaptiveClipping": (_DP, False),
    "DifferentialPrivacyClientSideAdaptiveClipping": (_DP, False),
}
"""Stock strategies that are no weighted mean: why, and whether equal answers lead to themselves."""


def treatment_of(strategy: Any | None) -> Treatment:
    """Return how a strategy is paced; without one, as a weighted mean by `num-examples`."""
    inner = getattr(strategy, "strategy", strategy)  # a wrapper's weights are those inside
    key = str(getattr(inner, "weighted_by_key", "num-examples"))
    for name, (why, resumes) in _OTHERS.items():
        if isinstance(strategy, getattr(stock, name, ())):
            waits = "Adaptive" in name  # it divides by the number of answers: no round may be empty
            return Treatment(False, resumes, key, f"{type(strategy).__name__} {why}", waits)
    if strategy is None or isinstance(strategy, stock.FedAvg):
        return Treatment(True, True, key)
    why = "is not known to take a weighted mean; pass factors=True if it does"
    return Treatment(False, False, key, f"{type(strategy).__name__} {why}")
