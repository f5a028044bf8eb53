"""What is trained: a `Learner` says what a model, a gradient and local steps are, and their cost.

No scheme and no runtime knows which learner it trains. A model is one array; arrays of NumPy,
PyTorch or CuPy go in, and arrays of the same kind come out.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from codedfedl.arrays import Array
from codedfedl.errors import InputError
from codedfedl.learning.least_squares import gradient
from codedfedl.learning.optimisers import step


class Learner(ABC):
    """A model that is fitted by its gradients: a frozen dataclass, the same on every machine.

    Features have shape (k, d), targets (k, c); a loss and a gradient are *sums* over points, and
    whoever uses them divides.

    Attributes
    ----------
    inputs, outputs
        d and c: numbers of a point, and of its target.
    """

    inputs: int
    outputs: int

    quadratic: ClassVar[bool] = False
    """Whether the loss is ½‖Xβ − Y‖², so that Gram matrices and parity exist."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of a model and of a gradient."""

    @property
    @abstractmethod
    def point_macs(self) -> float:
        """Multiply-accumulates of one point's gradient, forward and backward."""

    @property
    def parameters(self) -> int:
        """How many numbers a model has."""
        return prod(self.shape)

    @property
    def tensor_sizes(self) -> tuple[int, ...]:
        """Numbers of each tensor of a model, one after another: a rounded message scales each."""
        return (self.parameters,)

    @abstractmethod
    def start(self, rng: np.random.Generator) -> Array:
        """Return the first model, on the host, in float32."""

    def check(self, targets: Array) -> None:  # noqa: B027  # nothing to refuse by default
        """Refuse targets that the loss cannot be taken of; by default every number will do."""

    @abstractmethod
    def scores(self, model: Array, features: Array) -> Array:
        """Return the outputs of a model, shape (k, c)."""

    @abstractmethod
    def loss(self, model: Array, features: Array, targets: Array) -> float:
        """Return Σ_i ℓ_i."""

    @abstractmethod
    def gradient(
        self, model: Array, features: Array, targets: Array, weights: Array | None = None
    ) -> Array:
        """Return Σ_i w_i·∇ℓ_i, of the model's shape; weights have shape (k,), by default 1."""

    def steps(
        self,
        model: Array,
        features: Array,
        targets: Array,
        *,
        count: int,
        step_size: float,
        ridge: float,
        batch: int | None = None,
        rng: np.random.Generator | None = None,
        proximal: float = 0.0,
    ) -> Array:
        """Return the model after local steps β − μ(g + λβ), where g is a mean over points.

        Parameters
        ----------
        count
            Number of steps.
        batch
            Points of a step, the next ones in order (`batch_rows`); by default all of them.
        rng
            Shuffles the points before every pass; by default they keep their order.
        proximal
            FedProx's μ: a pull back to the first model, ½μ‖β − β₀‖² in the loss.
        """
        first = model
        for rows in batch_rows(len(targets), count, batch, rng):
            part = targets[rows]
            total = self.gradient(model, features[rows], part)
            moved = step(model, total, len(part), step_size, ridge)
            model = moved - step_size * proximal * (model - first) if proximal else moved
        return model

    def many_gradients(
        self,
        models: Array,
        features: Sequence[Array],
        targets: Sequence[Array],
        weights: Sequence[Array] | None = None,
    ) -> Array:
        """Return the gradient of every model at its points; models have shape (m, *shape)."""
        scale: Sequence[Array | None] = weights or [None] * len(models)
        every = zip(models, features, targets, scale, strict=True)
        return array_namespace(models).stack([self.gradient(*entry) for entry in every])

    def many_steps(
        self,
        models: Array,
        features: Sequence[Array],
        targets: Sequence[Array],
        *,
        counts: Sequence[int],
        step_size: float,
        ridge: float,
        batch: int | None = None,
        rngs: Sequence[np.random.Generator | None] | None = None,
        proximal: float = 0.0,
    ) -> Array:
        """Return every model after its local steps (`steps`), shape (m, *shape)."""
        streams = rngs or [None] * len(counts)
        settings = {"step_size": step_size, "ridge": ridge, "batch": batch, "proximal": proximal}
        every = zip(models, features, targets, counts, streams, strict=True)
        made = [
            self.steps(model, points, wanted, count=count, rng=rng, **settings)  # type: ignore[arg-type]
            for model, points, wanted, count, rng in every
        ]
        return array_namespace(models).stack(made)


@dataclass(frozen=True)
class LeastSquares(Learner):
    """½‖Xβ − Y‖², the paper's: a model is β of shape (q, c).

    Parameters
    ----------
    inputs
        q, the number of features.
    outputs
        c, the number of label columns.
    """

    inputs: int
    outputs: int

    quadratic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, value in (("features", self.inputs), ("labels", self.outputs)):
            if value < 1:
                raise InputError(f"{name} is {value}: a model needs at least 1")

    @property
    def shape(self) -> tuple[int, ...]:
        """(q, c)."""
        return (self.inputs, self.outputs)

    @property
    def point_macs(self) -> float:
        """2·q·c: the products Xβ and Xᵀ(Xβ − Y)."""
        return 2.0 * self.inputs * self.outputs

    def start(self, rng: np.random.Generator) -> Array:
        """Return zeros, as the paper does."""
        return np.zeros(self.shape, dtype=np.float32)

    def scores(self, model: Array, features: Array) -> Array:
        """Xβ."""
        return features @ model

    def loss(self, model: Array, features: Array, targets: Array) -> float:
        """½‖Xβ − Y‖²."""
        xp = array_namespace(features)
        return float(xp.sum((features @ model - targets) ** 2)) / 2

    def gradient(
        self, model: Array, features: Array, targets: Array, weights: Array | None = None
    ) -> Array:
        """Xᵀ·diag(w)·(Xβ − Y)."""
        return gradient(features, targets, model, weights)


def batch_rows(
    points: int, count: int, batch: int | None = None, rng: np.random.Generator | None = None
) -> Sequence[Any]:
    """Return which rows each of `count` local steps takes: slices, or arrays of shape (batch,).

    Steps take the next points in order, and begin again after the last one, so that all steps have
    equally many; with `rng`, every pass has an order of its own.

    Examples
    --------
    >>> [rows.tolist() for rows in batch_rows(5, 3, batch=2)]
    [[0, 1], [2, 3], [4, 0]]
    """
    if batch is not None and batch < 1:
        raise InputError(f"batch is {batch}: a local step needs at least 1 point")
    if batch is None or batch >= points:
        return [slice(None)] * count
    passes = -(-count * batch // points)
    order = [np.arange(points) if rng is None else rng.permutation(points) for _ in range(passes)]
    return list(np.concatenate([*order, np.empty(0, np.int64)])[: count * batch].reshape(-1, batch))
