"""What a client adds to a private sum: clipped and weighted records, summed in integers.

Each answer consists of integers modulo 2³² (`privacy.fixed_point`), which masks can hide and which
add up exactly. One record moves it by at most its weight plus rounding: the proof of a private run
needs nothing else from a client. Only the simulator sends answers without a mask; a real node masks
them.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace

from codedfedl.arrays import Array, FloatArray, IntArray, asarray_like, to_host
from codedfedl.core.task import Task
from codedfedl.core.work import Answer, Client, OnEmbedded, Points
from codedfedl.fleet.costs import Cost
from codedfedl.privacy.fixed_point import FixedPoint, noise_steps

_DRAW_STREAM, _NOISE_STREAM = 1 << 20, 1 << 21  # beside the numbers of the codes' streams
_ROWS_AT_ONCE = 4096  # points that are held in double precision


def clipped(rows: Array, length: float) -> Array:
    """Return rows no longer than `length`: longer ones are shortened to it.

    That holds however sums of squares are rounded: lengths are taken at their upper bounds. A row
    whose length is not finite becomes 0: it must not spoil the sum of the others.
    """
    xp = array_namespace(rows)
    rounding = 1 + (rows.shape[1] + 8) * float(xp.finfo(rows.dtype).eps)
    lengths = rounding * xp.sqrt(xp.sum(rows * rows, axis=1, keepdims=True))
    shorter = xp.minimum(xp.asarray(1.0, dtype=rows.dtype), length / xp.maximum(lengths, 1e-30))
    return xp.where(xp.isfinite(lengths), rows * shorter, xp.zeros_like(rows))


def _drawn(points: Points, rate: float, rng: np.random.Generator) -> Points:
    """Draw each point independently with probability `rate`; the draw is the client's secret."""
    if rate == 1:
        return points
    rows = asarray_like(np.flatnonzero(rng.random(points[0].shape[0]) < rate), points[0])
    xp = array_namespace(points[0])
    return xp.take(points[0], rows, axis=0), xp.take(points[1], rows, axis=0)


def _product(features: Array, rows: Array) -> Array:
    """Return Σ x·rᵀ in double precision, some points at a time.

    In single precision a record would change how the sum of all others is rounded, by more than
    its bound allows where there are very many.
    """
    xp, total = array_namespace(features), 0.0
    for start in range(0, max(features.shape[0], 1), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        total = total + xp.astype(features[part], xp.float64).T @ xp.astype(rows[part], xp.float64)
    return total


def _added(parts: Iterable[Array]) -> FloatArray:
    return np.asarray(sum(to_host(part).astype(np.float64) for part in parts))


@dataclass(frozen=True, eq=False)
class PrivateSum(OnEmbedded):
    """A weighted sum over a client's embedded points, at most as many as it is asked for.

    Parameters
    ----------
    chances : array of shape (n,), or one client's
        Probability that its answer arrives; weights compensate for it, so that sums are unbiased.
    cap : array of shape (n,), or one client's
        A client that sums k of its ℓ points on average gives each the weight ℓ/(k·chance), but no
        more than this.
    scale
        Of the fixed-point numbers.
    rates : array of shape (n,), or one client's
        Each embedded point is in a sum with this chance, drawn anew for every sum.
    draw
        Which draw it is, where draws can be repeated.
    longest
        Length to which a client's whole sum is clipped, for a client-level guarantee.
    noise
        Standard deviation of the client's own share of the noise, in steps of the integers.
    """

    chances: npt.ArrayLike
    cap: npt.ArrayLike
    scale: float
    rates: npt.ArrayLike = field(default=1.0, kw_only=True)
    draw: int = field(default=0, kw_only=True)
    longest: float = field(default=inf, kw_only=True)
    noise: float = field(default=0.0, kw_only=True)

    needs_model: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    per_client: ClassVar[Mapping[str, Any]] = {"chances": 0.0, "cap": 0.0, "rates": 1.0}
    name: ClassVar[str]

    @property
    def rate(self) -> float:
        """Sampling rate of one client."""
        return float(self.rates)  # type: ignore[arg-type]

    def sensitivity(self, numbers: int) -> float:
        """Return the most that one record can move an answer of this many numbers.

        One step is added for rounding, and one for the client's floating-point sums.
        """
        steps = FixedPoint(self.scale)
        return steps.distance(steps.distance(float(self.cap), numbers), numbers)  # type: ignore[arg-type]

    def weight(self, held: int, load: int) -> float:
        """Return the weight of each point of one client: it depends on no data."""
        chance, cap = float(self.chances), float(self.cap)  # type: ignore[arg-type]
        return float(min(held / max(load * chance * self.rate, 1e-300), cap))

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return the sum in integers."""
        weight, luck = self.weight(client.points, load), client.code_stream(_DRAW_STREAM, self.draw)
        drawn = (_drawn(part, self.rate, luck) for part in client.first(load))
        exact = weight * _added(self.part(part, model) for part in drawn)
        short = exact * min(1.0, self.longest / max(float(np.linalg.norm(exact)), 1e-300))
        residues = FixedPoint(self.scale).encode(short)
        if self.noise:
            standard = client.code_stream(_NOISE_STREAM, self.draw).standard_normal(residues.shape)
            residues = residues + noise_steps(self.noise, standard)
        return Answer(load, {self.name: residues})

    def _processed(self, loads: IntArray) -> FloatArray:
        """Return how many points each client goes through on average."""
        return np.asarray(loads * np.asarray(self.rates, dtype=np.float64), dtype=np.float64)

    @abstractmethod
    def part(self, points: Points, model: Array) -> Array:
        """Return the sum over some points; each adds a vector of length 1 at most."""

    @abstractmethod
    def numbers(self, features: int, labels: int) -> int:
        """Return how many numbers an answer has."""


@dataclass(frozen=True, eq=False)
class ClippedMoments(PrivateSum):
    """Sums of the features, of their squared lengths and of the labels, before the gradients.

    Features and labels are clipped to length 1, so a record adds three parts of length 1 at most;
    all is divided by √3.
    """

    kind: ClassVar[str] = "clipped_moments"
    name: ClassVar[str] = "moments"

    def part(self, points: Points, model: Array) -> Array:
        """Return Σ(x, ‖x‖², y)/√3."""
        xp = array_namespace(points[0])
        features, labels = (clipped(part, 1.0) for part in points)
        squares = xp.sum(features * features, axis=1, keepdims=True)
        columns = xp.concat([features, squares, labels], axis=1)
        return xp.sum(columns, axis=0, dtype=xp.float64) / 3**0.5

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return 4·q multiply-accumulates a point: length, sum, later the projection; two packets.

        The second packet is the helper's, charged to every client's own link: an upper bound.
        """
        macs = self._processed(loads) * (4 * task.workload.features)
        return Cost(macs, np.full(task.clients, 2 * task.workload.packet_bits))

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]]:
        """Return (q + 1 + c,)."""
        return {self.name: (self.numbers(*task.model_shape),)}

    def numbers(self, features: int, labels: int) -> int:
        """Return q + 1 + c."""
        return features + 1 + labels


