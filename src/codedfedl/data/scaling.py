"""Scales of the inputs: one that clients agree on by sums, or one from public bounds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray
from codedfedl.data.shards import Shard
from codedfedl.errors import InputError

__all__ = [
    "UNSCALED",
    "Bounds",
    "Moments",
    "Scaling",
    "Sides",
    "agreed_means",
    "agreed_spreads",
    "bounds_of",
    "moments",
]

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

Sides = float | tuple[float, ...]
"""A number for all input columns, or one for each."""


@dataclass(frozen=True)
class Bounds:
    """Bounds of the input values that are known without looking at the data.

    Values beyond them are not refused: they are scaled like all others.
    """

    low: Sides
    high: Sides

    def __post_init__(self) -> None:
        low, high = (np.atleast_1d(side).astype(np.float64) for side in (self.low, self.high))
        if len({len(low), len(high)} - {1}) > 1 or not (low < high).all():
            raise InputError(
                f"data.low is {self.low} and data.high is {self.high}: give a number each, or one "
                "for each input column, with low below high"
            )
        if not np.isfinite([*low, *high]).all():
            raise InputError(f"data.low is {self.low} and data.high is {self.high}: must be finite")

    def scale(self, columns: int) -> tuple[FloatArray, FloatArray]:
        """Return the lowest value of each column and its span."""
        sides = [np.asarray(side, dtype=np.float64) for side in (self.low, self.high)]
        for name, side in zip(("low", "high"), sides, strict=True):
            if side.ndim and len(side) != columns:
                raise InputError(
                    f"data.{name} has {len(side)} values where there are {columns} input columns: "
                    "give one for each, or a single number"
                )
        low, high = (np.broadcast_to(side, columns) for side in sides)
        return low.copy(), high - low


def bounds_of(low: Sides | None, high: Sides | None) -> Bounds | None:
    """Return the bounds that are given; None where none are."""
    if low is None and high is None:
        return None
    if low is None or high is None:
        raise InputError(f"data.low is {low} and data.high is {high}: give both")
    return Bounds(low, high)
