"""`tifl`: clients of like speed in tiers, and one tier in each round.

Chai et al., HPDC 2020, with the uniform policy. A round lasts as long as its own tier's slowest
client, so a slow client slows down the rounds of its tier alone.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from codedfedl.arrays import Array, IntArray
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import AnyLimits, Ask, Inbox, Info, Rng, Scheme, State, Task
from codedfedl.core.task import Descent
from codedfedl.core.waiting import Everyone
from codedfedl.fleet.delays import DelayModel
from codedfedl.learning.optimisers import optimiser
from codedfedl.schemes.settings import check_at_least_1, check_load, equal_loads, represented


@dataclass(frozen=True, eq=False, kw_only=True)
class TieredState(Descent):
    """Tiers.

    Attributes
    ----------
    tiers : array of shape (n,)
        The tier of each client; 0 is the fastest.
    drawn : array of shape (rounds,)
        The tier of each round.
    """

    tiers: IntArray
    drawn: IntArray


@dataclass(frozen=True)
class TiFL(Scheme):
    """A tier of clients in each round, drawn with equal chances.

    Parameters
    ----------
    tiers
        How many there are, as equal in size as can be; no more than clients.
    optimiser
        ``gd``, ``adam``, …
    load
        Points that each client processes in a round, drawn anew; by default its whole mini-batch.
    """

    tiers: int = 5
    optimiser: str = "gd"
    load: int | None = None

    info: ClassVar[Info] = Info("tifl", frozenset({Disclosure.GRADIENTS}))

    def __post_init__(self) -> None:
        check_at_least_1(self, "tiers")
        check_load(self)
        optimiser(self.info.name, self.optimiser, same_points=False)

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> TieredState:
        """Sort the clients by their mean time for all their points; draw the rounds' tiers."""
        order = np.argsort(fleet.mean(task.points[0]), kind="stable")
        tiers = np.empty(task.clients, dtype=np.int64)
        count = min(self.tiers, task.clients)
        for tier, members in enumerate(np.array_split(order, count)):
            tiers[members] = tier
        drawn = (rng or np.random.default_rng(0)).integers(count, size=task.rounds)
        chosen = optimiser(self.info.name, self.optimiser, same_points=False)
        return TieredState(task, model, optimiser=chosen, tiers=tiers, drawn=drawn)

    def ask(self, state: TieredState) -> Ask | None:
        """Ask one tier for the gradient over all its points, and wait for all of it."""
        if state.finished:
            return None
        work, loads = equal_loads(state.task, state.round, self.load)
        asked = np.where(state.tiers == state.drawn[state.round], loads, 0)
        return Ask(work, Everyone(), asked, model=state.question)

    def receive(self, state: TieredState, inbox: Inbox) -> State:
        """Take a step along the mean gradient of the tier."""
        return state.descended(inbox.total(), represented(state.task, state.round, inbox))
