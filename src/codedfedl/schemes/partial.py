"""`partial`: the paper's deadline and loads without its parity.

Each gradient that arrives is divided by its return probability, and represents all points of its
client: unbiased over arrivals, and the server needs only the sum.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from codedfedl.arrays import Array
from codedfedl.core.client import WeightedGradient
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import AnyLimits, Ask, Description, Inbox, Info, Rng, Scheme, Task
from codedfedl.core.task import Descent
from codedfedl.core.waiting import Until
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel
from codedfedl.learning.optimisers import optimiser
from codedfedl.planning.plan import Plan, plan

__all__ = ["Partial"]


@dataclass(frozen=True, eq=False)
class PartialState(Descent):
    """The plan of every mini-batch, and the deadline of the first one if it was chosen."""

    plans: tuple[Plan, ...] = ()
    planned_deadline: float | None = None


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

    info: ClassVar[Info] = Info("partial", frozenset({Disclosure.GRADIENTS}), any_delays=True)

    def __post_init__(self) -> None:
        if not 0 < self.missing < 1:
            raise InputError(
                f"partial.missing is {self.missing:g}: must lie between 0 and 1, both excluded"
            )
        optimiser(self.info.name, self.optimiser, same_points=False)

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> PartialState:
        """Plan every mini-batch as the paper does, and drop the parity."""
        deadline = self.deadline
        if limits is not None:
            deadline = deadline or limits.deadline or limits.first_deadline
        plans = task.each_batch(
            lambda points: plan(fleet, self.missing, points=points, deadline=deadline)
        )
        chosen = optimiser(self.info.name, self.optimiser, same_points=False)
        planned = plans[0].deadline if deadline is None else None
        return PartialState(task, model, optimiser=chosen, plans=plans, planned_deadline=planned)

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

    def describe(self, state: PartialState) -> Description:
        """Return the plan of the first mini-batch, and its predictions."""
        chosen = state.plans[0]
        facts = {
            "round_deadline_s": chosen.deadline,
            "expected_return": chosen.expected_return,
        }
        return Description(chosen, facts, planned_deadline=state.planned_deadline)
