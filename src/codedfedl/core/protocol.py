"""The protocol between a scheme and whoever runs it.

A scheme is a state machine without I/O: it *asks*, and learns from the *inbox* that answers. A
runtime decides one thing only: who arrived, and when.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from codedfedl.arrays import Array, IntArray, Mask
from codedfedl.core.disclosure import Disclosed, Disclosure
from codedfedl.core.task import State, Task
from codedfedl.core.waiting import Wait
from codedfedl.errors import InputError
from codedfedl.fitting.drift import Timings
from codedfedl.fleet.costs import ServerWork
from codedfedl.fleet.delays import DelayModel
from codedfedl.learning.least_squares import Quadratic
from codedfedl.learning.messages import MODEL_BITS, Rounding
from codedfedl.privacy.fixed_point import LEAST_SUMMED

if TYPE_CHECKING:
    from codedfedl.core.work import Work
    from codedfedl.learning.features import FeatureMap
    from codedfedl.privacy.accounting import Account

__all__ = ["State", "Task"]  # imported from here

Rng = np.random.Generator | None  # for what a scheme itself draws


class Combine(Enum):
    """What a scheme is given of the answers: their sum alone, or every answer separately."""

    SUM = "sum"
    EACH = "each"


SUM, EACH = Combine.SUM, Combine.EACH


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
        Whether a busy client finishes first, and its answer reaches a later inbox, as a reply of
        its own: a sum is of this ask alone. Otherwise all drop their work when asked again.
    restarts
        Whether all drop earlier work first, although late answers are kept.
    setup
        Whether this is done once, before the first round: on the paper's clock it takes no time.
    model
        The model sent to the clients, if it is not the state's.
    secure
        Whether the server may see no more than the sum of the answers. Whoever drives the scheme
        asks for it in integers, without noise, and decodes it; a runtime is asked for every such
        sum with this, for those with noise too.
    noise
        If given, answers are integers modulo 2³², nobody sees more than their sum, and a helper
        adds Gaussian noise with this standard deviation to each value of it, in integer steps.
    least
        With noise, there is no sum over fewer clients than this.
    server_work
        What the server computes meanwhile, if that takes time (`Inbox.server_done`): simulated.
    """

    work: "Work"
    wait: Wait
    loads: IntArray | None = None
    combine: Combine = SUM
    keep_late: bool = False
    restarts: bool = False
    setup: bool = False
    model: Array = None
    secure: bool = False
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
    points
        In all counted answers.
    sums
        Of every array of the answers, under `SUM`; empty if no client answered.
    replies
        Single answers by client, under `EACH`, and late answers to earlier asks.
    loads : array of shape (n,), optional
        Points of each client's answer, in a secure sum or one of windows; 0 of who did not arrive.
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

    def plus(self, quadratic: Quadratic, model: Array) -> Array:
        """Return the clients' gradients and that of a quadratic at the server, g_U + g_C."""
        return quadratic.gradient(model) + self.total()


@dataclass(frozen=True)
class Limits:
    """What the operator of a real federation sets, where a scheme does not.

    Attributes
    ----------
    deadline : seconds, optional
        Of a round.
    setup_deadline, rounds
    availability
        No client is assumed to answer in a larger share of the rounds.
    first_deadline : seconds, optional
        Of the first rounds, where an earlier plan chose it; one that follows may choose another.
    blocks : array of shape (n,), optional
        Points of a block of each client: its windows are made of blocks.
    """

    deadline: float | None
    setup_deadline: float
    rounds: int
    availability: float
    first_deadline: float | None = None
    blocks: IntArray | None = None


AnyLimits = Limits | None  # a simulation has none


