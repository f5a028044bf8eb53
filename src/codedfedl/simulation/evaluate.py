"""What the clients would have computed, for many models at once.

A client's own mathematics is in `core.client`; a `SimulatedClient` gives it the simulator's data.
`Evaluator` computes the same sums of gradients fast. The gradient of *all* points that are asked
for is a quadratic, which reads a Gram matrix of q² numbers instead of the points; what the missing
clients would have added is computed from their points and subtracted. Models that share a Gram
matrix, or miss the same client, go through one matrix product. Where loads are not steady
(`simulation.grams`), the gradients that arrived are computed from the points and added.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from itertools import pairwise
from operator import add

import numpy as np
from array_api_compat import array_namespace, is_numpy_array

from codedfedl.arrays import Array, IntArray
from codedfedl.core.protocol import Inbox
from codedfedl.core.work import Points
from codedfedl.learning.least_squares import Quadratic
from codedfedl.learning.panels import Crew, times
from codedfedl.random import stream
from codedfedl.simulation.grams import Grams
from codedfedl.simulation.query import Fused, Query
from codedfedl.simulation.stacked import Stacked
from codedfedl.simulation.streamed import POINTS_AT_ONCE, Streamed, ahead
from codedfedl.simulation.timeline import Assignment

__all__ = [
    "Batch",
    "Evaluator",
    "Fused",
    "Query",
    "SimulatedClient",
    "stacked_predictions",
]

_SHARES = 4  # of a product, for threads to take
_CLIENTS = 64  # whose gradients exist at one time
_LANES, _SPARE = 16, 2  # columns that are multiplied at a time, and zeros that fill them up


@dataclass(frozen=True, eq=False)
class Batch:
    """A mini-batch: every client's features and targets, one client after the other.

    Attributes
    ----------
    features : array of shape (m, q), or `Streamed`
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

    def parts(self) -> Iterator[Points]:
        """Yield all its points: at once, or some at a time where their features are streamed."""
        size = POINTS_AT_ONCE if isinstance(self.features, Streamed) else len(self.targets)
        for start in range(0, len(self.targets), size):
            rows = slice(start, start + size)
            yield self.features[rows], self.targets[rows]

    @cached_property
    def everything(self) -> Quadratic:
        """The quadratic of all its points."""
        return reduce(add, (Quadratic.of(*part) for part in self.parts()))


@dataclass(frozen=True, eq=False)
class SimulatedClient:
    """Client j, whose points lie among those of all."""

    data: Sequence[Batch]
    client: int
    seed: int

    @property
    def points(self) -> int:
        """Number of points that it holds."""
        return sum(int(b.offsets[self.client + 1] - b.offsets[self.client]) for b in self.data)

    @property
    def batches(self) -> int:
        """Mini-batches."""
        return len(self.data)

    def batch(self, b: int) -> Points:
        """Return the points of a mini-batch."""
        return self.data[b].client(self.client)

    def first(self, count: int) -> Iterator[Points]:
        """Yield the first points in its own order, mini-batch after mini-batch."""
        for batch in self.data:
            size = min(count, int(batch.offsets[self.client + 1] - batch.offsets[self.client]))
            if size > 0:
                yield batch.client(self.client, 0, size)
            count -= size

    def peer(self, j: int) -> "SimulatedClient":
        """Return another client, for schemes in which clients hold shares of one another's data."""
        return SimulatedClient(self.data, j, self.seed)

    def code_stream(self, first: int, *rest: int) -> np.random.Generator:
        """Return the stream of one of its codes."""
        return stream(self.seed, "code", first, self.client, *rest)


