"""P(T ≤ t) of the paper's delay model, for clients that take part and whose overhead is over.

Where the link is the same both ways, `fleet.transmissions` has the sum over both in closed form.
Where the links differ, attempts on the one with fewer are summed, and the other's sum is closed.
With erasures near 1 there are many attempts. Then, with y = s − iτ₁ the seconds that i attempts on
the first link leave beside computing, k the attempts on the second that fit into them, r = y − kτ₂
what is then left, β = α/x and ρ = p₂e^βτ₂, the second link's sum over its attempts is geometric,

    q₂ Σ_{j≤k} p₂^(j−1) e^−β(y − jτ₂) = C (p₂^k e^−βr − e^−βy),    C = (q₂/p₂)·ρ/(ρ − 1).

So an attempt on the first link costs two exponentials, and none at all where k is the largest that
counts: those attempts are a geometric sum too (`_long`). Near ρ = 1 the difference cancels, and
attempts are summed one by one (`_short`).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from codedfedl.arrays import FloatArray, IntArray, Mask
from codedfedl.fleet.transmissions import (
    LARGEST_ALPHA,
    NEGLIGIBLE,
    SymmetricLinks,
    answered_by,
    langevin,
    transmissions_within,
)

if TYPE_CHECKING:
    from codedfedl.fleet.delays import DelayParameters


FEW_ATTEMPTS = 32
"""Up to so many attempts are summed one by one."""

_SHORT_BLOCK_ELEMENTS, _TAIL_BLOCK_ELEMENTS = 1 << 12, 1 << 14  # what fits a core's cache
_INSTANT_SECONDS = 1e-150  # what a load of 0 points takes
_LOG_NEGLIGIBLE = np.log(NEGLIGIBLE)
_LOSSLESS_LOG_P = -690.0  # log p of a link that loses nothing, or nearly so


class _Link(NamedTuple):
    """A link: its packet time, log p, and the attempts after which the rest is negligible."""

    tau: FloatArray
    log_p: FloatArray
    useful: FloatArray

    @classmethod
    def of(cls, tau: FloatArray, p: FloatArray) -> "_Link":
        """Return a link; one that takes no time loses nothing that counts."""
        log_p = np.log(np.maximum(np.where(tau > 0, p, 0.0), 1e-300))
        useful = np.where(log_p > _LOSSLESS_LOG_P, np.ceil(_LOG_NEGLIGIBLE / log_p), 1.0)
        return cls(tau, log_p, useful)

    def take(self, clients: IntArray) -> "_Link":
        """Return the links of some of the clients."""
        return _Link(*(column[clients] for column in self))

    def where(self, chosen: Mask, other: "_Link") -> "_Link":
        """Return this link where it is chosen, and the other elsewhere."""
        return _Link(*(np.where(chosen, *both) for both in zip(self, other, strict=True)))

    def attempts(self, spare: FloatArray) -> FloatArray:
        """Return how many attempts are counted: those that fit and are not negligible."""
        return np.minimum(transmissions_within(spare, self.tau), self.useful)


def symmetric_cdf(fleet: "DelayParameters", time: FloatArray, compute: FloatArray) -> FloatArray:
    """Sum the Theorem's terms over ν, for a link that is the same both ways."""
    links = SymmetricLinks(**SymmetricLinks.columns(fleet))
    return answered_by(links, time, np.maximum(compute, _INSTANT_SECONDS))[0]


def asymmetric_cdf(fleet: "DelayParameters", time: FloatArray, compute: FloatArray) -> FloatArray:
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


