"""A plan whose parity is made, for clients that turn out to be slower or faster than planned.

Parity was weighted for the loads ℓ_j and return probabilities π_j of the plan: in expectation over
the code, its gradient is that of all points, less π_j times that of the ℓ_j points that client j
processes. Whatever the delays are, a round is unbiased if the answers bring just that:

    E[Σ_j 1{T_j ≤ t}·w_j·g_j] = Σ_j π′_j·w_j·g_j = Σ_j π_j·g_j   with  w_j = π_j / π′_j

where g_j is the gradient over the same ℓ_j points and π′_j = P(T_j ≤ t) by the delays as they are.
So deadline and weights follow the delays, and the loads do not: of a smaller load the points left
out would count only 1 − π_j in parity and nowhere else; and a node refuses sums over almost the
same points, whose difference would show the few in which they differ.
"""

from dataclasses import replace

import numpy as np

from codedfedl.arrays import FloatArray
from codedfedl.fleet.delays import DelayModel
from codedfedl.planning.plan import Plan

__all__ = ["LARGEST_WEIGHT", "answer_weights", "replanned"]

LARGEST_WEIGHT = 10.0
"""A client that answers so many times less often than planned is not weighted any further."""

_MAX_DEADLINE_RATIO = 64.0  # of a new deadline to the planned one
_DEADLINE_TOLERANCE = 1e-3  # relative


def replanned(
    chosen: Plan,
    delays: DelayModel,
    *,
    deadline: float | None = None,
    longest: float = np.inf,
) -> Plan:
    """Return the plan for other delays, with the same loads and parity.

    Parameters
    ----------
    deadline
        Seconds; by default the first by which as many points return as were planned, in
        expectation.
    longest
        Seconds, of a deadline that is not given: of clients that never answered it is not known
        how slow they are. The weights are right for any deadline.
    """
    if deadline is None:
        deadline = min(_deadline(chosen, delays), longest)
    chances = np.where(chosen.loads > 0, delays.cdf(chosen.loads, deadline), 0.0)
    return replace(chosen, deadline=deadline, return_probabilities=chances)


def _deadline(chosen: Plan, delays: DelayModel) -> float:
    def returned(seconds: float) -> float:
        return float(chosen.loads @ delays.cdf(chosen.loads, seconds))

    low, high = chosen.deadline / _MAX_DEADLINE_RATIO, chosen.deadline * _MAX_DEADLINE_RATIO
    enough = min(chosen.expected_return, (1 - _DEADLINE_TOLERANCE) * returned(high))
    while high > (1 + _DEADLINE_TOLERANCE) * low:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if returned(middle) >= enough else (middle, high)
    return high


def answer_weights(made: Plan, now: Plan) -> FloatArray:
    """Return w_j = π_j/π′_j for parity made for one plan and rounds of another, shape (n,)."""
    planned, actual = made.return_probabilities, now.return_probabilities
    return planned / np.maximum(actual, np.maximum(planned, 1e-12) / LARGEST_WEIGHT)
