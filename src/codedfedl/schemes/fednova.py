"""`fednova`: as many local steps as each client has time for, averaged without favouring any.

Wang et al., NeurIPS 2020. The mean of local models favours clients that took more steps; here the
mean *direction of a step* is taken, as often as clients stepped on average.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from codedfedl.arrays import Array, IntArray
from codedfedl.core.client import LocalDirection
from codedfedl.core.protocol import AnyLimits, Inbox, Info, Rng, Task
from codedfedl.core.work import Work
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel
from codedfedl.schemes.fedavg import AveragedState, FedAvg


@dataclass(frozen=True, eq=False, kw_only=True)
class NovaState(AveragedState):
    """How many local steps each client takes on every mini-batch, shape (batches, n)."""

    steps: IntArray


@dataclass(frozen=True)
class FedNova(FedAvg):
    """Normalised averaging: nobody idles while the slowest client takes its steps.

    Parameters
    ----------
    local_steps
        Gradient steps of the client that is slowest on average. The others take as many as they
        are done with by then, on average.
    most_steps
        The most steps of any client. The mean number of steps multiplies the step on what slow
        clients send too: too many diverge.
    deadline, step, points, drop, proximal, optimiser
        As of `FedAvg`.
    """

    local_steps: int = 1
    most_steps: int = 10

    info: ClassVar[Info] = replace(FedAvg.info, name="fednova")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most_steps < self.local_steps:
            raise InputError(
                f"fednova.most_steps is {self.most_steps}: must be at least local_steps, which is "
                f"{self.local_steps}"
            )

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> NovaState:
        """Choose the steps of every client and mini-batch."""
        steps = np.array([self._steps(fleet, points) for points in task.points])
        first = super().start(task, fleet, model, limits)
        how = {"optimiser": first.optimiser, "deadline": first.deadline}
        return NovaState(task, model, **how, steps=steps)  # type: ignore[arg-type]

    def _steps(self, fleet: DelayModel, points: IntArray) -> IntArray:
        """Return as many steps as fit into the time of the slowest client, on average."""
        counts = np.arange(1, self.most_steps + 1)[:, None]
        each = points if self.points is None else np.minimum(points, self.points)
        seconds = fleet.mean(counts * each)  # shape (most_steps, n)
        asked = (points > 0) & np.isfinite(seconds[0])  # whoever never answers is not waited for
        slowest = seconds[self.local_steps - 1][asked].max(initial=0.0)
        fitting = (seconds <= slowest * (1 + 1e-9)).sum(axis=0)
        return np.asarray(np.maximum(fitting, 1), dtype=np.int64)

    def _work(self, state: NovaState, batch: int, size: float) -> Work:
        steps = state.steps[batch]
        return LocalDirection(batch, steps, size, state.task.ridge, **self._steps_of(state))

    def receive(self, state: NovaState, inbox: Inbox) -> NovaState:
        """Go along the mean direction, for the mean number of steps of those who answered."""
        mean, batch = state.model, state.task.batch(state.round)
        if inbox.points:
            points = np.where(inbox.arrived, state.task.points[batch], 0)
            steps = float(points @ state.steps[batch] / points.sum())
            mean = mean - inbox.total("direction") * (steps / inbox.points)
        moved: NovaState = state.towards(mean)
        return moved