def asymmetric_parts(
    fleet: "DelayParameters",
    time: FloatArray,
    compute: FloatArray,
    few_attempts: float = FEW_ATTEMPTS,
) -> Parts:
    """Sum over the attempts of the link with fewer of them; the other link's sum is closed.

    Attempts that are reached with a probability below `NEGLIGIBLE` are left out, on each link. Up
    to `few_attempts` are summed one by one.
    """
    links = ((fleet.packet_time, fleet.erasure), (fleet.packet_time_up, fleet.erasure_up))
    rows = (time, np.maximum(compute, _INSTANT_SECONDS), np.minimum(fleet.alpha, LARGEST_ALPHA))
    broadcast = np.broadcast_arrays(*rows, *(column for link in links for column in link))
    shape = broadcast[0].shape
    time, compute, alpha, *flat = (column.ravel() for column in broadcast)
    down, up = _Link.of(*flat[:2]), _Link.of(*flat[2:])
    counts = [link.attempts(time - compute - other.tau) for link, other in ((down, up), (up, down))]
    count = np.minimum(*counts).astype(np.int64)
    outer, inner = down.where(counts[0] <= counts[1], up), up.where(counts[0] <= counts[1], down)
    sums = np.zeros((4, len(time)))
    beta = alpha / compute
    log_ratio = inner.log_p + beta * inner.tau
    # Where sums in closed form pay, and lose no digits.
    many = (count > few_attempts) & (time * beta < 1e5) & (np.abs(log_ratio) > 1e-3)
    for part, method in ((many, _long), (~many, _short)):
        who = np.flatnonzero(part)
        both = outer.take(who), inner.take(who)
        sums[:, who] = method(time[who], compute[who], alpha[who], *both, count[who])
    answered, sent, late, moment = (part.reshape(shape) for part in sums)
    return Parts(np.minimum(answered, 1.0), sent, late, moment)


def _long(
    time: FloatArray,
    compute: FloatArray,
    alpha: FloatArray,
    outer: _Link,
    inner: _Link,
    count: IntArray,
) -> FloatArray:
    """Sum the four parts over `count` attempts on the outer link and all that fit on the inner."""
    spare, beta, attempts = time - compute, alpha / compute, count.astype(np.float64)
    clear = transmissions_within(spare - inner.useful * inner.tau, outer.tau)
    head = np.minimum(clear, attempts)
    missed, late, moment = _tails(spare, beta, outer, inner, head, attempts)
    # The attempts on the outer link that leave time for all that count on the inner one.
    steps = outer.log_p + beta * outer.tau
    growth = np.maximum(steps, 0.0)
    most = inner.useful * inner.log_p
    left = spare - outer.tau - inner.useful * inner.tau
    sums = _geometric(most - beta * left + growth * (head - 1), steps, head)
    missed += np.exp(most) * -np.expm1(head * outer.log_p) / -np.expm1(outer.log_p)
    late += sums[0]
    moment += sums[0] * (left - outer.tau * sums[1])
    # The second term of the difference, for all attempts.
    first = -beta * (spare - outer.tau)
    whole, retries = _geometric(first + growth * (attempts - 1), steps, attempts)
    difference = late - whole
    ratio = inner.log_p + beta * inner.tau
    scale = -np.expm1(inner.log_p) * np.exp(-inner.log_p) / -np.expm1(-ratio)
    delivered = -np.expm1(outer.log_p)
    moment -= whole * (spare - outer.tau * (1 + retries))
    moment += difference * inner.tau / np.expm1(np.minimum(ratio, 700.0))
    sent = -np.expm1(attempts * outer.log_p) - delivered * missed
    late = np.maximum(delivered * scale * difference, 0.0)
    moment = np.maximum(delivered * scale * moment, 0.0)
    return np.stack([np.maximum(sent - late, 0.0), sent, late, moment + compute * late])


def _short(
    time: FloatArray,
    compute: FloatArray,
    alpha: FloatArray,
    outer: _Link,
    inner: _Link,
    count: IntArray,
) -> FloatArray:
    """Sum the four parts over the attempts, some clients at a time."""
    columns = np.stack([time, compute, alpha, *outer, *inner])
    sums = np.zeros((4, len(time)))
    for part in _blocks(count, _SHORT_BLOCK_ELEMENTS):
        sums[:, part] = _summed(columns[:, part], count[part])
    return sums


def _blocks(count: IntArray, size: int) -> Iterator[slice]:
    """Yield clients that together have so many attempts, or single ones that have more."""
    ends = np.cumsum(count)
    first = 0
    while first < len(count):
        done = ends[first - 1] if first else 0
        final = max(int(np.searchsorted(ends, done + size)), first + 1)
        yield slice(first, final)
        first = final


