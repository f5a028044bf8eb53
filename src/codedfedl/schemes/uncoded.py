"""`uncoded`: wait for everybody, as ordinary synchronous federated learning does."""

from dataclasses import dataclass, replace
from typing import ClassVar

from codedfedl.arrays import Array
from codedfedl.fleet.devices import Fleet
from codedfedl.learning.training import step
from codedfedl.schemes.base import Ask, AskGradient, Everyone, Inbox, State, Task, refuse_absent

__all__ = ["Uncoded"]


@dataclass(frozen=True)
class Uncoded:
    """Every client processes all its points; the server waits for all."""

    name: ClassVar[str] = "uncoded"

    def start(self, task: Task, fleet: Fleet, model: Array) -> State:
        """Refuse fleets for which waiting would never end."""
        refuse_absent(fleet, "uncoded waits for all")
        return State(task, model)

    def ask(self, state: State) -> Ask | None:
        """Ask for the gradient over all points."""
        if state.finished:
            return None
        batch = state.task.batch(state.round)
        return AskGradient(state.round, batch, state.task.points[batch], Everyone())

    def receive(self, state: State, inbox: Inbox) -> State:
        """Take a step along the full gradient."""
        size = state.task.step_size(state.round)
        model = step(state.model, inbox.total, inbox.points, size, state.task.ridge)
        return replace(state, model=model, round=state.round + 1)
