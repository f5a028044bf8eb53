"""`uncoded`: wait for everybody, as ordinary synchronous federated learning does."""

from dataclasses import dataclass
from typing import ClassVar

from codedfedl.core.client import Gradient
from codedfedl.core.protocol import Ask, Inbox, Scheme, State, refuse_absent
from codedfedl.core.waiting import Everyone
from codedfedl.fleet.delays import DelayDistribution
from codedfedl.fleet.devices import Fleet

__all__ = ["Uncoded"]


@dataclass(frozen=True)
class Uncoded(Scheme):
    """Every client processes all its points; the server waits for all."""

    name: ClassVar[str] = "uncoded"
    baseline: ClassVar[str] = "waiting for all"
    featured: ClassVar[bool] = True

    def check(self, fleet: Fleet | DelayDistribution) -> None:
        """Refuse fleets for which waiting would never end."""
        refuse_absent(fleet, "uncoded waits for all")

    def ask(self, state: State) -> Ask | None:
        """Ask for the gradient over all points."""
        if state.finished:
            return None
        batch = state.task.batch(state.round)
        return Ask(Gradient(batch), Everyone(), state.task.points[batch])

    def receive(self, state: State, inbox: Inbox) -> State:
        """Take a step along the full gradient."""
        return state.descended(inbox.total(), inbox.points)
