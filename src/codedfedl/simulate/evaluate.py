"""What the clients would have computed, for many models at once.

`answer` is the reference: one client, one ask. `Evaluator` gives the same sums fast. The gradient
of *all* points of a mini-batch is a quadratic, which reads a Gram matrix of q² numbers instead of
the points; what the missing clients would have added is computed from their points and taken off.
Models that share a Gram matrix, or miss the same client, go through one matrix product.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device, is_numpy_array

from codedfedl.features import Array
from codedfedl.fleet import IntArray
from codedfedl.gradients import Quadratic, gradient
from codedfedl.parity import Parity, compose, encode, point_weights
from codedfedl.schemes.base import AskGradient, AskLocalModel, AskParity, Mask
from codedfedl.streams import stream
from codedfedl.training import step

__all__ = ["Batch", "Evaluator", "answer", "local_model"]


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
        self._all: dict[int, Quadratic] = {}
        self._asked: dict[tuple[int, bytes, int], tuple[Quadratic, Quadratic | None]] = {}

    def everything(self, batch: int) -> Quadratic:
        """Return the quadratic of all points of a mini-batch."""
        if batch not in self._all:
            data = self.batches[batch]
            self._all[batch] = Quadratic.of(data.features, data.targets)
        return self._all[batch]

    def gram(self) -> Quadratic:
        """Return the quadratic of all points there are."""
        first, *others = (self.everything(batch) for batch in range(len(self.batches)))
        for other in others:
            first = first + other
        return first

    def parity(self, ask: AskParity, seed: int) -> tuple[Parity, ...]:
        """Encode every mini-batch at every client, and add up."""
        return tuple(
            compose([self._encode(ask, seed, b, j) for j in range(batch.clients)])
            for b, batch in enumerate(self.batches)
        )

    def _encode(self, ask: AskParity, seed: int, b: int, j: int) -> Parity:
        features, targets = self.batches[b].client(j)
        weights = point_weights(
            features.shape[0], int(ask.loads[b, j]), float(ask.return_probabilities[b, j])
        )
        # The rows are part of the key: another redundancy is another code, not a shorter one.
        code = stream(seed, "code", b, j, ask.rows[b])
        return encode(features, targets, weights, ask.rows[b], code)

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
        batch, columns = self.batches[asks[0].batch], models[0].shape[1]
        totals = self._of_all(asks, models)
        for clients in self._together(np.flatnonzero(missed.any(axis=0))):
            members = np.flatnonzero(missed[:, clients].any(axis=1))
            loads = missed[np.ix_(members, clients)]
            part = _stacked_gradients(batch, clients, loads, [models[int(s)] for s in members])
            for place, s in enumerate(members):
                totals[s] = totals[s] - part[:, _block(place, columns)]
        return totals

    def _of_all(self, asks: Sequence[AskGradient], models: Sequence[Array]) -> list[Array]:
        """Return the gradients as if everybody had arrived, shape (q, c) each."""
        xp = array_namespace(models[0])
        quadratics = [self._quadratic(ask) for ask in asks]
        columns = models[0].shape[1]
        parts: list[Array] = [None] * len(asks)
        for members in _grouped(quadratics):
            shared = quadratics[members[0]]
            product = shared.hessian @ xp.concat([models[s] for s in members], axis=1)
            for place, s in enumerate(members):
                parts[s] = product[:, _block(place, columns)] - shared.moment
        return parts

    def _together(self, clients: IntArray) -> list[IntArray]:
        """Say which clients go through one product.

        A processor is slow at products and quick to begin one: each client alone, for the models
        that miss it. A GPU is the other way round: all clients at once, for all models.
        """
        if len(clients) and is_numpy_array(self.batches[0].features):
            return [np.array([j]) for j in clients]
        return [clients] if len(clients) else []

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
            return self.everything(ask.batch)
        xp = array_namespace(batch.features)
        left_out = (xp.concat(parts, axis=0) for parts in zip(*rest, strict=True))
        return self.everything(ask.batch) - Quadratic.of(*left_out)


def _grouped(quadratics: Sequence[Quadratic]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for s, quadratic in enumerate(quadratics):
        groups.setdefault(id(quadratic), []).append(s)
    return list(groups.values())


def _block(place: int, columns: int) -> slice:
    return slice(place * columns, (place + 1) * columns)


def _stacked_gradients(
    batch: Batch, clients: IntArray, loads: IntArray, models: Sequence[Array]
) -> Array:
    """Sum some clients' gradients for several models, shape (q, models·c).

    Parameters
    ----------
    loads : array of shape (models, clients)
        Rows of each client that count for each model.
    """
    xp = array_namespace(models[0])
    most = loads.max(axis=0)
    parts = [batch.client(int(j), 0, int(rows)) for j, rows in zip(clients, most, strict=True)]
    features, targets = parts[0]
    if len(parts) > 1:
        features, targets = (xp.concat(part, axis=0) for part in zip(*parts, strict=True))
    residuals = features @ xp.concat(list(models), axis=1)
    residuals = xp.reshape(residuals, (features.shape[0], len(models), targets.shape[1]))
    residuals = residuals - targets[:, None, :]
    if (loads != most).any():
        counted = np.concatenate(
            [np.arange(rows)[:, None] < loads[:, k] for k, rows in enumerate(most)]
        )
        mask = on_device(counted.astype(np.float32), features)
        residuals = residuals * mask[:, :, None]
    return features.T @ xp.reshape(residuals, (features.shape[0], -1))


def stacked_predictions(features: Array, models: Sequence[Array]) -> Array:
    """Predictions of several models, shape (points, settings, c)."""
    xp = array_namespace(features)
    columns = models[0].shape[1]
    product = features @ xp.concat(list(models), axis=1)
    return xp.reshape(product, (features.shape[0], len(models), columns))


def on_device(array: Array, where: Array) -> Array:
    """Move a host array to where another one is."""
    return array_namespace(where).asarray(array, device=device(where))
