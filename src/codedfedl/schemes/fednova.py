"""`fednova`: as many local steps as each client has time for, averaged without favouring any.

Wang et al., NeurIPS 2020. The mean of local models favours clients that took more steps; here the
mean *direction of a step* is taken, as often as clients stepped on average.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from codedfedl._types import FloatArray, IntArray
from codedfedl.arrays import Array
from codedfedl.core.client import LocalDirection
from codedfedl.core.disclosure import Disclosed, Disclosure
from codedfedl.core.protocol import Ask, Inbox, Limits, Scheme, State, Task, refuse_absent
from codedfedl.core.waiting import Everyone, Until, Wait
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayDistribution, FleetDelays
from codedfedl.fleet.devices import Fleet

__all__ = ["FedNova"]


@dataclass(frozen=True, eq=False)
class NovaState(State):
    """How many local steps each client takes on every mini-batch, shape (batches, n)."""

    steps: IntArray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))

    @property
    def checkpointed(self) -> bool:
        """True: the steps are planned once."""
        return True


@dataclass(frozen=True)
class FedNova(Scheme):
    """Normalised averaging: nobody idles while the slowest client takes its steps.

    Parameters
    ----------
    local_steps
        Gradient steps of the client that is slowest on average. The others take as many as they
        are done with by then, on average.
    most_steps
        The most steps of any client. The mean number of steps multiplies the step on what slow
        clients send too: too many diverge.
    deadline : seconds, optional
        Wait no longer than this; by default wait for all clients.
    step
        Size of a local step; by default the schedule's, which is often too large for the points
        of a single client.
    """

    local_steps: int = 1
    most_steps: int = 10
    deadline: float | None = None
    step: float | None = None

    name: ClassVar[str] = "fednova"
    disclosure: ClassVar[Disclosed] = frozenset({Disclosure.MODELS})

    def __post_init__(self) -> None:
        if self.local_steps < 1:
            raise InputError(f"fednova.local_steps is {self.local_steps}: must be at least 1")
        if self.most_steps < self.local_steps:
            raise InputError(
                f"fednova.most_steps is {self.most_steps}: must be at least local_steps, which is "
                f"{self.local_steps}"
            )
        for name in ("deadline", "step"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"fednova.{name} is {value:g}: must be above 0")

    def check(self, fleet: Fleet | DelayDistribution) -> None:
        """Refuse fleets for which waiting would never end."""
        if self.deadline is None:
            refuse_absent(fleet, "fednova without fednova.deadline waits for all")

    def within(self, limits: Limits) -> "FedNova":
        """Take the operator's deadline."""
        return self if self.deadline else replace(self, deadline=limits.deadline)

    def start(self, task: Task, fleet: Fleet | DelayDistribution, model: Array) -> NovaState:
        """Choose the steps of every client and mini-batch."""
        assert isinstance(fleet, Fleet)
        delays = FleetDelays(fleet)
        return NovaState(
            task, model, steps=np.array([self._steps(delays, points) for points in task.points])
        )

    def _steps(self, delays: FleetDelays, points: IntArray) -> IntArray:
        """Return as many steps as fit into the time of the slowest client, on average."""
        asked = points > 0
        counts = np.arange(1, self.most_steps + 1)[:, None]
        seconds: FloatArray = delays.mean(counts * points)  # shape (most_steps, n)
        slowest = seconds[self.local_steps - 1][asked].max(initial=0.0)
        fitting = (seconds <= slowest * (1 + 1e-9)).sum(axis=0)
        return np.asarray(np.maximum(fitting, 1), dtype=np.int64)

    def ask(self, state: NovaState) -> Ask | None:
        """Ask for the direction of each client's steps."""
        if state.finished:
            return None
        task = state.task
        batch = task.batch(state.round)
        wait: Wait = Everyone() if self.deadline is None else Until(self.deadline)
        size = task.step_size(state.round)
        if self.step is not None:
            size *= self.step / task.schedule.step
        work = LocalDirection(batch, state.steps[batch].tolist(), size, task.ridge)
        return Ask(work, wait, task.points[batch])

    def receive(self, state: NovaState, inbox: Inbox) -> NovaState:
        """Go along the mean direction, for the mean number of steps of those who answered."""
        model, batch = state.model, state.task.batch(state.round)
        if inbox.points:
            points = np.where(inbox.arrived, state.task.points[batch], 0)
            steps = float(points @ state.steps[batch] / points.sum())
            model = model - inbox.total("direction") * (steps / inbox.points)
        return replace(state, model=model, round=state.round + 1)
