"""What a run of noisy sums gives away: Gaussian differential privacy, and (ε, δ).

A sum with sensitivity Δ and Gaussian noise of standard deviation σ is μ-GDP with μ = Δ/σ: no test
tells two neighbouring data sets apart better than N(0, 1) from N(μ, 1). Releases compose exactly,
μ² = Σ μ_i², even if each is chosen adaptively (Dong, Roth and Su, 2022); and μ-GDP is
(ε, δ)-DP exactly where δ ≥ Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) (Balle and Wang, 2018).

This holds for sums over all points. Where points are sampled, `privacy.sampling` accounts for them.
ε is the largest over all clients: each has its own weights and sampling rates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, sqrt
from typing import Any

from scipy.special import log_ndtr

from codedfedl.errors import InputError
from codedfedl.privacy.sampling import composed_epsilon, library_installed, renyi_epsilon

__all__ = [
    "ADJACENCY",
    "UNITS",
    "Account",
    "Release",
    "check_budget",
    "delta_of",
    "epsilon_of",
    "mu_of",
]

ADJACENCY = "zero-out"
"""One record is replaced by nothing; sizes and weights stay as they are, and are public."""

UNITS = ("record", "client")
"""What may be replaced by nothing: one record, or all records of one client."""

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
        Euclidean length by which one record changes a sum at most: one number for all clients, or
        one for each.
    sigma
        Standard deviation of the noise on every number; in the units of the sensitivity.
    sampling_rate
        Chance of a point to be in a sum, over those that could be drawn; 1 where all are. One
        number, or one for each client.
    """

    what: str
    count: int
    sensitivity: float | tuple[float, ...]
    sigma: float
    sampling_rate: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        lengths, rates = _listed(self.sensitivity), _listed(self.sampling_rate)
        if self.count < 0 or not min(lengths) > 0 or not self.sigma >= 0:
            raise InputError(
                f"release {self.what!r} has count {self.count}, sensitivity {min(lengths):g} "
                f"and sigma {self.sigma:g}: must be at least 0, above 0 and at least 0"
            )
        if not 0 < min(rates) <= max(rates) <= 1:
            raise InputError(
                f"release {self.what!r} has sampling_rate {min(rates):g} to {max(rates):g}: must "
                "be above 0 and at most 1"
            )

    def of_client(self, j: int) -> tuple[float, float]:
        """Return sampling rate and sensitivity of one client's records."""
        rates, lengths = _listed(self.sampling_rate), _listed(self.sensitivity)
        return rates[min(j, len(rates) - 1)], lengths[min(j, len(lengths) - 1)]

    @property
    def clients(self) -> int:
        """Number of clients with values of their own; 1 if all are alike."""
        return max(len(_listed(self.sensitivity)), len(_listed(self.sampling_rate)))

    @property
    def mu(self) -> float:
        """Of all its sums together, for a record that is in each with the largest sensitivity."""
        if self.count == 0:
            return 0.0
        return sqrt(self.count) * max(_listed(self.sensitivity)) / self.sigma if self.sigma else inf


