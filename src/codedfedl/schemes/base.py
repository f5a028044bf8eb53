"""What a scheme is: a state machine that asks the clients and learns from their answers.

A scheme does no I/O and knows no clock. Whoever drives it, a simulator or a real federation,
answers one question only: who arrived?
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from codedfedl._types import FloatArray, IntArray, Mask
from codedfedl.arrays import Array
from codedfedl.errors import InputError
from codedfedl.fleet.costs import BlockSetup
from codedfedl.fleet.devices import Fleet, Workload
from codedfedl.learning.codes import GAUSSIAN, Code
from codedfedl.learning.gradients import Quadratic
from codedfedl.learning.parity import Parity
from codedfedl.learning.training import Schedule

__all__ = [
    "Ask",
    "AskBlockParity",
    "AskEmbedded",
    "AskGradient",
    "AskGram",
    "AskLocalModel",
    "AskParity",
    "Block",
    "Everyone",
    "Fastest",
    "Inbox",
    "Reply",
    "Scheme",
    "State",
    "Task",
    "Until",
    "Wait",
    "refuse_absent",
]


@dataclass(frozen=True, eq=False)
class Task:
    """The public facts of a training task: nothing here is a client's secret.

    Attributes
    ----------
    workload
        What a point and a packet cost, with q and c.
    feature_macs
        Multiply-accumulates that embedding a point costs.
    points : array of shape (batches, n)
        Points of every client in every mini-batch.
    """

    workload: Workload
    feature_macs: int
    points: IntArray
    epochs: int
    schedule: Schedule
    ridge: float

    @property
    def batches(self) -> int:
        """Mini-batches in an epoch."""
        return len(self.points)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return int(self.points.shape[1])

    @property
    def rounds(self) -> int:
        """Rounds in all epochs."""
        return self.epochs * self.batches

    def batch(self, round_: int) -> int:
        """Return the mini-batch of a round, both counted from 0."""
        return round_ % self.batches

    @property
    def held(self) -> IntArray:
        """Points of every client in all mini-batches, shape (n,)."""
        return np.asarray(self.points.sum(0))

    def block_setup(self, code: Code, mixing: int) -> BlockSetup:
        """Return what block parity costs: embedding, mixing and sending."""
        return BlockSetup(self.workload, self.feature_macs, code.nonzeros, mixing)

    def step_size(self, round_: int) -> float:
        """Return the step size of a round."""
        return self.schedule.at(round_ // self.batches)


class Wait(Protocol):
    """How long the server waits."""

    def arrivals(self, seconds: FloatArray) -> tuple[Mask, float]:
        """Say who of those asked counts as arrived, and how long the round took.

        Parameters
        ----------
        seconds : array of shape (n,)
            When each reply is there; ∞ for a client that was not asked or does not answer.
        """


@dataclass(frozen=True)
class Everyone:
    """Until all who were asked have answered."""

    def arrivals(self, seconds: FloatArray) -> tuple[Mask, float]:
        """Return all who answer, and when the last one did."""
        arrived = np.isfinite(seconds)
        return arrived, float(seconds[arrived].max(initial=0.0))


@dataclass(frozen=True)
class Fastest:
    """Until `count` have answered."""

    count: int

    def arrivals(self, seconds: FloatArray) -> tuple[Mask, float]:
        """Return the first `count`, and when the last of them answered."""
        order = np.argsort(seconds, kind="stable")[: self.count]
        arrived = np.zeros(len(seconds), dtype=bool)
        arrived[order] = np.isfinite(seconds[order])
        return arrived, float(seconds[arrived].max(initial=0.0))


@dataclass(frozen=True)
class Until:
    """Until a deadline, in seconds."""

    deadline: float

    def arrivals(self, seconds: FloatArray) -> tuple[Mask, float]:
        """Return who met the deadline, which is how long the round took."""
        return seconds <= self.deadline, self.deadline


@dataclass(frozen=True, eq=False)
class AskParity:
    """Every client's parity for every mini-batch, once.

    Attributes
    ----------
    rows : sequence of int
        u for each mini-batch.
    loads, return_probabilities : arrays of shape (batches, n)
        Of which the clients' weights are made.
    """

    rows: Sequence[int]
    loads: IntArray
    return_probabilities: FloatArray
    code: Code = GAUSSIAN


@dataclass(frozen=True)
class AskBlockParity:
    """Parity of each client's own, unweighted, from what it has embedded when it must send.

    A client with k of its ℓ points embedded sends ⌊k/mixing⌋ rows, √(ℓ/k) times as heavy, so that
    in expectation they stand for all its points; with fewer than `mixing` it sends nothing.
    """

    code: Code
    mixing: int
    wait: Wait


@dataclass(frozen=True)
class AskEmbedded:
    """The gradient over all points that a client has embedded by now, ℓ/k times as heavy.

    A client that is still busy with an earlier round finishes that first; its reply comes late.
    """

    round: int
    wait: Until


@dataclass(frozen=True)
class AskGram:
    """Every client's Gram matrix and moments over all its points, once."""


