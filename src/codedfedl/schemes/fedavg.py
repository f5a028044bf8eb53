"""`fedavg`: several local steps on each client, and the mean of the models."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from codedfedl.arrays import Array
from codedfedl.core.client import LocalModel
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import AnyLimits, Ask, Inbox, Info, Rng, Scheme, State, Task
from codedfedl.core.waiting import Everyone, Until, Wait
from codedfedl.core.work import Work
from codedfedl.fleet.delays import DelayModel
from codedfedl.schemes.settings import check_at_least_1, check_positive


@dataclass(frozen=True, eq=False)
class AveragedState(State):
    """How long a round waits, in seconds; None: for all."""

    deadline: float | None = None

    @property
    def checkpointed(self) -> bool:
        """True: the deadline is set once."""
        return True


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

    info: ClassVar[Info] = Info(
        "fedavg",
        frozenset({Disclosure.MODELS}),
        waits="without fedavg.deadline waits for all",
    )

    def __post_init__(self) -> None:
        check_at_least_1(self, "local_steps")
        check_positive(self, "deadline", "step")

    def check(self, fleet: DelayModel | None = None, limits: AnyLimits = None) -> None:
        """Refuse fleets for which waiting would never end."""
        if self.deadline is None:
            super().check(fleet, limits)

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> AveragedState:
        """Take the operator's deadline where no other is given."""
        deadline = self.deadline or (None if limits is None else limits.deadline)
        return AveragedState(task, model, deadline=deadline)

    def ask(self, state: AveragedState) -> Ask | None:
        """Ask for local steps."""
        if state.finished:
            return None
        task, batch = state.task, state.task.batch(state.round)
        wait: Wait = Everyone() if state.deadline is None else Until(state.deadline)
        size = task.step_size(state.round)
        if self.step is not None:
            size *= self.step / task.schedule.step
        return Ask(self._work(state, batch, size), wait, task.points[batch])

    def _work(self, state: Any, batch: int, size: float) -> Work:
        return LocalModel(batch, self.local_steps, size, state.task.ridge)

    def receive(self, state: Any, inbox: Inbox) -> State:
        """Take the mean of the models that arrived; keep the old one if none did."""
        model: Array = inbox.total("model") / inbox.points if inbox.points else state.model
        averaged: State = replace(state, model=model, round=state.round + 1)
        return averaged
