"""`one-shot`: every client's Gram matrix and moments, once, and exact ridge regression."""

from dataclasses import dataclass, replace
from typing import ClassVar

from array_api_compat import array_namespace

from codedfedl.arrays import Array
from codedfedl.fleet.devices import Fleet
from codedfedl.schemes.base import Ask, AskGram, Inbox, State, Task, refuse_absent

__all__ = ["OneShot"]


@dataclass(frozen=True)
class OneShot:
    """The exact minimiser of the ridge objective over all points, from one upload."""

    name: ClassVar[str] = "one-shot"

    def start(self, task: Task, fleet: Fleet, model: Array) -> State:
        """Refuse fleets for which waiting would never end."""
        refuse_absent(fleet, "one-shot waits for all")
        return State(task, model)

    def ask(self, state: State) -> Ask | None:
        """Ask once."""
        return AskGram() if state.round == 0 else None

    def receive(self, state: State, inbox: Inbox) -> State:
        """Solve."""
        assert inbox.gram is not None
        xp = array_namespace(state.model)
        solution = inbox.gram.minimum(state.task.ridge * inbox.points)
        return replace(state, model=xp.astype(solution, xp.float32), round=1)
