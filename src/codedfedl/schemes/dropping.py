"""`drop`: the share ψ of the slowest clients that a round does not wait for, in every scheme."""

from math import ceil

from codedfedl.core.waiting import Fastest
from codedfedl.errors import InputError

__all__ = ["all_but_slowest", "check_drop"]


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
