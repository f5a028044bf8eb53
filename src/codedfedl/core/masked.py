"""Any work whose answers add up, under a secure sum: integers modulo 2³², and the helper's message.

Nobody sees more than the sum of all answers; `privacy` implements this. Without noise, this
guarantees nothing for a single record: see `docs/privacy.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, sqrt

import numpy as np

from codedfedl.arrays import Array, IntArray, asarray_like, to_host
from codedfedl.core.encoding import Parity
from codedfedl.core.protocol import Task
from codedfedl.core.work import Answer, Client, Window, Work
from codedfedl.errors import InputError
from codedfedl.fleet.costs import Cost
from codedfedl.privacy.fixed_point import FixedPoint, Residues

__all__ = ["Masked", "masked", "refuse_unbounded"]

_ROOM = 8.0  # headroom over the bound of a sum, for residuals above 1


@dataclass(frozen=True, eq=False)
class Masked(Work):
    """Another kind of work, in integers.

    Parameters
    ----------
    work
        The wrapped work, whose answers add up.
    scale
        Of the fixed-point numbers.
    """

    work: Work
    scale: float

    kind = "masked"

    @property
    def needs_model(self) -> bool:  # type: ignore[override]
        """As in the wrapped work."""
        return self.work.needs_model

    @property
    def embeds(self) -> bool:  # type: ignore[override]
        """As in the wrapped work."""
        return self.work.embeds

    @property
    def once(self) -> bool:  # type: ignore[override]
        """As in the wrapped work."""
        return self.work.once

    def for_client(self, j: int) -> "Masked":
        """Return client j's part."""
        return replace(self, work=self.work.for_client(j))

    @property
    def common(self) -> "Masked":
        """The part that is the same for all clients."""
        return replace(self, work=self.work.common)

    @property
    def plain(self) -> Work:
        """The wrapped work."""
        return self.work

    @property
    def elastic(self) -> bool:
        """As in the wrapped work."""
        return self.work.elastic

    @property
    def window(self) -> Window | None:
        """As in the wrapped work."""
        return self.work.window

    @property
    def exact(self) -> bool:  # type: ignore[override]
        """As in the wrapped work."""
        return self.work.exact

    @property
    def batch(self) -> int | None:
        """The mini-batch of the wrapped work; None if it covers all."""
        return getattr(self.work, "batch", None)

    def available(self, task: Task) -> IntArray:
        """Return the points that the wrapped work has."""
        return self.work.available(task)

    def load(
        self, asked: IntArray, embedded: IntArray, answered: IntArray, held: IntArray
    ) -> IntArray:
        """Return the wrapped work's loads."""
        return self.work.load(asked, embedded, answered, held)

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return the wrapped work's answer in integers."""
        plain = self.work.answer(client, load, model)
        numbers = FixedPoint(self.scale)
        arrays = {name: numbers.encode(to_host(array)) for name, array in plain.arrays.items()}
        return Answer(plain.points, arrays, plain.mixed)

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return the wrapped work's cost, plus a helper's message as large as the answer.

        The message is charged to every client's own link: an upper bound.
        """
        plain = self.work.cost(task, loads)
        return Cost(plain.macs, 2 * plain.bits_up)

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]] | None:
        """Return the shapes of the wrapped work."""
        return self.work.shapes(task, points)

    def decoded(self, sums: Mapping[str, Residues], like: Array) -> dict[str, Array]:
        """Return the sums as numbers, on the model's device."""
        numbers = FixedPoint(self.scale)
        return {
            name: asarray_like(numbers.decode(np.asarray(total)).astype(np.float32), like)
            for name, total in sums.items()
        }


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
    largest = _ROOM * max(length, 1.0) * max(length, 1.0) * points
    if isinstance(work, Parity):
        largest = _ROOM * max(length, 1.0) * sqrt(points)
    return Masked(work, FixedPoint.for_sums(largest, task.clients).scale)
