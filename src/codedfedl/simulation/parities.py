"""The sums of all clients' parity, for several settings at once."""

from collections.abc import Sequence

import numpy as np

from codedfedl.arrays import Array
from codedfedl.core.encoding import Parity
from codedfedl.core.loop import RunningSum
from codedfedl.learning.parity import point_weights
from codedfedl.simulation.client_data import Batch, SimulatedClient

__all__ = ["composite_parities"]


def composite_parities(
    works: Sequence[Parity], batches: Sequence[Batch], seed: int
) -> list[dict[str, Array]]:
    """Return the sums of the clients' answers to each work (eq. 6).

    All points of a mini-batch go through wide products; no client's own parity is ever formed.
    """
    return [_composite(work, batches, seed) for work in works]


def _composite(work: Parity, batches: Sequence[Batch], seed: int) -> dict[str, Array]:
    total = RunningSum()
    for b, batch in enumerate(batches):
        rows = work.rows[b]
        loads, chances = np.asarray(work.loads)[b], np.asarray(work.return_probabilities)[b]
        clients = zip(batch.held.tolist(), loads.tolist(), chances.tolist(), strict=True)
        weights = [point_weights(*client) for client in clients]
        simulated = (SimulatedClient(batches, j, seed) for j in range(batch.clients))
        streams = [client.code_stream(b, *work.code.named_by(rows)) for client in simulated]
        for group in batch.groups():
            points = slice(int(batch.offsets[group.start]), int(batch.offsets[group.stop]))
            parts = (batch.features[points], batch.targets[points])
            mixed = work.code.mix_all(parts, weights[group], rows, streams[group])
            total.add({f"features{b}": mixed[0], f"targets{b}": mixed[1]})
    return total.result()
