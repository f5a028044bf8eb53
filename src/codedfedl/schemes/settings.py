"""Settings that several schemes have.

`drop` is ψ, the share of the slowest clients that a round does not wait for.
"""

from math import ceil, inf

import numpy as np

from codedfedl.arrays import IntArray
from codedfedl.core.client import DrawnGradient, Gradient
from codedfedl.core.protocol import Inbox, Scheme, Task
from codedfedl.core.waiting import Fastest
from codedfedl.core.work import Work
from codedfedl.errors import InputError


def check_positive(scheme: Scheme, *names: str) -> None:
    """Refuse settings that are given and not finite and above 0."""
    for name in names:
        value = getattr(scheme, name)
        if value is not None and not 0 < value < inf:
            raise InputError(f"{scheme.info.name}.{name} is {value:g}: must be finite and above 0")


def check_at_least_1(scheme: Scheme, *names: str) -> None:
    """Refuse settings below 1."""
    for name in names:
        if getattr(scheme, name) < 1:
            value = getattr(scheme, name)
            raise InputError(f"{scheme.info.name}.{name} is {value}: must be at least 1")


def check_load(scheme: Scheme) -> None:
    """Refuse a `load` below 1."""
    load = getattr(scheme, "load")  # noqa: B009
    if load is not None and load < 1:
        raise InputError(f"{scheme.info.name}.load is {load}: must be at least 1")


def equal_loads(task: Task, round_: int, load: int | None) -> tuple[Work, IntArray]:
    """Return the gradient over a mini-batch's points, and how many each client processes.

    With a `load`, these are so many, drawn anew in every round, and stand for all that it has.
    """
    batch = task.batch(round_)
    points = np.asarray(task.points[batch])
    if load is None:
        return Gradient(batch), points
    return DrawnGradient(batch, round_, points), np.minimum(points, load)


def represented(task: Task, round_: int, inbox: Inbox) -> float:
    """Return how many points the answers of a round stand for."""
    return float(task.points[task.batch(round_)][inbox.arrived].sum())


def check_drop(scheme: str, drop: float) -> None:
    """Refuse a share that is none, or that leaves nobody."""
    if not 0 <= drop < 1:
        raise InputError(f"{scheme}.drop is {drop:g}: must be at least 0 and below 1")


def all_but_slowest(drop: float, clients: int) -> Fastest:
    """Wait for the fastest ⌈(1 − ψ)·n⌉: no more than the share ψ is dropped.

    Examples
    --------
    >>> all_but_slowest(0.25, 10)
    Fastest(count=8)
    """
    return Fastest(max(1, ceil((1 - drop) * clients - 1e-9)))
