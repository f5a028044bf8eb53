"""`partial`: the paper's deadline and loads without its parity.

Each gradient that arrives is divided by its return probability, and represents all points of its
client: unbiased over arrivals, and the server needs only the sum.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from codedfedl.arrays import Array
from codedfedl.core.client import WeightedGradient
from codedfedl.core.disclosure import Disclosed, Disclosure
from codedfedl.core.protocol import Ask, Inbox, Limits, Scheme, Task
from codedfedl.core.task import Descent
from codedfedl.core.waiting import Until
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel
from codedfedl.learning.optimisers import optimiser
from codedfedl.planning.plan import Plan, plan

__all__ = ["Partial"]


@dataclass(frozen=True, eq=False)
class PartialState(Descent):
    """The plan of every mini-batch."""

    plans: tuple[Plan, ...] = field(default=())


@dataclass(frozen=True)
class Partial(Scheme):
    """A deadline, and inverse probabilities.

    Parameters
    ----------
    missing
        Share of the points that the deadline may miss in expectation, like `coded`'s redundancy.
    deadline : seconds
        Deadline of every round; by default the smallest that misses no more.
    optimiser
        ``gd`` or ``nesterov``.
    """

    missing: float = 0.1
    deadline: float | None = None
    optimiser: str = "gd"

    name: ClassVar[str] = "partial"
    takes_any_delays: ClassVar[bool] = True
    disclosure: ClassVar[Disclosed] = frozenset({Disclosure.GRADIENTS})

    def __post_init__(self) -> None:
        if not 0 < self.missing < 1:
            raise InputError(
                f"partial.missing is {self.missing:g}: must lie between 0 and 1, both excluded"
            )
        optimiser(self.name, self.optimiser, same_points=False)

    def within(self, limits: Limits) -> "Partial":
        """Take the operator's deadline."""
        return replace(self, deadline=self.deadline or limits.deadline)

    @property
    def plans_deadline(self) -> bool:
        """Whether the deadline is the plan's."""
        return self.deadline is None

    def start(self, task: Task, fleet: DelayModel, model: Array) -> PartialState:
        """Plan every mini-batch as the paper does, and drop the parity."""
        held = {points.tobytes(): points for points in task.points}  # often the same in all
        plans = {
            key: plan(fleet, self.missing, points=points, deadline=self.deadline)
            for key, points in held.items()
        }
        chosen = optimiser(self.name, self.optimiser, same_points=False)
        mine = tuple(plans[points.tobytes()] for points in task.points)
        return PartialState(task, model, optimiser=chosen, plans=mine)

    def ask(self, state: PartialState) -> Ask | None:
        """Ask for gradients until the deadline, each weighted by its inverse return probability."""
        if state.finished:
            return None
        batch = state.task.batch(state.round)
        chosen, points = state.plans[batch], state.task.points[batch]
        expected = np.maximum(chosen.loads * chosen.return_probabilities, 1e-300)
        weights = np.where(chosen.loads > 0, points / expected, 0.0)
        work = WeightedGradient(batch, weights)
        return Ask(work, Until(chosen.deadline), chosen.loads, model=state.question)

    def receive(self, state: PartialState, inbox: Inbox) -> PartialState:
        """Take a step along the weighted sum."""
        batch = state.task.batch(state.round)
        return state.descended(inbox.total(), float(state.task.points[batch].sum()))

    def plan(self, state: PartialState) -> Plan:
        """Return the plan of the first mini-batch."""
        return state.plans[0]

    def facts(self, state: PartialState) -> dict[str, float]:
        """Return the plan's predictions."""
        return {
            "round_deadline_s": state.plans[0].deadline,
            "expected_return": state.plans[0].expected_return,
        }
