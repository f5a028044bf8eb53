"""`partial`: the paper's deadline and loads without its parity.

Each gradient that arrives is divided by its return probability: unbiased over arrivals, and the
server needs only the sum. It represents all points of its client, or of its classes
(`planning.strata`): then clients say their label counts, and in a first round, at a model of zeros,
the features' sums of each class.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from codedfedl.arrays import Array, FloatArray
from codedfedl.core.client import FirstGradient, WeightedGradient
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import (
    EACH,
    AnyLimits,
    Ask,
    Description,
    Inbox,
    Info,
    Rng,
    Scheme,
    Task,
)
from codedfedl.core.task import Descent
from codedfedl.core.waiting import Until
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel
from codedfedl.learning.optimisers import optimiser
from codedfedl.planning.plan import Plan, plan
from codedfedl.schemes.by_class import ByClass, ask_counts

__all__ = ["Partial"]


@dataclass(frozen=True, eq=False)
class PartialState(Descent):
    """The plan of every mini-batch, the deadline of the first one if chosen, and label counts."""

    plans: tuple[Plan, ...] = ()
    planned_deadline: float | None = None
    counts_classes: bool = False
    by_class: ByClass | None = None

    @property
    def checkpointed(self) -> bool:
        """Label counts are remembered."""
        return super().checkpointed and not self.counts_classes


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

    info: ClassVar[Info] = Info(
        "partial", frozenset({Disclosure.GRADIENTS, Disclosure.COUNTS}), any_delays=True
    )

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
        counts = not self.secure and task.learner.quadratic and limits is None
        state = PartialState(task, model, optimiser=chosen, plans=plans, counts_classes=counts)
        return replace(state, planned_deadline=planned)

    def ask(self, state: PartialState) -> Ask | None:
        """Ask for gradients until the deadline, each weighted by its inverse return probability."""
        if state.finished:
            return None
        batch = state.task.batch(state.round)
        chosen = state.plans[batch]
        if state.counts_classes and state.by_class is None:
            return ask_counts(chosen.deadline)
        if state.counts_classes and not state.round:
            return Ask(FirstGradient(grows=False), Until(chosen.deadline), combine=EACH)
        expected = np.maximum(chosen.loads * chosen.return_probabilities, 1e-300)
        weights = np.where(chosen.loads > 0, self._represented(state, batch) / expected, 0.0)
        work = WeightedGradient(batch, weights)
        return Ask(work, Until(chosen.deadline), chosen.loads, model=state.question)

    @staticmethod
    def _represented(state: PartialState, batch: int) -> FloatArray:
        """Return for how many points of a mini-batch each answer counts, shape (n,)."""
        task, points = state.task, state.task.points[batch]
        if state.by_class is None:
            return np.asarray(points, dtype=np.float64)
        shares = points / np.maximum(task.held, 1)
        part = replace(state.by_class, counts=state.by_class.counts * shares[:, None])
        return part.represented(state.plans[batch].loads)

    def receive(self, state: PartialState, inbox: Inbox) -> PartialState:
        """Take a step along the weighted sum."""
        task = state.task
        if state.counts_classes and state.by_class is None:
            return replace(state, by_class=ByClass.of(inbox.replies, task))
        if state.by_class is not None and not state.round:
            by_class, _, total = state.by_class.first_step(inbox, task)
            return replace(state, by_class=by_class).descended(total, float(task.held.sum()))
        batch = task.batch(state.round)
        return state.descended(inbox.total(), float(task.points[batch].sum()))

    def describe(self, state: PartialState) -> Description:
        """Return the plan of the first mini-batch, and its predictions."""
        chosen = state.plans[0]
        facts = {
            "round_deadline_s": chosen.deadline,
            "expected_return": chosen.expected_return,
        }
        return Description(chosen, facts, planned_deadline=state.planned_deadline)
