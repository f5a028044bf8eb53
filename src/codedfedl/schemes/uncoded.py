"""`uncoded`: wait for all clients, as in ordinary synchronous federated learning."""

from dataclasses import dataclass
from typing import ClassVar

from codedfedl.arrays import Array
from codedfedl.core.client import Embedded
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import AnyLimits, Ask, Inbox, Info, Rng, Scheme, Task
from codedfedl.core.task import Descent
from codedfedl.core.waiting import Everyone
from codedfedl.fleet.delays import DelayModel
from codedfedl.learning.optimisers import chosen_optimiser, optimiser
from codedfedl.schemes.settings import check_load, equal_loads, represented

__all__ = ["Uncoded"]


@dataclass(frozen=True)
class Uncoded(Scheme):
    """Every client processes all its points; the server waits for all.

    Parameters
    ----------
    optimiser
        ``gd``, ``nesterov``, ``adam``, …; or ``block-cg``, which ignores mini-batches. By default
        ``auto``: block-cg, but gd where steps are asked for, as the paper's are, in a federation,
        for a network, or with a load; and nesterov where clients may be absent.
    load
        Points that each client processes in a round, drawn anew; by default its whole mini-batch.
    """

    optimiser: str = "auto"
    load: int | None = None

    info: ClassVar[Info] = Info(
        "uncoded", frozenset({Disclosure.GRADIENTS}), featured=True, baseline="waiting for all"
    )

    def __post_init__(self) -> None:
        check_load(self)
        if self.optimiser != "auto":
            optimiser(self.info.name, self.optimiser, same_points=self.load is None)

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> Descent:
        """Start at 0."""
        steps = task.schedule.chosen or not task.learner.quadratic or self.load is not None
        absent = bool((fleet.availability < 1).any())
        name = chosen_optimiser(self.optimiser, steps=steps, absent=absent)
        chosen = optimiser(self.info.name, name, same_points=self.load is None)
        return Descent(task, model, optimiser=chosen)

    def ask(self, state: Descent) -> Ask | None:
        """Ask for the gradient over all points."""
        if state.finished:
            return None
        if state.optimiser.same_points:
            return Ask(Embedded(grows=False), Everyone(), model=state.question)
        work, loads = equal_loads(state.task, state.round, self.load)
        return Ask(work, Everyone(), loads, model=state.question)

    def receive(self, state: Descent, inbox: Inbox) -> Descent:
        """Take a step along the full gradient."""
        points = inbox.points if self.load is None else represented(state.task, state.round, inbox)
        return state.descended(inbox.total(), points)
