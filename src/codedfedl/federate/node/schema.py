"""What a node accepts from a server: every number of a job and of an ask, checked before use.

A field has one rule: a type, a range, an exact shape. A field that is missing, unknown or outside
its rule is refused; so is a kind of work without rules. A custom kind of work, which the node's
owner has allowed by naming its module, must check its own fields.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from math import inf, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.core.client import WORK
from codedfedl.errors import InputError
from codedfedl.federate.job import Job
from codedfedl.federate.node.rules import (
    Rules,
    check_fields,
    listed,
    one_of,
    optional,
    real,
    record,
    refuse,
    sorted_texts,
    text,
    texts,
    whole,
)
from codedfedl.learning.codes import CODES
from codedfedl.learning.features import FEATURE_KINDS
from codedfedl.learning.messages import MAX_BITS, MIN_BITS
from codedfedl.learning.torch_network import LOSSES

__all__ = [
    "MAX_NUMBER",
    "Sizes",
    "check_question",
    "checked_helper_question",
    "checked_job",
    "checked_model",
    "checked_work",
]

MAX_FEATURES, MAX_COLUMNS, MAX_ROWS, MAX_STEPS = 10**6, 10**5, 10**6, 10**4
"""The most features, label columns, parity rows and local steps that a node works with."""

MAX_SUMMED = 10**8
"""The most numbers that a helper answers for at once."""

MAX_NUMBER = 1e9
"""The largest number of a model and of points that a sum is computed from: no float32 on the way is
beyond its range, so whether an answer is finite does not depend on a single point."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that shapes are checked against: of the node's own data, and of the job.

    Attributes
    ----------
    model
        Shape of a network's parameters; empty for least squares.
    """

    points: int
    inputs: int
    batches: int
    features: int
    columns: int
    model: tuple[int, ...] = ()

    @property
    def model_shape(self) -> tuple[int, ...]:
        """Of a network's parameters, or (q, c)."""
        return self.model or (self.features, self.columns)


def _key(name: str, value: Any) -> None:
    if type(value) is not str or not re.fullmatch("[0-9a-f]{32}", value):  # part of a path
        refuse(name, value, "32 hexadecimal digits")


def _anything(name: str, value: Any) -> None:
    """Leave a field to whoever reads it."""


_SIDE = optional(whole(1, 10**6))
_JOB: Rules = {
    "key": _key,
    "kind": one_of(*FEATURE_KINDS),
    "n_components": whole(1, MAX_FEATURES),
    "sigma": real(1e-9, 1e9),
    "seed": whole(0, 2**32 - 1),
    "batches": whole(1),
    "points": whole(),
    "columns": whole(0, MAX_COLUMNS),
    "words": sorted_texts,
    "tiles": record(
        {
            "image": optional(listed(whole(1, 10**6), 3)),
            **dict.fromkeys(("patch", "stride", "pool"), _SIDE),
        },
        empty=True,
    ),
    "scaling": record(dict.fromkeys(("low", "span", "offset"), _anything), empty=True),
    "encoder": record(dict.fromkeys(("text", "normalise"), one_of(True, False)), empty=True),
    "model": record(
        {
            "module": text,  # by the node, which imports nothing that its owner does not name
            "loss": one_of(*LOSSES),
            "image": optional(listed(whole(1, 10**6), 3)),
        },
        empty=True,
    ),
}
assert set(_JOB) == {field.name for field in fields(Job)}


def checked_job(document: Any, inputs: int) -> Job:
    """Return the job that a server describes, for points of this many inputs.

    Scaling is column by column, so that it treats all points alike.
    """
    record(_JOB)("job", document)
    scaling = {
        "low": listed(real(), inputs),
        "span": listed(real(1e-300, above=True), inputs),
        "offset": listed(real(), 0, document["columns"]),
    }
    record(scaling, empty=True)("job.scaling", document["scaling"])
    return Job(**document)


