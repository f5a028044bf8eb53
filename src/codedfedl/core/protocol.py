"""The protocol between a scheme and whoever runs it.

A scheme is a state machine without I/O: it *asks*, and learns from the *inbox* that answers. A
runtime, simulated or real, decides one thing only: who arrived, and when.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from codedfedl.arrays import Array, IntArray, Mask
from codedfedl.core.aggregate import LEAST_SUMMED, SUM, Combine
from codedfedl.core.disclosure import Disclosed
from codedfedl.core.waiting import Wait
from codedfedl.errors import InputError
from codedfedl.fitting.drift import Timings
from codedfedl.fleet.devices import Fleet, Workload
from codedfedl.fleet.server import ServerWork
from codedfedl.learning.least_squares import Quadratic
from codedfedl.learning.optimisers import Schedule, step

if TYPE_CHECKING:
    from codedfedl.core.work import Work
    from codedfedl.fleet.delays import DelayDistribution
    from codedfedl.learning.features import FeatureMap
    from codedfedl.privacy.accounting import Account

__all__ = [
    "Ask",
    "Inbox",
    "Limits",
    "Reply",
    "Runtime",
    "Scheme",
    "State",
    "Task",
    "refuse_absent",
]


@dataclass(frozen=True, eq=False)
class Task:
    """The public facts of a training task; none of them is private to a client.

    Attributes
    ----------
    workload
        The cost of a point and a packet, with q and c.
    feature_macs
        Multiply-accumulates to embed a point.
    points : array of shape (batches, n)
        Points of every client in every mini-batch.
    raw_bits
        Bits of a raw point on a client, with its label; 0 if no scheme asks for it.
    largest_square
        Bound on the squared norm of a point's features; ∞ if there is none.
    seed
        Of the run: for what a scheme itself draws.
    """

    workload: Workload
    feature_macs: int
    points: IntArray
    epochs: int
    schedule: Schedule
    ridge: float
    raw_bits: int = 0
    largest_square: float = np.inf
    seed: int = 0

    @property
    def model_shape(self) -> tuple[int, int]:
        """(q, c), of a model and of a gradient."""
        return self.workload.features, self.workload.labels

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

    @cached_property
    def held(self) -> IntArray:
        """Points of every client in all mini-batches, shape (n,)."""
        return np.asarray(self.points.sum(0))

    def step_size(self, round_: int) -> float:
        """Return the step size of a round."""
        return self.schedule.at(round_ // self.batches)


@dataclass(frozen=True, eq=False)
class Ask:
    """A request of a scheme to the clients.

    Attributes
    ----------
    work
        What each client is to do.
    wait
        How long the server waits.
    loads : array of shape (n,), optional
        Points that each client is to process, 0 if it is not asked; by default all that it has for
        the work.
    combine
        `SUM` if the scheme needs only a sum of the answers, `EACH` if it needs every single one.
    keep_late
        Whether a client that is still busy finishes first, and its answer reaches a later inbox.
        Otherwise every client drops its work when it is asked again.
    setup
        Whether this is done once, before the first round: on the paper's clock it takes no time.
    model
        The model sent to the clients, if it is not the state's.
    noise
        If given, the answers are integers modulo 2³², nobody sees more than their sum, and a helper
        adds Gaussian noise with this standard deviation to every value of it, in integer steps.
    least
        With noise, there is no sum over fewer clients than this.
    server_work
        What the server itself computes meanwhile, if that takes time; `Inbox.server_done` says
        whether it finished while it waited. Only a simulation plays it: a real server's time is
        what it is.
    """

    work: "Work"
    wait: Wait
    loads: IntArray | None = None
    combine: Combine = SUM
    keep_late: bool = False
    setup: bool = False
    model: Array = None
    noise: float | None = None
    least: int = LEAST_SUMMED
    server_work: ServerWork | None = None


@dataclass(frozen=True, eq=False)
class Reply:
    """A client's own answer.

    Attributes
    ----------
    round
        The round in which it was asked, from 0 on; -1 for the set-up.
    points
        Points that the answer covers.
    model
        The model that it was computed for, which may be an old one.
    """

    client: int
    round: int
    points: int
    arrays: Mapping[str, Array]
    model: Array = None


@dataclass(frozen=True, eq=False)
class Inbox:
    """The answers to an ask.

    Attributes
    ----------
    arrived : array of shape (n,)
        Which clients answered this ask in time.
    points : float
        Points that the counted answers cover.
    sums
        The sum of every array of the answers, under `SUM`; empty if no client answered.
    replies
        Single answers by client, under `EACH`, including late answers to earlier asks.
    loads : array of shape (n,), optional
        Points that each client's answer covers, under a secure sum; 0 for clients that did not
        arrive.
    server_done
        Whether the server finished the ask's `server_work`; True if there was none.
    timings
        How long clients took, as far as the server saw it.
    revised
        What clients sent once, as it counts from now on, if that has changed: without those whose
        later answers contradict it.
    """

    arrived: Mask
    points: float
    sums: Mapping[str, Array] = field(default_factory=dict)
    replies: tuple[Reply, ...] = ()
    loads: IntArray | None = None
    server_done: bool = True
    timings: Timings | None = None
    revised: "Inbox | None" = None

    def total(self, name: str = "gradient") -> Array:
        """Return the sum of an array over the clients that arrived; 0 if none did."""
        return self.sums.get(name, 0.0)

    def plus(self, own: Quadratic, model: Array) -> Array:
        """Return the clients' gradients and that of a quadratic at the server, g_U + g_C."""
        return own.gradient(model) + self.total("gradient")


