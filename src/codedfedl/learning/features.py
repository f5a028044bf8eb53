"""Feature maps: what the clients train on in place of their raw data (section 3.1).

Clients receive a map's few settings, the seed among them, never its frequencies.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device, is_numpy_array

from codedfedl._types import FloatArray
from codedfedl.arrays import Array, beside
from codedfedl.errors import InputError
from codedfedl.io.names import nearest
from codedfedl.streams import stream

__all__ = [
    "FEATURES",
    "FeatureMap",
    "Identity",
    "RandomFourier",
    "Structured",
    "feature_map",
    "fingerprint",
    "safe_step",
    "typical_sigma",
]

_ROWS_AT_ONCE = 512  # whose features stay in a core's cache
_ROWS_AT_ONCE_ON_GPU = 1 << 14
_LEAST_WIDTH = 64  # a sum of fewer random signs is not Gaussian enough


class FeatureMap(Protocol):
    """A map from raw points, shape (n, d), to features, shape (n, q)."""

    def size(self, inputs: int) -> int:
        """Return q for raw points of `inputs` numbers."""

    def macs(self, inputs: int) -> int:
        """Return the multiply-accumulates that one point costs."""

    def transform(self, points: Array) -> Array:
        """Map raw points to features, on the same device: float32, or float64 where they are."""

    @property
    def largest_square(self) -> float:
        """The largest squared length of a feature vector; ∞ where it is not bounded."""

    @property
    def shift_invariant(self) -> bool:
        """Whether its kernel stays the same when all points are moved alike."""


@dataclass(frozen=True)
class Identity:
    """The raw points themselves: linear regression, as in CFL."""

    def size(self, inputs: int) -> int:
        """Return d."""
        return inputs

    def macs(self, inputs: int) -> int:
        """Return 0."""
        return 0

    def transform(self, points: Array) -> Array:
        """Return the points as they are, in floating point."""
        return _floating(points)

    largest_square: ClassVar[float] = np.inf
    shift_invariant: ClassVar[bool] = False


@dataclass(frozen=True)
class _Fourier:
    """√(2/q)·cos(⟨ω, x⟩ + δ) for q frequencies ω that somebody projects on."""

    n_components: int = 2000
    sigma: float = 5.0
    seed: int = 0

    largest_square: ClassVar[float] = 2.0  # q cosines, each at most √(2/q)
    shift_invariant: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.n_components < 1:
            raise InputError(f"n_components is {self.n_components}: must be at least 1")
        if not 0 < self.sigma < np.inf:
            raise InputError(f"sigma is {self.sigma:g}: must be finite and above 0")

    def size(self, inputs: int) -> int:
        """Return q."""
        return self.n_components

    def _cosines(self, points: Array, project: Callable[[Array], Array], phases: Array) -> Array:
        """Map points some rows at a time, so that memory stays bounded."""
        xp = array_namespace(points)
        shape = (points.shape[0], self.n_components)
        features = xp.empty(shape, dtype=points.dtype, device=device(points))
        scale = (2.0 / self.n_components) ** 0.5
        step = _ROWS_AT_ONCE if is_numpy_array(points) else _ROWS_AT_ONCE_ON_GPU
        for start in range(0, points.shape[0], step):
            rows = slice(start, start + step)
            features[rows] = scale * xp.cos(project(points[rows]) + phases)
        return features


@dataclass(frozen=True)
class RandomFourier(_Fourier):
    """Random Fourier features of the RBF kernel exp(−‖x − y‖²/(2σ²)) (eq. 5).

    The draws are scikit-learn's ``RBFSampler(gamma=1/(2σ²), random_state=seed)`` to the last bit.
    """

    def macs(self, inputs: int) -> int:
        """Return d·q."""
        return inputs * self.n_components

    def frequencies(self, inputs: int) -> tuple[FloatArray, FloatArray]:
        """Draw ω, shape (d, q), and δ, shape (q,)."""
        # RandomState's streams are frozen for ever: a seed means the same draws everywhere.
        random = np.random.RandomState(self.seed)
        gamma = 1 / (2 * self.sigma**2)
        omega = (2.0 * gamma) ** 0.5 * random.normal(size=(inputs, self.n_components))
        return omega, random.uniform(0, 2 * np.pi, size=self.n_components)

    def transform(self, points: Array) -> Array:
        """Return √(2/q)·cos(xω + δ)."""
        points = _floating(points)
        draws = self.frequencies(points.shape[1])
        omega, delta = (_beside(drawn, points) for drawn in draws)
        return self._cosines(points, lambda rows: rows @ omega, delta)


@dataclass(frozen=True)
class Structured(_Fourier):
    """Orthogonal random features of the same kernel, by Hadamard matrices and random signs.

    A point is padded to n = 2^k numbers. One pass (signs, then the Hadamard transform H) spreads it
    evenly, and all blocks share it; one more pass for each block of n features makes ⟨ω, x⟩ nearly
    Gaussian, for points of any kind. The frequencies of a block are orthogonal, and their lengths
    are drawn from the distribution that Gaussian ones have. A point costs n·log₂n additions for
    each pass, and q multiplications for the lengths: O(q·log d) instead of O(q·d).
    """

    def blocks(self, inputs: int) -> tuple[int, int]:
        """Return how many blocks there are, and n."""
        n = max(_LEAST_WIDTH, 1 << (inputs - 1).bit_length())
        return -(-self.n_components // n), n

    def macs(self, inputs: int) -> int:
        """Return n·log₂n for each pass, and q; an addition counts as a multiply-accumulate."""
        blocks, n = self.blocks(inputs)
        return (1 + blocks) * n * (n.bit_length() - 1) + self.n_components

    def draws(self, inputs: int) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Draw the shared signs (n,), each block's signs (blocks, n), lengths (q,) and δ (q,)."""
        random = np.random.RandomState(self.seed)
        blocks, n = self.blocks(inputs)
        shared, own = (random.choice([-1.0, 1.0], shape) for shape in ((n,), (blocks, n)))
        lengths = np.sqrt(random.chisquare(n, self.n_components)) / self.sigma
        return shared, own, lengths, random.uniform(0, 2 * np.pi, self.n_components)

    def transform(self, points: Array) -> Array:
        """Return √(2/q)·cos(xω + δ) without ever forming ω."""
        points = _floating(points)
        xp = array_namespace(points)
        shared, own, lengths, delta = (
            _beside(draws, points) for draws in self.draws(points.shape[1])
        )
        blocks, n = own.shape
        lengths = lengths / n  # both transforms as rotations

        def project(rows: Array) -> Array:
            width = (rows.shape[0], n - rows.shape[1])
            padding = xp.zeros(width, dtype=rows.dtype, device=device(rows))
            padded = xp.concat([rows, padding], axis=1)
            spread = _hadamard(padded * shared)
            mixed = _hadamard(spread[:, None, :] * own)
            return xp.reshape(mixed, (-1, blocks * n))[:, : self.n_components] * lengths

        return self._cosines(points, project, delta)


