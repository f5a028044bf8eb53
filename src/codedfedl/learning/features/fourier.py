"""Random Fourier features of the RBF kernel, dense and structured."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from array_api_compat import array_namespace, device, is_numpy_array

from codedfedl.arrays import Array, FloatArray
from codedfedl.errors import InputError
from codedfedl.learning.features.base import drawn_like, floating, hadamard

_ROWS_AT_ONCE = 512  # whose features stay in a core's cache
_ROWS_AT_ONCE_ON_GPU = 1 << 14
LEAST_WIDTH = 64
"""A sum of fewer random signs is not Gaussian enough."""


def check_settings(n_components: int, sigma: float) -> None:
    """Refuse an impossible number of features or kernel width."""
    if n_components < 1:
        raise InputError(f"n_components is {n_components}: must be at least 1")
    if not 0 < sigma < np.inf:
        raise InputError(f"sigma is {sigma:g}: must be finite and above 0")


@dataclass(frozen=True)
class _Fourier:
    """√(2/q)·cos(⟨ω, x⟩ + δ) for q frequencies ω; subclasses compute ⟨ω, x⟩."""

    n_components: int = 2000
    sigma: float = 5.0
    seed: int = 0

    largest_square: ClassVar[float] = 2.0  # q cosines, each at most √(2/q)
    shift_invariant: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_settings(self.n_components, self.sigma)

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
        # RandomState's streams are frozen forever: a seed means the same draws everywhere.
        random = np.random.RandomState(self.seed)
        gamma = 1 / (2 * self.sigma**2)
        omega = (2.0 * gamma) ** 0.5 * random.normal(size=(inputs, self.n_components))
        return omega, random.uniform(0, 2 * np.pi, size=self.n_components)

    def transform(self, points: Array) -> Array:
        """Return √(2/q)·cos(xω + δ)."""
        points = floating(points)
        draws = self.frequencies(points.shape[1])
        omega, delta = (drawn_like(drawn, points) for drawn in draws)
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
        n = max(LEAST_WIDTH, 1 << (inputs - 1).bit_length())
        return -(-self.n_components // n), n

    def macs(self, inputs: int) -> int:
        """Return n·log₂n for each pass, and q; an addition counts as a multiply-accumulate."""
        blocks, n = self.blocks(inputs)
        return (1 + blocks) * n * (n.bit_length() - 1) + self.n_components

    def draws(self, inputs: int) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Draw the shared signs (n,), each block's signs (blocks, n), lengths (q,) and δ (q,)."""
        random = np.random.RandomState(self.seed)
        blocks, n = self.blocks(inputs)
        shared, signs = (random.choice([-1.0, 1.0], shape) for shape in ((n,), (blocks, n)))
        lengths = np.sqrt(random.chisquare(n, self.n_components)) / self.sigma
        return shared, signs, lengths, random.uniform(0, 2 * np.pi, self.n_components)

    def frequencies(self, inputs: int) -> tuple[FloatArray, FloatArray]:
        """Return ω, shape (d, q), and δ, shape (q,), as explicit arrays."""
        shared, signs, lengths, delta = self.draws(inputs)
        blocks, n = signs.shape
        mixed = hadamard(hadamard(np.eye(inputs, n) * shared)[:, None, :] * signs)
        return mixed.reshape(inputs, blocks * n)[:, : self.n_components] * lengths / n, delta

    def transform(self, points: Array) -> Array:
        """Return √(2/q)·cos(xω + δ) without ever forming ω."""
        points = floating(points)
        xp = array_namespace(points)
        shared, signs, lengths, delta = (
            drawn_like(draws, points) for draws in self.draws(points.shape[1])
        )
        blocks, n = signs.shape
        lengths = lengths / n  # both transforms as rotations

        def project(rows: Array) -> Array:
            width = (rows.shape[0], n - rows.shape[1])
            padding = xp.zeros(width, dtype=rows.dtype, device=device(rows))
            padded = xp.concat([rows, padding], axis=1)
            spread = hadamard(padded * shared)
            mixed = hadamard(spread[:, None, :] * signs)
            return xp.reshape(mixed, (-1, blocks * n))[:, : self.n_components] * lengths

        return self._cosines(points, project, delta)


@dataclass(frozen=True)
class Semilinear:
    """The point itself, a constant, and structured Fourier features: a line and what bends it.

    For the columns of a table. Fourier features alone know nothing of points far from all that were
    trained on, such as those of a new client; the line continues there. The point is divided by
    √2·σ, by which a typical one has the length 1, and cut off at `LONGEST`.
    """

    n_components: int = 500
    sigma: float = 1.0
    seed: int = 0

    LONGEST: ClassVar[float] = 2.0
    largest_square: ClassVar[float] = 2.0 + LONGEST**2 + 1.0
    shift_invariant: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_settings(self.n_components, self.sigma)

    @property
    def bent(self) -> Structured:
        """The Fourier features."""
        return Structured(self.n_components, self.sigma, self.seed)

    def size(self, inputs: int) -> int:
        """Return q: the Fourier features, the point's numbers and a constant."""
        return self.n_components + inputs + 1

    def macs(self, inputs: int) -> int:
        """Return those of the Fourier features, and two for each number of the point."""
        return self.bent.macs(inputs) + 2 * inputs

    def transform(self, points: Array) -> Array:
        """Return the three parts side by side."""
        points = floating(points)
        xp = array_namespace(points)
        line = points / (2**0.5 * self.sigma)
        squares = xp.sum(line * line, axis=1, keepdims=True)
        longest = xp.asarray(self.LONGEST**2, dtype=points.dtype, device=device(points))
        line = line * xp.sqrt(longest / xp.maximum(squares, longest))
        ones = xp.ones((points.shape[0], 1), dtype=points.dtype, device=device(points))
        return xp.concat([self.bent.transform(points), line, ones], axis=1)
