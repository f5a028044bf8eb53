"""Sums over the number of transmissions ν, in closed form.

A packet is sent until it arrives; down and up together take ν ≥ 2 transmissions with probability
h_ν = (ν−1)(1−p)²p^(ν−2). Every quantity of the paper's Theorem is a sum of h_ν times an exponential
that is linear in ν: an arithmetico-geometric sum, whose value does not need its terms. Here each
costs the same for two terms as for thousands.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from codedfedl.arrays import FloatArray

if TYPE_CHECKING:
    from codedfedl.fleet.delays import DelayParameters

NEGLIGIBLE = 1e-17
"""Probability below which further transmissions are not looked at: under half an ulp of 1."""

LARGEST_ALPHA = 1e15
"""A larger α means the same: the random part of the compute time is lost in rounding.

Near 1e17 the closed maximum of a term would round to the whole time that is left for computing,
where the term is 0, and from 1e150 on squares of α overflow.
"""

_TINY = 1e-300  # stands in for p = 0 under a logarithm


@dataclass(frozen=True)
class SymmetricLinks:
    """Clients whose links are the same both ways, as the sums need them; arrays of shape (n,)."""

    alpha: FloatArray
    packet_time: FloatArray
    erasure: FloatArray  # 0 for a link that takes no time
    last: FloatArray  # the ν beyond which the tail is negligible

    @staticmethod
    def columns(fleet: "DelayParameters") -> dict[str, FloatArray]:
        """Return these of a fleet, within what rounding leaves of them."""
        erasure = np.where(fleet.packet_time > 0, fleet.erasure, 0.0)
        return {
            "alpha": np.minimum(fleet.alpha, LARGEST_ALPHA),
            "packet_time": fleet.packet_time,
            "erasure": erasure,
            "last": useful_transmissions(erasure),
        }


def transmissions_within(time: FloatArray, packet_time: FloatArray) -> FloatArray:
    """Return the largest ν ≥ 0 with ντ < time; ∞ where a packet takes no time."""
    with np.errstate(over="ignore"):
        count: FloatArray = np.ceil(time / np.maximum(packet_time, _TINY)) - 1
    return np.maximum(count, np.float64(0.0))


def useful_transmissions(erasure: FloatArray) -> FloatArray:
    """Return the ν beyond which P(N > ν) is negligible."""
    log_p = np.log(np.maximum(erasure, _TINY))
    count = np.log(NEGLIGIBLE) / log_p
    for _ in range(3):  # fixed point of p^(ν−1)(p + ν(1−p)) = NEGLIGIBLE
        spread = erasure + count * (1 - erasure)
        count = np.maximum(2.0, 1.0 + np.log(NEGLIGIBLE / spread) / log_p)
    return np.where(erasure > 0, np.ceil(count), 2.0)


def arrived_by(erasure: FloatArray, transmissions: FloatArray) -> FloatArray:
    """P(N ≤ ν): at least two successes in ν trials."""
    retries = transmissions - 1
    q = 1 - erasure
    log_tail = retries * np.log(np.maximum(erasure, _TINY)) + np.log1p(retries * q)
    return -np.expm1(np.minimum(log_tail, 0.0))


def mean_transmissions(erasure: FloatArray, transmissions: FloatArray) -> FloatArray:
    """E[N | N ≤ ν], from P(N' ≤ ν + 1) of a third success; never above the true mean."""
    p, q, k = erasure, 1 - erasure, transmissions
    tail = np.exp((k - 1) * np.log(np.maximum(p, _TINY))) * (
        p**2 + (k + 1) * q * p + (k + 1) * k / 2 * q**2
    )
    # Near p = 1 the subtraction loses its digits; the mean is at least 2 whatever it leaves.
    third = np.maximum(1 - tail - 1e-14, 0.0)
    return np.clip(2 / q * third / arrived_by(p, k), 2.0, k)


def late_mass(
    links: SymmetricLinks, time: FloatArray, transmissions: FloatArray, inverse_compute: FloatArray
) -> FloatArray:
    """A(r) = Σ_ν h_ν exp(−α((t − ντ)r − 1)) over ν = 2 … ν_max: fast link, slow processor.

    With it the Theorem reads P(T ≤ t) = P(N ≤ ν_max) − A(μ/ℓ̃).

    Parameters
    ----------
    time
        t, seconds left for link and processor.
    transmissions
        ν_max ≥ 2, the last transmission counted.
    inverse_compute
        r = μ/ℓ̃, one over the seconds that the load takes at least.
    """
    scale, log_ratio, terms, whole, single = _geometric(links, time, transmissions, inverse_compute)
    spread = terms * langevin(terms * log_ratio, whole) - langevin(log_ratio, single)
    return scale * (terms + 1 + spread) / 2


def answered_by(
    links: SymmetricLinks, time: FloatArray, compute: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return P(T ≤ t) of a client that takes part, and the A(r) in it.

    Parameters
    ----------
    compute
        ℓ̃/μ > 0, the seconds that the load takes at least.
    """
    fit = np.minimum(transmissions_within(time - compute, links.packet_time), links.last)
    counted = np.maximum(fit, 2.0)
    late = late_mass(links, time, counted, 1 / compute)
    answered = np.maximum(arrived_by(links.erasure, counted) - late, 0.0)
    return np.where(fit >= 2, answered, 0.0), np.where(fit >= 2, late, 0.0)


def late_mass_derivatives(
    links: SymmetricLinks, time: FloatArray, transmissions: FloatArray, inverse_compute: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return A(r), A'(r) and A''(r), with the parameters of `late_mass`."""
    scale, log_ratio, terms, whole_decay, single_decay = _geometric(
        links, time, transmissions, inverse_compute
    )
    # Cumulants of j in 0 … K−1 with weights exp(j·s), in which the poles at s = 0 have cancelled.
    whole = _langevin_derivatives(terms * log_ratio, whole_decay)
    single = _langevin_derivatives(log_ratio, single_decay)
    mean = (terms - 1 + terms * whole[0] - single[0]) / 2
    variance = (terms**2 * whole[1] - single[1]) / 4
    skew = (terms**3 * whole[2] - single[2]) / 8
    square = mean**2 + variance
    cube = mean * (mean**2 + 3 * variance) + skew
    # Moments of j = ν − 2 under h_ν exp(…), which has a factor (j + 1) more.
    zeroth, first, second = 1 + mean, mean + square, square + cube
    alpha, packet_time = links.alpha, links.packet_time
    b, c = alpha * (time - 2 * packet_time), alpha * packet_time
    last = alpha * (time - transmissions * packet_time)
    alone = log_ratio > 40  # the last term is all of the sum, and the differences cancel
    slope = np.where(alone, -last * zeroth, c * first - b * zeroth)
    curvature = b**2 * zeroth - 2 * b * c * first + c**2 * second
    return scale * zeroth, scale * slope, scale * np.where(alone, last**2 * zeroth, curvature)


def _geometric(
    links: SymmetricLinks, time: FloatArray, transmissions: FloatArray, inverse_compute: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Sum A's terms without their factor ν − 1: (1−p)² Σ_{j<K} exp(… + j·s).

    Returns the sum, s, K, and 1 − exp(−|Ks|) and 1 − exp(−|s|), which its moments need too.
    """
    alpha, packet_time, erasure = links.alpha, links.packet_time, links.erasure
    terms = transmissions - 1
    log_p = np.log(np.maximum(erasure, _TINY))
    # Beyond e^±1000 one term is all of the sum.
    log_ratio = np.clip(log_p + alpha * packet_time * inverse_compute, -1e3, 1e3)
    # Anchor at the largest term, ν = 2 or ν = ν_max, so that nothing overflows.
    retries = np.where(log_ratio > 0, terms - 1, 0.0)
    slack = np.maximum((time - (2 + retries) * packet_time) * inverse_compute - 1, 0.0)
    largest = np.exp(retries * log_p - alpha * slack)
    size = np.maximum(np.abs(log_ratio), _TINY)  # at s = 0 their ratio has its limit, K
    whole, single = -np.expm1(-terms * size), -np.expm1(-size)
    return (1 - erasure) ** 2 * largest * (whole / single), log_ratio, terms, whole, single


def langevin(s: FloatArray, decay: FloatArray) -> FloatArray:
    """L(s/2) with L(y) = coth y − 1/y, to 12 digits for every s; `decay` is 1 − exp(−|s|)."""
    size = np.abs(s)
    square = s * s
    series = size * (1 / 6 - square * (1 / 360 - square * (1 / 15120 - square / 604800)))
    exact = 2 / decay - 1 - 2 / np.maximum(size, _TINY)
    return np.copysign(np.where(size < 0.2, series, exact), s)


def _langevin_derivatives(
    s: FloatArray, decay: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """L, L' and L'' at s/2."""
    size = np.abs(s)
    small = size < 0.2
    square = s * s
    safe, its_decay = np.where(small, 1.0, size), np.where(small, 0.5, decay)
    inverse, coth = 2 / safe, 2 / its_decay - 1
    inverse_square, csch_square = inverse * inverse, coth * coth - 1
    slope = np.where(
        small,
        1 / 3 - square * (1 / 60 - square * (1 / 1512 - square / 43200)),
        inverse_square - csch_square,
    )
    curvature = np.where(
        small,
        -size * (1 / 15 - square * (1 / 189 - square / 3600)),
        2 * (coth * csch_square - inverse * inverse_square),
    )
    return langevin(s, decay), slope, np.copysign(1.0, s) * curvature