@dataclass(frozen=True)
class Info:
    """What is known of a scheme before it starts.

    Attributes
    ----------
    name
        What it is called in experiments and tables.
    disclosure
        What leaves a client, to the server or to peers.
    secure_disclosure
        The same where the scheme trains on secure sums.
    solver
        How it minimises the objective, unless a setting `optimiser` says so.
    solves
        Whether it aims at the exact minimum: a simulator then tracks the excess over it.
    descends
        Whether it takes steps of the task's schedule; otherwise `training.step` is ignored.
    features
        The feature map, where the scheme itself decides it.
    any_delays
        Whether `start` plans with any `DelayModel`; otherwise it is given a `Fleet`.
    featured
        Whether a report shows its clients and first rounds one by one, not its results alone.
    baseline
        What reports call it as a baseline of gains; empty if it is none.
    quadratic
        Whether it needs the loss of a linear model, such as for parity: others are refused.
    only_simulated
        Why no federation can run it, in the words of an error; empty if one can.
    in_blocks
        Whether real clients have a `load` of it: of whole blocks, since they draw no points.
    """

    name: str
    disclosure: Disclosed = frozenset()
    secure_disclosure: Disclosed = frozenset({Disclosure.SUMS})
    solver: str = "gd"
    solves: bool = False
    descends: bool = True
    features: "FeatureMap | None" = None
    any_delays: bool = False
    featured: bool = False
    baseline: str = ""
    quadratic: bool = False
    only_simulated: str = ""
    in_blocks: bool = False


@dataclass(frozen=True, eq=False)
class Description:
    """What a scheme says of a run.

    Attributes
    ----------
    plan
        The plan that the rounds follow, if there is one.
    facts
        Numbers for tables and reports, by name (`core.columns.FACTS`).
    account
        What a run releases under a guarantee; None if there is no guarantee.
    planned_deadline : seconds, optional
        Of a round, where the scheme's own plan chose it.
    """

    plan: Any = None
    facts: Mapping[str, float] = field(default_factory=dict)
    account: "Account | None" = None
    planned_deadline: float | None = None


@dataclass(frozen=True)
class Scheme(ABC):
    """A way to train: a frozen dataclass of settings with pure functions.

    All that it learns is in the `State` that it returns.

    Parameters
    ----------
    secure
        Whether the server sees sums of the answers alone: every ask becomes one for a secure sum.
    message_bits
        Bits of each number that a client sends: 32, or 2 to 8 (`learning.messages`).
    server_step
        The server's first step; by default `training.step`.
    """

    secure: bool = field(default=False, kw_only=True)
    message_bits: int = field(default=MODEL_BITS, kw_only=True)
    server_step: float | None = field(default=None, kw_only=True)

    info: ClassVar[Info]

    @property
    def disclosure(self) -> Disclosed:
        """What leaves a client, with or without secure sums."""
        return self.info.secure_disclosure if self.secure else self.info.disclosure

    def own_task(self, task: Task) -> Task:
        """Return a task with the scheme's own step, and the bits of its messages."""
        if self.server_step is not None:
            task = replace(task, schedule=replace(task.schedule, step=self.server_step))
        if self.message_bits != MODEL_BITS:
            bits = Rounding(self.message_bits, task.learner.tensor_sizes).message_bits
            each = bits / task.learner.parameters
            task = replace(task, workload=replace(task.workload, bits_up=each))
        return task

    def check(self, fleet: DelayModel | None = None, limits: AnyLimits = None) -> None:
        """Refuse what would fail later, before any work.

        Parameters
        ----------
        fleet
            Of a simulation.
        limits
            Of a real federation, which limits every wait: refused if they do not suffice.
        """
        name, reason = self.info.name, self.info.only_simulated
        if reason and limits is not None:
            raise InputError(f"{name} {reason}: simulate it")

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> State:
        """Plan, and return the state before the first ask.

        Parameters
        ----------
        fleet, model
            The clients as they are known to be; the first model.
        limits
            What the operator of a real federation sets, for settings that are not given.
        rng
            For what the scheme itself draws; the same in every repetition of a run.
        """
        return State(task, model)

    @abstractmethod
    def ask(self, state: Any) -> Ask | None:
        """Return what to ask next; None when training is done."""

    @abstractmethod
    def receive(self, state: Any, inbox: Inbox) -> State:
        """Learn from the answers."""

    def describe(self, state: Any) -> Description:
        """Return what tables and reports say of a run: its plan, facts and guarantee."""
        return Description()


class Runtime(Protocol):
    """Whoever asks the clients: a virtual clock, or a transport."""

    def exchange(self, ask: Ask, model: Array, round_: int) -> Inbox:
        """Ask the clients for work on a model, wait, and return the answers."""
