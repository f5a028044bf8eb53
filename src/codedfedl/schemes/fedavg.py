"""`fedavg`: several local steps on each client, and the mean of the models."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from codedfedl.core.client import LocalModel
from codedfedl.core.disclosure import Disclosed, Disclosure
from codedfedl.core.protocol import Ask, Inbox, Limits, Scheme, State, refuse_absent
from codedfedl.core.waiting import Everyone, Until, Wait
from codedfedl.core.work import Work
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel

__all__ = ["FedAvg"]


@dataclass(frozen=True)
class FedAvg(Scheme):
    """Federated averaging over all clients, or over those that meet a deadline.

    Parameters
    ----------
    local_steps
        Gradient steps that a client takes on its mini-batch before it answers.
    deadline : seconds, optional
        Wait no longer than this; by default wait for all clients.
    step
        Size of a local step; by default the schedule's, which is often too large for the points
        of a single client.
    """

    local_steps: int = 5
    deadline: float | None = None
    step: float | None = None

    name: ClassVar[str] = "fedavg"
    disclosure: ClassVar[Disclosed] = frozenset({Disclosure.MODELS})

    def __post_init__(self) -> None:
        if self.local_steps < 1:
            raise InputError(f"{self.name}.local_steps is {self.local_steps}: must be at least 1")
        for name in ("deadline", "step"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{self.name}.{name} is {value:g}: must be above 0")

    def check(self, fleet: DelayModel) -> None:
        """Refuse fleets for which waiting would never end."""
        if self.deadline is None:
            refuse_absent(fleet, f"{self.name} without {self.name}.deadline waits for all")

    def within(self, limits: Limits) -> Self:
        """Take the operator's deadline."""
        return self if self.deadline else replace(self, deadline=limits.deadline)

    def ask(self, state: State) -> Ask | None:
        """Ask for local steps."""
        if state.finished:
            return None
        task = state.task
        batch = task.batch(state.round)
        wait: Wait = Everyone() if self.deadline is None else Until(self.deadline)
        size = task.step_size(state.round)
        if self.step is not None:
            size *= self.step / task.schedule.step
        return Ask(self._work(state, batch, size), wait, task.points[batch])

    def _work(self, state: State, batch: int, size: float) -> Work:
        return LocalModel(batch, self.local_steps, size, state.task.ridge)

    def receive(self, state: State, inbox: Inbox) -> State:
        """Take the mean of the models that arrived; keep the old one if none did."""
        model = inbox.total("model") / inbox.points if inbox.points else state.model
        return replace(state, model=model, round=state.round + 1)
