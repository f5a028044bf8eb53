"""A scale that clients agree on: each reports sums over its points, and nobody sees a point."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl._types import FloatArray
from codedfedl.data.shards import Shard

__all__ = ["UNSCALED", "Moments", "Scaling", "agreed_means", "agreed_spreads", "moments"]

_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums over the points of one client, about some given values.

    Attributes
    ----------
    sums, squares : arrays of shape (d,)
        Of every input column.
    labels : array of shape (c,)
        Sums of the numbers to predict; of shape (0,) for classes.
    """

    sums: FloatArray
    squares: FloatArray
    labels: FloatArray

    def times(self, weight: float) -> "Moments":
        """Return the sums times a weight."""
        return Moments(weight * self.sums, weight * self.squares, weight * self.labels)


def moments(shard: Shard, about: npt.ArrayLike = 0.0) -> Moments:
    """Sum a client's columns and their squares about some values, some rows at a time."""
    middle = np.asarray(about, dtype=np.float64)
    sums, squares = np.zeros((2, shard.inputs.shape[1]))
    for start in range(0, len(shard.inputs), _ROWS_AT_ONCE):
        rows = np.asarray(shard.inputs[start : start + _ROWS_AT_ONCE], np.float64) - middle
        sums += rows.sum(0)
        squares += (rows**2).sum(0)
    labels = np.zeros(0)
    if not shard.is_classification:
        labels = np.asarray(shard.labels, np.float64).reshape(len(shard.labels), -1).sum(0)
    return Moments(sums, squares, labels)


def agreed_means(told: Sequence[Moments], points: Sequence[int]) -> tuple[FloatArray, FloatArray]:
    """Return the mean of every input column, and of the numbers to predict."""
    total = float(sum(points))
    inputs = np.asarray(sum(one.sums for one in told)) / total
    return inputs, np.asarray(sum(one.labels for one in told)) / total


def agreed_spreads(told: Sequence[Moments], points: Sequence[int]) -> FloatArray:
    """Return the standard deviation of every column from moments about the means; 1 where it is 0.

    Two passes: sums of squares about 0 would lose the digits of columns far from it.
    """
    variance = np.asarray(sum(one.squares for one in told)) / float(sum(points))
    return np.where(variance > 0, np.sqrt(np.maximum(variance, 0.0)), 1.0)


@dataclass(frozen=True)
class Scaling:
    """How every client shifts and scales its data; plain lists, to be sent as JSON.

    Attributes
    ----------
    low, span
        Inputs become (value − low) / span.
    offset
        Subtracted from the numbers to predict; empty for classes.
    """

    low: list[float] = field(default_factory=list)
    span: list[float] = field(default_factory=list)
    offset: list[float] = field(default_factory=list)

    def inputs(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return scaled inputs; as they are where nothing was agreed on."""
        if not self.low:
            return values
        return (np.asarray(values, np.float64) - self.low) / self.span

    def targets(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return centred targets; as they are for classes."""
        return values - np.asarray(self.offset, np.float32) if self.offset else values


UNSCALED = Scaling()
"""No scaling."""
