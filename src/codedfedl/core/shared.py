"""Work that a client cannot do on its own data alone, or that hands its data over.

Two rivals need it, in the simulator only: a real node neither sends raw points nor knows its peers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, cast

import numpy as np

from codedfedl.arrays import Array, IntArray
from codedfedl.core.client import Gram
from codedfedl.core.protocol import Task
from codedfedl.core.work import Answer, Client, Work
from codedfedl.errors import InputError
from codedfedl.fleet import costs
from codedfedl.fleet.costs import Cost
from codedfedl.learning.least_squares import gradient

__all__ = ["PaddedGram", "Raw", "SharedGradient"]


@dataclass(frozen=True)
class Raw(Gram):
    """All raw points; the answer is what the server computes from them, at no cost to anybody.

    The server computes features and Gram matrix, and its algebra is free.
    """

    kind: ClassVar[str] = "raw"
    embeds: ClassVar[bool] = False

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return the bits of the points."""
        return costs.raw(task.held, task.workload, task.raw_bits)


@dataclass(frozen=True)
class PaddedGram(Work):
    """A client's Gram matrix and moments, under a one-time pad, to some peers."""

    peers: int

    kind: ClassVar[str] = "padded_gram"
    needs_model: ClassVar[bool] = False
    once: ClassVar[bool] = True

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return nothing: the server gets no more than the seed of the pad."""
        return Answer(load, {})

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return a Gram matrix, sent to and received from as many peers."""
        own = costs.gram(task.held, task.workload)
        return Cost(own.macs, own.bits_up * 2 * self.peers)


class _Peers(Protocol):
    def peer(self, j: int) -> Client: ...


@dataclass(frozen=True, eq=False)
class SharedGradient(Work):
    """The sum of the gradients over all points of a group of clients, from their Gram matrices.

    Parameters
    ----------
    groups : sequence of int
        Each client's group.
    """

    groups: Sequence[int]
    group: int | None = None

    kind: ClassVar[str] = "shared_gradient"

    def for_client(self, j: int) -> "SharedGradient":
        """Return the work of a client's group."""
        return replace(self, group=int(self.groups[j]))

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return Σ X̂ᵀ(X̂β − Y) over the group."""
        if not hasattr(client, "peer"):
            raise InputError("a node has no data of its peers: simulate this scheme")
        members = [j for j, group in enumerate(self.groups) if group == self.group]
        peers = [cast(_Peers, client).peer(j) for j in members]
        total = sum(gradient(*part, model) for peer in peers for part in peer.first(peer.points))
        return Answer(sum(peer.points for peer in peers), {"gradient": total})

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return q²·c multiply-accumulates for every member of the group, and a packet."""
        q, c = task.model_shape
        members = np.bincount(self.groups)[np.asarray(self.groups)]
        macs = np.where(loads > 0, members * float(q * q * c), 0.0)
        return Cost(macs, np.full(task.clients, task.workload.packet_bits))

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]]:
        """Return the model's shape."""
        return {"gradient": task.model_shape}
