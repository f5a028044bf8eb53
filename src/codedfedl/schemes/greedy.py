"""`greedy`: wait for the fastest clients only, and ignore the others."""

from dataclasses import dataclass
from typing import ClassVar

from codedfedl.arrays import Array
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import AnyLimits, Ask, Inbox, Info, Rng, Scheme, Task
from codedfedl.core.task import Descent
from codedfedl.fleet.delays import DelayModel
from codedfedl.learning.optimisers import optimiser
from codedfedl.schemes.settings import (
    all_but_slowest,
    check_drop,
    check_load,
    equal_loads,
    represented,
)


@dataclass(frozen=True)
class Greedy(Scheme):
    """The round ends when a share 1 − ψ of the clients has answered.

    Parameters
    ----------
    drop
        ψ, the share of the clients that a round does not wait for, the slowest ones: ⌈(1 − ψ)·n⌉
        are waited for.
    optimiser
        ``gd``, ``nesterov``, ``adam``, …
    load
        Points that each client processes in a round, drawn anew; by default its whole mini-batch.
    """

    drop: float = 0.1
    optimiser: str = "gd"
    load: int | None = None

    info: ClassVar[Info] = Info("greedy", frozenset({Disclosure.GRADIENTS}))

    def __post_init__(self) -> None:
        check_drop(self.info.name, self.drop)
        check_load(self)
        optimiser(self.info.name, self.optimiser, same_points=False)

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> Descent:
        """Start at 0."""
        chosen = optimiser(self.info.name, self.optimiser, same_points=False)
        return Descent(task, model, optimiser=chosen)

    def ask(self, state: Descent) -> Ask | None:
        """Ask all for the gradient over all points, and wait for the fastest."""
        if state.finished:
            return None
        wait = all_but_slowest(self.drop, state.task.clients)
        work, loads = equal_loads(state.task, state.round, self.load)
        return Ask(work, wait, loads, model=state.question)

    def receive(self, state: Descent, inbox: Inbox) -> Descent:
        """Take a step along the mean gradient of the points that arrived."""
        return state.descended(inbox.total(), represented(state.task, state.round, inbox))
