"""How long clients take on average, for schemes that only need to know who is faster."""

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayDistribution, delays_of
from codedfedl.fleet.devices import Fleet

__all__ = ["mean_seconds"]


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