@dataclass(frozen=True, eq=False)
class State:
    """The state of a scheme between two asks."""

    task: Task
    model: Array
    round: int = 0

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return self.round >= self.task.rounds

    @property
    def checkpointed(self) -> bool:
        """Whether `model` and `round` are all that the rounds have changed since the set-up.

        Then a run continues from a checkpoint of both. A state with a memory of its own is
        brought back by playing its rounds again, unless it says otherwise here.
        """
        return type(self) is State

    def descended(self, total: Array, points: float) -> Self:
        """Return the state after a step along the mean gradient `total`/`points`."""
        size = self.task.step_size(self.round)
        model = self.model
        if points > 0:  # otherwise nobody answered, and the model stays
            model = step(model, total, points, size, self.task.ridge)
        return replace(self, model=model, round=self.round + 1)


@dataclass(frozen=True)
class Limits:
    """What the operator of a real federation sets, where a scheme does not.

    Attributes
    ----------
    deadline : seconds, optional
        Of a round.
    setup_deadline : seconds
    rounds
    availability
        No client is assumed to answer in a larger share of the rounds.
    """

    deadline: float | None
    setup_deadline: float
    rounds: int
    availability: float


class Scheme(ABC):
    """A way to train: a frozen dataclass of settings with pure functions.

    It holds no state: everything that it learns is in the `State` that it returns.
    """

    name: ClassVar[str]

    solves: ClassVar[bool] = False
    """Whether it aims at the exact minimum: a simulator then tracks the excess over it."""

    descends: ClassVar[bool] = True
    """Whether it takes steps of the task's schedule; otherwise `training.step` is ignored."""

    features: ClassVar["FeatureMap | None"] = None
    """The feature map, where the scheme itself decides it."""

    baseline: ClassVar[str] = ""
    """What reports call this scheme as a baseline of gains; empty if it is not one."""

    solver: ClassVar[str] = "gd"
    """How it minimises the objective, unless a setting `optimiser` says so."""

    disclosure: ClassVar[Disclosed] = frozenset()
    """What leaves a client, to the server or to peers."""

    featured: ClassVar[bool] = False
    """Whether a report shows its clients and first rounds one by one, not its results alone."""

    takes_any_delays: ClassVar[bool] = False
    """Whether `start` plans with any `DelayDistribution`; otherwise it is given a `Fleet`."""

    renamed: ClassVar[Mapping[str, str]] = {}
    """Former names of settings, with the current ones, for error messages."""

    def check(self, fleet: "Fleet | DelayDistribution") -> None:  # noqa: B027
        """Refuse a fleet for which waiting might never end; real federations limit every wait."""

    def within(self, limits: Limits) -> "Scheme":
        """Return the scheme with an operator's limits for settings that are not given."""
        return self

    @property
    def plans_deadline(self) -> bool:
        """Whether its rounds end at a deadline that it plans itself."""
        return False

    def start(self, task: Task, fleet: "Fleet | DelayDistribution", model: Array) -> State:
        """Plan, and return the state before the first ask."""
        return State(task, model)

    @abstractmethod
    def ask(self, state: Any) -> Ask | None:
        """Return what to ask next; None when training is done."""

    @abstractmethod
    def receive(self, state: Any, inbox: Inbox) -> State:
        """Learn from the answers."""

    def plan(self, state: Any) -> Any:
        """Return the plan that the rounds follow, if there is one."""
        return None

    def privacy(self, state: Any) -> "Account | None":
        """Return what a run releases under a guarantee; None if there is no guarantee."""
        return None

    def facts(self, state: Any) -> dict[str, float]:
        """Return numbers for tables and reports, by name.

        Those of `core.record.FACTS` have columns of their own in a report; others are shown by
        their names.
        """
        return {}


class Runtime(Protocol):
    """Whoever asks the clients: a virtual clock, or a transport."""

    def exchange(self, ask: Ask, model: Array, round_: int) -> Inbox:
        """Ask the clients for work on a model, wait, and return the answers."""


def refuse_absent(fleet: "Fleet | DelayDistribution", waiting: str) -> None:
    """Refuse a fleet for which waiting might never end, in the words of who would wait."""
    availability = getattr(fleet, "availability", None)
    if availability is not None and (availability < 1).any():
        raise InputError(f"{waiting}, and some clients' availability is below 1")