def _summed(columns: FloatArray, count: IntArray) -> FloatArray:
    """Sum the four parts over `count` attempts of the outer link, shape (4, n)."""
    who = np.repeat(np.arange(len(count)), count)
    retry = (np.arange(len(who)) - (np.cumsum(count) - count)[who]).astype(np.float64)
    time, compute, alpha, tau, log_p, _, inner_tau, inner_log_p, useful = columns[:, who]
    left = time - (retry + 1) * tau  # for the inner link and the processor
    attempts = np.minimum(transmissions_within(left - compute, inner_tau), useful)
    counted = np.maximum(attempts, 1.0)
    # Beyond e^±1000 one term is all of the sum.
    step = np.clip(inner_log_p + alpha * inner_tau / compute, -1e3, 1e3)
    later = np.where(step > 0, counted - 1, 0.0)  # retries of the largest term
    slack = np.maximum((left - (1 + later) * inner_tau) / compute - 1, 0.0)
    total, retries = _geometric(later * inner_log_p - alpha * slack, step, counted)
    sendable, delivered = attempts >= 1, -np.expm1(inner_log_p)
    late = np.where(sendable, delivered * total, 0.0)
    sent = np.where(sendable, -np.expm1(counted * inner_log_p), 0.0)
    moment = late * np.maximum(left - inner_tau * (1 + retries), 0.0)
    chance = -np.expm1(log_p) * np.exp(retry * log_p)
    parts = (np.maximum(sent - late, 0.0), sent, late, moment)
    return np.stack([np.bincount(who, chance * part, len(count)) for part in parts])


def _geometric(largest: FloatArray, step: FloatArray, terms: FloatArray) -> FloatArray:
    """Return Σ_{j<K} exp(first + j·step) and the mean of j under its terms, shape (2, n).

    `largest` is the exponent of the largest term: of the first or, where they grow, of the last.
    """
    size = np.maximum(np.abs(step), 1e-300)
    whole, single = -np.expm1(-terms * size), -np.expm1(-size)
    total = np.where(terms > 0, np.exp(np.minimum(largest, 0.0)) * whole / single, 0.0)
    whole = np.where(terms > 0, whole, 1.0)
    spread = terms * langevin(terms * step, whole) - langevin(step, single)
    return np.stack([total, (np.maximum(terms, 1.0) - 1 + spread) / 2])


def _tails(
    spare: FloatArray,
    beta: FloatArray,
    outer: _Link,
    inner: _Link,
    head: FloatArray,
    count: FloatArray,
) -> FloatArray:
    """Sum p₁^(i−1)p₂^k, the same times e^−βr, and that times r, over i from `head` + 1 on."""
    terms = (count - head).astype(np.int64)
    columns = np.stack([spare, beta, outer.tau, outer.log_p, inner.tau, inner.log_p, head])
    sums = np.zeros((3, len(terms)))
    for part in _blocks(terms, _TAIL_BLOCK_ELEMENTS):
        sums[:, part] = _tail_block(columns[:, part], inner.useful[part], terms[part])
    return sums


def _tail_block(columns: FloatArray, useful: FloatArray, terms: IntArray) -> FloatArray:
    tailed = np.flatnonzero(terms)
    starts = np.cumsum(terms[tailed]) - terms[tailed]
    spare, beta, tau, log_p, inner_tau, inner_log_p, head = np.repeat(
        columns[:, tailed], terms[tailed], axis=1
    )
    retry = np.arange(len(spare)) - np.repeat(starts, terms[tailed]) + head  # i − 1
    left = spare - (retry + 1) * tau
    attempts = np.ceil(left / inner_tau) - 1
    attempts = np.clip(attempts, 0.0, np.repeat(useful[tailed], terms[tailed]))
    rest = np.maximum(left - attempts * inner_tau, 0.0)
    missed = np.exp(retry * log_p + attempts * inner_log_p)
    late = missed * np.exp(-beta * rest)
    sums = np.zeros((3, len(terms)))
    if len(tailed):
        sums[:, tailed] = np.add.reduceat(np.stack([missed, late, late * rest]), starts, axis=1)
    return sums
