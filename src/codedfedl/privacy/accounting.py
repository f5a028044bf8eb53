"""What a run of noisy sums gives away: Gaussian differential privacy, and (ε, δ).

A sum with sensitivity Δ and Gaussian noise of standard deviation σ is μ-GDP with μ = Δ/σ: no test
tells two neighbouring data sets apart better than N(0, 1) from N(μ, 1). Releases compose exactly,
μ² = Σ μ_i², whatever each was chosen by of what came before (Dong, Roth and Su, 2022); and μ-GDP is
(ε, δ)-DP exactly where δ ≥ Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) (Balle and Wang, 2018).

This holds for sums over all points. Where points are sampled by chance the maintained library
dp-accounting accounts for it, in the extra ``privacy``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf, sqrt
from typing import Any

from scipy.special import log_ndtr

from codedfedl.errors import InputError

__all__ = [
    "ADJACENCY",
    "Account",
    "Release",
    "check_budget",
    "delta_of",
    "epsilon_of",
    "mu_of",
    "sampled_epsilon",
]

ADJACENCY = "zero-out"
"""One record is replaced by nothing; sizes and weights stay as they are, and are public."""

_PRECISION = 1e-12


def delta_of(mu: float, epsilon: float) -> float:
    """Return the least δ for which μ-GDP is (ε, δ)-DP.

    Examples
    --------
    >>> round(delta_of(1.0, 1.0), 6)
    0.126937
    """
    if mu == 0:
        return 0.0
    if mu == inf:
        return 1.0
    near, far = (float(log_ndtr(sign * mu / 2 - epsilon / mu)) for sign in (1, -1))
    return max(exp(near) - exp(min(epsilon + far, near)), 0.0)


def epsilon_of(mu: float, delta: float) -> float:
    """Return the least ε for which μ-GDP is (ε, δ)-DP; ∞ where no noise is added."""
    _check_delta(delta)
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    if mu == inf:
        return inf
    high = 1.0
    while delta_of(mu, high) > delta:
        high *= 2
    return _smallest(lambda epsilon: delta_of(mu, epsilon) <= delta, high)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest μ that is (ε, δ)-DP; ∞ for an ε of ∞."""
    check_budget(epsilon, delta)
    if epsilon == inf:
        return inf
    high = 1.0
    while delta_of(high, epsilon) <= delta:
        high *= 2
    # Rounded down, so that the budget is kept.
    return high - _smallest(lambda less: delta_of(high - less, epsilon) <= delta, high)


def _smallest(enough: Callable[[float], bool], high: float) -> float:
    """Return the smallest number that is enough, from above; `high` is."""
    low = 0.0
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def check_budget(epsilon: float, delta: float, prefix: str = "") -> None:
    """Refuse what is not an (ε, δ); an ε of ∞ stands for no noise."""
    if not epsilon > 0:
        raise InputError(f"{prefix}epsilon is {epsilon:g}: must be above 0, or inf for no noise")
    _check_delta(delta, prefix)


def _check_delta(delta: float, prefix: str = "") -> None:
    if not 0 < delta < 1:
        raise InputError(
            f"{prefix}delta is {delta:g}: must lie between 0 and 1, both excluded, and well below "
            "one over the number of points"
        )


@dataclass(frozen=True)
class Release:
    """Noisy sums that were, or will be, given out.

    Attributes
    ----------
    what
        For people, such as ``gradient``.
    count
        How many such sums there are.
    sensitivity
        Euclidean length by which one record changes a sum at most, the largest over all clients.
    sigma
        Standard deviation of the noise on every number; in the units of the sensitivity.
    sampling_rate
        Chance of a point to be in a sum; 1 where all are.
    """

    what: str
    count: int
    sensitivity: float
    sigma: float
    sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        if self.count < 0 or not self.sensitivity > 0 or not self.sigma >= 0:
            raise InputError(
                f"release {self.what!r} has count {self.count}, sensitivity {self.sensitivity:g} "
                f"and sigma {self.sigma:g}: must be at least 0, above 0 and at least 0"
            )
        if self.sampling_rate != 1:
            raise InputError(
                f"release {self.what!r} has sampling_rate {self.sampling_rate:g}: sums over "
                "sampled points are accounted for by sampled_epsilon, by themselves"
            )

    @property
    def mu(self) -> float:
        """Of all its sums together."""
        if self.count == 0:
            return 0.0
        return sqrt(self.count) * self.sensitivity / self.sigma if self.sigma else inf


@dataclass(frozen=True)
class Account:
    """Everything that a run gives away, and what it amounts to against whoever sees only that."""

    delta: float
    releases: Sequence[Release]

    def __post_init__(self) -> None:
        _check_delta(self.delta)

    @property
    def mu(self) -> float:
        """Of all releases."""
        return sqrt(sum(one.mu**2 for one in self.releases))

    @property
    def epsilon(self) -> float:
        """ε at the account's δ."""
        return epsilon_of(self.mu, self.delta)

    def document(self) -> dict[str, Any]:
        """Return what ``privacy.json`` says, so that anybody can account for it again."""
        return {
            "adjacency": ADJACENCY,
            "unit": "record",
            "delta": self.delta,
            "epsilon": self.epsilon if self.epsilon < inf else None,
            "mu": self.mu if self.mu < inf else None,
            "releases": [
                {
                    "what": one.what,
                    "count": one.count,
                    "sensitivity": one.sensitivity,
                    "sigma": one.sigma,
                    "sampling_rate": one.sampling_rate,
                }
                for one in self.releases
            ],
        }


def sampled_epsilon(noise: float, rate: float, count: int, delta: float) -> float:
    """Return ε of sums over points that are each drawn by chance (Poisson sampling).

    Parameters
    ----------
    noise
        Standard deviation over sensitivity.
    rate
        Chance of a point to be in a sum, over those that could be drawn.
    """
    try:
        import dp_accounting
        from dp_accounting.pld import PLDAccountant
    except ImportError:
        raise InputError(
            "sums over sampled points need dp-accounting: pip install 'codedfedl[privacy]'"
        ) from None
    _check_delta(delta)
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    zero_out = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    accountant = PLDAccountant(zero_out)
    accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))
