"""The noise of `private`: how much a budget asks for, in which numbers, and who adds it."""

from dataclasses import dataclass
from math import floor, sqrt

import numpy as np

from codedfedl.arrays import FloatArray
from codedfedl.core.protocol import Task
from codedfedl.errors import InputError
from codedfedl.planning.private import CENTRE_SHARE, PrivatePlan
from codedfedl.planning.secure_rounds import least_arrivals
from codedfedl.privacy.accounting import Account, Release, mu_of
from codedfedl.privacy.fixed_point import LEAST_SHARE, LEAST_SUMMED, FixedPoint

__all__ = ["NOISE", "Budget", "pool_weights"]

NOISE = ("helper", "clients")
"""Who adds the noise."""

_FARTHEST = 8.3  # standard deviations: no noise is larger, see `privacy.masks.system_normal`
_MORE_NOISE = 1.005  # times as much, until the library finds the budget kept
_CLIENT_SHARE = 0.25  # of the mean number of points: longer sums of a client are clipped
_SELDOM = 1e-3  # of the rounds have fewer arrivals than the plan counts on
_SPARE = 0.9


@dataclass(frozen=True)
class Budget:
    """What a run may release, and who adds the noise; the settings are those of `Private`."""

    epsilon: float
    delta: float
    unit: str
    noise: str

    def longest(self, task: Task) -> float | None:
        """Return the length to which a client's sum is clipped, for a client-level guarantee."""
        return None if self.unit == "record" else _CLIENT_SHARE * float(task.held.mean())

    def shares(self, plan: PrivatePlan) -> int:
        """Return how many noise shares must add up to the required noise; 0 if a helper adds it.

        A sum is over at least one client more, since each knows its own share: nine tenths of the
        expected arrivals. More clients add more noise; with fewer, the sum is not released. The
        last tenth is a margin for what the plan ignores: the first sum is over whole pools, and
        takes longer.
        """
        if self.noise == "helper":
            return 0
        arrive = least_arrivals(plan.chances[plan.loads > 0], _SELDOM)
        return max(LEAST_SUMMED, floor(_SPARE * arrive)) - 1

    def account(self, task: Task, plan: PrivatePlan) -> Account:
        """Return all sums, with the least noise that keeps the budget.

        σ is exact for points that are in every sum. Sampled points have weights that cost no more,
        up to a small excess that the library may find.
        """
        q, c = task.workload.features, task.workload.labels
        mu, asked, longest = mu_of(self.epsilon, self.delta), plan.loads > 0, self.longest(task)
        steps, hidden = self.numbers(task, plan), plan.cap if longest is None else longest
        first, rest = (_sensitivity(steps, hidden, size) for size in (q + 1 + c, q * c))
        each: float | tuple[float, ...] = rest
        if longest is None:
            each = _shortest([_sensitivity(steps, float(cap), q * c) for cap in plan.caps[asked]])
        rates = _shortest(plan.rates[asked].tolist())
        sigmas = first / sqrt(CENTRE_SHARE) / mu, rest * sqrt(plan.rounds / (1 - CENTRE_SHARE)) / mu
        more = 1.0
        while True:
            moments = Release("moments", 1, first, more * sigmas[0])
            gradients = Release("gradient", plan.rounds, each, more * sigmas[1], rates)
            account = Account(self.delta, [moments, gradients], self.unit, self.shares(plan))
            if account.keeps(self.epsilon):
                return account
            more *= _MORE_NOISE

    def numbers(self, task: Task, plan: PrivatePlan) -> FixedPoint:
        """Return fixed-point numbers for which no sum wraps around, even with the largest noise."""
        hidden = self.longest(task) or plan.cap
        mu = mu_of(self.epsilon, self.delta)
        deviations = sqrt(max(plan.rounds / (1 - CENTRE_SHARE), 1 / CENTRE_SHARE)) / mu
        noise = 2 * _FARTHEST * hidden * deviations  # twice: rounding adds to the sensitivity
        if shares := self.shares(plan):
            noise *= sqrt(task.clients / shares)
        return FixedPoint.for_sums(_largest_sum(task, plan) + noise, task.clients)

    def split(self, noise: float, shares: int) -> tuple[float, float]:
        """Return what the helper adds, and what each client adds itself, in steps of the integers.

        Each share is rounded, and a sum of rounded numbers is not a rounded sum. But given the sum
        T of k Gaussian numbers of σ steps, what rounding takes off all but one of them is uniform,
        up to a part of about k·e^(−π²σ²): so the sum of the rounded ones is T, less k − 1 uniform
        numbers, rounded, and tells no more than T. At 4 steps that part is below 10⁻⁶⁵.
        """
        if not shares:
            return noise, 0.0
        share = noise / sqrt(shares)
        if 0 < share < LEAST_SHARE:
            raise InputError(
                f"private.noise is 'clients': a share would be {share:.2g} steps of the integers, "
                f"and the proof needs {LEAST_SHARE:g}; choose 'helper', or a smaller epsilon"
            )
        return 0.0, share


def pool_weights(task: Task, plan: PrivatePlan) -> FloatArray:
    """Return the weights of the first sum, which is over whole pools."""
    expected = np.maximum(plan.loads * plan.chances, 1e-300)
    return np.where(plan.loads > 0, np.minimum(task.held / expected, plan.cap), 0.0)


def _shortest(values: list[float]) -> float | tuple[float, ...]:
    """Return one number where all clients have the same."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def _sensitivity(steps: FixedPoint, weight: float, numbers: int) -> float:
    """Return how far a record of this weight moves a sum, with a step for rounding.

    Another step is for the clients' floating-point sums.
    """
    return steps.distance(steps.distance(weight, numbers), numbers)


def _largest_sum(task: Task, plan: PrivatePlan) -> float:
    """Return how large a sum may become, allowing eight standard deviations for the draws."""
    mean = plan.loads * plan.rates
    drawn = np.minimum(mean + 8 * np.sqrt(mean) + 8, plan.loads)
    fair = task.held / np.maximum(plan.chances * mean, 1e-9)
    gradients = np.minimum(plan.caps, fair) * drawn
    moments = pool_weights(task, plan) * plan.loads
    return max(float(gradients.sum()), float(moments.sum()))
