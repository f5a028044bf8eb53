"""`uncoded`: wait for all clients, as in ordinary synchronous federated learning."""

from dataclasses import dataclass
from typing import ClassVar

from codedfedl.arrays import Array
from codedfedl.core.client import Embedded, Gradient
from codedfedl.core.disclosure import Disclosed, Disclosure
from codedfedl.core.protocol import Ask, Inbox, Scheme, Task, refuse_absent
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

    name: ClassVar[str] = "uncoded"
    disclosure: ClassVar[Disclosed] = frozenset({Disclosure.GRADIENTS})
    baseline: ClassVar[str] = "waiting for all"
    featured: ClassVar[bool] = True

    def __post_init__(self) -> None:
        optimiser(self.name, self.optimiser, same_points=True)

    def check(self, fleet: DelayModel) -> None:
        """Refuse fleets for which waiting would never end."""
        refuse_absent(fleet, "uncoded waits for all")

    def start(self, task: Task, fleet: DelayModel, model: Array) -> Descent:
        """Start at 0."""
        return Descent(
            task, model, optimiser=optimiser(self.name, self.optimiser, same_points=True)
        )

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
