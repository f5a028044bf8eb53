"""What the clients would have computed, for many models at once.

A client's own mathematics is in `core.client`; a `SimulatedClient` gives it the simulator's data.
`Evaluator` computes the same sums of gradients fast. The gradient of *all* points of a mini-batch
is a quadratic, which reads a Gram matrix of q² numbers instead of the points; what the missing
clients would have added is computed from their points and subtracted. Models that share a Gram
matrix, or miss the same client, go through one matrix product.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from itertools import pairwise
from operator import add

import numpy as np
from array_api_compat import array_namespace, is_numpy_array

from codedfedl._types import IntArray, Mask
from codedfedl.arrays import Array
from codedfedl.core.protocol import Inbox
from codedfedl.core.work import Points
from codedfedl.learning.gradients import Quadratic
from codedfedl.learning.panels import Crew, times
from codedfedl.simulation.stacked import Stacked
from codedfedl.simulation.streamed import POINTS_AT_ONCE, Streamed, ahead
from codedfedl.simulation.timeline import Assignment
from codedfedl.streams import stream

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


@dataclass(frozen=True, eq=False)
class Query:
    """One setting's round of gradients.

    Attributes
    ----------
    loads : array of shape (n,)
    arrived : array of shape (n,)
    adds
        What the scheme will add to the sum.
    """

    batch: int
    loads: IntArray
    arrived: Mask
    model: Array
    adds: Quadratic | None = None

    @property
    def missed(self) -> IntArray:
        """Points that were asked for and did not arrive, shape (n,)."""
        return np.where(self.arrived, 0, self.loads)


@dataclass(frozen=True, eq=False)
class Fused(Inbox):
    """An inbox whose sum was computed together with the quadratic that the scheme adds to it."""

    adds: Quadratic | None = None
    both: Array = None
    model: Array = None

    def plus(self, own: Quadratic, model: Array) -> Array:
        """Return the precomputed sum, if `own` is the quadratic that it includes."""
        return self.both if own is self.adds else own.gradient(model) + self.total()

    def total(self, name: str = "gradient") -> Array:
        """Return the clients' part alone."""
        assert self.adds is not None
        return self.both - self.adds.gradient(self.model) if name == "gradient" else 0.0


class Evaluator:
    """The clients of a simulation, all in one place."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = batches
        self._asked: dict[tuple[int, bytes, Quadratic | None], Quadratic] = {}
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
        found: list[Inbox] = [None] * len(queries)  # type: ignore[list-item]
        for batch in sorted({query.batch for query in queries}):
            places = [place for place, query in enumerate(queries) if query.batch == batch]
            some = [queries[place] for place in places]
            for place, query, total in zip(places, some, self._totals(some), strict=True):
                points = float(query.loads[query.arrived].sum())
                found[place] = (
                    Inbox(query.arrived, points, {"gradient": total})
                    if query.adds is None
                    else Fused(
                        query.arrived, points, adds=query.adds, both=total, model=query.model
                    )
                )
        return found

    def _totals(self, queries: Sequence[Query]) -> list[Array]:
        """Sum the gradients that arrived and what is added to them, all on one mini-batch."""
        missed = np.array([query.missed for query in queries])
        if is_numpy_array(queries[0].model):
            return self._one_by_one(queries, missed)
        return self._all_at_once(queries, missed)

    def _one_by_one(self, queries: Sequence[Query], missed: IntArray) -> list[Array]:
        """Use as little arithmetic as possible: on a CPU, starting a product costs nothing."""
        models = [query.model for query in queries]
        batch, (q, columns) = self.batches[queries[0].batch], models[0].shape
        quadratics = [self._quadratic(query) for query in queries]
        groups = _grouped(quadratics)
        rights = [_side_by_side([models[s] for s in members]) for members in groups]
        products = [np.empty_like(right) for right in rights]
        shares = [
            partial(times, quadratics[members[0]].hessian[rows], right, product[rows])
            for members, right, product in zip(groups, rights, products, strict=True)
            for rows in _split(q, _SHARES)
        ]
        work = q * sum(right.size for right in rights)
        totals = [-quadratic.moment for quadratic in quadratics]
        missing = np.flatnonzero(missed.any(axis=0))
        most = missed.max(axis=0)[missing]
        for group in ahead([batch.features], [batch.offsets[missing]], [most]):
            for start in range(group.start, group.stop, _CLIENTS):
                late = missing[start : min(start + _CLIENTS, group.stop)].tolist()
                whose = [np.flatnonzero(missed[:, j]).tolist() for j in late]
                clients = [
                    partial(_stacked_gradients, batch, j, missed[own, j], [models[s] for s in own])
                    for j, own in zip(late, whose, strict=True)
                ]
                work += 2 * q * columns * int(missed[:, late].sum())
                parts = self._crew.each([*clients, *shares], work)[: len(late)]
                shares, work = [], 0
                for own, part in zip(whose, parts, strict=True):
                    for place, s in enumerate(own):
                        totals[s] -= part[:, _block(place, columns)]
        self._crew.each(shares, work)  # where nobody is missing
        for members, product in zip(groups, products, strict=True):
            for place, s in enumerate(members):
                totals[s] += product[:, _block(place, columns)]
        return totals

    def _all_at_once(self, queries: Sequence[Query], missed: IntArray) -> list[Array]:
        """Use as few operations as possible: on a GPU, arithmetic costs next to nothing."""
        number, models = queries[0].batch, [query.model for query in queries]
        xp = array_namespace(models[0])
        quadratic = self.stacked.quadratic([self._quadratic(query) for query in queries])
        rows, counted = self.stacked.missing([number], missed[None]).of(slice(1))
        stacked = xp.stack(models, axis=1)
        total = self.stacked.gradient(quadratic, number, stacked, rows[0], counted[0])
        return [total[:, s, :] for s in range(len(queries))]

    def _quadratic(self, query: Query) -> Quadratic:
        return self.quadratic(query.batch, query.loads, query.adds)

    def quadratic(self, batch: int, loads: IntArray, adds: Quadratic | None) -> Quadratic:
        """Return the quadratic of all points that are asked for, and what is added to it."""
        key = (batch, loads.tobytes(), adds)
        if key not in self._asked:
            processed = self._processed(batch, loads)
            self._asked[key] = processed if adds is None else processed + adds
        return self._asked[key]

    def _processed(self, number: int, loads: IntArray) -> Quadratic:
        batch = self.batches[number]
        left = np.diff(batch.offsets) - loads
        some = np.flatnonzero(left > 0)
        found, starts = batch.everything, batch.offsets[some] + loads[some]
        if not len(some):
            return found
        for group in ahead([batch.features], [starts], [left[some]]):
            rest = [batch.client(j, int(loads[j])) for j in some[group].tolist()]
            xp = array_namespace(rest[0][0])
            left_out = (xp.concat(parts, axis=0) for parts in zip(*rest, strict=True))
            found = found - Quadratic.of(*left_out)
        return found


def _grouped(quadratics: Sequence[Quadratic]) -> list[list[int]]:
    groups: dict[Quadratic, list[int]] = {}
    for s, quadratic in enumerate(quadratics):
        groups.setdefault(quadratic, []).append(s)
    return list(groups.values())


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
