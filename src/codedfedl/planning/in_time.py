"""Rounds of secure sums: a late answer is lost, and the helper's message is a second one up."""

from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import IntArray
from codedfedl.fleet.costs import most_points
from codedfedl.fleet.delays import DelayParameters

Parameters = TypeVar("Parameters", bound=DelayParameters)


def with_helper(fleet: Parameters) -> Parameters:
    """Return a fleet whose messages up take twice as long.

    The helper's message is charged to every client's own link: an upper bound.
    """
    return replace(fleet, packet_time_up=2 * fleet.packet_time_up)


def in_time(
    delays: DelayParameters, seconds: float, points: npt.ArrayLike, probability: float
) -> IntArray:
    """Return the largest load that each client finishes by a deadline with a given probability.

    Parameters
    ----------
    points : array of shape (n,)
        No load is larger.
    probability
        Of a client that takes part in the round at all.
    """
    sure = probability * delays.availability
    return most_points(lambda loads: delays.cdf(loads, seconds) >= sure, points)


def least_arrivals(chances: npt.ArrayLike, probability: float) -> int:
    """Return how many clients arrive at least, except with a small probability.

    Parameters
    ----------
    chances : array of shape (n,)
        Each client's probability of arriving, independent of the others.

    Examples
    --------
    >>> least_arrivals([1.0, 1.0, 0.5], 0.1)
    2
    """
    counts = np.ones(1)  # the probability of 0, 1, … arrivals
    for chance in np.asarray(chances, dtype=np.float64).tolist():
        counts = np.convolve(counts, [1 - chance, chance])
    fewer = np.cumsum(counts) - counts  # than 0, 1, … arrivals
    return int(np.flatnonzero(fewer <= probability)[-1])
