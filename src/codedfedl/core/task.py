"""What is trained, and where training stands: a task, and the state of a scheme that trains."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from codedfedl.arrays import Array, IntArray
from codedfedl.fleet.devices import Workload
from codedfedl.learning.learner import Learner, LeastSquares
from codedfedl.learning.optimisers import Chain, Optimiser, Schedule, step

if TYPE_CHECKING:
    from codedfedl.learning.features import FeatureMap


def workload_of(learner: Learner, features: int, labels: int) -> Workload:
    """Return what a learner's gradients and messages cost, on points of so many numbers."""
    if learner.quadratic:
        return Workload(features, labels)
    return Workload(
        features, labels, parameters=learner.parameters, gradient_macs=learner.point_macs
    )


T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Task:
    """The public facts of a training task; none of them is private to a client.

    Attributes
    ----------
    workload
        The cost of a point and a packet, with q and c.
    feature_macs
        Multiply-accumulates to embed a point.
    points : array of shape (batches, n)
        Points of every client in every mini-batch.
    raw_bits
        Bits of a raw point on a client, with its label; 0 if no scheme asks for it.
    largest_square
        Bound on the squared norm of a point's features; ∞ if there is none.
    learner
        What is trained; by default least squares on the workload's q features and c labels.
    features
        A map of the clients' points that was made in the course of the run, on which the task
        trains; None: their points as they are.
    """

    workload: Workload
    feature_macs: int
    points: IntArray
    epochs: int
    schedule: Schedule
    ridge: float
    raw_bits: int = 0
    largest_square: float = np.inf
    learner: Learner = None  # type: ignore[assignment]
    features: "FeatureMap | None" = None

    def __post_init__(self) -> None:
        if not self.learner:
            linear = LeastSquares(self.workload.features, self.workload.labels)
            object.__setattr__(self, "learner", linear)

    @property
    def model_shape(self) -> tuple[int, ...]:
        """Of a model and of a gradient: (q, c) for least squares."""
        return self.learner.shape

    @property
    def batches(self) -> int:
        """Mini-batches in an epoch."""
        return len(self.points)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return int(self.points.shape[1])

    @property
    def rounds(self) -> int:
        """Rounds in all epochs."""
        return self.epochs * self.batches

    def batch(self, round_: int) -> int:
        """Return the mini-batch of a round, both counted from 0."""
        return round_ % self.batches

    def each_batch(self, plan: Callable[[IntArray], T]) -> tuple[T, ...]:
        """Return the plan of every mini-batch's points: often they are the same in all."""
        plans = {points.tobytes(): plan(points) for points in np.unique(self.points, axis=0)}
        return tuple(plans[points.tobytes()] for points in self.points)

    @cached_property
    def held(self) -> IntArray:
        """Points of every client in all mini-batches, shape (n,)."""
        return np.asarray(self.points.sum(0))

    def step_size(self, round_: int, first: float | None = None) -> float:
        """Return the step size of a round; `first` takes the place of the schedule's first one."""
        size = self.schedule.at(round_ // self.batches)
        return size if first is None else size * (first / self.schedule.step)


@dataclass(frozen=True, eq=False)
class State:
    """The state of a scheme between two asks."""

    task: Task
    model: Array
    round: int = 0

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return self.round >= self.task.rounds

    @property
    def checkpointed(self) -> bool:
        """Whether `model` and `round` are all that the rounds have changed since the set-up.

        Then a run continues from a checkpoint of both. A state with a memory of its own is
        brought back by playing its rounds again, unless it says otherwise here.
        """
        return type(self) is State

    def descended(self, total: Array, points: float, slower: float = 1.0) -> Self:
        """Return the state after a step along the mean gradient `total`/`points`.

        Parameters
        ----------
        slower
            By how much the step is shorter than the schedule's.
        """
        size = self.task.step_size(self.round) / slower
        model = self.model
        if points > 0:  # otherwise nobody answered, and the model stays
            model = step(model, total, points, size, self.task.ridge)
        return replace(self, model=model, round=self.round + 1)


@dataclass(frozen=True, eq=False)
class Descent(State):
    """A model trained by gradient descent.

    Attributes
    ----------
    optimiser
        The update rule.
    question
        The model at which the next gradient is evaluated; `model` if None.
    memory
        The optimiser's memory between two steps.
    """

    optimiser: Optimiser = field(default_factory=Chain)
    question: Array = None
    memory: Any = None

    @property
    def checkpointed(self) -> bool:
        """Whether the optimiser has no memory: plain descent needs only its model."""
        return self.is_plain

    @property
    def is_plain(self) -> bool:
        """Whether steps are those of plain descent."""
        return self.optimiser == Chain()

    @property
    def asked(self) -> Array:
        """The model at which the next gradient is evaluated."""
        return self.model if self.question is None else self.question

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, or more would not improve the model."""
        return super().finished or self.optimiser.settled(self.memory)

    def descended(self, total: Array, points: float, slower: float = 1.0) -> Self:
        """Return the state after a step of the optimiser along the mean gradient."""
        if self.is_plain or points <= 0:
            return super().descended(total, points, slower)
        gradient = total / points + self.task.ridge * self.asked
        return self.moved_along(gradient, self.task.step_size(self.round) / slower)

    def moved_along(self, gradient: Array, size: float) -> Self:
        """Return the state after a step of the optimiser along what may be no gradient."""
        made = self.optimiser.step(self.asked, gradient, size, self.memory)
        return replace(self, **made._asdict(), round=self.round + 1)
