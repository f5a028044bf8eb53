"""A setting's round of gradients, as the evaluator is asked for it, and its answer."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from codedfedl.arrays import Array, IntArray, Mask
from codedfedl.core.protocol import Inbox
from codedfedl.learning.least_squares import Quadratic

__all__ = ["Fused", "Query"]


@dataclass(frozen=True, eq=False)
class Query:
    """One setting's round of gradients.

    Attributes
    ----------
    loads : array of shape (n,)
    arrived : array of shape (n,)
    adds
        What the scheme will add to the sum.
    steady
        Whether these loads occur often enough for a Gram matrix.
    """

    batch: int
    loads: IntArray
    arrived: Mask
    model: Array
    adds: Quadratic | None = None
    steady: bool = True

    def rows(self, quadratic: Quadratic | None) -> IntArray:
        """Return the points of each client that are read, shape (n,).

        They are those that did not arrive if there is a quadratic of all, else those that did.
        """
        return np.where(self.arrived == (quadratic is None), self.loads, 0)

    def inbox(self, total: Array, adds: Quadratic | None) -> Inbox:
        """Return the inbox with a sum, which includes what the scheme adds if that is given."""
        points = float(self.loads[self.arrived].sum())
        if adds is None:
            return Inbox(self.arrived, points, {"gradient": total})
        sums = _ClientPart(total, adds, self.model)
        return Fused(self.arrived, points, sums, adds=adds, both=total, model=self.model)


@dataclass(frozen=True, eq=False)
class Fused(Inbox):
    """An inbox whose sum was computed together with the quadratic that the scheme adds to it."""

    adds: Quadratic | None = None
    both: Array = None
    model: Array = None

    def plus(self, own: Quadratic, model: Array) -> Array:
        """Return the precomputed sum where it is the one that is wanted."""
        if own is self.adds and model is self.model:
            return self.both
        return super().plus(own, model)


class _ClientPart(Mapping[str, Array]):
    """The sums of a fused inbox: the clients' gradient, computed if anybody reads it."""

    def __init__(self, both: Array, adds: Quadratic, model: Array) -> None:
        self._parts = both, adds, model

    def __getitem__(self, name: str) -> Array:
        if name != "gradient":
            raise KeyError(name)
        both, adds, model = self._parts
        return both - adds.gradient(model)

    def __iter__(self) -> Iterator[str]:
        return iter(("gradient",))

    def __len__(self) -> int:
        return 1
