"""The paper's Theorem and its two-step load allocation, as printed in sections 3.3 and 4.

One client, one load and one waiting time at a time, with the equation numbers of the paper. This is
the version to read beside the paper, and the reference for the tests of the fast path
(`DelayParameters.cdf`, `concave_pieces`, `allocation`). It is not meant for planning: it tries
every whole load. Uplink and downlink are the same, as in the paper.
"""

from collections.abc import Sequence
from math import ceil, exp
from typing import NamedTuple

import numpy as np
from scipy.special import lambertw

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.errors import InputError
from codedfedl.fleet.devices import Fleet
from codedfedl.fleet.maximum import crossing
from codedfedl.planning.concave_pieces import peak_share

_NEGLIGIBLE_PROBABILITY = 1e-18  # a term h_ν that no sum of probabilities feels


class PaperClient(NamedTuple):
    """One client; the paper has neither an overhead nor absent clients."""

    points: float  # ℓ
    rate: float  # μ, points per second
    alpha: float  # α
    packet_time: float  # τ, seconds
    erasure: float  # p
    overhead: float = 0.0  # seconds
    availability: float = 1.0


def clients_of(fleet: Fleet) -> list[PaperClient]:
    """Return the clients of a fleet one by one."""
    if not fleet.symmetric.all():
        raise InputError("the Theorem is for symmetric links: give no uplink")
    columns = (getattr(fleet, name).tolist() for name in PaperClient._fields)
    return [PaperClient(*values) for values in zip(*columns, strict=True)]


def h(nu: IntArray, erasure: float) -> FloatArray:
    """h_ν = (ν − 1)(1 − p)²p^(ν−2): the probability of ν transmissions, down and up together.

    Each link needs a geometric number of transmissions, eq. 2.
    """
    return (nu - 1) * (1 - erasure) ** 2 * erasure ** (nu - 2.0)


def f(nu: IntArray, t: float, load: float, client: PaperClient) -> FloatArray:
    """f_ν(t; ℓ̃) = ℓ̃(1 − exp(−(αμ/ℓ̃)(t − ℓ̃/μ − τν))): the return within t after ν transmissions."""
    spare = t - load / client.rate - client.packet_time * nu
    with np.errstate(over="ignore"):  # exp(−∞) = 0
        exponent = client.alpha * client.rate / load * spare
    return np.asarray(-load * np.expm1(-exponent), dtype=np.float64)


def transmissions(client: PaperClient, t: float) -> IntArray:
    """Return ν = 2, …, ν_m, where ν_m is the largest with t − τν_m > 0.

    The numbers of transmissions whose probability is below rounding are left out, so that the range
    is finite for τ = 0 too.
    """
    last = 4
    while last * client.erasure ** (last - 2) > _NEGLIGIBLE_PROBABILITY:
        last *= 2
    if client.packet_time > 0 and t < last * client.packet_time:
        last = ceil(t / client.packet_time) - 1
    return np.arange(2, last + 1)


def expected_return(client: PaperClient, t: float, load: float) -> float:
    """E[R(t; ℓ̃)] = Σ_{ν=2}^{ν_m} U(t − ℓ̃/μ − τν) h_ν f_ν(t; ℓ̃), points: the Theorem (section 4).

    Examples
    --------
    >>> client = PaperClient(points=400, rate=2, alpha=2, packet_time=3, erasure=0.1)
    >>> round(expected_return(client, t=300, load=400), 1)
    242.7
    """
    if load <= 0:
        return 0.0
    t = t - client.overhead
    nu = transmissions(client, t)
    in_time = t - load / client.rate - client.packet_time * nu > 0  # the unit step U
    nu = nu[in_time]
    return client.availability * float(h(nu, client.erasure) @ f(nu, t, load, client))


def optimal_load_by_lambert_w(client: PaperClient, t: float, nu: int) -> float:
    """ℓ*(t, ν) = −αμ(t − ντ)U(t − ντ)/(W₋₁(−e^−(1+α)) + 1), eq. 14 as printed.

    It maximises the single term f_ν. From α ≈ 727 on the argument of W₋₁ underflows and the result
    is NaN or 0, and for small α the digits cancel; `optimal_load` has neither problem.
    """
    w = lambertw(-exp(-(1 + client.alpha)), -1).real
    return float(-client.alpha * client.rate / (w + 1) * max(t - nu * client.packet_time, 0.0))


def optimal_load(client: PaperClient, t: float, nu: int) -> float:
    """ℓ*(t, ν) of eq. 14 for any α: αμ(t − ντ)/v, where v − log(1 + v) = α.

    v = −W₋₁(−e^−(1+α)) − 1; `peak_share` is α/v.
    """
    share = peak_share(np.array([client.alpha]))[0]
    return float(share * client.rate * max(t - nu * client.packet_time, 0.0))


def best_load(client: PaperClient, t: float) -> int:
    """ℓ*(t) = argmax E[R(t; ℓ̃)] over the whole loads 0 ≤ ℓ̃ ≤ ℓ: step 1, eq. 9."""
    loads = range(int(client.points) + 1)
    return max(loads, key=lambda load: expected_return(client, t, load))


def minimum_waiting_time(
    clients: Sequence[PaperClient], target: float, tolerance: float = 1e-9
) -> float:
    """Return the smallest t with E[R_U(t; ℓ*(t))] ≥ m − u, by bisection: step 2, eq. 10.

    Parameters
    ----------
    target
        m − u, below what returns when the server waits forever.
    tolerance
        How far the result may lie above the smallest t, relative to it.
    """

    def reached(t: float) -> bool:
        returns = (expected_return(client, t, best_load(client, t)) for client in clients)
        return sum(returns) >= target

    return crossing(reached, tolerance)
