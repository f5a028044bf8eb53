"""Slow references: SciPy on one piece at a time, and sums term by term.

The paper's own formulas are in `codedfedl.planning.theorem`.
"""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from codedfedl import Fleet
from codedfedl.arrays import FloatArray
from codedfedl.planning.allocation import DEADLINE_TOLERANCE

RootFinder = Callable[..., float]


def clients(fleet: Fleet) -> Iterator[Fleet]:
    for j in range(len(fleet)):
        yield fleet.take(np.array([j]))


class ScipyClient:
    """One bounded SciPy minimisation per concave piece, with the sum over ν as an array."""

    def __init__(self, client: Fleet) -> None:
        self.points, self.rate, self.alpha, self.tau, self.p = (
            float(column[0])
            for column in (
                client.points,
                client.rate,
                client.alpha,
                client.packet_time,
                client.erasure,
            )
        )
        useful = 2 if self.p == 0 else 2 + math.ceil(math.log(1e-17) / math.log(self.p))
        nu = np.arange(2, useful + 1)
        self.arrival = nu * self.tau
        self.weight = (nu - 1) * (1 - self.p) ** 2 * self.p ** (nu - 2.0)

    def expected_return(self, load: float, t: float) -> float:
        spare = t - load / self.rate - self.arrival
        spare = spare[spare > 0]
        late = np.exp(-self.alpha * self.rate / load * spare)
        return load * float(self.weight[: len(spare)] @ (1 - late))

    def best_return(self, t: float) -> float:
        edges = self.rate * (t - self.arrival[self.arrival < t])[::-1]
        edges = np.unique(np.append(np.minimum(edges, self.points), 0.0))
        best = 0.0
        for low, high in pairwise(edges):
            found = minimize_scalar(
                lambda load: -self.expected_return(load, t), bounds=(low, high), method="bounded"
            )
            best = max(best, -found.fun, self.expected_return(high, t))
        return best


def deadline_by_scipy(fleet: Fleet, target: float, root_finder: RootFinder = brentq) -> float:
    """The continuous optimum with SciPy's own tools throughout."""
    solvers = [ScipyClient(client) for client in clients(fleet)]

    def gap(t: float) -> float:
        return sum(solver.best_return(t) for solver in solvers) - target

    high = 1.0
    while gap(high) < 0:
        high *= 4
    return float(root_finder(gap, high / 4 if high > 1 else 1e-9, high, rtol=DEADLINE_TOLERANCE))


def asymmetric_cdf(client: Fleet, load: float, t: float) -> float:
    """P(T ≤ t) of one client that takes part: every pair of attempts, one row at a time."""
    compute = load / float(client.rate[0])
    spare = t - float(client.overhead[0]) - compute
    links = (
        (client.packet_time, client.erasure),
        (client.packet_time_up, client.erasure_up),
    )
    (down, p_down), (up, p_up) = (
        (float(tau[0]), float(p[0]) if tau[0] > 0 else 0.0) for tau, p in links
    )
    downs = np.arange(1, _attempts(down, p_down, spare) + 1)
    ups = np.arange(1, _attempts(up, p_up, spare) + 1)
    chance_up = (1 - p_up) * p_up ** (ups - 1.0)
    total = 0.0
    for k in downs:
        left = spare - k * down - ups * up
        exponent = np.minimum(client.alpha * np.maximum(left, 0.0) / compute, 1e3)
        total += (1 - p_down) * p_down ** (k - 1.0) * float(chance_up @ -np.expm1(-exponent))
    return total


def _attempts(tau: float, p: float, spare: float) -> int:
    """Attempts that fit and are not beyond rounding; a packet without time arrives at once."""
    if tau == 0:
        return 1 if spare > 0 else 0
    useful = 1 if p == 0 else math.ceil(math.log(1e-19) / math.log(p))
    return max(min(useful, math.ceil(min(spare / tau, 1e6))), 0)


def truncated_sums(
    t: float, last: int, compute: float, alpha: float, tau: float, p: float
) -> FloatArray:
    """A, A', A'', P(N ≤ last) and E[N | N ≤ last], term by term."""
    nu = np.arange(2, last + 1)
    weight = (nu - 1) * (1 - p) ** 2 * p ** (nu - 2.0)
    b = alpha * (t - nu * tau)
    late = weight * np.exp(alpha - b / compute)
    arrived = weight.sum()
    return np.array(
        [
            late.sum(),
            -(b * late).sum(),
            (b**2 * late).sum(),
            arrived,
            (nu * weight).sum() / arrived,
        ]
    )
