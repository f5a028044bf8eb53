"""`timelyfl`: as much local work as fits into an interval, or a part of the model.

Zhang et al., CVPR workshops 2023 (arXiv 2304.06947). An interval is what the k-th fastest client
takes for one step. Faster clients take more steps; slower ones take one step on the last layers
alone, as large a share of the model as they have time for, which costs them as large a share of a
step. Late answers count in a later interval. Here a smaller answer is charged as a whole packet.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from codedfedl.arrays import Array, FloatArray, IntArray, asarray_like
from codedfedl.core.client import PartialModel, trained_numbers
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import EACH, AnyLimits, Ask, Inbox, Info, Rng, Scheme, Task
from codedfedl.core.waiting import Until
from codedfedl.fleet.delays import DelayModel
from codedfedl.learning.optimisers import optimiser
from codedfedl.schemes.fedavg import AveragedState
from codedfedl.schemes.settings import check_at_least_1, check_drop, check_positive

LEAST_SHARE = 0.01
"""Of a model that is trained, by a client whose link alone takes the interval."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TimelyState(AveragedState):
    """The interval in seconds (`deadline`), and each client's steps and share of the model."""

    steps: IntArray
    shares: FloatArray


@dataclass(frozen=True)
class TimelyFL(Scheme):
    """Intervals that everybody fills.

    Parameters
    ----------
    drop
        1 − k/n: share of the clients whose whole step takes longer than an interval.
    points
        Points of a local step.
    most_steps
        The most steps of any client.
    step
        Size of a local step; by default the schedule's.
    optimiser
        The server's, as of `FedAvg`.
    """

    drop: float = 0.5
    points: int = 16
    most_steps: int = 10
    step: float | None = None
    optimiser: str = "gd"

    info: ClassVar[Info] = Info(
        "timelyfl",
        frozenset({Disclosure.MODELS}),
        only_simulated="trains parts of a model, which nodes do not do",
    )

    def __post_init__(self) -> None:
        check_drop(self.info.name, self.drop)
        check_at_least_1(self, "points", "most_steps")
        check_positive(self, "step")
        optimiser(self.info.name, self.optimiser, same_points=False)

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> TimelyState:
        """Choose the interval, and every client's steps or share."""
        points = np.minimum(self.points, task.points[0])
        link, whole = fleet.mean(np.zeros(task.clients)), fleet.mean(points)
        interval = float(np.sort(whole)[max(0, round((1 - self.drop) * task.clients) - 1)])
        fitting = (interval - link) / np.maximum(whole - link, 1e-300)
        return TimelyState(
            task,
            model,
            optimiser=optimiser(self.info.name, self.optimiser, same_points=False),
            deadline=interval,
            steps=np.clip(np.nan_to_num(fitting), 1, self.most_steps).astype(np.int64),
            shares=np.clip(np.nan_to_num(fitting), LEAST_SHARE, 1.0),
        )

    def ask(self, state: TimelyState) -> Ask | None:
        """Ask for what fits."""
        if state.finished:
            return None
        task, batch = state.task, state.task.batch(state.round)
        size = task.step_size(state.round, self.step)
        work = PartialModel(
            batch,
            state.steps,
            size,
            task.ridge,
            points=self.points,
            draw=state.round,
            shares=state.shares,
        )
        assert state.deadline is not None
        wait = Until(state.deadline)
        return Ask(work, wait, task.points[batch], combine=EACH, keep_late=True)

    def receive(self, state: TimelyState, inbox: Inbox) -> Any:
        """Move every number by the mean of those who trained it."""
        if not inbox.replies:
            return state.towards(state.model)
        moved = sum((reply.arrays["moved"] for reply in inbox.replies), start=0.0)
        numbers = int(np.prod(state.model.shape))
        points = np.zeros(numbers)
        for reply in inbox.replies:
            points[numbers - trained_numbers(numbers, state.shares[reply.client]) :] += reply.points
        xp = array_namespace(state.model)
        cover = asarray_like(np.maximum(points, 1.0).astype(np.float32), state.model)
        return state.towards(state.model - moved / xp.reshape(cover, state.model.shape))