def _listed(value: float | tuple[float, ...]) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True)
class Account:
    """Everything that a run releases, and the ε that holds against anyone who sees only that.

    Attributes
    ----------
    unit
        The unit of privacy: a ``record``, or a whole ``client``.
    shares
        Number of clients whose noise shares add up to σ, if each client adds its own share; 0 if a
        helper adds all of it. Sums are over one client more, since each knows its own share.
    """

    delta: float
    releases: Sequence[Release]
    unit: str = "record"
    shares: int = 0

    def __post_init__(self) -> None:
        _check_delta(self.delta)
        if self.unit not in UNITS:
            raise InputError(f"unit is {self.unit!r}: must be one of {', '.join(UNITS)}")

    @property
    def sampled(self) -> bool:
        """Whether any points are drawn by chance."""
        return any(min(_listed(release.sampling_rate)) < 1 for release in self.releases)

    @property
    def mu(self) -> float:
        """Of all releases, for a record that is in all sums."""
        return sqrt(sum(release.mu**2 for release in self.releases))

    @property
    def epsilon(self) -> float:
        """ε at the account's δ, the largest over clients."""
        if not self.sampled or self.mu == inf:
            return max(epsilon_of(self._mu_of_client(j), self.delta) for j in range(self._clients))
        return max(composed_epsilon(sums, self.delta) for sums in self._undominated())

    def keeps(self, epsilon: float) -> bool:
        """Return whether ε is no larger than this, checking the most exposed clients first."""
        if not self.sampled or self.mu == inf:
            return self.epsilon <= epsilon
        worst = sorted(self._undominated(), key=lambda sums: -renyi_epsilon(sums, self.delta))
        return all(composed_epsilon(sums, self.delta) <= epsilon for sums in worst)

    def known_to(self, clients: int) -> "Account":
        """Return the account against so many clients together, who know their own shares.

        If these are all other clients, a client's answer is protected only by its own share. That
        is also what server and helper see together.
        """
        if not 1 <= clients <= self.shares:
            raise InputError(
                f"{clients} clients know their shares, and sums are over {self.shares + 1}: must "
                "be at least 1, and fewer than these"
            )
        left = sqrt((self.shares + 1 - clients) / self.shares)
        releases = [replace(release, sigma=left * release.sigma) for release in self.releases]
        return replace(self, releases=releases)

    @property
    def _clients(self) -> int:
        return max((release.clients for release in self.releases), default=1)

    def _mu_of_client(self, j: int) -> float:
        if self.mu in (0, inf):
            return self.mu
        parts = (
            release.count * (release.of_client(j)[1] / release.sigma) ** 2
            for release in self.releases
        )
        return sqrt(sum(parts))

    def _undominated(self) -> list[tuple[tuple[float, float, int], ...]]:
        """Return the sums of each client that may be the most exposed.

        A client that is drawn no more often than another, and weighs no more, has no larger ε.
        """
        used = [release for release in self.releases if release.count]
        seen = {tuple(release.of_client(j) for release in used) for j in range(self._clients)}
        kept = [
            client
            for client in seen
            if not any(other != client and _at_least(other, client) for other in seen)
        ]
        return [
            tuple(
                (rate, release.sigma / length, release.count)
                for release, (rate, length) in zip(used, client, strict=True)
            )
            for client in kept
        ]

    @property
    def accountant(self) -> str:
        """The method by which ε was computed."""
        if not self.sampled:
            return "Gaussian DP"
        return "dp-accounting, PLD" if library_installed() else "Rényi divergences"

    def _against(self) -> list[tuple[str, float]]:
        """Return the parties, and the ε that holds against each."""
        helper, both = "a helper that sees the models", "server and helper together"
        if not self.shares:
            return [("the server, the clients and the public", self.epsilon)] + [
                (who, inf) for who in (helper, both)
            ]
        half = (self.shares + 1) // 2
        return [
            (f"the server, any one client, the public and {helper}", self.epsilon),
            (f"the server and clients together, up to {half}", self.known_to(half).epsilon),
            (f"{both}, with any clients", self.known_to(self.shares).epsilon),
        ]

    def document(self) -> dict[str, Any]:
        """Return what ``privacy.json`` says, so that anybody can account for it again."""
        return {
            "adjacency": ADJACENCY,
            "unit": self.unit,
            "delta": self.delta,
            "epsilon": self.epsilon if self.epsilon < inf else None,
            "mu": self.mu if self.mu < inf and not self.sampled else None,
            "accountant": self.accountant,
            "noise_shares": self.shares or None,
            "against": [
                {"who": who, "epsilon": epsilon if epsilon < inf else None}
                for who, epsilon in self._against()
            ],
            "releases": [
                {
                    "what": release.what,
                    "count": release.count,
                    "sensitivity": release.sensitivity,
                    "sigma": release.sigma,
                    "sampling_rate": release.sampling_rate,
                }
                for release in self.releases
            ],
        }


def _at_least(other: Sequence[tuple[float, float]], client: Sequence[tuple[float, float]]) -> bool:
    pairs = zip(other, client, strict=True)
    return all(a[0] >= b[0] and a[1] >= b[1] for a, b in pairs)
