"""How many points clients finish in a window, the seconds that each may compute in a round.

By the delay model of section 2.2, ℓ̃ points take client j ℓ̃/μ_j·(1 + E) seconds with one draw of
E ~ Exp(rate α_j) a round. So in w seconds it finishes

    n_j = ⌊w·μ_j/(1 + E)⌋,    P(n_j ≥ k) = P(E ≤ w·μ_j/k − 1) = 1 − exp(−α_j·(w·μ_j/k − 1)).
"""

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray

__all__ = ["finish_probability", "points_done", "points_within"]


def points_within(
    window: npt.ArrayLike, rate: npt.ArrayLike, alpha: npt.ArrayLike, slowness: npt.ArrayLike
) -> IntArray:
    """⌊w·μ/(1 + slowness/α)⌋ for standard exponential draws of the slowness; shapes broadcast.

    Examples
    --------
    >>> points_within(10.0, rate=[2.0, 0.05], alpha=2.0, slowness=[2.0, 0.0]).tolist()
    [10, 0]
    """
    most = np.asarray(window, dtype=np.float64) * np.asarray(rate)
    return np.asarray(most / (1 + np.asarray(slowness) / np.asarray(alpha))).astype(np.int64)


def points_done(
    rng: np.random.Generator, rate: FloatArray, alpha: FloatArray, window: npt.ArrayLike
) -> IntArray:
    """Draw how many points each client finishes in a window of one round, shape (n,).

    Parameters
    ----------
    rate : array of shape (n,), points per second
    alpha : array of shape (n,)
    window : seconds
        One for all clients, or one for each.
    """
    return points_within(window, rate, alpha, rng.standard_exponential(len(rate)))


def finish_probability(
    points: npt.ArrayLike, window: npt.ArrayLike, rate: npt.ArrayLike, alpha: npt.ArrayLike
) -> FloatArray:
    """P(n ≥ k): k points, each 1 or more, are finished in the window; shapes broadcast.

    Examples
    --------
    >>> finish_probability([1, 10, 20, 21], 10.0, rate=2.0, alpha=2.0).round(3).tolist()
    [1.0, 0.865, 0.0, 0.0]
    """
    spare = np.asarray(window, dtype=np.float64) * np.asarray(rate) / np.asarray(points) - 1
    return np.asarray(-np.expm1(-np.asarray(alpha) * np.maximum(spare, 0.0)))
