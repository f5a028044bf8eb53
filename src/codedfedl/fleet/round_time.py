"""P(T ≤ t) of the paper's delay model, for clients that take part and whose overhead is over."""

from typing import NamedTuple

import numpy as np

from codedfedl.arrays import FloatArray, IntArray, Mask
from codedfedl.fleet.devices import DelayParameters
from codedfedl.fleet.long_sums import Link, long_sums
from codedfedl.fleet.transmissions import (
    LARGEST_ALPHA,
    answered_by,
    langevin,
    transmissions_within,
    useful_transmissions,
)

__all__ = ["Parts", "asymmetric_cdf", "asymmetric_parts", "symmetric_cdf"]

_BLOCK = 1 << 12  # elements of a temporary array: what stays in a core's cache
_FEW = 32  # attempts: fewer are summed one by one
_INSTANT = 1e-150  # seconds: what a load of 0 points takes


def symmetric_cdf(fleet: DelayParameters, time: FloatArray, compute: FloatArray) -> FloatArray:
    """Sum the Theorem's terms over ν, for a link that is the same both ways."""
    erasure = np.where(fleet.packet_time > 0, fleet.erasure, 0.0)
    last, compute = useful_transmissions(erasure), np.maximum(compute, _INSTANT)
    alpha = np.minimum(fleet.alpha, LARGEST_ALPHA)
    return answered_by(time, compute, last, alpha, fleet.packet_time, erasure)[0]


def asymmetric_cdf(fleet: DelayParameters, time: FloatArray, compute: FloatArray) -> FloatArray:
    """P(T ≤ t) for links that differ."""
    return asymmetric_parts(fleet, time, compute).answered


class Parts(NamedTuple):
    """P(T ≤ t), and sums over the attempts that leave b > x seconds for a load that takes x.

    With h_b their probability and e_b = exp(−α(b/x − 1)) the probability that b seconds are too
    few for the processor, P(T ≤ t) = Σ h_b − Σ h_b·e_b.
    """

    answered: FloatArray
    sent: FloatArray  # Σ h_b
    late: FloatArray  # Σ h_b·e_b
    moment: FloatArray  # Σ h_b·e_b·b, seconds


def asymmetric_parts(fleet: DelayParameters, time: FloatArray, compute: FloatArray) -> Parts:
    """Sum over the attempts of the link with fewer of them; the other link's sum is closed.

    Attempts that are reached with a probability below `NEGLIGIBLE` are left out, on each link.
    """
    links = ((fleet.packet_time, fleet.erasure), (fleet.packet_time_up, fleet.erasure_up))
    rows = (time, np.maximum(compute, _INSTANT), np.minimum(fleet.alpha, LARGEST_ALPHA))
    broadcast = np.broadcast_arrays(*rows, *(column for link in links for column in link))
    shape = broadcast[0].shape
    time, compute, alpha, *flat = (column.ravel() for column in broadcast)
    down, up = Link.of(*flat[:2]), Link.of(*flat[2:])
    counts = [one.attempts(time - compute - other.tau) for one, other in ((down, up), (up, down))]
    count = np.minimum(*counts).astype(np.int64)
    outer, inner = down.where(counts[0] <= counts[1], up), up.where(counts[0] <= counts[1], down)
    sums = np.zeros((4, len(time)))
    beta = alpha / compute
    many = _many(count, time * beta, inner.log_p + beta * inner.tau)
    for part, method in ((many, _long), (~many, _short)):
        who = np.flatnonzero(part)
        both = outer.take(who), inner.take(who)
        sums[:, who] = method(time[who], compute[who], alpha[who], *both, count[who])
    answered, sent, late, moment = (part.reshape(shape) for part in sums)
    return Parts(np.minimum(answered, 1.0), sent, late, moment)


def _many(count: IntArray, exponent: FloatArray, log_ratio: FloatArray) -> Mask:
    """Say for whom `long_sums` pays, and loses no digits."""
    return (count > _FEW) & (exponent < 1e5) & (np.abs(log_ratio) > 1e-3)


