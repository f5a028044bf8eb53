"""`uncoded`: wait for all clients, as in ordinary synchronous federated learning."""

from dataclasses import dataclass
from typing import ClassVar

from codedfedl.arrays import Array
from codedfedl.core.client import Embedded, Gradient
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import AnyLimits, Ask, Inbox, Info, Rng, Scheme, Task
from codedfedl.core.task import Descent
from codedfedl.core.waiting import Everyone
from codedfedl.fleet.delays import DelayModel
from codedfedl.learning.optimisers import optimiser

__all__ = ["Uncoded"]


@dataclass(frozen=True)
class Uncoded(Scheme):
    """Every client processes all its points; the server waits for all.

    Parameters
    ----------
    optimiser
        ``gd``, ``nesterov``, or ``block-cg``, which ignores mini-batches.
    """

    optimiser: str = "gd"

    info: ClassVar[Info] = Info(
        "uncoded",
        frozenset({Disclosure.GRADIENTS}),
        featured=True,
        baseline="waiting for all",
        waits="waits for all",
    )

    def __post_init__(self) -> None:
        optimiser(self.info.name, self.optimiser, same_points=True)

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> Descent:
        """Start at 0."""
        chosen = optimiser(self.info.name, self.optimiser, same_points=True)
        return Descent(task, model, optimiser=chosen)

    def ask(self, state: Descent) -> Ask | None:
        """Ask for the gradient over all points."""
        if state.finished:
            return None
        if state.optimiser.same_points:
            return Ask(Embedded(grows=False), Everyone(), model=state.question)
        batch = state.task.batch(state.round)
        return Ask(Gradient(batch), Everyone(), state.task.points[batch], model=state.question)

    def receive(self, state: Descent, inbox: Inbox) -> Descent:
        """Take a step along the full gradient."""
        return state.descended(inbox.total(), inbox.points)
