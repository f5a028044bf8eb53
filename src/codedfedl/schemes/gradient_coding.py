"""`gradient-coding`: the exact gradient from any n − s clients, with data shared under a pad.

Gradient coding (Tandon et al., ICML 2017) as federated by CodedPaddedFL (Schlegel et al., arXiv
2112.08909). Clients are in groups of s + 1; each sends its Gram matrix and moments to its group
under a one-time pad whose seed the server has. Any one of a group can then answer for all of it,
and the server removes the pad: a fractional repetition code. Peers see data indistinguishable from
noise; the server sees gradients of whole groups. Pads and fixed-point numbers change no result, so
the simulator charges for the shares and computes in the clear.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, cast

import numpy as np

from codedfedl.arrays import Array, IntArray
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import EACH, AnyLimits, Ask, Inbox, Info, Rng, Scheme, Task
from codedfedl.core.task import Descent
from codedfedl.core.waiting import Everyone, Fastest
from codedfedl.core.work import Answer, Client, Work
from codedfedl.errors import InputError
from codedfedl.fleet import costs
from codedfedl.fleet.costs import Cost
from codedfedl.fleet.delays import DelayModel
from codedfedl.learning.least_squares import gradient
from codedfedl.learning.optimisers import optimiser
from codedfedl.schemes.settings import check_at_least_1


@dataclass(frozen=True)
class PaddedGram(Work):
    """A client's Gram matrix and moments, under a one-time pad, to some peers."""

    peers: int

    kind: ClassVar[str] = "padded_gram"
    discloses: ClassVar[Disclosure | None] = None
    needs_model: ClassVar[bool] = False
    once: ClassVar[bool] = True

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return nothing: the server gets no more than the seed of the pad."""
        return Answer(load, {})

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return a Gram matrix, sent to and received from as many peers."""
        gram = costs.gram(task.held, task.workload)
        return Cost(gram.macs, gram.bits_up * 2 * self.peers)


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


@dataclass(frozen=True, eq=False)
class SharedState(Descent):
    """Descent along exact gradients."""

    set_up: bool = False

    @property
    def checkpointed(self) -> bool:
        """The set-up is played again."""
        return False


@dataclass(frozen=True)
class GradientCoding(Scheme):
    """Wait for all but s clients, and lose nothing.

    Parameters
    ----------
    stragglers
        s, the number of clients that a round does not wait for.
    optimiser
        ``block-cg``, ``nesterov`` or ``gd``.
    """

    stragglers: int = 2
    optimiser: str = "block-cg"

    info: ClassVar[Info] = Info(
        "gradient-coding",
        frozenset({Disclosure.GRADIENTS}),
        solves=True,
        quadratic=True,
        only_simulated="needs clients that share data with one another, which no node does",
    )

    def __post_init__(self) -> None:
        check_at_least_1(self, "stragglers")
        optimiser(self.info.name, self.optimiser, same_points=True)

    def groups(self, clients: int) -> IntArray:
        """Return every client's group, of s + 1 or a few more."""
        if clients <= self.stragglers:
            raise InputError(
                f"gradient-coding.stragglers is {self.stragglers} with {clients} clients: lower it"
            )
        count = clients // (self.stragglers + 1)
        return np.arange(clients) % count

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> SharedState:
        """Refuse more stragglers than there are clients."""
        self.groups(task.clients)
        chosen = optimiser(self.info.name, self.optimiser, same_points=True)
        return SharedState(task, model, optimiser=chosen)

    def ask(self, state: SharedState) -> Ask | None:
        """Ask for shares first, then for the gradients of groups."""
        if state.finished:
            return None
        if not state.set_up:
            return Ask(PaddedGram(self.stragglers), Everyone(), setup=True)
        clients = state.task.clients
        work = SharedGradient(self.groups(clients).tolist())
        return Ask(work, Fastest(clients - self.stragglers), combine=EACH, model=state.question)

    def receive(self, state: SharedState, inbox: Inbox) -> SharedState:
        """Take one answer of every group."""
        if not state.set_up:
            return replace(state, set_up=True)
        groups = self.groups(state.task.clients)
        answers = {int(groups[reply.client]): reply for reply in inbox.replies}
        total = sum(answer.arrays["gradient"] for answer in answers.values())
        return state.descended(total, float(state.task.held.sum()))
