"""P(T ≤ t) of the paper's delay model, for clients that take part and whose overhead is over."""

import numpy as np

from codedfedl._types import FloatArray
from codedfedl.fleet.devices import DelayParameters
from codedfedl.fleet.transmissions import (
    LARGEST_ALPHA,
    NEGLIGIBLE,
    answered_by,
    geometric_sum,
    transmissions_within,
    useful_transmissions,
)

__all__ = ["asymmetric_cdf", "symmetric_cdf"]

_BLOCK = 1 << 16  # elements of a temporary array: what stays in a core's cache
_INSTANT = 1e-150  # seconds: what a load of 0 points takes


def symmetric_cdf(fleet: DelayParameters, time: FloatArray, compute: FloatArray) -> FloatArray:
    """Sum the Theorem's terms over ν, for a link that is the same both ways."""
    erasure = np.where(fleet.packet_time > 0, fleet.erasure, 0.0)
    last, compute = useful_transmissions(erasure), np.maximum(compute, _INSTANT)
    alpha = np.minimum(fleet.alpha, LARGEST_ALPHA)
    return answered_by(time, compute, last, alpha, fleet.packet_time, erasure)[0]


def asymmetric_cdf(fleet: DelayParameters, time: FloatArray, compute: FloatArray) -> FloatArray:
    """Sum over the attempts of the link that loses less; the other link's sum is closed.

    Attempts that are reached with a probability below `NEGLIGIBLE` are left out, on each link.
    """
    links = [(fleet.packet_time, fleet.erasure), (fleet.packet_time_up, fleet.erasure_up)]
    links = [(tau, np.where(tau > 0, p, 0.0)) for tau, p in links]
    down_is_outer = links[0][1] <= links[1][1]
    (tau, p), (inner_tau, inner_p) = (
        [np.where(choose, d, u) for d, u in zip(*links, strict=True)]
        for choose in (down_is_outer, ~down_is_outer)
    )
    alpha = np.minimum(fleet.alpha, LARGEST_ALPHA)
    columns = (time, compute, tau, p, inner_tau, inner_p, alpha)
    flat = [column.reshape(-1, 1) for column in np.broadcast_arrays(*columns)]
    time_, compute_, tau, p, inner_tau, inner_p, alpha = flat
    spare = time_ - compute_ - inner_tau
    last = np.where(p > 0, np.log(NEGLIGIBLE) / np.log(np.maximum(p, 1e-300)), 1.0)
    last = np.minimum(transmissions_within(spare, tau), np.ceil(last))
    total = np.zeros(len(time_))
    width = max(1, _BLOCK // max(len(time_), 1))
    for first in range(1, int(last.max(initial=0)) + 1, width):
        attempt = np.arange(first, min(first + width, int(last.max()) + 1))
        chance = np.where(attempt <= last, (1 - p) * p ** (attempt - 1), 0.0)
        rest = _one_way_cdf(time_ - attempt * tau, compute_, inner_tau, inner_p, alpha)
        total += (chance * rest).sum(-1)
    return np.minimum(total, 1.0).reshape(time.shape)


def _one_way_cdf(
    time: FloatArray, compute: FloatArray, tau: FloatArray, p: FloatArray, alpha: FloatArray
) -> FloatArray:
    """P(compute + exponential + N·τ ≤ time) with N geometric, in closed form."""
    log_p = np.log(np.maximum(p, 1e-300))
    attempts = transmissions_within(time - compute, tau)
    attempts = np.minimum(attempts, np.where(p > 0, np.ceil(np.log(NEGLIGIBLE) / log_p), 1.0))
    counted = np.maximum(attempts, 1.0)
    inverse = 1 / np.maximum(compute, _INSTANT)
    log_ratio = log_p + alpha * tau * inverse
    retries = np.where(log_ratio > 0, counted - 1, 0.0)  # the largest term
    slack = np.maximum((time - (1 + retries) * tau) * inverse - 1, 0.0)
    late = (1 - p) * np.exp(retries * log_p - alpha * slack) * geometric_sum(log_ratio, counted)
    return np.where(attempts >= 1, np.maximum(-np.expm1(counted * log_p) - late, 0.0), 0.0)
