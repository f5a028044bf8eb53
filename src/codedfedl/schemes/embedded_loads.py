"""Loads by the number of points that a client embeds in time: for schemes without parity.

Every client embeds for the planned time and then answers for those points, weighted to represent
all its points: loads are proportional to the actual speed. The plan is the shortest such set-up
whose sampling error is within the target excess.
"""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from codedfedl.arrays import Array, FloatArray
from codedfedl.core.client import DrawnGradient, Embed, Embedded
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import (
    EACH,
    AnyLimits,
    Ask,
    Description,
    Inbox,
    Info,
    Reply,
    Rng,
    Scheme,
    Task,
)
from codedfedl.core.task import Descent
from codedfedl.core.waiting import Until, Wait
from codedfedl.core.work import Work
from codedfedl.fleet.costs import seconds_to_embed
from codedfedl.fleet.delays import DelayModel
from codedfedl.fleet.devices import fleet_of
from codedfedl.learning.optimisers import optimiser
from codedfedl.planning.cold_start import plan_embedding
from codedfedl.schemes.settings import check_load, check_positive

__all__ = ["EmbeddedLoads", "EmbeddedState", "EqualOrEmbedded", "Table"]


@dataclass(frozen=True, eq=False)
class EmbeddedState(Descent):
    """Descent on the points that were embedded in the set-up.

    Attributes
    ----------
    setup_deadline : seconds
    seconds_a_point : array of shape (n,), seconds
        What embedding takes, where the set-up is as long as a plan says; else None.
    set_up
        Whether it is over.
    federated
        Whether clients are real.
    """

    setup_deadline: float = 0.0
    seconds_a_point: FloatArray | None = None
    set_up: bool = False
    federated: bool = False

    @property
    def checkpointed(self) -> bool:
        """The clients' loads come from the set-up, and the optimiser has a memory."""
        return False

    @property
    def held(self) -> float:
        """Points of all clients."""
        return float(self.task.held.sum())


@dataclass(frozen=True)
class EmbeddedLoads(Scheme):
    """Loads by speed, set once by how many points each client embeds in the set-up.

    Parameters
    ----------
    excess
        Relative excess of the objective that sampling may cause, for which the set-up is planned.
    setup_deadline : seconds
        Deadline of the set-up; by default the plan's.
    """

    excess: float = 0.2
    setup_deadline: float | None = None

    info: ClassVar[Info] = Info("", frozenset({Disclosure.GRADIENTS}), solves=True)
    work: ClassVar[Embedded] = Embedded(grows=False)

    def __post_init__(self) -> None:
        check_positive(self, "excess", "setup_deadline")

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> Any:
        """Plan the set-up."""
        seconds = self.setup_deadline or (None if limits is None else limits.setup_deadline)
        each = None
        if seconds is None:
            known = fleet_of(fleet, task.points[0], f"{self.info.name} without setup_deadline")
            each = seconds_to_embed(task.feature_macs, task.workload, known)
            seconds = plan_embedding(each, task.held, task.workload.features, self.excess)
        state = self.first_state(task, model, seconds)
        return replace(state, seconds_a_point=each, federated=limits is not None)

    def first_state(self, task: Task, model: Array, setup_deadline: float) -> EmbeddedState:
        """Return the state before the set-up."""
        return EmbeddedState(task, model, setup_deadline=setup_deadline)

    def ask(self, state: Any) -> Ask | None:
        """Let everybody embed, then ask for gradients."""
        if not state.set_up:
            return Ask(Embed(), Until(state.setup_deadline), setup=True)
        return None if state.finished else self.ask_round(state)

    def receive(self, state: Any, inbox: Inbox) -> Any:
        """Learn from the answers, once the set-up is over."""
        if not state.set_up:
            return replace(state, set_up=True)
        return self.receive_round(state, inbox)

    @abstractmethod
    def ask_round(self, state: Any) -> Ask:
        """Return what to ask in a round."""

    @abstractmethod
    def receive_round(self, state: Any, inbox: Inbox) -> Any:
        """Learn from the answers of a round."""

    def describe(self, state: Any) -> Description:
        """Say how long everybody embedded."""
        return Description(facts={"setup_deadline_s": state.setup_deadline})


@dataclass(frozen=True)
class EqualOrEmbedded(EmbeddedLoads):
    """Loads by speed as above; or equal ones, of points that are drawn anew for every answer.

    Parameters
    ----------
    load
        Points behind every answer, for networks: then there is no set-up. By default as many as a
        client embeds in time.
    optimiser
        ``gd``, ``adam``, …
    """

    load: int | None = None
    optimiser: str = "gd"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_load(self)
        optimiser(self.info.name, self.optimiser, same_points=False)

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> Any:
        """Plan the set-up, if there is one."""
        chosen = optimiser(self.info.name, self.optimiser, same_points=False)
        if self.load is None:
            return replace(super().start(task, fleet, model, limits, rng), optimiser=chosen)
        return replace(self.first_state(task, model, 0.0), set_up=True, optimiser=chosen)

    def asked(self, state: Any, wait: Wait, *, keep_late: bool = True) -> Ask:
        """Return an ask for each client's gradient, as if over all its points."""
        task, loads = state.task, None
        work: Work = self.work
        if self.load is not None:
            batch = task.batch(state.round)
            work = DrawnGradient(batch, state.round, task.held)
            loads = np.minimum(task.points[batch], self.load)
        model = state.question
        return Ask(work, wait, loads, combine=EACH, keep_late=keep_late, model=model)


@dataclass(frozen=True, eq=False)
class Table:
    """The newest gradient of every client that has answered, by client.

    Attributes
    ----------
    total
        The sum of all, kept up to date by differences.
    """

    entries: dict[int, Reply]
    total: Array = 0.0

    def updated(self, replies: Iterable[Reply]) -> "Table":
        """Return the table with some newer answers."""
        entries, total = dict(self.entries), self.total
        for reply in replies:
            before = entries.get(reply.client)
            if before is not None and before.round > reply.round:
                continue
            total = total + reply.arrays["gradient"]
            if before is not None:
                total = total - before.arrays["gradient"]
            entries[reply.client] = reply
        return Table(entries, total)

    def points(self, task: Task) -> float:
        """Return how many points the table represents."""
        return float(task.held[list(self.entries)].sum()) if self.entries else 0.0

    def age(self, task: Task, round_: int) -> float:
        """Return the mean age of the entries in rounds, by points."""
        ages = [task.held[j] * (round_ - reply.round) for j, reply in self.entries.items()]
        return float(sum(ages)) / max(self.points(task), 1.0)
