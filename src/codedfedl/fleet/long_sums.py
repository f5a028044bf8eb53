"""Sums over the attempts on two links that differ, where there are many: erasures near 1.

With y = s − iτ₁ the seconds that i attempts on the first link leave beside computing, k the
attempts on the second that fit into them, r = y − kτ₂ what is then left, β = α/x and ρ = p₂e^βτ₂,
the second link's sum over its attempts is geometric,

    q₂ Σ_{j≤k} p₂^(j−1) e^−β(y − jτ₂) = C (p₂^k e^−βr − e^−βy),    C = (q₂/p₂)·ρ/(ρ − 1).

So an attempt on the first link costs two exponentials, and none at all where k is the largest that
counts: those attempts are a geometric sum too. Near ρ = 1 the difference cancels, and `round_time`
takes another way.
"""

from typing import NamedTuple

import numpy as np

from codedfedl.arrays import FloatArray, IntArray, Mask
from codedfedl.fleet.transmissions import NEGLIGIBLE, langevin, transmissions_within

__all__ = ["Link", "long_sums"]

_LOG_NEGLIGIBLE = np.log(NEGLIGIBLE)
_NEVER_LOST = -690.0  # log p of a link that loses nothing, or nearly so
_BLOCK = 1 << 14  # elements of a temporary array: what stays in a core's cache


class Link(NamedTuple):
    """A link: its packet time, log p, and the attempts after which the rest is negligible."""

    tau: FloatArray
    log_p: FloatArray
    useful: FloatArray

    @classmethod
    def of(cls, tau: FloatArray, p: FloatArray) -> "Link":
        """Return a link; one that takes no time loses nothing that counts."""
        log_p = np.log(np.maximum(np.where(tau > 0, p, 0.0), 1e-300))
        return cls(tau, log_p, np.where(log_p > _NEVER_LOST, np.ceil(_LOG_NEGLIGIBLE / log_p), 1.0))

    def take(self, clients: IntArray) -> "Link":
        """Return the links of some of the clients."""
        return Link(*(column[clients] for column in self))

    def where(self, chosen: Mask, other: "Link") -> "Link":
        """Return this link where it is chosen, and the other elsewhere."""
        return Link(*(np.where(chosen, *both) for both in zip(self, other, strict=True)))

    def attempts(self, spare: FloatArray) -> FloatArray:
        """Return how many attempts are counted: those that fit and are not negligible."""
        return np.minimum(transmissions_within(spare, self.tau), self.useful)


def long_sums(
    spare: FloatArray, beta: FloatArray, outer: Link, inner: Link, count: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Sum over `count` attempts on the outer link and all on the inner one that fit.

    Returns Σ h, Σ h·e and Σ h·e·(seconds left), where e = exp(−β·(seconds left)).
    """
    clear = transmissions_within(spare - inner.useful * inner.tau, outer.tau)
    head = np.minimum(clear, count)
    missed, late, moment = _tails(spare, beta, outer, inner, head, count)
    # The attempts on the outer link that leave time for all that count on the inner one.
    steps = outer.log_p + beta * outer.tau
    most = inner.useful * inner.log_p
    left = spare - outer.tau - inner.useful * inner.tau
    sums = _geometric(most - beta * left, steps, head)
    missed += np.exp(most) * -np.expm1(head * outer.log_p) / -np.expm1(outer.log_p)
    late += sums[0]
    moment += sums[0] * (left - outer.tau * sums[1])
    # The second term of the difference, for all attempts.
    whole, retries = _geometric(-beta * (spare - outer.tau), steps, count)
    difference = late - whole
    ratio = inner.log_p + beta * inner.tau
    scale = -np.expm1(inner.log_p) * np.exp(-inner.log_p) / -np.expm1(-ratio)
    delivered = -np.expm1(outer.log_p)
    moment -= whole * (spare - outer.tau * (1 + retries))
    moment += difference * inner.tau / np.expm1(np.minimum(ratio, 700.0))
    sent = -np.expm1(count * outer.log_p) - delivered * missed
    scale = delivered * scale
    return sent, np.maximum(scale * difference, 0.0), np.maximum(scale * moment, 0.0)


def _geometric(first: FloatArray, step: FloatArray, terms: FloatArray) -> FloatArray:
    """Return Σ_{j<K} exp(first + j·step) and the mean of j under its terms, shape (2, n)."""
    size = np.maximum(np.abs(step), 1e-300)
    whole, one = -np.expm1(-terms * size), -np.expm1(-size)
    largest = np.exp(np.minimum(first + np.maximum(step, 0.0) * (terms - 1), 0.0))
    total = np.where(terms > 0, largest * whole / one, 0.0)
    spread = terms * langevin(terms * step, np.where(terms > 0, whole, 1.0)) - langevin(step, one)
    return np.stack([total, (np.maximum(terms, 1.0) - 1 + spread) / 2])


def _tails(
    spare: FloatArray,
    beta: FloatArray,
    outer: Link,
    inner: Link,
    head: FloatArray,
    count: FloatArray,
) -> FloatArray:
    """Sum p₁^(i−1)p₂^k, the same times e^−βr, and that times r, over i from `head` + 1 on."""
    terms = (count - head).astype(np.int64)
    ends = np.cumsum(terms)
    columns = np.stack([spare, beta, outer.tau, outer.log_p, inner.tau, inner.log_p, head])
    sums = np.zeros((3, len(terms)))
    first = 0
    while first < len(terms):  # as many clients at once as have a block of attempts
        done = ends[first - 1] if first else 0
        final = max(int(np.searchsorted(ends, done + _BLOCK)), first + 1)
        part = slice(first, final)
        sums[:, part] = _tail_block(columns[:, part], inner.useful[part], terms[part])
        first = final
    return sums


def _tail_block(columns: FloatArray, useful: FloatArray, terms: IntArray) -> FloatArray:
    some = np.flatnonzero(terms)
    starts = np.cumsum(terms[some]) - terms[some]
    spare, beta, tau, log_p, inner_tau, inner_log_p, head = np.repeat(
        columns[:, some], terms[some], axis=1
    )
    retry = np.arange(len(spare)) - np.repeat(starts, terms[some]) + head  # i − 1
    left = spare - (retry + 1) * tau
    attempts = np.ceil(left / inner_tau) - 1
    attempts = np.clip(attempts, 0.0, np.repeat(useful[some], terms[some]))
    rest = np.maximum(left - attempts * inner_tau, 0.0)
    missed = np.exp(retry * log_p + attempts * inner_log_p)
    late = missed * np.exp(-beta * rest)
    sums = np.zeros((3, len(terms)))
    if len(some):
        sums[:, some] = np.add.reduceat(np.stack([missed, late, late * rest]), starts, axis=1)
    return sums
