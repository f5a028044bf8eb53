"""Quadratics of many clients' points: Gram matrices that are kept, and the ridge objective."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import add

import numpy as np
from array_api_compat import array_namespace
from scipy.linalg import solve

from codedfedl.arrays import Array, FloatArray, IntArray, to_host
from codedfedl.core.task import Task
from codedfedl.data import Dataset
from codedfedl.learning.features import FeatureMap
from codedfedl.learning.least_squares import Quadratic
from codedfedl.simulation.client_data import Batch

MIN_GRAMS = 64
"""Gram matrices that are kept, or more if there is one for every setting and mini-batch."""

MIN_RIDGE_SHARE = 1e-10  # Of the trace; with more, a plain solution loses no digit that matters.

_POINTS_TRIED = 10_000
_RIDGES = 4.0 ** np.arange(7)  # multiples of 1 / points
_PARTS = 5  # of the clients, which are left out in turn


def gram_of(batches: Sequence[Batch]) -> Quadratic:
    """Return the quadratic of all points there are."""
    return reduce(add, (batch.everything for batch in batches))


class Grams:
    """A bounded number of Gram matrices, by mini-batch, loads, and what a scheme adds to them."""

    def __init__(self, batches: Sequence[Batch], settings: int = 1) -> None:
        self.batches = batches
        self._kept = lru_cache(max(MIN_GRAMS, settings * len(batches)))(self._sum)

    def __len__(self) -> int:
        return self._kept.cache_info().currsize

    @property
    def computed(self) -> int:
        """How many were computed so far."""
        return self._kept.cache_info().misses

    def of(self, b: int, loads: IntArray, added: Quadratic | None) -> Quadratic:
        """Return the quadratic of all points that are asked for, and what is added to it."""
        return self._kept(b, loads.astype(np.int64).tobytes(), added)

    def _sum(self, b: int, loads: bytes, added: Quadratic | None) -> Quadratic:
        asked = self._of_loads(self.batches[b], np.frombuffer(loads, np.int64))
        return asked if added is None else asked + added

    def _of_loads(self, batch: Batch, loads: IntArray) -> Quadratic:
        """Return the quadratic of all points without those beyond the loads."""
        quadratic = batch.everything
        for group in batch.groups():
            clients = [j for j in range(group.start, group.stop) if loads[j] < batch.held[j]]
            if clients:
                rest = [batch.client(j, int(loads[j])) for j in clients]
                xp = array_namespace(rest[0][0])
                beyond = (xp.concat(parts, axis=0) for parts in zip(*rest, strict=True))
                quadratic = quadratic - Quadratic.of(*beyond)
        return quadratic


class Objectives:
    """The objectives of a simulation, by their ridge, each solved once."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = batches
        self._known: dict[float, Objective] = {}

    def of(self, task: Task) -> "Objective":
        """Return the objective of a task."""
        ridge = task.ridge * float(task.held.sum())
        if ridge not in self._known:
            targets = [to_host(batch.targets) for batch in self.batches]
            self._known[ridge] = Objective.of(gram_of(self.batches), targets, ridge)
        return self._known[ridge]


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
        regular_enough = ridge > MIN_RIDGE_SHARE * float(np.trace(hessian))
        solve = np.linalg.solve if regular_enough else _least_squares
        best = np.asarray(solve(regular, moment), dtype=np.float64)
        smallest = constant - float((best * moment).sum()) / 2
        return cls(hessian, moment, constant, ridge, best, smallest)

    def value(self, model: Array) -> float:
        """Return the objective of a model."""
        beta = to_host(model).astype(np.float64)
        hessian_beta = self.hessian @ beta + self.ridge * beta
        return float((beta * (hessian_beta / 2 - self.moment)).sum()) + self.constant

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


def ridge_for_new_clients(dataset: Dataset, features: FeatureMap) -> float:
    """Return the λ of exact ridge regression with the least squared error on left-out clients.

    Parts of the training clients are left out in turn. Points of one client resemble one another:
    what predicts them well may know their client, and fail on the next.
    """
    points = np.random.default_rng(0).permutation(len(dataset.inputs))[:_POINTS_TRIED]
    mapped = np.asarray(features.transform(dataset.inputs[points]), np.float64)
    targets = dataset.targets[points].astype(np.float64)
    if not dataset.is_classification:
        targets = targets - targets.mean(0)
    names, owners = np.unique(np.asarray(dataset.owners)[points], return_inverse=True)
    part = np.random.default_rng(0).permutation(len(names))[owners] % _PARTS
    error = np.zeros(len(_RIDGES))
    for left_out in np.unique(part) if len(names) > 1 else []:
        x, y = mapped[part != left_out], targets[part != left_out]
        gram, moments = x.T @ x / len(x), x.T @ y / len(x)
        for k, ridge in enumerate(_RIDGES / len(dataset.inputs)):
            model = solve(gram + ridge * np.eye(len(gram)), moments, assume_a="pos")
            missed = mapped[part == left_out] @ model - targets[part == left_out]
            error[k] += float((missed**2).sum())
    return float(_RIDGES[np.argmin(error)]) / len(dataset.inputs)
