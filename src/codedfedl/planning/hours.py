"""The plan that minimises hours: deadline, loads and parity rows together, with the set-up charged.

The paper's rule E[return] = m − u is one choice of many: its weights make the gradient unbiased for
every deadline t and every u. What t and u decide is the error that is left. With M(t) the points
that are expected to be missing,

- *the code*. It is drawn once, so that GᵀG − I is a fixed error: training ends at the minimum of
  another quadratic. Its relative excess is (M/m)²·d/u, where d, the effective dimension, is at most
  the number of features.
- *arrivals*. They differ in every round, so that the model fluctuates around that minimum. In the
  worst case, where the gradients of a client's points are parallel, this costs μ/2·Σ p(1 − p)ℓ²/m²
  for steps of size μ.

The derivation is on the theory page. `sketch-solve` is the corner t = 0, where all of m is missing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from codedfedl.arrays import FloatArray
from codedfedl.errors import InputError
from codedfedl.fleet.costs import embedding, parity
from codedfedl.fleet.devices import Fleet, Workload
from codedfedl.planning.allocation import Allocation, best_loads
from codedfedl.planning.plan import Plan, plan

__all__ = [
    "HoursPlan",
    "Training",
    "arrivals_excess",
    "cheapest_plan",
    "code_excess",
    "plan_hours",
]

_REDUNDANCIES = np.geomspace(0.003, 0.6, 24)
_DEADLINE_COUNT = 120


@dataclass(frozen=True)
class Training:
    """What the planner must know of the training besides the fleet.

    Attributes
    ----------
    workload
        What a point and a packet cost.
    feature_macs
        Multiply-accumulates to embed a point.
    batches
        Mini-batches, each encoded separately; the fleet's points are those of one.
    rounds
        How many rounds an exact gradient would need.
    step
        μ.
    mixing
        Average number of a client's points behind a parity row; 0 for a dense code.
    """

    workload: Workload
    feature_macs: int
    batches: int
    rounds: int
    step: float
    mixing: int

    def __post_init__(self) -> None:
        for name in ("feature_macs", "batches", "rounds"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}: must be at least 1")

    def nonzeros(self, fleet: Fleet, rows: int) -> int:
        """Return how many parity rows a point enters."""
        if not self.mixing:
            return rows
        fewest = max(float(fleet.points[fleet.points > 0].min(initial=np.inf)), 1.0)
        return min(rows, max(1, ceil(self.mixing * rows / fewest)))

    def setup_seconds(self, fleet: Fleet, rows: int) -> float:
        """Return the mean set-up of the client that takes longest."""
        points = np.tile(fleet.points, (self.batches, 1))
        each = [self.nonzeros(fleet, rows)] * self.batches
        embed = embedding(points.sum(0), self.feature_macs)
        encode = parity(points, [rows] * self.batches, self.workload, each)
        both = embed.mean_seconds(fleet, self.workload) + encode.mean_seconds(fleet, self.workload)
        return float(both.max())


@dataclass(frozen=True, eq=False)
class HoursPlan:
    """A plan, and what it is expected to take and to leave.

    Attributes
    ----------
    plan
        Loads, deadline and parity rows.
    nonzeros
        Rows that a point goes into.
    setup_seconds, seconds
        Of the set-up, and of everything.
    excess
        Relative excess of the objective in the end.
    """

    plan: Plan
    nonzeros: int
    setup_seconds: float
    seconds: float
    excess: float


def code_excess(missing: Any, points: float, rows: int, features: int) -> Any:
    """(M/m)²·d/u: what a code that is drawn once costs in the end."""
    return (missing / points) ** 2 * features / rows


def arrivals_excess(loads: FloatArray, chances: FloatArray, points: float, step: float) -> float:
    """μ/2·Σ p(1 − p)ℓ²/m²: what arrivals that differ from round to round cost in the end."""
    return step / 2 * float((chances * (1 - chances) * loads**2).sum()) / points**2


def plan_hours(fleet: Fleet, training: Training, wanted: float) -> HoursPlan:
    """Choose deadline, loads and parity rows for the smallest charged time to a wanted excess.

    Parameters
    ----------
    wanted
        Relative excess of the objective that code and arrivals may leave, such as 0.5. It is an
        upper bound, as is the effective dimension: the measured excess is about half of it.
    """
    if not 0 < wanted < np.inf:
        raise InputError(f"excess is {wanted:g}: must be finite and above 0")
    points, features = float(fleet.points.sum()), training.workload.features
    deadlines = _deadlines(fleet)
    missing, arrival_variance = np.array(
        [_errors(best_loads(fleet, t), points, training.step) for t in deadlines]
    ).T
    reached = []
    for rows in sorted({max(1, round(share * points)) for share in _REDUNDANCIES}):
        excess = code_excess(missing, points, rows, features) + arrival_variance
        enough = np.flatnonzero(excess <= wanted)
        if len(enough):
            setup, soonest = training.setup_seconds(fleet, rows), enough[0]
            seconds = setup + training.rounds * deadlines[soonest]
            reached.append((seconds, setup, rows, deadlines[soonest], excess[soonest]))
    if not reached:
        raise InputError(
            f"an excess of {wanted:g} is not reached by any deadline and parity: some clients are "
            "rarely present; raise it"
        )
    seconds, setup, rows, deadline, left = min(reached)
    chosen = best_loads(fleet, deadline)
    loads = chosen.loads.astype(np.int64)
    best = Plan(fleet.client, fleet.points, deadline, loads, chosen.return_probabilities, rows)
    return HoursPlan(best, training.nonzeros(fleet, rows), setup, seconds, float(left))


def cheapest_plan(
    fleet: Fleet, rounds: int, setup_seconds: Callable[[int], float]
) -> tuple[Plan, float]:
    """Choose the parity that minimises set-up plus training time.

    Parameters
    ----------
    rounds
        Number of rounds of training, assumed not to depend on the parity.
    setup_seconds
        Set-up time for a number of parity rows, such as `Training.setup_seconds`.

    Returns
    -------
    Plan, float
        The plan, and its total time in seconds.
    """
    from scipy.optimize import minimize_scalar  # here: other plans start faster without it

    if not rounds >= 1:
        raise InputError(f"rounds is {rounds}: must be at least 1")

    def total_seconds(rows: float) -> float:
        u = round(rows)
        return setup_seconds(u) + rounds * plan(fleet, parity_rows=u).deadline

    # More parity shortens rounds and lengthens the set-up, so the total has one valley; a coarse
    # grid finds it wherever the deadline's steps make small ones beside it.
    most = fleet.total_points
    least = min(1 + ceil(most - fleet.points @ fleet.availability), most)
    grid = np.unique(np.round(np.geomspace(least, most, 24)))
    costs = [total_seconds(rows) for rows in grid]
    around = int(np.argmin(costs))
    low, high = grid[max(around - 1, 0)], grid[min(around + 1, len(grid) - 1)]
    fine = minimize_scalar(
        total_seconds, bounds=(low, high), method="bounded", options={"xatol": 0.5}
    )
    rows = grid[around] if costs[around] <= fine.fun else fine.x
    return plan(fleet, parity_rows=round(rows)), min(costs[around], fine.fun)


def _errors(best: Allocation, points: float, step: float) -> tuple[float, float]:
    """Return the points expected missing, and what the arrivals leave."""
    loads, chances = best.loads, best.return_probabilities
    missing = points - float((loads * chances).sum())
    return missing, arrivals_excess(loads, chances, points, step)


def _deadlines(fleet: Fleet) -> FloatArray:
    """Return deadlines worth trying, from one point on the fastest client to all on the slowest."""
    first = float(fleet.mean(np.ones(len(fleet))).min())
    last = float(fleet.mean(fleet.points).max())
    return np.geomspace(first / 2, 4 * last, _DEADLINE_COUNT)
