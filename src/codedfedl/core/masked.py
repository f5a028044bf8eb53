"""Any work whose answers add up, under a secure sum: integers modulo 2³², and the helper's message.

Nobody sees more than the sum of all answers; `privacy` implements this. Without noise, this
guarantees nothing for a single record: see `docs/explanation/privacy.md`.

A server that reuses the clients' last gradients needs only their sum. It may not see a single one,
so it keeps the sum and adds the changes (`GradientDelta`). Differences are between integers:
whatever a client sent before, the sum contains exactly its last gradient.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Any, Self

import numpy as np

from codedfedl.arrays import Array, FloatArray, IntArray, asarray_like, to_host
from codedfedl.core.encoding import Parity
from codedfedl.core.protocol import Task
from codedfedl.core.work import Answer, Client, Work, Wrapping
from codedfedl.errors import InputError
from codedfedl.fleet.costs import Cost
from codedfedl.privacy.fixed_point import FixedPoint, Residues

HEADROOM = 8.0
"""How many times its bound a sum may be: residuals may be above 1."""


@dataclass(frozen=True, eq=False)
class Masked(Wrapping):
    """Another kind of work, in integers.

    Parameters
    ----------
    work
        The wrapped work, whose answers add up.
    scale
        Of the fixed-point numbers.
    """

    scale: float

    kind = "masked"

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return the wrapped work's answer in integers."""
        return self._encoded(self.work.answer(client, load, model))

    def timed(self, client: Client, load: int, model: Array, clock: Callable[[], float]) -> Answer:
        """Return the wrapped work's answer by a clock, in integers."""
        return self._encoded(self.work.timed(client, load, model, clock))

    def _encoded(self, plain: Answer) -> Answer:
        numbers = FixedPoint(self.scale)
        arrays = {name: numbers.encode(to_host(array)) for name, array in plain.arrays.items()}
        return Answer(plain.points, arrays, plain.mixed)

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return the wrapped work's cost, plus a helper's message as large as the answer.

        The message is charged to every client's own link: an upper bound.
        """
        plain = self.work.cost(task, loads)
        return Cost(plain.macs, 2 * plain.bits_up)

    def decoded(self, sums: Mapping[str, Residues], like: Array) -> dict[str, Array]:
        """Return the sums as numbers, on the model's device."""
        numbers = FixedPoint(self.scale)
        return {
            name: asarray_like(numbers.decode(np.asarray(total)).astype(np.float32), like)
            for name, total in sums.items()
        }


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
    timed = Work.timed

    def for_client(self, j: int) -> Self:
        """Return what one client is told."""
        counted = {j: self.counted[j]} if j in self.counted else {}
        return replace(super().for_client(j), counted=counted)

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
            if before is None:  # computed again, on the model's device
                where = asarray_like(last.model.astype(np.float32), model)
                before = to_host(self.work.answer(client, last.points, where).arrays["gradient"])
            change = change - numbers.encode(before)
            if last.points == load:
                moved = to_host(model).astype(np.float64) - last.model
                curvature = (moved * (now.astype(np.float64) - before)).sum(0)
        return Answer(load, {"gradient": change, "curvature": numbers.encode(curvature)})

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
    def common(self) -> Self:
        """The part that is the same for all clients."""
        return replace(super().common, counted={})

    @classmethod
    def received(cls, **fields: Any) -> Self:
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


def refuse_unbounded(largest_square: float) -> None:
    """Refuse features whose sums cannot be known to fit into integers."""
    if largest_square == inf:
        raise InputError(
            "a secure sum needs features with a bound on their length, which the raw points of "
            "'identity' do not have: choose 'patches', 'fourier' or 'structured'"
        )


def masked(work: Work, task: Task) -> Masked:
    """Return work under a secure sum, at the finest resolution at which no sum wraps around.

    The features bound every number of a sum, given predictions and labels of length 1 and some
    headroom. Parity has random signs, so its numbers grow with the square root of the points.
    """
    refuse_unbounded(task.largest_square)
    length, points = sqrt(task.largest_square), float(task.held.sum())
    largest = HEADROOM * max(length, 1.0) ** 2 * points
    if isinstance(work, Parity):
        largest = HEADROOM * max(length, 1.0) * sqrt(points)
    return Masked(work, FixedPoint.for_sums(largest, task.clients).scale)
