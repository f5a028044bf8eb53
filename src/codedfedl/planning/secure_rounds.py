"""Rounds of secure sums: who is in time for them, and what noisy sums teach.

A late answer is lost, and the helper's message is a second one up. What Nesterov's method on noisy
sums learns is predicted before any data are seen: the covariance of q features is assumed to have
eigenvalues proportional to 1/i, and the best model to be isotropic.
"""

from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.fleet.costs import most_points
from codedfedl.fleet.delays import DelayParameters

Parameters = TypeVar("Parameters", bound=DelayParameters)

RESIDUAL = 0.5
"""C: residuals are clipped to half the length of a one-hot label."""

# Of the eigenvalues: those of digits, centred, are 0.105, 0.081, … beside 0.134, 0.067, …
_DECAY = 1.0


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


def eigenvalues(features: int) -> FloatArray:
    """Return the assumed eigenvalues of the covariance, the largest first; they add up to 1."""
    falling = np.arange(1, features + 1) ** -_DECAY
    return np.asarray(falling / falling.sum())


def learning_errors(step: float, features: int, rounds: int) -> tuple[FloatArray, FloatArray]:
    """Return the shares of signal missed, and noise gained, after 0, 1, … rounds.

    Parameters
    ----------
    step
        In units of one over the trace of the covariance.

    Returns
    -------
    missed : array of shape (rounds + 1,)
        Of an isotropic signal; 1 at first.
    gained : array of shape (2, rounds + 1)
        Squared error of the predictions, for noise of variance 1 on every number of a gradient, and
        for noise whose variances are the eigenvalues.
    """
    values = eigenvalues(features)
    kept = 1 - step * RESIDUAL * values
    added = step**2 * np.stack([np.ones(features), values])
    now, before = np.ones(features), np.ones(features)
    # Variances of the model, of the one before, and their covariance.
    new, old, both = (np.zeros((2, features)) for _ in range(3))
    missed, gained = [1.0], [np.zeros(2)]
    for k in range(rounds):
        lean = max(k - 1, 0) / (max(k - 1, 0) + 3)
        now, before = kept * (now + lean * (now - before)), now
        asked = (1 + lean) ** 2 * new + lean**2 * old - 2 * (1 + lean) * lean * both
        new, old, both = kept**2 * asked + added, new, kept * ((1 + lean) * new - lean * both)
        missed.append(float(values @ now**2))
        gained.append(new @ values)
    return np.array(missed), np.array(gained).T


def longest_step(features: int) -> float:
    """Return the longest stable step, in units of one over the trace of the covariance."""
    return float(1 / (RESIDUAL * eigenvalues(features)[0]))