class Evaluator:
    """The clients of a simulation, all in one place."""

    def __init__(self, batches: Sequence[Batch], settings: int = 1) -> None:
        self.batches = batches
        self.grams = Grams(batches, settings)
        self.stacked = Stacked(batches)
        self._crew = Crew()

    def gram(self) -> Quadratic:
        """Return the quadratic of all points there are."""
        first, *others = (batch.everything for batch in self.batches)
        for other in others:
            first = first + other
        return first

    def embedded_ahead(self, jobs: Sequence[Assignment]) -> Iterator[Assignment]:
        """Yield jobs while the first points of their clients are there, as many as the loads."""
        batches = [getattr(job.work, "batch", None) for job in jobs]
        clients, left, only = (
            np.array(column, dtype=np.int64)
            for column in (
                [job.client for job in jobs],
                [job.load for job in jobs],
                [-1 if batch is None else batch for batch in batches],
            )
        )
        starts, counts = [], []
        for b, batch in enumerate(self.batches):
            starts.append(batch.offsets[clients])
            held = batch.offsets[clients + 1] - starts[-1]
            counts.append(np.where((only < 0) | (only == b), np.minimum(left, held), 0))
            left = left - counts[-1]
        for group in ahead([batch.features for batch in self.batches], starts, counts):
            yield from jobs[group]

    def inboxes(self, queries: Sequence[Query]) -> list[Inbox]:
        """Sum the gradients that arrived, for many settings, each on its own mini-batch."""
        inboxes: dict[int, Inbox] = {}
        quadratics = [self._quadratic(query) for query in queries]
        for batch in sorted({query.batch for query in queries}):
            places = [place for place, query in enumerate(queries) if query.batch == batch]
            asked, known = [queries[p] for p in places], [quadratics[p] for p in places]
            on_host = is_numpy_array(asked[0].model)
            totals = (self._one_by_one if on_host else self._all_at_once)(asked, known)
            for place, query, quadratic, total in zip(places, asked, known, totals, strict=True):
                fused = quadratic is not None
                inboxes[place] = query.inbox(total, query.adds if fused else None)
        return [inboxes[place] for place in range(len(queries))]

    def _quadratic(self, query: Query) -> Quadratic | None:
        """Return that of all points asked for, if it is worth its Gram matrix."""
        asked = query.batch, query.loads, query.adds
        return self.grams.of(*asked) if query.steady or self.grams.has_anyway(*asked) else None

    def _one_by_one(
        self, queries: Sequence[Query], quadratics: Sequence[Quadratic | None]
    ) -> list[Array]:
        """Use as little arithmetic as possible: on a CPU, starting a product costs nothing."""
        models = [query.model for query in queries]
        batch, (q, columns) = self.batches[queries[0].batch], models[0].shape
        groups = _grouped(quadratics)
        rights = [_side_by_side([models[s] for s in members]) for members in groups.values()]
        products = [np.empty_like(right) for right in rights]
        shares = [
            partial(times, quadratic.hessian[rows], right, product[rows])
            for quadratic, right, product in zip(groups, rights, products, strict=True)
            for rows in _split(q, _SHARES)
        ]
        work = q * sum(right.size for right in rights)
        totals = [
            np.zeros_like(model) if known is None else -known.moment
            for model, known in zip(models, quadratics, strict=True)
        ]
        read = np.array([one.rows(known) for one, known in zip(queries, quadratics, strict=True)])
        clients_read = np.flatnonzero(read.any(axis=0))
        most = read.max(axis=0)[clients_read]
        for group in ahead([batch.features], [batch.offsets[clients_read]], [most]):
            for start in range(group.start, group.stop, _CLIENTS):
                clients = clients_read[start : min(start + _CLIENTS, group.stop)].tolist()
                whose = [np.flatnonzero(read[:, j]).tolist() for j in clients]
                tasks = [
                    partial(_stacked_gradients, batch, j, read[own, j], [models[s] for s in own])
                    for j, own in zip(clients, whose, strict=True)
                ]
                work += 2 * q * columns * int(read[:, clients].sum())
                parts = self._crew.each([*tasks, *shares], work)[: len(clients)]
                shares, work = [], 0
                for own, part in zip(whose, parts, strict=True):
                    for place, s in enumerate(own):
                        block = part[:, _block(place, columns)]
                        totals[s] += block if quadratics[s] is None else -block
        self._crew.each(shares, work)  # where no point is read
        for members, product in zip(groups.values(), products, strict=True):
            for place, s in enumerate(members):
                totals[s] += product[:, _block(place, columns)]
        return totals

    def _all_at_once(
        self, queries: Sequence[Query], quadratics: Sequence[Quadratic | None]
    ) -> list[Array]:
        """Use as few operations as possible: on a GPU, arithmetic costs next to nothing."""
        number, totals = queries[0].batch, dict[int, Array]()
        xp = array_namespace(queries[0].model)
        for steady in (True, False):
            members = [s for s, one in enumerate(quadratics) if (one is not None) == steady]
            if not members:
                continue
            stacked = xp.stack([queries[s].model for s in members], axis=1)
            read = np.array([queries[s].rows(quadratics[s]) for s in members])
            rows, counted = self.stacked.missing([number], read[None]).of(slice(1))
            parts = (number, stacked, rows[0], counted[0])
            if steady:
                known = [one for one in quadratics if one is not None]
                total = self.stacked.gradient(self.stacked.quadratic(known), *parts)
            else:
                total = self.stacked.gradient_of_rows(*parts)
            totals |= {s: total[:, place, :] for place, s in enumerate(members)}
        return [totals[s] for s in range(len(queries))]


def _grouped(quadratics: Sequence[Quadratic | None]) -> dict[Quadratic, list[int]]:
    groups: dict[Quadratic, list[int]] = {}
    for s, quadratic in enumerate(quadratics):
        if quadratic is not None:
            groups.setdefault(quadratic, []).append(s)
    return groups


def _block(place: int, columns: int) -> slice:
    return slice(place * columns, (place + 1) * columns)


def _split(count: int, parts: int) -> list[slice]:
    """Cut 0, 1, …, count − 1 into parts of about the same size."""
    ends = [count * part // parts for part in range(parts + 1)]
    return [slice(first, end) for first, end in pairwise(ends) if first < end]


def _side_by_side(models: Sequence[Array]) -> Array:
    """Return the models as the columns of one matrix, and columns of zeros where they save time."""
    if len(models) == 1:
        return models[0]
    rows, columns = models[0].shape[0], sum(model.shape[1] for model in models)
    spare = -columns % _LANES if is_numpy_array(models[0]) else 0
    xp = array_namespace(models[0])
    zeros = [xp.zeros((rows, spare), dtype=models[0].dtype)] if 0 < spare <= _SPARE else []
    return xp.concat([*models, *zeros], axis=1)


def _stacked_gradients(
    batch: Batch, client: int, loads: IntArray, models: Sequence[Array]
) -> Array:
    """Return a client's gradients for several models, each over its own load: (q, models·c)."""
    features, targets = batch.client(client, 0, int(loads.max()))
    product = times(features, _side_by_side(models))
    residuals = _of_each(product, models)
    residuals -= targets[:, None, :]
    if (loads < len(features)).any():
        residuals *= (np.arange(len(features))[:, None] < loads)[:, :, None]
    return times(features.T, product)  # whose columns are the residuals


def stacked_predictions(features: Array, models: Sequence[Array]) -> Array:
    """Predictions of several models, shape (points, settings, c)."""
    return _of_each(features @ _side_by_side(models), models)


def _of_each(product: Array, models: Sequence[Array]) -> Array:
    """Return a product with models side by side as (points, settings, c), without a copy."""
    columns = models[0].shape[1]
    own, shape = product[:, : len(models) * columns], (product.shape[0], len(models), columns)
    return array_namespace(product).reshape(own, shape)