@dataclass(frozen=True, eq=False)
class AskGradient:
    """A gradient over the first `loads` points of each client's mini-batch.

    Attributes
    ----------
    loads : array of shape (n,)
        0 where a client is not asked.
    own
        What the server adds to the sum itself: the coded gradient.
    """

    round: int
    batch: int
    loads: IntArray
    wait: Wait
    own: Quadratic | None = None


@dataclass(frozen=True, eq=False)
class AskLocalModel:
    """A model after `steps` local gradient steps on the client's mini-batch."""

    round: int
    batch: int
    loads: IntArray
    wait: Wait
    steps: int
    step_size: float
    ridge: float


Ask = AskParity | AskBlockParity | AskGram | AskGradient | AskEmbedded | AskLocalModel


@dataclass(frozen=True, eq=False)
class Block:
    """The parity of one client, and from how many of its points it was made."""

    parity: Parity
    points: int


@dataclass(frozen=True, eq=False)
class Reply:
    """A client's own gradient, for the model of the round in which it was asked."""

    client: int
    round: int
    points: int
    gradient: Array


@dataclass(frozen=True, eq=False)
class Inbox:
    """The answers to an ask.

    Attributes
    ----------
    arrived : array of shape (n,)
    points : float
        Points behind `total`, the server's own not counted.
    total : array of shape (q, c)
        Sum of the gradients that arrived and the server's own, or the mean of the local models
        weighted by points.
    gram
        The sum of all Gram matrices and moments, for an `AskGram`.
    parity : tuple of Parity
        The composite parity of each mini-batch, for an `AskParity`.
    blocks
        The parity of each client that sent some since the last inbox, for an `AskBlockParity`.
    replies
        What each client sent since the last inbox, late ones too, for an `AskEmbedded`.
    """

    arrived: Mask
    points: float
    total: Array = None
    gram: Quadratic | None = None
    parity: tuple[Parity, ...] = ()
    blocks: Mapping[int, Block] = field(default_factory=dict)
    replies: tuple[Reply, ...] = ()


@dataclass(frozen=True, eq=False)
class State:
    """What a scheme knows between two asks; a checkpoint is its `model` and `round`."""

    task: Task
    model: Array
    round: int = 0

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return self.round >= self.task.rounds


class Scheme(Protocol):
    """A way to train: a frozen dataclass of settings with three pure functions."""

    name: ClassVar[str]

    def start(self, task: Task, fleet: Fleet, model: Array) -> State:
        """Plan, and return the state before the first ask."""

    def ask(self, state: State) -> Ask | None:
        """Return what to ask next; None when training is done."""

    def receive(self, state: State, inbox: Inbox) -> State:
        """Learn from the answers."""


def refuse_absent(fleet: Fleet, waiting: str) -> None:
    """Refuse a fleet for which waiting might never end, in the words of who would wait."""
    if (fleet.availability < 1).any():
        raise InputError(f"{waiting}, and some clients' availability is below 1")
