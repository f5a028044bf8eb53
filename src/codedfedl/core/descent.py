"""The state of a scheme that descends along gradients, with its optimiser's memory."""

from dataclasses import dataclass, field, replace
from typing import Any, Self

from codedfedl.arrays import Array
from codedfedl.core.protocol import State
from codedfedl.learning.optimisers import GradientDescent, Optimiser

__all__ = ["Descent"]


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

    optimiser: Optimiser = field(default_factory=GradientDescent)
    question: Array = None
    memory: Any = None

    @property
    def checkpointed(self) -> bool:
        """Whether the optimiser has no memory: plain descent needs only its model."""
        return self.is_plain

    @property
    def is_plain(self) -> bool:
        """Whether steps are those of plain descent."""
        return isinstance(self.optimiser, GradientDescent)

    @property
    def asked(self) -> Array:
        """The model at which the next gradient is evaluated."""
        return self.model if self.question is None else self.question

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, or more would not improve the model."""
        return super().finished or self.optimiser.settled(self.memory)

    def descended(self, total: Array, points: float) -> Self:
        """Return the state after a step of the optimiser along the mean gradient."""
        if self.is_plain or points <= 0:
            return super().descended(total, points)
        asked = self.asked
        gradient = total / points + self.task.ridge * asked
        size = self.task.step_size(self.round)
        made = self.optimiser.step(asked, gradient, size, self.memory)
        return replace(self, **made._asdict(), round=self.round + 1)
