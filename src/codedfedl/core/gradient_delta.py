"""The change of a client's gradient since its last counted answer, under a secure sum.

A server that reuses the clients' last gradients needs only their sum. It may not see a single one,
so it keeps the sum and adds the changes. Differences are between integers: whatever a client sent
before, the sum contains exactly its last gradient.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from codedfedl.arrays import Array, FloatArray, IntArray, asarray_like, to_host
from codedfedl.core.masked import Masked
from codedfedl.core.protocol import Task
from codedfedl.core.work import Answer, Client
from codedfedl.errors import InputError
from codedfedl.privacy.fixed_point import FixedPoint, Residues

__all__ = ["Anchor", "GradientDelta"]


@dataclass(frozen=True, eq=False)
class Anchor:
    """The model, of shape (q, c), and the number of points that a client's last answer is for.

    Attributes
    ----------
    round
        The round that it answers.
    gradient : array of shape (q, c), optional
        The answer itself, where a device has kept it.
    """

    model: FloatArray
    points: int
    round: int = 0
    gradient: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class GradientDelta(Masked):
    """The change of a gradient since the last counted answer; the whole gradient if there is none.

    Parameters
    ----------
    counted
        The last counted answer of each client. A client cannot know which one that was, since its
        message may have arrived too late, so every ask states it.

    Notes
    -----
    A device keeps the gradients that it has sent until one of them is counted, and is told the
    round of that one (`federate.secure.vault`). The simulator keeps nothing and recomputes the old
    gradient. The c numbers beside the gradient are 1/q of a packet, and are not charged.
    """

    counted: Mapping[int, Anchor]

    kind = "gradient_delta"

    def for_client(self, j: int) -> "GradientDelta":
        """Return what one client is told."""
        return replace(self, counted={j: self.counted[j]} if j in self.counted else {})

    def load(
        self, asked: IntArray, embedded: IntArray, answered: IntArray, held: IntArray
    ) -> IntArray:
        """Return the wrapped work's loads, at most those asked for."""
        return np.minimum(asked, self.work.load(asked, embedded, answered, held))

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return the change of the gradient, and its curvature along the step, in integers.

        The curvature is (β − a)ᵀ(g(β) − g(a)) per label, shape (c,); 0 if the points differ.
        """
        numbers = FixedPoint(self.scale)
        now = to_host(self.work.answer(client, load, model).arrays["gradient"])
        change, curvature = numbers.encode(now), np.zeros(now.shape[1])
        for last in self.counted.values():
            before = last.gradient
            if before is None:
                before = self._again(client, last, model)
            change = change - numbers.encode(before)
            if last.points == load:
                moved = to_host(model).astype(np.float64) - last.model
                curvature = (moved * (now.astype(np.float64) - before)).sum(0)
        return Answer(load, {"gradient": change, "curvature": numbers.encode(curvature)})

    def _again(self, client: Client, last: Anchor, like: Array) -> FloatArray:
        """Recompute the gradient of an earlier answer, on the model's device."""
        where = asarray_like(last.model.astype(np.float32), like)
        return to_host(self.work.answer(client, last.points, where).arrays["gradient"])

    def whole(self, change: Residues) -> Residues:
        """Return the gradient that a change leads to, in integers."""
        numbers = FixedPoint(self.scale)
        for last in self.counted.values():
            assert last.gradient is not None
            change = change + numbers.encode(last.gradient)
        return change

    def as_sent(self) -> dict[str, Any]:
        """Return the fields to send: a client is told the round, and has the rest."""
        answers = [[last.round, last.points] for last in self.counted.values()]
        return {"work": self.work, "scale": self.scale, "counted": answers}

    @property
    def common(self) -> "GradientDelta":
        """The part that is the same for all clients."""
        return replace(self, work=self.work.common, counted={})

    @classmethod
    def received(cls, **fields: Any) -> "GradientDelta":
        """Return the work from its fields as decoded from JSON, before the client fills them in."""
        nothing = np.empty((0, 0))
        answers = enumerate(fields.pop("counted"))
        counted = {k: Anchor(nothing, int(points), int(round_)) for k, (round_, points) in answers}
        if len(counted) > 1:
            raise InputError(f"counted names {len(counted)} answers: a client has one last answer")
        return cls(**fields, counted=counted)

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]]:
        """Return the model's shape, and (c,)."""
        return {"gradient": task.model_shape, "curvature": (task.workload.labels,)}
