"""Sums over points that are drawn by chance: each point is in a sum with a chance γ (Poisson).

A record that is rarely drawn may have a larger weight. How much larger is planned by Rényi
divergences, which have a closed form and bound the true ε from above. What a run claims is
accounted for by the maintained library dp-accounting, which the extra ``privacy`` brings; without
it, by the Rényi bound, which holds as well but needs some 7% more noise.
"""

from collections.abc import Iterable
from functools import lru_cache
from importlib.util import find_spec
from math import inf, sqrt

import numpy as np
from scipy.special import gammaln, logsumexp

from codedfedl.arrays import FloatArray
from codedfedl.errors import InputError

__all__ = ["Sums", "composed_epsilon", "library_installed", "renyi_epsilon", "weight_ratios"]

_ORDERS = np.array([2, 3, 4, 5, 6, 8, 10, 12, 14, 17, 20, 24, 28, 34, 40, 48, 60, 80, 110, 160])
_RATES = np.geomspace(1e-3, 1.0, 16)
_HALVINGS = 18
_STEP = 1e-2  # of the privacy losses of dp-accounting, rounded so that ε comes out too large


Sums = tuple[float, float, int]
"""Sampling rate, standard deviation over sensitivity, and how many such sums there are."""


def library_installed() -> bool:
    """Return whether dp-accounting is there."""
    return find_spec("dp_accounting") is not None


def renyi_divergences(rate: FloatArray, noise: FloatArray) -> FloatArray:
    """Return the Rényi divergences of single sums, shape (sums, orders) (Mironov et al., 2019)."""
    rate, noise = rate[:, None, None], noise[:, None, None]
    orders, terms = _ORDERS[:, None], np.arange(_ORDERS[-1] + 1)[None, :]
    inside = np.minimum(terms, orders)
    logs = gammaln(orders + 1) - gammaln(inside + 1) - gammaln(orders - inside + 1)
    logs = logs + (orders - inside) * np.log(np.maximum(1 - rate, 1e-300)) + inside * np.log(rate)
    logs = logs + inside * (inside - 1) / (2 * noise**2)
    return np.asarray(logsumexp(np.where(terms <= orders, logs, -inf), axis=2) / (_ORDERS - 1))


def renyi_epsilon(sums: Iterable[Sums], delta: float) -> float:
    """Return an upper bound on ε of sums together, by Rényi divergences."""
    rates, noises, counts = np.array(list(_checked(sums))).T
    return float(_epsilon(counts @ renyi_divergences(rates, noises), delta))


def _epsilon(divergences: FloatArray, delta: float) -> FloatArray:
    """Go from divergences to (ε, δ), as Canonne, Kamath and Steinke (2020)."""
    epsilons = divergences + np.log1p(-1 / _ORDERS) - np.log(delta * _ORDERS) / (_ORDERS - 1)
    return np.asarray(np.maximum(epsilons.min(-1), 0.0))


@lru_cache(maxsize=256)
def _ratio_table(mu: float, delta: float, count: int) -> FloatArray:
    """Return how many times as heavy points of the rates `_RATES` may be as those in every sum."""
    noise = sqrt(count) / mu
    target = renyi_epsilon([(1.0, noise, count)], delta)
    # On average a point weighs at least as much; rare points never weigh more than this.
    low, high = np.ones(len(_RATES)), 2 / _RATES
    for _ in range(_HALVINGS):
        middle = np.sqrt(low * high)
        allowed = _epsilon(count * renyi_divergences(_RATES, noise / middle), delta) <= target
        low, high = np.where(allowed, middle, low), np.where(allowed, high, middle)
    return low


def weight_ratios(mu: float, delta: float, count: int, rates: FloatArray) -> FloatArray:
    """Return how many times as heavy drawn points may be as those that are in every sum.

    Parameters
    ----------
    mu
        Of `count` sums together, for points that are in all of them.
    count
        Number of sums; rounded down to one with a table, as fewer sums allow less.
    """
    inside = np.clip(rates, _RATES[0], 1.0)
    table = np.log(_ratio_table(mu, delta, int(2 ** (int(4 * np.log2(count)) / 4))))
    return np.asarray(np.exp(np.interp(np.log(inside), np.log(_RATES), table)))


@lru_cache(maxsize=4096)
def composed_epsilon(sums: tuple[Sums, ...], delta: float) -> float:
    """Return the total ε of sums, for a record that each includes with its own probability.

    A record is replaced by nothing, and the sample does not depend on it.
    """
    if not library_installed():
        return renyi_epsilon(sums, delta)
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=_STEP
    )
    for rate, noise, count in _checked(sums):
        event = dp_accounting.GaussianDpEvent(noise)
        if rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(rate, event)
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def _checked(sums: Iterable[Sums]) -> Iterable[Sums]:
    for rate, noise, count in sums:
        if not 0 < rate <= 1 or not noise > 0 or count < 1:
            raise InputError(
                f"{count} sums have sampling rate {rate:g} and noise {noise:g}: there must be one "
                "at least, with a rate above 0 and at most 1, and noise above 0"
            )
        yield rate, noise, count
