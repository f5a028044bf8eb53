"""Weights by class, as schemes use them: label counts are asked for first, then answers weighted.

Which weights, and why, is in `planning.strata`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from codedfedl.arrays import FloatArray, IntArray, to_host
from codedfedl.core.client import Counts
from codedfedl.core.protocol import EACH, Ask, Inbox, Reply, Task
from codedfedl.core.waiting import Everyone
from codedfedl.planning.strata import (
    represented_points,
    sampling_excess,
    shift_within,
    strata,
    trusted_points,
)

if TYPE_CHECKING:
    from codedfedl.learning.least_squares import ParityRows

__all__ = ["ByClass", "ahead", "ask_counts", "said_counts"]

MAX_CLIENTS = 256
"""So many clients, those with the most points, say how far clients differ within a class."""


def ask_counts(seconds: float = np.inf) -> Ask:
    """Ask every client for its label counts, and wait no longer than this."""
    return Ask(Counts(), Everyone(seconds), combine=EACH, setup=True)


def ahead(inbox: Inbox) -> FloatArray:
    """Return how long each client has embedded while the server waited for others, shape (n,)."""
    seen = inbox.timings
    if seen is None:
        return np.zeros(len(inbox.arrived))
    last = seen.seconds[seen.answered].max(initial=0.0)
    return np.where(seen.answered, last - seen.seconds, 0.0)


def said_counts(replies: Iterable[Reply], task: Task) -> dict[int, FloatArray]:
    """Return sensible counts that clients sent, shape (s,), scaled to their points."""
    rows, columns = {}, strata(task.workload.labels)
    for reply in replies:
        counts = to_host(reply.arrays.get("counts", np.zeros(0))).astype(np.float64)
        if counts.shape == (columns,) and (counts >= 0).all() and 1 <= counts.sum() < np.inf:
            rows[reply.client] = counts * (task.held[reply.client] / counts.sum())
    return rows


@dataclass(frozen=True, eq=False)
class ByClass:
    """How many points of each class every client holds, and how far clients differ within one.

    Attributes
    ----------
    counts : array of shape (n, s)
        Points by client and stratum. A client that has not said, or nothing sensible, has a class
        of its own: then it stands for itself alone.
    shift
        ρ.
    most : array of shape (n,), optional
        For how many points a client may count, whatever counts are claimed; None: for any number.
    """

    counts: FloatArray
    shift: float = 0.0
    most: FloatArray | None = None

    @classmethod
    def of(cls, replies: Iterable[Reply], task: Task, *, federated: bool = False) -> Self:
        """Read the clients' counts, scaled to all that each holds; real clients may lie."""
        columns, rows = strata(task.workload.labels), said_counts(replies, task)
        unknown = [j for j in range(task.clients) if j not in rows]
        table = np.zeros((task.clients, columns + len(unknown)))
        for client, counts in rows.items():
            table[client, :columns] = counts
        table[unknown, columns + np.arange(len(unknown))] = task.held[unknown]
        return cls(table, most=trusted_points(task.held) if federated else None)

    def represented(self, points: IntArray) -> FloatArray:
        """Return for how many points each client's answer over some counts, shape (n,)."""
        return represented_points(self.counts, points, self.shift, self.most)

    def weights(self, points: IntArray) -> FloatArray:
        """Return the same over all points that the client holds, shape (n,)."""
        held = np.maximum(self.counts.sum(1), 1.0)
        return np.asarray(self.represented(np.minimum(points, held)) / held)

    def excess(self, points: IntArray, features: float) -> float:
        """Return the relative excess when some points of each client stand for all of them."""
        return sampling_excess(self.counts.sum(1), points, features, self.counts, self.shift)

    def only(self, clients: list[int]) -> "ByClass":
        """Return those of some clients, as if there were no others."""
        return replace(self, counts=self.counts[clients])

    def after_sums(self, replies: Iterable[Reply], task: Task) -> "ByClass":
        """Estimate ρ from exact sums Σ xyᵀ over a client's points, of a first round at β = 0."""
        cells, squares = {}, 0.0
        for reply in replies:
            share = reply.points / task.held[reply.client]  # answers are as heavy as all points
            total = -share * to_host(reply.arrays["gradient"])
            cells[reply.client] = (total, reply.points, None)
            squares += float(to_host(reply.arrays["squares"])[0])
        return self._estimated(cells, squares, task)

    def after_parity(self, parity: "Mapping[int, tuple[ParityRows, int]]", task: Task) -> "ByClass":
        """Estimate ρ from X̃ᵀỸ of each client's rows, and the points in them."""
        cells, squares = {}, 0.0
        most = sorted(parity, key=lambda client: -parity[client][1])[:MAX_CLIENTS]
        for client in most:
            rows, points = parity[client]
            share = points / task.held[client]
            x, y = (to_host(a).astype(np.float64) for a in (rows.features, rows.targets))
            lengths, total = (x**2).sum(1), share * (x.T @ y)
            # The rows' own spread is what mixing and chance add to their sum.
            spread = share**2 * (lengths @ y**2)
            fewer = max(len(x) - 1, 1)
            noise = np.maximum(spread * len(x) - (total**2).sum(0), 0.0) / fewer
            cells[client] = (total, points, np.where(len(x) > 1, noise, spread))
            squares += share**2 * lengths.sum() * (y**2).sum() / points
        return self._estimated(cells, squares, task)

    def first_step(
        self, inbox: Inbox, task: Task, points: IntArray | None = None
    ) -> "tuple[ByClass, FloatArray, Any]":
        """Estimate ρ from a first round; return for how many points each answer counts, and Σ.

        `points` are those of each client, by default of those who answered.
        """
        if points is None:
            points = np.zeros(task.clients, dtype=np.int64)
            points[[reply.client for reply in inbox.replies]] = [r.points for r in inbox.replies]
        by_class = self.after_sums(inbox.replies, task)
        represents = by_class.represented(points)
        shares = represents / task.held  # answers are as heavy as all points
        total = sum(float(shares[r.client]) * r.arrays["gradient"] for r in inbox.replies)
        return by_class, represents, total

    def _estimated(
        self,
        cells: Mapping[int, tuple[FloatArray, int, FloatArray | None]],
        squares: float,
        task: Task,
    ) -> "ByClass":
        """Estimate ρ from each client's sum, the points in it, and the noise of its columns."""
        clients = sorted(cells)
        if not clients:
            return self
        points = np.array([cells[j][1] for j in clients], dtype=np.float64)
        counts = self.counts[clients]
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1.0)
        regression = task.workload.labels == 1
        noise = [cells[j][2] for j in clients]
        shift = shift_within(
            np.array([cells[j][0].T for j in clients]),
            points[:, None] * (1.0 if regression else shares[:, : task.workload.labels]),
            squares,
            noise=None if noise[0] is None else np.array(noise),
            mix=shares if regression else None,
        )
        return replace(self, shift=shift)