def _hadamard(rows: Array) -> Array:
    """Transform the last axis of length 2^k by a matrix of ±1 with orthogonal rows.

    It is the Kronecker product of two small Hadamard matrices: two products with matrices of some
    √n, which every array library does at full speed. A client is charged the n·log₂n additions of
    the fast transform.
    """
    from scipy.linalg import hadamard  # here: a node with other features starts faster

    xp = array_namespace(rows)
    *shape, n = rows.shape
    right = 1 << (n.bit_length() // 2)
    small = (_beside(hadamard(size), rows) for size in (right, n // right))
    halves = xp.reshape(rows, (prod(shape), n // right, right))
    for matrix in small:
        halves = xp.permute_dims(halves @ matrix, (0, 2, 1))
    return xp.reshape(halves, (*shape, n))


def _beside(drawn: npt.NDArray[Any], points: Array) -> Array:
    """Put what was drawn on the host where the points are, in their precision."""
    double = points.dtype == array_namespace(points).float64
    return beside(drawn.astype(np.float64 if double else np.float32), points)


def _floating(points: Array) -> Array:
    """Return float64 as it is, and everything else as float32."""
    xp = array_namespace(points)
    kind = xp.float64 if points.dtype == xp.float64 else xp.float32
    return xp.astype(points, kind, copy=False)


FEATURES: dict[str, Callable[[int, float, int], FeatureMap]] = {
    "fourier": RandomFourier,
    "structured": Structured,
    "identity": lambda _components, _sigma, _seed: Identity(),
}
"""Every kind of feature map, made from the number of features, σ and a seed."""


def feature_map(kind: str, n_components: int, sigma: float, seed: int) -> FeatureMap:
    """Return a feature map by its kind, one of `FEATURES`."""
    if kind not in FEATURES:
        raise InputError(f"features.kind is {kind!r}: {nearest(kind, list(FEATURES))}")
    return FEATURES[kind](n_components, sigma, seed)


def typical_sigma(points: npt.NDArray[Any]) -> float:
    """Return a σ that suits the points: half the root mean square distance between two of them.

    It needs the columns' sums and sums of squares alone, which clients could add up. On MNIST it
    is 5.1, where the paper has 5. Points that are all the same have a σ of 1.
    """
    mean = points.mean(axis=0, dtype=np.float64)
    starts = range(0, len(points), _ROWS_AT_ONCE)
    squares = (((points[start : start + _ROWS_AT_ONCE] - mean) ** 2).sum() for start in starts)
    return float((sum(squares) / len(points) / 2) ** 0.5) or 1.0


def safe_step(features: FeatureMap, ridge: float, points: npt.NDArray[Any] | None = None) -> float:
    """Return a step size at which no mini-batch's gradient step diverges: 1/(R² + λ).

    R² is the largest squared norm of a mapped point, and no Hessian of a mean over points, however
    they are chosen, has a larger eigenvalue: a mini-batch or a client of one class is safe too. A
    step is stable up to 2/(R² + λ). Where the map itself bounds R², half the bound is taken, which
    for Fourier features is the mean: at the bound the step is still stable.

    Parameters
    ----------
    points : array of shape (n, d), optional
        All inputs, which only ``identity`` needs.
    """
    if np.isfinite(features.largest_square):
        return 1 / (features.largest_square / 2 + ridge)
    if points is None:
        raise InputError(
            "training.step is 'auto', which needs all data in one place where features.kind is "
            "'identity': give a number, at most 1 over the largest squared norm of a point"
        )
    starts = range(0, len(points), _ROWS_AT_ONCE)
    mapped = (features.transform(points[start : start + _ROWS_AT_ONCE]) for start in starts)
    largest = max(float((rows.astype(np.float64) ** 2).sum(axis=1).max()) for rows in mapped)
    return 1 / (largest + ridge) if largest + ridge > 0 else 1.0


def fingerprint(features: FeatureMap, inputs: int) -> FloatArray:
    """Return a few numbers that two machines share, up to rounding, if their maps are the same.

    They are signed sums over all features of three fixed points: a map that differs anywhere
    differs here.
    """
    points = stream(0, "subset", inputs).random((3, inputs))
    mapped = np.asarray(features.transform(points), dtype=np.float64)
    signs = 1 - 2 * stream(0, "subset", inputs, 1).integers(0, 2, (mapped.shape[1], 4))
    return np.asarray(mapped @ signs)
