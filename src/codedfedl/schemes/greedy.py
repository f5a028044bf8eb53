"""`greedy`: wait for the fastest clients only, and forget the others."""

from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

from codedfedl.arrays import Array
from codedfedl.errors import InputError
from codedfedl.fleet.devices import Fleet
from codedfedl.learning.training import step
from codedfedl.schemes.base import Ask, AskGradient, Fastest, Inbox, State, Task, refuse_absent

__all__ = ["Greedy"]


@dataclass(frozen=True)
class Greedy:
    """The round ends when a share 1 − ψ of the clients has answered.

    Parameters
    ----------
    drop
        ψ, the share of the clients whose answers are not waited for.
    """

    drop: float = 0.1

    name: ClassVar[str] = "greedy"

    def __post_init__(self) -> None:
        if not 0 <= self.drop < 1:
            raise InputError(f"greedy.drop is {self.drop:g}: must be at least 0 and below 1")

    def start(self, task: Task, fleet: Fleet, model: Array) -> State:
        """Refuse fleets for which waiting might never end."""
        refuse_absent(fleet, "greedy waits for a number of clients")
        return State(task, model)

    def ask(self, state: State) -> Ask | None:
        """Ask all for the gradient over all points, and wait for the fastest."""
        if state.finished:
            return None
        batch = state.task.batch(state.round)
        count = max(1, ceil((1 - self.drop) * state.task.clients - 1e-9))
        return AskGradient(state.round, batch, state.task.points[batch], Fastest(count))

    def receive(self, state: State, inbox: Inbox) -> State:
        """Take a step along the mean gradient of the points that arrived."""
        size = state.task.step_size(state.round)
        model = step(state.model, inbox.total, inbox.points, size, state.task.ridge)
        return replace(state, model=model, round=state.round + 1)
