"""What changed in a client's gradient since its last answer that was counted, under a secure sum.

The sum of all clients' last gradients is what a server needs that keeps them. It may not see any of
them, so it keeps the sum, and adds to it what changed. Differences are of integers: whatever a
client's answers have been, the sum is exactly that of its last one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from codedfedl._types import FloatArray, IntArray
from codedfedl.arrays import Array, beside, to_host
from codedfedl.core.masked import Masked
from codedfedl.core.protocol import Task
from codedfedl.core.work import Answer, Client
from codedfedl.privacy.fixed_point import FixedPoint

__all__ = ["Anchor", "Changed"]


@dataclass(frozen=True, eq=False)
class Anchor:
    """The model, of shape (q, c), and the number of points that a client's last answer is for."""

    model: FloatArray
    points: int


@dataclass(frozen=True, eq=False)
class Changed(Masked):
    """The change of a gradient since the answer that was counted last; all of it where none was.

    Parameters
    ----------
    counted
        Of each client its last answer that was counted. A client cannot know which one that was,
        since its message may have come too late: every ask says it.

    Notes
    -----
    A device keeps the gradients that it has sent until one of them is counted, and is told the
    number of a round. The simulator, which keeps nothing, computes the old gradient again. The c
    numbers beside the gradient are 1/q of a packet, and are not charged.
    """

    counted: Mapping[int, Anchor]

    kind = "changed"

    def for_client(self, j: int) -> "Changed":
        """Return what one client is told."""
        return replace(self, counted={j: self.counted[j]} if j in self.counted else {})

    def load(
        self, asked: IntArray, embedded: IntArray, answered: IntArray, held: IntArray
    ) -> IntArray:
        """Return what the other work says, and no more than is asked for."""
        return np.minimum(asked, self.work.load(asked, embedded, answered, held))

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return what changed, and by how much the gradient grew along the way, in integers.

        The curvature is (β − a)ᵀ(g(β) − g(a)), label by label, (c,); 0 where the points are others.
        """
        numbers = FixedPoint(self.scale)
        now = to_host(self.work.answer(client, load, model).arrays["gradient"])
        change, curvature = numbers.encode(now), np.zeros(now.shape[1])
        for last in self.counted.values():
            where = beside(last.model.astype(np.float32), model)
            before = to_host(self.work.answer(client, last.points, where).arrays["gradient"])
            change = change - numbers.encode(before)
            if last.points == load:
                moved = to_host(model).astype(np.float64) - last.model
                curvature = (moved * (now.astype(np.float64) - before)).sum(0)
        return Answer(load, {"gradient": change, "curvature": numbers.encode(curvature)})

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]]:
        """Return that of the model, and (c,)."""
        return {"gradient": task.model_shape, "curvature": (task.workload.labels,)}
