"""Records that a coin flip keeps in the data of a run, or replaces by nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import Array, FloatArray, IntArray, Mask, asarray_like, to_host
from codedfedl.errors import InputError
from codedfedl.simulation.client_data import Batch, Problem

Slots = tuple[IntArray, IntArray, IntArray]
"""Client, mini-batch, and place among the client's points of that mini-batch."""


@dataclass(frozen=True, eq=False)
class Records:
    """k records, and where they are in the data.

    Attributes
    ----------
    client, batch, index : arrays of shape (k,)
        Each record's client, mini-batch, and index in the client's part of it.
    position : array of shape (k,)
        Place among all points of the client, in the order in which it processes them.
    features, targets : arrays of shape (k, q) and (k, c)
    """

    client: IntArray
    batch: IntArray
    index: IntArray
    position: IntArray
    features: npt.NDArray[np.float32]
    targets: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.client)

    def take(self, which: Mask | IntArray) -> "Records":
        """Return some of the records."""
        return Records(*(getattr(self, name)[which] for name in self.__dataclass_fields__))


def first_slots(batches: Sequence[Batch], count: int, order: IntArray, room: IntArray) -> Slots:
    """Return the first places of clients, one client after the other.

    Parameters
    ----------
    order : array of shape (n,)
        Clients in the order in which their places are taken.
    room : array of shape (n,)
        Number of places at each client.
    """
    if count > room.sum():
        raise InputError(
            f"{count} canaries need as many points, and the clients process {int(room.sum())}: "
            "audit with fewer canaries or on more data"
        )
    sizes = np.array([np.diff(batch.offsets) for batch in batches])
    client = np.repeat(order, room[order])[:count]
    starts = np.cumsum(room[order]) - room[order]
    position = np.arange(count) - np.repeat(starts, room[order])[:count]
    ends = np.cumsum(sizes, axis=0)
    batch = (position >= ends[:, client]).sum(0)
    return client, batch, position - (ends - sizes)[batch, client]


def random_slots(batches: Sequence[Batch], count: int, rng: np.random.Generator) -> Slots:
    """Return places drawn from all points of all clients."""
    sizes = np.array([np.diff(batch.offsets) for batch in batches])
    if count > sizes.sum():
        raise InputError(
            f"{count} records are more than the {int(sizes.sum())} points that there are: audit "
            "with fewer records or on more data"
        )
    chosen = np.sort(rng.choice(sizes.sum(), count, replace=False))
    cell = np.searchsorted(np.cumsum(sizes), chosen, side="right")
    batch, client = np.divmod(cell, sizes.shape[1])
    return client, batch, chosen - (np.cumsum(sizes) - sizes.ravel())[cell]


def crafted(batches: Sequence[Batch], slots: Slots, rng: np.random.Generator) -> Records:
    """Return canaries: features of length 1 in orthogonal directions, with various labels.

    Canaries that share a direction have different labels, so that they rarely mask one another.
    """
    client, _, _ = slots
    q, c = batches[0].features.shape[1], batches[0].targets.shape[1]
    count = np.arange(len(client))
    directions = np.linalg.qr(rng.standard_normal((q, q)))[0]
    targets = np.eye(c)[(count + count // q) % c]
    return _records(batches, slots, directions[count % q], targets)


def real(batches: Sequence[Batch], slots: Slots) -> Records:
    """Return the points that lie there."""
    rows = [_row(batches, *slot) for slot in zip(*slots, strict=True)]
    pairs = [(to_host(batches[b].features[r]), to_host(batches[b].targets[r])) for b, r in rows]
    features, targets = (np.stack(column) for column in zip(*pairs, strict=True))
    return _records(batches, slots, features, targets)


def _records(
    batches: Sequence[Batch], slots: Slots, features: FloatArray, targets: FloatArray
) -> Records:
    client, batch, index = slots
    sizes = np.array([np.diff(b.offsets) for b in batches])
    before = np.cumsum(sizes, axis=0) - sizes
    short = features.astype(np.float32), targets.astype(np.float32)
    return Records(client, batch, index, before[batch, client] + index, *short)


def _row(batches: Sequence[Batch], client: int, batch: int, index: int) -> tuple[int, int]:
    return int(batch), int(batches[batch].offsets[client] + index)


def planted(problem: Problem, records: Records, included: Mask) -> Problem:
    """Return the data with the records that are included, and nothing in place of the others."""
    batches = []
    for b, batch in enumerate(problem.batches):
        here = records.batch == b
        rows = batch.offsets[records.client[here]] + records.index[here]
        features = _placed(batch.features, rows, records.features[here], included[here])
        targets = _placed(batch.targets, rows, records.targets[here], included[here])
        batches.append(Batch(features, targets, batch.offsets))
    return replace(problem, batches=batches)


def _placed(array: Array, rows: IntArray, values: npt.NDArray[np.float32], included: Mask) -> Array:
    changed = to_host(array).copy()
    changed[rows] = values * included[:, None]
    return asarray_like(changed, array)