@dataclass(frozen=True, eq=False)
class ClippedGradient(PrivateSum):
    """The gradient of clipped residuals on clipped features, in units of radius · residual.

    Parameters
    ----------
    direction : array of shape (q,)
        Of length 1; the features' component in this direction is removed.
    radius, residual
        R and C: features are clipped to R, residuals to C.
    """

    direction: npt.ArrayLike
    radius: float
    residual: float

    kind: ClassVar[str] = "clipped_gradient"
    name: ClassVar[str] = "gradient"

    def part(self, points: Points, model: Array) -> Array:
        """Return Σ x·rᵀ/(R·C), with x projected off the direction and clipped to R.

        The features are not modified: with s the factor that clips each point, and p its component
        along the direction d, the sum is Xᵀ·(s·r) − d·(pᵀ·(s·r)). Each record adds a matrix of
        length s·‖x − p·d‖·‖r‖/(R·C) ≤ 1, whatever direction and model are.
        """
        features, labels = points
        xp = array_namespace(features)
        direction = asarray_like(np.asarray(self.direction, dtype=np.float32), features)
        along = features @ direction
        lengths = self._longest(features, along, direction)
        if not xp.all(xp.isfinite(lengths)):  # such records count as 0: others must not change
            fine = xp.isfinite(lengths)
            features = xp.where(fine[:, None], features, xp.zeros_like(features))
            along = xp.where(fine, along, xp.zeros_like(along))
            lengths = xp.where(fine, lengths, xp.ones_like(lengths))
            labels = xp.where(fine[:, None], labels, xp.zeros_like(labels))
        shorter = xp.minimum(xp.asarray(1.0, dtype=lengths.dtype), self.radius / lengths)
        residuals = clipped(features @ model - labels, self.residual) * shorter[:, None]
        total = _product(features, residuals)
        total = total - direction[:, None] * _product(along[:, None], residuals)
        return total / (self.radius * self.residual)

    @staticmethod
    def _longest(features: Array, along: Array, direction: Array) -> Array:
        """Return upper bounds of ‖x − p·d‖, which hold however sums of q numbers are rounded."""
        xp = array_namespace(features)
        squares, removed = xp.vecdot(features, features), along * along
        length = float(xp.vecdot(direction, direction))
        rounding = direction.shape[0] * float(xp.finfo(squares.dtype).eps) / 2
        largest = squares * (1 + length) + removed * (2 + length)
        exact = squares + removed * (length - 2)
        return xp.sqrt(xp.maximum(exact, xp.zeros_like(exact)) + rounding * largest + 1e-30)

    def across(self, features: Array) -> Array:
        """Return features without their component in the direction, clipped to R."""
        direction = asarray_like(np.asarray(self.direction, dtype=np.float32), features)
        return clipped(features - (features @ direction)[:, None] * direction, self.radius)

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return 2·q·c + 2·c multiply-accumulates a point, and two packets: see `ClippedMoments`.

        Each point's projection and length are the same in all rounds, and kept.
        """
        q, c = task.model_shape
        packets = np.full(task.clients, 2 * task.workload.packet_bits)
        return Cost(self._processed(loads) * (2 * q * c + 2 * c), packets)

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]]:
        """Return the model's shape."""
        return {self.name: task.model_shape}

    def numbers(self, features: int, labels: int) -> int:
        """Return q·c."""
        return features * labels
