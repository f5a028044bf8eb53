"""What the clients would have computed, for many models at once.

`answer` is the reference: one client, one ask. `Evaluator` gives the same sums fast. The gradient
of *all* points of a mini-batch is a quadratic, which reads a Gram matrix of q² numbers instead of
the points; what the missing clients would have added is computed from their points and taken off.
Models that share a Gram matrix, or miss the same client, go through one matrix product.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from array_api_compat import array_namespace, is_numpy_array

from codedfedl._types import IntArray, Mask
from codedfedl.arrays import Array, beside
from codedfedl.learning.gradients import Quadratic, gradient
from codedfedl.learning.parity import Parity, compose, encode, point_weights
from codedfedl.learning.training import step
from codedfedl.schemes.base import AskGradient, AskLocalModel, AskParity
from codedfedl.streams import stream

__all__ = ["Batch", "Evaluator", "answer", "local_model", "stacked_predictions"]


@dataclass(frozen=True, eq=False)
class Batch:
    """A mini-batch: every client's features and targets, one client after the other.

    Attributes
    ----------
    features : array of shape (m, q)
    targets : array of shape (m, c)
    offsets : array of shape (n + 1,)
        Client j has the rows ``offsets[j]:offsets[j + 1]``, in the random order in which it
        processes them.
    """

    features: Array
    targets: Array
    offsets: IntArray

    def client(self, j: int, first: int = 0, end: int | None = None) -> tuple[Array, Array]:
        """Return some of client j's rows, in its own order."""
        start, stop = int(self.offsets[j]), int(self.offsets[j + 1])
        rows = slice(start + first, stop if end is None else start + end)
        return self.features[rows], self.targets[rows]

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.offsets) - 1

    @cached_property
    def everything(self) -> Quadratic:
        """The quadratic of all its points."""
        return Quadratic.of(self.features, self.targets)


def answer(batch: Batch, client: int, ask: AskGradient, model: Array) -> Array:
    """Return what one client sends: the gradient over the first `load` of its points."""
    return gradient(*batch.client(client, 0, int(ask.loads[client])), model)


def local_model(batch: Batch, client: int, ask: AskLocalModel, model: Array) -> Array:
    """Return one client's model after its local steps."""
    features, targets = batch.client(client)
    for _ in range(ask.steps):
        total = gradient(features, targets, model)
        model = step(model, total, features.shape[0], ask.step_size, ask.ridge)
    return model


