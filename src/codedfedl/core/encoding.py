"""What a client sends once: its Gram matrix, or parity of its points."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace

from codedfedl.arrays import Array, FloatArray, IntArray
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.task import Task
from codedfedl.core.work import Answer, Client, OnEmbedded, Points, Work
from codedfedl.fleet import costs
from codedfedl.fleet.costs import BlockSetup, Cost
from codedfedl.fleet.devices import Fleet
from codedfedl.learning.codes import GAUSSIAN, Code
from codedfedl.learning.least_squares import Quadratic, encode, evenness, point_weights

_log = logging.getLogger(__name__)

_SMALLEST_FLOAT16, _LARGEST_FLOAT16 = 1e-2, 6e4  # between these a half keeps its eleven bits


@dataclass(frozen=True)
class Gram(Work):
    """The Gram matrix and the moments over all points."""

    kind: ClassVar[str] = "gram"
    discloses: ClassVar[Disclosure | None] = Disclosure.STATISTICS
    needs_model: ClassVar[bool] = False
    once: ClassVar[bool] = True

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return X̂ᵀX̂ and X̂ᵀY."""
        first, *others = (Quadratic.of(*part) for part in client.first(client.points))
        total = sum(others, start=first)
        return Answer(client.points, {"hessian": total.hessian, "moment": total.moment})

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return q(q + 1)/2 + q·c multiply-accumulates a point, and as many numbers to send."""
        return costs.gram(task.held, task.workload)

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]]:
        """Return (q, q) and (q, c)."""
        q, _ = shape = task.model_shape
        return {"hessian": (q, q), "moment": shape}


class CodedWork(Work):
    """Points mixed by a code, sent once."""

    discloses: ClassVar[Disclosure | None] = Disclosure.MIXED
    needs_model: ClassVar[bool] = False
    once: ClassVar[bool] = True
    exact: ClassVar[bool] = False

    @classmethod
    def received(cls, **fields: Any) -> Self:
        """Return the work from its fields as decoded from JSON."""
        return cls(**fields | {"code": Code(**fields["code"])})


@dataclass(frozen=True, eq=False)
class Parity(CodedWork):
    """Parity of every mini-batch, weighted for a plan, to be added up over clients (section 3.2).

    Parameters
    ----------
    rows : sequence of int
        u of every mini-batch.
    loads, return_probabilities : arrays of shape (batches, n), or (batches,) for one client
        From which the weights are computed.
    """

    rows: Sequence[int]
    loads: npt.ArrayLike
    return_probabilities: npt.ArrayLike
    code: Code = GAUSSIAN

    kind: ClassVar[str] = "parity"
    per_client: ClassVar[Mapping[str, Any]] = {"loads": [], "return_probabilities": []}

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return G·W·X̂ and G·W·Y for every mini-batch."""
        arrays: dict[str, Array] = {}
        mixed = client.points
        plans = zip(
            self.rows, np.asarray(self.loads), np.asarray(self.return_probabilities), strict=True
        )
        for b, (rows, planned, probability) in enumerate(plans):
            features, targets = client.batch(b)
            points = features.shape[0]
            weights = point_weights(points, int(planned), float(probability))
            stream = client.code_stream(b, *self.code.named_by(rows))
            part = encode(features, targets, weights, rows, stream, self.code)
            arrays |= {f"features{b}": part.features, f"targets{b}": part.targets}
            fewest = self.code.fewest_points_per_row(points, rows, evenness(weights))
            mixed = min(mixed, max(1, fewest))
        return Answer(client.points, arrays, mixed)

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return the code's cost per point, and u·(q + c) numbers to send per mini-batch."""
        each = [self.code.operations(rows) for rows in self.rows]
        return costs.parity(task.points, self.rows, task.workload, each)

    def squared_weights(self, points: IntArray) -> list[float]:
        """Return Σw² behind one client's parity of every mini-batch, of so many points each."""
        loads, chances = np.asarray(self.loads), np.asarray(self.return_probabilities)
        return [float(value) for value in (1 - chances) * loads + points - loads]

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]]:
        """Return (u, q) and (u, c) for every mini-batch."""
        q, c = task.model_shape
        sizes = {f"features{b}": (int(u), q) for b, u in enumerate(self.rows)}
        return sizes | {f"targets{b}": (int(u), c) for b, u in enumerate(self.rows)}


