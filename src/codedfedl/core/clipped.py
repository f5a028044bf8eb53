"""What a client adds to a private sum: every record's part is clipped, weighted, and in integers.

Each answer is integers modulo 2³² (`privacy.fixed_point`), which is what masks hide and what sums
exactly. A record moves it by no more than its weight, and rounding: that is all that the proof of a
private run needs of a client. Only the simulator sends them without a mask.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace

from codedfedl._types import FloatArray, IntArray
from codedfedl.arrays import Array, beside, to_host
from codedfedl.core.protocol import Task
from codedfedl.core.work import Answer, Client, OnEmbedded, Points
from codedfedl.fleet.costs import Cost
from codedfedl.privacy.fixed_point import FixedPoint

__all__ = ["ClippedGradient", "ClippedMoments", "clipped"]


def clipped(rows: Array, length: float) -> Array:
    """Return rows no longer than `length`: those that are longer are shortened to it."""
    xp = array_namespace(rows)
    own = xp.sqrt(xp.sum(rows * rows, axis=1, keepdims=True))
    return rows * xp.minimum(xp.asarray(1.0, dtype=rows.dtype), length / xp.maximum(own, 1e-30))


def _added(parts: Iterable[Array]) -> FloatArray:
    return np.asarray(sum(to_host(part).astype(np.float64) for part in parts))


@dataclass(frozen=True, eq=False)
class _PrivateSum(OnEmbedded):
    """A weighted sum over the points that a client has embedded, no more than it is asked for.

    Parameters
    ----------
    chances : array of shape (n,), or one client's
        Its probability to arrive: weights make up for it, so that sums are right on average.
    cap
        A client with k of its ℓ points gives each the weight ℓ/(k·chance), but no more than this.
    scale
        Of the fixed-point numbers.
    """

    chances: npt.ArrayLike
    cap: float
    scale: float

    needs_model: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    name: ClassVar[str]

    def for_client(self, j: int) -> Self:
        """Return the chance of one client."""
        return replace(self, chances=float(np.asarray(self.chances)[j]))

    def weight(self, held: int, load: int) -> float:
        """Return the weight of each point of one client: it depends on no data."""
        return float(min(held / max(load * float(self.chances), 1e-300), self.cap))  # type: ignore[arg-type]

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return the sum in integers."""
        weight = self.weight(client.points, load)
        exact = weight * _added(self.part(part, model) for part in client.first(load))
        return Answer(load, {self.name: FixedPoint(self.scale).encode(exact)})

    @abstractmethod
    def part(self, points: Points, model: Array) -> Array:
        """Return the sum over some points, to which each adds a vector no longer than 1."""


@dataclass(frozen=True, eq=False)
class ClippedMoments(_PrivateSum):
    """Sums of the features, of their squared lengths and of the labels, before the gradients.

    Features and labels are clipped to length 1, so a record adds three parts of length 1 at most;
    all is divided by √3.
    """

    kind: ClassVar[str] = "clipped_moments"
    name: ClassVar[str] = "moments"

    def part(self, points: Points, model: Array) -> Array:
        """Return Σ(x, ‖x‖², y)/√3."""
        xp = array_namespace(points[0])
        features, labels = (clipped(one, 1.0) for one in points)
        squares = xp.sum(features * features, axis=1, keepdims=True)
        columns = xp.concat([features, squares, labels], axis=1)
        return xp.sum(columns, axis=0) / 3**0.5

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return 4·q multiply-accumulates a point: length, sum, later the projection; two packets.

        The second packet is the helper's, charged to everybody's own link: more than it takes.
        """
        macs = loads.astype(np.float64) * (4 * task.workload.features)
        return Cost(macs, np.full(task.clients, 2 * task.workload.packet_bits))

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]]:
        """Return (q + 1 + c,)."""
        return {self.name: (task.workload.features + 1 + task.workload.labels,)}


@dataclass(frozen=True, eq=False)
class ClippedGradient(_PrivateSum):
    """The gradient of clipped residuals on clipped features, in units of radius · residual.

    Parameters
    ----------
    direction : array of shape (q,)
        Of length 1; what the features have in this direction plays no part.
    radius, residual
        R and C: features are clipped to R, residuals to C.
    """

    direction: npt.ArrayLike
    radius: float
    residual: float

    kind: ClassVar[str] = "clipped_gradient"
    name: ClassVar[str] = "gradient"

    def part(self, points: Points, model: Array) -> Array:
        """Return Σ x·rᵀ/(R·C), with x less its part in the direction."""
        features, labels = points
        direction = beside(np.asarray(self.direction, dtype=np.float32), features)
        residuals = clipped(features @ model - labels, self.residual)
        across = features - (features @ direction)[:, None] * direction[None, :]
        return clipped(across, self.radius).T @ residuals / (self.radius * self.residual)

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return 2·q·c + 2·c multiply-accumulates a point, and two packets: see `ClippedMoments`.

        Each point's projection and length are the same in all rounds, and kept.
        """
        q, c = task.model_shape
        packets = np.full(task.clients, 2 * task.workload.packet_bits)
        return Cost(loads.astype(np.float64) * (2 * q * c + 2 * c), packets)

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]]:
        """Return that of the model."""
        return {self.name: task.model_shape}
