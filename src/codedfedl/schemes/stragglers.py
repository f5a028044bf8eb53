"""What several schemes say of stragglers: how many are not waited for, and who is slow on average.

`drop` is the share ψ of the slowest clients that a round does not wait for, in every scheme.
"""

from math import ceil

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray
from codedfedl.core.waiting import Fastest
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayDistribution, delays_of
from codedfedl.fleet.devices import Fleet

__all__ = ["all_but_slowest", "check_drop", "mean_seconds"]


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


def mean_seconds(scheme: str, fleet: Fleet | DelayDistribution, loads: npt.ArrayLike) -> FloatArray:
    """Return the mean time for some loads of each client, shape (…, n); ∞ if it never answers.

    With measured delays, it is the mean over the measurements.
    """
    delays = delays_of(fleet)
    mean = getattr(delays, "mean", None)
    if mean is None:
        raise InputError(
            f"{scheme} compares the clients' mean delays, and {type(delays).__name__} has no mean: "
            "give a fleet or measured delays"
        )
    return np.asarray(mean(loads), dtype=np.float64)