class Evaluator:
    """The clients of a simulation, all in one place."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = batches
        self._asked: dict[tuple[int, bytes, int], tuple[Quadratic, Quadratic | None]] = {}
        self._stacked: dict[tuple[int, ...], Quadratic] = {}
        self._places: dict[int, tuple[Array, Array]] = {}

    def gram(self) -> Quadratic:
        """Return the quadratic of all points there are."""
        first, *others = (batch.everything for batch in self.batches)
        for other in others:
            first = first + other
        return first

    def parity(self, ask: AskParity, seed: int) -> tuple[Parity, ...]:
        """Encode every mini-batch at every client, and add up."""
        return tuple(
            compose(self._encode(ask, seed, b, j) for j in range(batch.clients))
            for b, batch in enumerate(self.batches)
        )

    def _encode(self, ask: AskParity, seed: int, b: int, j: int) -> Parity:
        features, targets = self.batches[b].client(j)
        weights = point_weights(
            features.shape[0], int(ask.loads[b, j]), float(ask.return_probabilities[b, j])
        )
        # The rows are part of the key: another redundancy is another code, not a shorter one.
        code = stream(seed, "code", b, j, ask.rows[b])
        return encode(features, targets, weights, ask.rows[b], code, ask.code)

    def local_models(self, ask: AskLocalModel, model: Array, arrived: Mask) -> Array:
        """Return the mean of the local models that arrived, weighted by points."""
        batch = self.batches[ask.batch]
        points = float(ask.loads[arrived].sum())
        total = model * 0
        for j in np.flatnonzero(arrived):
            total = total + local_model(batch, int(j), ask, model) * (int(ask.loads[j]) / points)
        return total

    def totals(
        self, asks: Sequence[AskGradient], models: Sequence[Array], arrived: Sequence[Mask]
    ) -> list[Array]:
        """Sum the gradients that arrived and the server's own, for many asks of one mini-batch.

        Parameters
        ----------
        asks, models, arrived
            One each per setting; the asks are all for the same mini-batch.
        """
        missed = np.array(
            [np.where(who, 0, ask.loads) for ask, who in zip(asks, arrived, strict=True)]
        )
        if is_numpy_array(models[0]):
            return self._one_by_one(asks, models, missed)
        return self._all_at_once(asks, models, missed)

    def _one_by_one(
        self, asks: Sequence[AskGradient], models: Sequence[Array], missed: IntArray
    ) -> list[Array]:
        """Do as little arithmetic as there is: a processor begins a product at no cost."""
        batch, columns = self.batches[asks[0].batch], models[0].shape[1]
        quadratics = [self._quadratic(ask) for ask in asks]
        totals: list[Array] = [None] * len(asks)
        for members in _grouped(quadratics):
            shared = quadratics[members[0]]
            product = shared.hessian @ _side_by_side([models[s] for s in members])
            for place, s in enumerate(members):
                totals[s] = product[:, _block(place, columns)] - shared.moment
        for j in np.flatnonzero(missed.any(axis=0)):
            members = np.flatnonzero(missed[:, j]).tolist()
            loads = missed[members, j]
            part = _stacked_gradients(batch, int(j), loads, [models[s] for s in members])
            for place, s in enumerate(members):
                totals[s] = totals[s] - part[:, _block(place, columns)]
        return totals

    def _all_at_once(
        self, asks: Sequence[AskGradient], models: Sequence[Array], missed: IntArray
    ) -> list[Array]:
        """Do it in as few steps as there are: for a GPU the arithmetic costs next to nothing.

        What the missing would have added is taken from all points at once, the others masked.
        """
        xp = array_namespace(models[0])
        quadratics = [self._quadratic(ask) for ask in asks]
        key = tuple(id(quadratic) for quadratic in quadratics)
        if key not in self._stacked:
            self._stacked[key] = Quadratic(
                xp.stack([quadratic.hessian for quadratic in quadratics]),
                xp.stack([quadratic.moment for quadratic in quadratics]),
            )
        total = self._stacked[key].gradient(xp.stack(list(models)))
        if missed.any():
            batch = self.batches[asks[0].batch]
            client, place = self._rows(asks[0].batch)
            counted = place[:, None] < xp.take(beside(missed.T.copy(), place), client, axis=0)
            residuals = stacked_predictions(batch.features, models) - batch.targets[:, None, :]
            residuals = xp.where(counted[:, :, None], residuals, 0.0)
            part = batch.features.T @ xp.reshape(residuals, (residuals.shape[0], -1))
            part = xp.reshape(part, (-1, len(models), models[0].shape[1]))
            total = total - xp.permute_dims(part, (1, 0, 2))
        return [total[s] for s in range(len(asks))]

    def _rows(self, batch: int) -> tuple[Array, Array]:
        """Return whose each row of a mini-batch is, and its place among that client's rows."""
        if batch not in self._places:
            offsets, features = self.batches[batch].offsets, self.batches[batch].features
            held = np.diff(offsets)
            client = np.repeat(np.arange(len(held)), held)
            place = np.arange(offsets[-1]) - offsets[client]
            self._places[batch] = (beside(client, features), beside(place, features))
        return self._places[batch]

    def _quadratic(self, ask: AskGradient) -> Quadratic:
        """Return the quadratic of all points that are asked for, and the server's own."""
        key = (ask.batch, ask.loads.tobytes(), id(ask.own))
        if key not in self._asked:
            processed = self._processed(ask)
            # The ask's own is kept beside, so that its id stays taken.
            both = processed if ask.own is None else processed + ask.own
            self._asked[key] = (both, ask.own)
        return self._asked[key][0]

    def _processed(self, ask: AskGradient) -> Quadratic:
        batch = self.batches[ask.batch]
        rest = [
            batch.client(j, int(load))
            for j, load in enumerate(ask.loads)
            if load < batch.offsets[j + 1] - batch.offsets[j]
        ]
        if not rest:
            return batch.everything
        xp = array_namespace(batch.features)
        left_out = (xp.concat(parts, axis=0) for parts in zip(*rest, strict=True))
        return batch.everything - Quadratic.of(*left_out)


def _grouped(quadratics: Sequence[Quadratic]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for s, quadratic in enumerate(quadratics):
        groups.setdefault(id(quadratic), []).append(s)
    return list(groups.values())


def _block(place: int, columns: int) -> slice:
    return slice(place * columns, (place + 1) * columns)


def _side_by_side(models: Sequence[Array]) -> Array:
    """Return the models as the columns of one matrix."""
    if len(models) == 1:
        return models[0]
    return array_namespace(models[0]).concat(list(models), axis=1)


def _stacked_gradients(
    batch: Batch, client: int, loads: IntArray, models: Sequence[Array]
) -> Array:
    """Return a client's gradients for several models, each over its own load: (q, models·c)."""
    features, targets = batch.client(client, 0, int(loads.max()))
    residuals = stacked_predictions(features, models) - targets[:, None, :]
    if (loads < len(features)).any():
        residuals *= (np.arange(len(features))[:, None] < loads)[:, :, None]
    return features.T @ residuals.reshape(len(features), -1)


def stacked_predictions(features: Array, models: Sequence[Array]) -> Array:
    """Predictions of several models, shape (points, settings, c)."""
    xp = array_namespace(features)
    columns = models[0].shape[1]
    product = features @ _side_by_side(models)
    return xp.reshape(product, (features.shape[0], len(models), columns))
