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

For a wanted time from a cold start, the feature map and the number of features are chosen too. A
more accurate map takes longer to embed, and more features make longer messages and need more
points. Which map is more accurate cannot be planned: the maps are given in that order. Each is
planned as for `coded-newton`, and the last one that finishes in time is chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.errors import InputError
from codedfedl.fleet.costs import BlockSetup, embedding, parity
from codedfedl.fleet.devices import Fleet, Workload
from codedfedl.planning.allocation import Allocation, best_loads
from codedfedl.planning.cold_start import ColdStart, best_cold_start
from codedfedl.planning.plan import Plan, plan

__all__ = [
    "HoursPlan",
    "MapCost",
    "MapPlan",
    "Training",
    "arrivals_excess",
    "best_map",
    "cheapest_plan",
    "code_excess",
    "for_features",
    "plan_maps",
]

_REDUNDANCIES = np.geomspace(0.003, 0.6, 24)
_DEADLINE_COUNT = 120
_ROWS_TOLERANCE = 0.02  # of the rows, within which the total hardly changes


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


def arrivals_excess(
    loads: FloatArray | IntArray, chances: FloatArray, points: float, step: float
) -> float:
    """μ/2·Σ p(1 − p)ℓ²/m²: what arrivals that differ from round to round cost in the end."""
    return step / 2 * float((chances * (1 - chances) * loads**2).sum()) / points**2


def cheapest_plan(fleet: Fleet, training: Training, excess: float | None = None) -> HoursPlan:
    """Choose the parity that minimises set-up plus training time.

    Parameters
    ----------
    excess
        Relative excess of the objective that code and arrivals may leave, such as 0.5: then the
        deadline is chosen with the parity. It is an upper bound, as is the effective dimension: the
        measured excess is about half of it. By default the deadline follows from the parity by the
        paper's rule, E[return] = m − u.
    """
    if excess is None:
        return _by_the_rule(fleet, training)
    if not 0 < excess < np.inf:
        raise InputError(f"excess is {excess:g}: must be finite and above 0")
    points, features = float(fleet.points.sum()), training.workload.features
    deadlines = _deadlines(fleet)
    missing, arrival_variance = np.array(
        [_errors(best_loads(fleet, t), points, training.step) for t in deadlines]
    ).T
    reached = []
    for rows in sorted({max(1, round(share * points)) for share in _REDUNDANCIES}):
        left = code_excess(missing, points, rows, features) + arrival_variance
        enough = np.flatnonzero(left <= excess)
        if len(enough):
            deadline = deadlines[enough[0]]
            seconds = training.setup_seconds(fleet, rows) + training.rounds * deadline
            reached.append((seconds, rows, deadline))
    if not reached:
        raise InputError(
            f"an excess of {excess:g} is not reached by any deadline and parity: some clients are "
            "rarely present; raise it"
        )
    _, rows, deadline = min(reached)
    return _charged(fleet, training, plan(fleet, parity_rows=rows, deadline=deadline))


def _by_the_rule(fleet: Fleet, training: Training) -> HoursPlan:
    """Search the number of rows, each with the paper's deadline.

    More parity shortens rounds and lengthens the set-up, so the total has one valley; a coarse grid
    finds it wherever the deadline's steps make small ones beside it.
    """
    most = fleet.total_points
    least = min(1 + ceil(most - fleet.points @ fleet.availability), most)
    grid = np.unique(np.geomspace(least, most, 24).round().astype(np.int64))
    while True:
        plans = [_charged(fleet, training, plan(fleet, parity_rows=int(rows))) for rows in grid]
        best = int(np.argmin([candidate.seconds for candidate in plans]))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        if high - low <= max(2, _ROWS_TOLERANCE * low):
            return plans[best]
        grid = np.unique(np.append(np.linspace(low, high, 9).astype(np.int64), grid[best]))


def _charged(fleet: Fleet, training: Training, chosen: Plan) -> HoursPlan:
    """Return what a plan takes and leaves."""
    points, rows = float(fleet.points.sum()), chosen.parity_rows
    missing, arrival_variance = (
        points - chosen.expected_return,
        arrivals_excess(chosen.loads, chosen.return_probabilities, points, training.step),
    )
    setup = training.setup_seconds(fleet, rows)
    return HoursPlan(
        plan=chosen,
        nonzeros=training.nonzeros(fleet, rows),
        setup_seconds=setup,
        seconds=setup + training.rounds * chosen.deadline,
        excess=code_excess(missing, points, rows, training.workload.features) + arrival_variance,
    )


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


@dataclass(frozen=True)
class MapCost:
    """A feature map as a plan sees it.

    Attributes
    ----------
    features
        q.
    macs
        Operations to embed a point.
    stride
        Of patches; None for other kinds.
    """

    kind: str
    features: int
    macs: int
    stride: int | None = None


@dataclass(frozen=True, eq=False)
class MapPlan:
    """A feature map, and the cold start that is planned with it."""

    map: MapCost
    plan: ColdStart

    @property
    def hours(self) -> float:
        """Predicted hours to the wanted excess."""
        return self.plan.seconds / 3600


def for_features(fleet: Fleet, workload: Workload, features: int) -> Fleet:
    """Return the same devices with a model of another number of features.

    The time of a point and of a packet is proportional to the number of features.
    """
    times = features / workload.features
    return replace(
        fleet,
        rate=fleet.rate / times,
        packet_time=fleet.packet_time * times,
        packet_time_up=fleet.packet_time_up * times,
    )


def plan_maps(
    fleet: Fleet,
    workload: Workload,
    held: npt.ArrayLike,
    maps: Sequence[MapCost],
    excess: float,
    mixing: int,
) -> list[MapPlan]:
    """Plan a cold start with each map.

    Parameters
    ----------
    fleet, workload
        The devices, and the model that their rates and packets are for.
    held : array of shape (n,)
        Total points of each client.
    excess
        Wanted relative excess of the objective.
    mixing
        Points mixed into every parity row.
    """
    plans = []
    for candidate in maps:
        devices = for_features(fleet, workload, candidate.features)
        work = replace(workload, features=candidate.features)
        ways = BlockSetup(work, candidate.macs, 1, mixing, bits=16).ways()
        plans.append(MapPlan(candidate, best_cold_start(devices, held, ways, excess)[0]))
    return plans


def best_map(plans: Sequence[MapPlan], hours: float) -> MapPlan:
    """Return the last plan, that of the most accurate map, that finishes in this many hours."""
    done = [plan for plan in plans if plan.hours <= hours]
    if not done:
        soonest = min(plan.hours for plan in plans)
        raise InputError(
            f"no feature map is trained within {hours:g} h: the soonest takes {soonest:.2g} h; "
            "give more time, or ask for a larger --excess"
        )
    return done[-1]
