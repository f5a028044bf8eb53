"""The quadratics of loads that occur again and again: a bounded number of them.

A Gram matrix has q² numbers, and computing it takes as long as many gradients of the same points.
So it pays only for loads that come back, as planned ones do; those of freshly sampled clients do
not, and their gradients are computed from the points. Which of the two it is depends on a setting's
earlier rounds alone, so that a run that is resumed ends with the same bits.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace

from codedfedl.arrays import IntArray
from codedfedl.learning.least_squares import Quadratic
from codedfedl.simulation.streamed import ahead

if TYPE_CHECKING:
    from codedfedl.simulation.evaluate import Batch

__all__ = ["LEAST_HELD", "Grams", "LoadsSeen", "drop_oldest"]

LEAST_HELD = 64
"""Gram matrices that are kept at most, unless the settings need more: one for each mini-batch."""

_DISTINCT = 32  # loads of one setting: with more, too few of them come back soon enough

_Key = tuple[int, bytes, Quadratic | None]


class LoadsSeen:
    """Which loads a setting has asked for in earlier rounds, as long as they are few."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def again(self, loads: IntArray) -> bool:
        """Return whether these have occurred before, and few others have; remember them."""
        key = hash(loads.tobytes())
        known = key in self._hashes
        if len(self._hashes) <= _DISTINCT:
            self._hashes.add(key)
        return known and len(self._hashes) <= _DISTINCT


class Grams:
    """Gram matrices by mini-batch, loads, and what a scheme adds to them.

    Parameters
    ----------
    settings
        How many settings share the mini-batches: with steady loads all of theirs are kept.

    Attributes
    ----------
    computed
        How many were computed so far.
    """

    def __init__(self, batches: Sequence["Batch"], settings: int = 1) -> None:
        self.batches = batches
        self.most = max(LEAST_HELD, settings * len(batches))
        self.computed = 0
        self._held: dict[_Key, Quadratic] = {}  # in the order of their last use

    def __len__(self) -> int:
        return len(self._held)

    def of(self, batch: int, loads: IntArray, adds: Quadratic | None) -> Quadratic:
        """Return the quadratic of all points that are asked for, and what is added to it."""
        if self.has_anyway(batch, loads, adds):
            return self.batches[batch].everything
        key = (batch, loads.tobytes(), adds)
        quadratic = self._held.pop(key, None)
        if quadratic is None:
            asked = self._of_loads(batch, loads)
            quadratic = asked if adds is None else asked + adds
            self.computed += 1
        self._held[key] = quadratic
        drop_oldest(self._held, self.most)
        return quadratic

    def has_anyway(self, batch: int, loads: IntArray, adds: Quadratic | None) -> bool:
        """Return whether it is that of all points, which a mini-batch computes once."""
        held = np.diff(self.batches[batch].offsets)
        return adds is None and bool((loads == held).all())

    def _of_loads(self, number: int, loads: IntArray) -> Quadratic:
        batch = self.batches[number]
        left = np.diff(batch.offsets) - loads
        clients = np.flatnonzero(left > 0)
        quadratic, starts = batch.everything, batch.offsets[clients] + loads[clients]
        if not len(clients):
            return quadratic
        for group in ahead([batch.features], [starts], [left[clients]]):
            rest = [batch.client(j, int(loads[j])) for j in clients[group].tolist()]
            xp = array_namespace(rest[0][0])
            left_out = (xp.concat(parts, axis=0) for parts in zip(*rest, strict=True))
            quadratic = quadratic - Quadratic.of(*left_out)
        return quadratic


def drop_oldest(kept: dict[Any, Any], most: int) -> None:
    """Drop the first ones beyond so many."""
    while len(kept) > most:
        del kept[next(iter(kept))]