def _long(
    time: FloatArray,
    compute: FloatArray,
    alpha: FloatArray,
    outer: Link,
    inner: Link,
    count: IntArray,
) -> FloatArray:
    sent, late, spare = long_sums(
        time - compute, alpha / compute, outer, inner, count.astype(np.float64)
    )
    return np.stack([np.maximum(sent - late, 0.0), sent, late, spare + compute * late])


def _short(
    time: FloatArray,
    compute: FloatArray,
    alpha: FloatArray,
    outer: Link,
    inner: Link,
    count: IntArray,
) -> FloatArray:
    """Sum the four parts over the attempts, some clients at a time."""
    columns = np.stack([time, compute, *outer, *_One.of(compute, alpha, inner)])
    ends = np.cumsum(count)
    sums = np.zeros((4, len(time)))
    first = 0
    while first < len(time):  # as many clients at once as have a block of attempts
        done = ends[first - 1] if first else 0
        final = max(int(np.searchsorted(ends, done + _BLOCK)), first + 1)
        sums[:, first:final] = _summed(columns[:, first:final], count[first:final])
        first = final
    return sums


class _One(NamedTuple):
    """The inner link and the processor, with what does not depend on the outer link's attempts."""

    tau: FloatArray
    log_p: FloatArray
    useful: FloatArray
    delivered: FloatArray  # 1 − p
    inverse: FloatArray  # one over the seconds that the load takes at least
    alpha: FloatArray
    log_ratio: FloatArray  # of one attempt's late mass to that of the one before
    decay: FloatArray  # 1 − exp(−|log_ratio|)
    langevin: FloatArray  # of log_ratio

    @classmethod
    def of(cls, compute: FloatArray, alpha: FloatArray, link: Link) -> "_One":
        inverse = 1 / compute
        # Beyond e^±1000 one term is all of the sum.
        log_ratio = np.clip(link.log_p + alpha * link.tau * inverse, -1e3, 1e3)
        decay = -np.expm1(-np.maximum(np.abs(log_ratio), 1e-300))
        delivered = -np.expm1(link.log_p)
        return cls(*link, delivered, inverse, alpha, log_ratio, decay, langevin(log_ratio, decay))

    def parts(self, time: FloatArray, compute: FloatArray) -> tuple[FloatArray, ...]:
        """Return the four parts in closed form, for what the outer link leaves of the time."""
        attempts = np.minimum(transmissions_within(time - compute, self.tau), self.useful)
        counted = np.maximum(attempts, 1.0)
        decay = -np.expm1(-counted * np.maximum(np.abs(self.log_ratio), 1e-300))
        retries = np.where(self.log_ratio > 0, counted - 1, 0.0)  # the largest term
        slack = np.maximum((time - (1 + retries) * self.tau) * self.inverse - 1, 0.0)
        largest = self.delivered * np.exp(retries * self.log_p - self.alpha * slack)
        some = attempts >= 1
        late = np.where(some, largest * (decay / self.decay), 0.0)
        sent = np.where(some, -np.expm1(counted * self.log_p), 0.0)
        whole = counted * langevin(counted * self.log_ratio, decay)
        mean_retries = (counted - 1 + whole - self.langevin) / 2  # under the late mass
        spare = np.maximum(time - self.tau * (1 + mean_retries), 0.0)
        return np.maximum(sent - late, 0.0), sent, late, late * spare


def _summed(columns: FloatArray, count: IntArray) -> FloatArray:
    """Sum the four parts over `count` attempts of the outer link, shape (4, n)."""
    who = np.repeat(np.arange(len(count)), count)
    retry = (np.arange(len(who)) - (np.cumsum(count) - count)[who]).astype(np.float64)
    time, compute, tau, log_p, _, *inner = columns[:, who]
    chance = -np.expm1(log_p) * np.exp(retry * log_p)
    parts = _One(*inner).parts(time - (retry + 1) * tau, compute)
    return np.stack([np.bincount(who, chance * part, len(count)) for part in parts])
