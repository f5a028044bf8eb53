"""Which client holds which points, and in which mini-batch each of them is used."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import IntArray
from codedfedl.errors import InputError
from codedfedl.io.names import nearest
from codedfedl.random import stream

PARTITIONS = ("sorted", "iid", "dirichlet")


def partition(
    dataset_labels: npt.NDArray[Any],
    clients: int,
    how: str = "sorted",
    *,
    concentration: float = 0.5,
    seed: int = 0,
) -> list[IntArray]:
    """Share all points among the clients, each to exactly one.

    Parameters
    ----------
    dataset_labels : array of shape (n,) or (n, c)
        Classes, or the numbers of a regression; of several columns, the first counts.
    clients
        How many shards to make; none is empty.
    how
        ``sorted``: by label, in shards of equal size, as in the paper. ``iid``: at
        random, in shards of equal size. ``dirichlet``: each class is shared in proportions drawn
        from a Dirichlet distribution, so sizes differ too. Equal sizes differ by one at most.
    concentration
        The Dirichlet parameter of every client: small gives few classes each, large gives all.
    seed
        Of the partition, and of the order within each shard.

    Returns
    -------
    list of arrays
        The points of each client, as rows of the data, in random order.

    Examples
    --------
    >>> [sorted(shard.tolist()) for shard in partition(np.array([1, 0, 1, 0]), 2)]
    [[1, 3], [0, 2]]
    """
    labels = np.asarray(dataset_labels)
    labels = labels if labels.ndim == 1 else labels[:, 0]
    if how not in PARTITIONS:
        raise InputError(f"partition {how!r} is unknown: {nearest(how, PARTITIONS)}")
    if not 1 <= clients <= len(labels):
        raise InputError(
            f"clients is {clients} where there are {len(labels)} points: "
            "must be at least 1, and every client needs a point"
        )
    rng = stream(seed, "partition")
    if how == "dirichlet":
        owner = _dirichlet_owners(labels, clients, concentration, rng)
    else:
        order = (
            np.argsort(labels, kind="stable") if how == "sorted" else rng.permutation(len(labels))
        )
        owner = np.empty(len(labels), dtype=np.int64)
        for client, shard in enumerate(np.array_split(order, clients)):
            owner[shard] = client
    return _shards(owner, clients, rng)


@dataclass(frozen=True)
class Split:
    """Which points are held out for testing."""

    test: Literal["points", "clients"]
    share: float
    seed: int
    fold: int = 0

    def rows(
        self, name: str, strata: IntArray, owners: npt.NDArray[np.str_] | None = None
    ) -> npt.NDArray[np.bool_]:
        """Choose the same share of every stratum at random, but never all of it; or clients."""
        if owners is not None:
            clients, owner = np.unique(owners, return_inverse=True)
            if self.test == "clients":
                return np.isin(owner, self._left_out(name, clients))
            _, strata = np.unique(strata * len(clients) + owner, return_inverse=True)
        test = self._chosen(strata)
        if not test.any():
            raise InputError(
                f"test_share is {self.share}, which leaves none of the {len(strata)} points of "
                f"{name} for testing: raise it, or add points"
            )
        return test

    def _chosen(self, strata: IntArray) -> npt.NDArray[np.bool_]:
        order = np.random.default_rng(self.seed).permutation(len(strata))
        order = order[np.argsort(strata[order], kind="stable")]
        counts = np.bincount(strata)
        rank = np.arange(len(strata)) - np.repeat(np.cumsum(counts) - counts, counts)
        first, end = (np.floor((self.fold + step) * self.share * counts + 0.5) for step in (0, 1))
        end = np.minimum(end, first + counts - 1)
        test = np.empty(len(strata), dtype=np.bool_)
        test[order] = (rank >= np.repeat(first, counts)) & (rank < np.repeat(end, counts))
        return test

    def _left_out(self, name: str, clients: npt.NDArray[np.str_]) -> IntArray:
        """Return the places of the clients that are left out: the same share in every fold."""
        if len(clients) == 1:
            raise InputError(
                f"data.test is 'clients', and {name} has only the client {clients[0]!r}: "
                "choose 'points'"
            )
        order = np.random.default_rng(self.seed).permutation(len(clients))
        count = min(max(1, round(self.share * len(clients))), len(clients) - 1)
        return np.roll(order, -self.fold * count)[:count]


def client_names(clients: Any, points: int) -> npt.NDArray[np.str_]:
    """Return the name of each point's client as text; whole numbers are the same in any type."""
    given = np.asarray(clients, dtype=object)
    if given.shape != (points,):
        raise InputError(
            f"clients has shape {given.shape} where there are {points} points: name the client of "
            "every point"
        )
    names = []
    for row, name in enumerate(given.tolist()):
        if str(name) in ("", "None", "nan", "<NA>", "NaT"):
            raise InputError(f"clients, row {row} (counted from 0) is {name!r}: name the client")
        whole = isinstance(name, float) and name.is_integer()
        names.append(str(int(name)) if whole else str(name))
    return np.array(names)


