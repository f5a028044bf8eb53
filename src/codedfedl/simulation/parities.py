"""The sums of all clients' parity, for several settings at once."""

from collections.abc import Sequence

import numpy as np

from codedfedl.arrays import Array
from codedfedl.core.encoding import Parity
from codedfedl.core.loop import RunningSum
from codedfedl.learning.codes import Code, point_weights
from codedfedl.learning.dense_codes import Use
from codedfedl.simulation.client_data import Batch, SimulatedClient

__all__ = ["composite_parities"]


def composite_parities(
    works: Sequence[Parity], batches: Sequence[Batch], seed: int
) -> list[dict[str, Array]]:
    """Return the sums of the clients' answers to each work (eq. 6).

    All points of a mini-batch go through wide products; no client's own parity is ever formed.
    Settings with the same dense code share draws and products (`learning.dense_codes`).
    """
    groups: dict[tuple[Code, int], list[int]] = {}
    for k, work in enumerate(works):
        groups.setdefault((work.code, 0 if work.code.is_dense else k), []).append(k)
    composites: dict[int, dict[str, Array]] = {}
    for (code, _), members in groups.items():
        sums = _sharing_code(code, [works[k] for k in members], batches, seed)
        composites |= dict(zip(members, sums, strict=True))
    return [composites[k] for k in range(len(works))]


def _sharing_code(
    code: Code, works: Sequence[Parity], batches: Sequence[Batch], seed: int
) -> list[dict[str, Array]]:
    """Return the sums for works with the same code."""
    totals = [RunningSum() for _ in works]
    for b, batch in enumerate(batches):
        uses = [_use(work, b, batch.held.tolist()) for work in works]
        clients = (SimulatedClient(batches, j, seed) for j in range(batch.clients))
        streams = [client.code_stream(b, *code.named_by(uses[0].rows)) for client in clients]
        for group in batch.groups():
            rows = slice(int(batch.offsets[group.start]), int(batch.offsets[group.stop]))
            parts = (batch.features[rows], batch.targets[rows])
            mixed = code.mix_all(parts, [use.of(group) for use in uses], streams[group])
            for total, (features, targets) in zip(totals, mixed, strict=True):
                total.add({f"features{b}": features, f"targets{b}": targets})
    return [total.result() for total in totals]


def _use(work: Parity, b: int, held: Sequence[int]) -> Use:
    """Return the rows and weights of a mini-batch."""
    loads, chances = np.asarray(work.loads)[b], np.asarray(work.return_probabilities)[b]
    clients = zip(held, loads.tolist(), chances.tolist(), strict=True)
    return Use(work.rows[b], [point_weights(*client) for client in clients])
