"""What a feature map is, the simplest one, and what all of them share."""

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace

from codedfedl.arrays import Array, asarray_like


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
        """Whether its kernel stays the same when all points are moved by the same vector."""


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
        return floating(points)

    largest_square: ClassVar[float] = np.inf
    shift_invariant: ClassVar[bool] = False


def hadamard(rows: Array) -> Array:
    """Transform the last axis of length 2^k by a matrix of ±1 with orthogonal rows.

    It is the Kronecker product of two small Hadamard matrices: two products with matrices of some
    √n, which every array library does at full speed. A client is charged the n·log₂n additions of
    the fast transform.
    """
    from scipy.linalg import hadamard as matrix_of  # here: a node with other features starts faster

    xp = array_namespace(rows)
    *shape, n = rows.shape
    right = 1 << (n.bit_length() // 2)
    small = (drawn_like(matrix_of(size), rows) for size in (right, n // right))
    halves = xp.reshape(rows, (prod(shape), n // right, right))
    for matrix in small:
        halves = xp.permute_dims(halves @ matrix, (0, 2, 1))
    return xp.reshape(halves, (*shape, n))


def drawn_like(drawn: npt.NDArray[Any], points: Array) -> Array:
    """Move draws from the host to the device of the points, in their precision."""
    double = points.dtype == array_namespace(points).float64
    return asarray_like(drawn.astype(np.float64 if double else np.float32), points)


def floating(points: Array) -> Array:
    """Return float64 as it is, and everything else as float32."""
    xp = array_namespace(points)
    kind = xp.float64 if points.dtype == xp.float64 else xp.float32
    return xp.astype(points, kind, copy=False)
