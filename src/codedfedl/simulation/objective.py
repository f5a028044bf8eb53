"""How far a model is from the best one: a simulator can know, a server cannot."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from codedfedl.arrays import Array, FloatArray, to_host
from codedfedl.learning.least_squares import Quadratic

__all__ = ["Objective"]

_LEAST_RIDGE = 1e-10  # of the trace: with more, no digit that matters is lost to a plain solution


@dataclass(frozen=True, eq=False)
class Objective:
    """½‖Xβ − Y‖² + ½·ridge·‖β‖² over all points, the best model and its value."""

    hessian: FloatArray
    moment: FloatArray
    constant: float
    ridge: float
    best: FloatArray
    smallest: float

    @classmethod
    def of(cls, everything: Quadratic, targets: Sequence[FloatArray], ridge: float) -> "Objective":
        """Solve exact ridge regression, in float64 on the host."""
        hessian = to_host(everything.hessian).astype(np.float64)
        moment = to_host(everything.moment).astype(np.float64)
        constant = float(sum((part.astype(np.float64) ** 2).sum() for part in targets)) / 2
        regular = hessian + ridge * np.eye(len(hessian))
        regular_enough = ridge > _LEAST_RIDGE * float(np.trace(hessian))
        solve = np.linalg.solve if regular_enough else _least_squares
        best = np.asarray(solve(regular, moment), dtype=np.float64)
        smallest = constant - float((best * moment).sum()) / 2
        return cls(hessian, moment, constant, ridge, best, smallest)

    def value(self, model: Array) -> float:
        """Return the objective of a model."""
        beta = to_host(model).astype(np.float64)
        curved = self.hessian @ beta + self.ridge * beta
        return float((beta * (curved / 2 - self.moment)).sum()) + self.constant

    def loss(self, model: Array, points: float) -> float:
        """Return half the squared error of a point, on average, without the ridge."""
        penalty = self.ridge * float((to_host(model).astype(np.float64) ** 2).sum()) / 2
        return (self.value(model) - penalty) / points

    @property
    def explained(self) -> float:
        """How far the objective falls from no model to the best one, relative to the latter."""
        return self.constant / max(self.smallest, np.finfo(float).tiny) - 1

    def excess(self, model: Array) -> float:
        """Return how far the objective lies above its smallest value, relative to that."""
        return self.value(model) / max(self.smallest, np.finfo(float).tiny) - 1


def _least_squares(hessian: FloatArray, moment: FloatArray) -> FloatArray:
    """Solve a system that may be singular."""
    return np.asarray(np.linalg.lstsq(hessian, moment)[0], dtype=np.float64)