def checked_helper_question(kind: str, facts: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the federation's key and the fields of a question to a helper.

    Other fields than its own, and numbers out of range, are refused.
    """
    asked = dict(facts)
    job = asked.pop("job", None)
    key = job.get("key") if isinstance(job, Mapping) else None
    _key("job.key", key)
    questions: dict[str, Rules] = {
        "hello": {},
        "goodbye": {},
        "agree": {"contract": _anything, "clients": _names},  # by `privacy.contract`
        "sum": {
            "number": whole(),
            "attempt": whole(-1),
            "ask": text,
            "arrived": texts,
            "numbers": whole(1, MAX_SUMMED),
        },
    }
    check_fields(kind, asked, questions[kind])
    return str(key), asked


def _names(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        refuse(name, value, "a record of names and keys")
    texts(name, [*value.keys(), *value.values()])


def checked_model(model: Any, sizes: Sizes) -> npt.NDArray[np.float32]:
    """Return the model, if it is finite and of the job's own shape."""
    shape = sizes.model_shape
    if not isinstance(model, np.ndarray) or model.shape != shape or model.dtype != np.float32:
        kind = f"{model.dtype} {model.shape}" if isinstance(model, np.ndarray) else type(model)
        raise InputError(f"the model is {kind}: must be float32 of shape {shape}")
    if not (np.abs(model) <= MAX_NUMBER).all():
        raise InputError(
            f"the model has numbers beyond {MAX_NUMBER:g}, or not finite: begin again with a "
            "smaller step"
        )
    return model


def check_question(kind: str, facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Refuse a question with other fields than its own, or numbers that are out of range."""
    model = {"model"} if kind in ("probe", "work") else set()
    if unknown := set(arrays) - model:
        raise InputError(f"{kind} has an array {sorted(unknown)[0][:64]!r}, which is unknown")
    defaults = {"sum": None} if kind == "work" else {}
    check_fields(kind, defaults | dict(facts), _questions()[kind])


def _questions() -> dict[str, Rules]:
    round_ = whole(-1)  # the set-up's
    sum_: Rules = {"contract": _anything, "number": whole(), "attempt": round_}
    return {
        "hello": {},
        "pair": {},
        "goodbye": {},
        "moments": {},
        "probe": {"load": whole(1)},
        "work": {
            "work": _anything,  # by `checked_work`
            "round": round_,
            "load": whole(),
            "answered": whole(),
            "seconds": optional(real(0.0)),
            "sum": optional(record(sum_)),
        },
    }


def checked_work(work: Any, sizes: Sizes, allowed: Collection[str] = ()) -> None:
    """Refuse work of ours with a field outside its rule.

    Parameters
    ----------
    allowed
        Modules of the node's owner, whose kinds of work check their own fields.
    """
    if not isinstance(work, Mapping) or type(work.get("kind")) is not str:
        raise InputError("ask.work has no kind: install the same version of codedfedl everywhere")
    kind = work["kind"]
    rules = _rules(sizes, allowed)
    if kind in rules:
        given = {name: value for name, value in work.items() if name != "kind"}
        check_fields(kind, given, rules[kind])
    elif kind in WORK or kind.partition(":")[0] not in allowed or kind.startswith("codedfedl."):
        raise InputError(f"the work {kind[:64]!r} is unknown here, or has no rules")


def _rules(sizes: Sizes, allowed: Collection[str]) -> dict[str, Rules]:
    """Return the rules of every kind of work that comes with the package."""
    chance, positive, batches = real(0, 1), real(0, above=True), sizes.batches
    weight = real(0, MAX_NUMBER)
    length = real(1 / MAX_NUMBER, MAX_NUMBER)  # a product of two is far from the smallest float32
    by_class = listed(weight, sizes.columns)

    def alike(name: str, value: Any) -> None:
        """Refuse what would be a sum over the points of a class: of a network, it may be."""
        by_class(name, value)
        if len(set(value)) > 1:
            refuse(name, value, "the same for all classes: choose weights by client")

    code = record({"name": one_of(*CODES), "nonzeros": whole(1, MAX_ROWS)})
    gradient: Rules = {"batch": whole(0, batches - 1)}
    local: Rules = {
        **gradient,
        "steps": whole(1, MAX_STEPS),
        "step_size": positive,
        "ridge": real(0),
        "points": one_of(None),  # a step over few points would say more of them
        "proximal": real(0),
        "draw": whole(),
    }
    private: Rules = {
        "chances": chance,
        "cap": positive,
        "scale": positive,
        "rates": real(0, 1, above=True),
        "draw": whole(),
        "longest": one_of(inf),  # clients as units of privacy exist in the simulator only
        "noise": real(0),
    }

    def wrapped(name: str, value: Any) -> None:
        kind = value.get("kind") if isinstance(value, Mapping) else None
        if kind in ("masked", "rounded", "gradient_delta", "clipped_moments", "clipped_gradient"):
            refuse(name, kind, "work whose answers are numbers")
        checked_work(value, sizes, allowed)

    def tensors(name: str, value: Any) -> None:
        numbers = prod(sizes.model_shape)
        listed(whole(1), *range(1, min(numbers, MAX_COLUMNS) + 1))(name, value)
        if sum(value) != numbers:
            refuse(name, sum(value), f"sizes of tensors with {numbers} numbers together")

    def changing(name: str, value: Any) -> None:
        wrapped(name, value)
        if value["kind"] in rules and value["kind"] not in (
            "gradient",
            "weighted_gradient",
            "embedded",
        ):
            refuse(name, value["kind"], "work whose answers are one gradient")

    embedded: Rules = {
        "least": whole(1),
        "grows": one_of(True, False),
        "represents": optional(weight),
    }
    rules: dict[str, Rules] = {
        "prepare": {},
        "embed": {},
        "gram": {},
        "gradient": gradient,
        "weighted_gradient": {**gradient, "weights": positive},
        "local_model": local,
        "local_direction": local,
        "embedded": embedded,
        "first_gradient": embedded,
        "counts": {},
        "window_gradient": {
            **gradient,
            "draw": whole(),
            "client_weights": weight,
            "class_weights": optional(by_class if sizes.model else alike),
            "seconds": real(0, above=True),
            "least": whole(1),
        },
        "parity": {
            "rows": listed(whole(1, MAX_ROWS), batches),
            "loads": listed(whole(0, sizes.points), batches),
            "return_probabilities": listed(chance, batches),
            "code": code,
        },
        "block_parity": {"code": code, "mixing": whole(1), "bits": one_of(16, 32)},
        "clipped_moments": private,
        "clipped_gradient": {
            **private,
            "direction": listed(real(), sizes.features),
            "radius": length,
            "residual": length,
        },
        "masked": {"work": wrapped, "scale": positive},
        "rounded": {
            "work": wrapped,
            "bits": whole(MIN_BITS, MAX_BITS),
            "sizes": tensors,
            "draw": whole(),
            "client": whole(),
        },
        "gradient_delta": {"work": changing, "scale": positive, "counted": _counted},
    }
    return {kind: of_kind for kind, of_kind in rules.items() if not sizes.model or kind in _ANY}


_ANY = {"prepare", "embed", "gradient", "weighted_gradient", "local_model", "local_direction"}
_ANY |= {"embedded", "counts", "window_gradient", "masked", "rounded"}  # for networks too


def _counted(name: str, value: Any) -> None:
    listed(listed(whole(-1), 2), 0, 1)(name, value)