@dataclass(frozen=True)
class BlockParity(OnEmbedded, CodedWork):
    """A client's own parity, unweighted, over the points embedded by the time it must send.

    A client with k of its ℓ points embedded sends ⌊k/⌈mixing/s⌉⌋ rows, where every point enters s
    of them. They are scaled by √(ℓ/k), so that in expectation they represent all its points. With
    fewer than `mixing` it sends nothing. Numbers are sent as floats of 16 or 32 bits: a half has
    eleven bits of precision, far more than a sketch has.
    """

    code: Code
    mixing: int
    bits: int = 16

    kind: ClassVar[str] = "block_parity"

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return S·X̂ and S·Y of the first `load` points."""
        return self._mixed(client, 0, load, client.batches)

    def _mixed(self, client: Client, begin: int, end: int, number: int) -> Answer:
        """Return the parity of some points, with the code of that number."""
        count = end - begin
        rows = self._rows(count)
        if rows == 0:
            return Answer(0, {})
        parts = list(client.first(end))
        features, targets = parts[0] if len(parts) == 1 else _joined(parts)
        weights = np.full(count, np.sqrt(client.points / count))
        stream = client.code_stream(number, rows, self.code.nonzeros)
        part = encode(features[begin:], targets[begin:], weights, rows, stream, self.code)
        arrays = {
            "features0": self._short(part.features, least=0.0),
            "targets0": self._short(part.targets, least=_SMALLEST_FLOAT16),
        }
        return Answer(count, arrays, self.code.fewest_points_per_row(count, rows))

    def _short(self, array: Array, *, least: float) -> Array:
        """Return numbers in the precision in which they are sent.

        Halves range from 6e-5 to 65,504. An array outside that range keeps 32 bits: an error would
        tell the server about numbers that it does not get.
        """
        xp = array_namespace(array)
        largest = float(xp.max(xp.abs(array)))
        if self.bits == 16 and least <= largest < _LARGEST_FLOAT16:
            return xp.astype(array, xp.float16)
        if self.bits == 16 and least == 0:
            _log.warning(
                "parity has numbers that 16 bits cannot hold, and is sent in 32, which no clock is "
                "charged for: scale the inputs, or set bits = 32 of the scheme"
            )
        return array

    def _rows(self, points: int) -> int:
        return int(costs.block_rows(points, self.mixing, self.code.nonzeros))

    def setup(self, task: Task) -> BlockSetup:
        """Return what it costs, step by step."""
        macs, rows_a_point = task.feature_macs, self.code.nonzeros
        return BlockSetup(task.workload, macs, rows_a_point, self.mixing, self.bits)

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return the cost of mixing per point, and of the rows to send."""
        return self.setup(task).mixing_cost(loads)

    def points_by(
        self, deadline: float, task: Task, fleet: Fleet, slowness: FloatArray, done: FloatArray
    ) -> tuple[IntArray, FloatArray]:
        """Return the number of points that leaves time to mix and to send."""
        setup = self.setup(task)
        seconds = setup.seconds_per_point(fleet, slowness)
        saved = done * costs.seconds_to_embed(task.feature_macs, task.workload, fleet, slowness)
        points = setup.points_by(deadline + saved, fleet, task.held, seconds)
        return points, np.maximum(points * seconds - saved, 0.0)

    def squared_weights(self, points: IntArray) -> list[float]:
        """Return the number of points that the rows represent."""
        return [float(points.sum())]

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]]:
        """Return (rows, q) and (rows, c)."""
        (q, c), rows = task.model_shape, self._rows(points)
        return {"features0": (rows, q), "targets0": (rows, c)} if rows else {}


@dataclass(frozen=True, eq=False)
class MoreParity(BlockParity):
    """Parity of further points, for a set-up that is extended: those that are in no parity yet.

    Loads count all points of a client, those of its earlier parity too.

    Parameters
    ----------
    after : array of shape (n,), or int for one client
        Points that are in its earlier parity.
    """

    after: npt.ArrayLike = 0

    kind: ClassVar[str] = "more_parity"
    per_client: ClassVar[Mapping[str, Any]] = {"after": 0}

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return S·X̂ and S·Y of the points after the earlier ones."""
        return self._mixed(client, int(np.asarray(self.after)), load, client.batches + 1)

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return the cost of mixing the further points, and of the rows to send."""
        return super().cost(task, np.maximum(loads - np.asarray(self.after), 0))

    def points_by(
        self, deadline: float, task: Task, fleet: Fleet, slowness: FloatArray, done: FloatArray
    ) -> tuple[IntArray, FloatArray]:
        """Return the number of points that leaves time to mix and to send the further ones."""
        after = np.asarray(self.after, dtype=np.int64)
        rest = replace(task, points=(task.held - after)[None])
        done = np.maximum(done - after, 0.0)
        more, seconds = super().points_by(deadline, rest, fleet, slowness, done)
        return after + more, seconds


def _joined(parts: Sequence[Points]) -> Points:
    xp = array_namespace(parts[0][0])
    features, targets = (xp.concat(list(column), axis=0) for column in zip(*parts, strict=True))
    return features, targets
