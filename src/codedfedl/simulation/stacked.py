"""Gradients of many settings in a few operations, for a GPU.

There, starting an operation costs more than its arithmetic. So all settings of a mini-batch share
one batched product with their Gram matrices, and one pair of products with the points of whoever is
missing in any of them. `Evaluator._one_by_one` is the naive twin.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import array_namespace

from codedfedl.arrays import Array, IntArray, asarray_like
from codedfedl.learning.least_squares import Quadratic
from codedfedl.simulation.grams import drop_oldest

if TYPE_CHECKING:
    from codedfedl.simulation.evaluate import Batch

__all__ = ["Missing", "Stacked"]

_NOWHERE = 2**62  # the place of padding: more than anybody's points
_STACKS = 2  # for each mini-batch, that are kept: settings may end one after the other
_PADDING = 512  # rows, so that there are few shapes: each is recorded by itself


@dataclass(frozen=True, eq=False)
class Missing:
    """The points that did not arrive in some rounds, on the device.

    Attributes
    ----------
    rows : array of shape (rounds, k)
        Those of the mini-batch that are missing in some setting; the last ones may be padding.
    counted : array of shape (rounds, k, settings)
        In which settings each is missing.
    counts : array of shape (rounds,)
        How many rows are not padding.
    """

    rows: Array
    counted: Array
    counts: IntArray

    def of(self, rounds: slice) -> tuple[Array, Array]:
        """Return rows and where they are counted, for some rounds, with little padding."""
        most = _padded(int(self.counts[rounds].max()))
        return self.rows[rounds, :most], self.counted[rounds, :most]


class Stacked:
    """The mini-batches on a device, for stacked settings."""

    def __init__(self, batches: Sequence["Batch"]) -> None:
        self.batches = batches
        self._quadratics: dict[tuple[Quadratic, ...], Quadratic] = {}

    def quadratic(self, quadratics: Sequence[Quadratic]) -> Quadratic:
        """Return the quadratics of all settings as one, stacked."""
        key = tuple(quadratics)
        stack = self._quadratics.pop(key, None)
        if stack is None:
            xp = array_namespace(quadratics[0].hessian)
            stack = Quadratic(
                xp.stack([one.hessian for one in quadratics]),
                xp.stack([one.moment for one in quadratics]),
            )
        self._quadratics[key] = stack
        drop_oldest(self._quadratics, _STACKS * len(self.batches))
        return stack

    def missing(self, numbers: Sequence[int], missed: IntArray) -> Missing:
        """Put what is missing on the device, for several rounds in one copy.

        Parameters
        ----------
        numbers
            The mini-batch of each round.
        missed : array of shape (rounds, settings, n)
            Points that were asked for and did not arrive.
        """
        rounds, settings, n = missed.shape
        most = missed.max(axis=1)  # over the settings
        counts = most.sum(axis=1)
        shape = (rounds, _padded(int(counts.max())))
        of, places = np.zeros(shape, dtype=np.int64), np.full(shape, _NOWHERE)
        for k, count in enumerate(counts.tolist()):
            clients = np.repeat(np.arange(n), most[k])
            of[k, :count] = k * n + clients
            places[k, :count] = np.arange(count) - (np.cumsum(most[k]) - most[k])[clients]
        starts = np.concatenate([self.batches[number].offsets[:-1] for number in numbers])
        missed = missed.transpose(0, 2, 1).reshape(rounds * n, settings).copy()
        like = self.batches[0].features
        of, places, starts, points = (
            asarray_like(one, like) for one in (of, places, starts, missed)
        )
        counted = places[:, :, None] < points[of]
        xp = array_namespace(places)
        return Missing(xp.where(places < _NOWHERE, starts[of] + places, 0), counted, counts)

    def gradient(
        self, quadratic: Quadratic, number: int, models: Array, rows: Array, counted: Array
    ) -> Array:
        """Sum the gradients that arrived and what is added to them, shape (q, settings, c).

        Parameters
        ----------
        quadratic
            Of all points that are asked for, and of what is added, stacked.
        models : array of shape (q, settings, c)
        rows, counted : arrays of shape (k,) and (k, settings)
            What is missing.
        """
        xp = array_namespace(models)
        total = xp.permute_dims(quadratic.gradient(xp.permute_dims(models, (1, 0, 2))), (1, 0, 2))
        return total - self.gradient_of_rows(number, models, rows, counted)

    def gradient_of_rows(self, number: int, models: Array, rows: Array, counted: Array) -> Array:
        """Sum the gradients of single points, shape (q, settings, c); see `gradient`."""
        xp, (q, settings, c) = array_namespace(models), models.shape
        if rows.shape[0] == 0:
            return xp.zeros_like(models)
        batch = self.batches[number]
        features, targets = batch.features[rows], batch.targets[rows]
        predictions = xp.reshape(features @ xp.reshape(models, (q, -1)), (-1, settings, c))
        residuals = xp.where(counted[:, :, None], predictions - targets[:, None, :], 0.0)
        part = features.T @ xp.reshape(residuals, (-1, settings * c))
        return xp.reshape(part, models.shape)


def _padded(rows: int) -> int:
    return -(-rows // _PADDING) * _PADDING