def shards_by_name(
    names: npt.NDArray[np.str_], seed: int
) -> tuple[npt.NDArray[np.str_], list[IntArray]]:
    """Return the clients in the order of their names, and the points of each in random order."""
    clients, owner = np.unique(names, return_inverse=True)
    return clients, _shards(owner, len(clients), stream(seed, "partition"))


def places_of(names: npt.NDArray[np.str_], fleet: npt.NDArray[Any]) -> IntArray:
    """Return where the named clients are among those of a fleet."""
    where = {str(name): index for index, name in enumerate(fleet.tolist())}
    for name in names.tolist():
        if name not in where:
            known = ", ".join(list(where)[:5])
            raise InputError(
                f"the data name the client {name!r}, which is not in the fleet ({known}, …): add "
                "it there"
            )
    return np.array([where[name] for name in names.tolist()])


def mini_batches(shards: Sequence[IntArray], batches: int) -> list[list[IntArray]]:
    """Cut every shard into equal consecutive parts; a mini-batch takes one part of each client.

    Parameters
    ----------
    shards
        The points of each client, from `partition`.
    batches
        Mini-batches per epoch. The parts of one shard differ by one point at most.

    Returns
    -------
    list of lists of arrays
        ``result[b][j]`` are the points of client j in mini-batch b.
    """
    if batches < 1:
        raise InputError(f"batches is {batches}: must be at least 1")
    for client, shard in enumerate(shards):
        if len(shard) < batches:
            raise InputError(
                f"client {client} has {len(shard)} points for {batches} mini-batches: "
                "ask for fewer mini-batches or fewer clients"
            )
    parts = [np.array_split(shard, batches) for shard in shards]
    return [[part[batch] for part in parts] for batch in range(batches)]


def processing_order(points: int, seed: int) -> IntArray:
    """Return the order in which a client of a real federation goes through its points.

    Its file may be sorted, and the points of a load must be a random sample. The order is no
    secret: all who know the federation's seed can repeat it.
    """
    return stream(seed, "order").permutation(points)


def _dirichlet_owners(
    labels: npt.NDArray[Any], clients: int, concentration: float, rng: np.random.Generator
) -> IntArray:
    if not 0 < concentration < inf:
        raise InputError(f"concentration is {concentration}: must be finite and above 0")
    if labels.dtype.kind == "f":
        raise InputError(
            "dirichlet needs classes, and the labels are not classes: use sorted or iid"
        )
    owner = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        points = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, concentration))
        ends = np.cumsum(shares)[:-1] * len(points)
        owner[points] = np.searchsorted(ends, np.arange(len(points)) + 0.5)
    sizes = np.bincount(owner, minlength=clients)
    for client in np.flatnonzero(sizes == 0):  # the client with most gives one of its points
        donor = np.argmax(sizes)
        owner[rng.choice(np.flatnonzero(owner == donor))] = client
        sizes[donor] -= 1
        sizes[client] += 1
    return owner


def _shards(owner: IntArray, clients: int, rng: np.random.Generator) -> list[IntArray]:
    order = rng.permutation(len(owner))
    grouped = order[np.argsort(owner[order], kind="stable")]
    sizes = np.bincount(owner, minlength=clients)
    return np.split(grouped, np.cumsum(sizes)[:-1])
