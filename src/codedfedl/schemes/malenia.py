"""`malenia`: everybody computes at one model until slow clients have done enough.

Malenia SGD (Tyurin and Richtárik, NeurIPS 2023) has the best possible time complexity of schemes
whose gradients are all at the current model, where clients' data differ. Clients send one mean
gradient after another; with B_j points of client j, the server steps along Σ_j p_j·(its mean) as
soon as the harmonic mean of all B_j is large enough, and everybody drops what is under way. Real
nodes finish what they have begun, and nobody waits for it; their answers are over whole blocks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np

from codedfedl.arrays import Array
from codedfedl.core.client import DrawnGradient, WindowGradient
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import EACH, AnyLimits, Ask, Inbox, Info, Rng, Scheme, Task
from codedfedl.core.task import Descent
from codedfedl.core.waiting import Next
from codedfedl.fleet.delays import DelayModel
from codedfedl.learning.optimisers import optimiser
from codedfedl.schemes.settings import check_at_least_1, check_positive

AT_ONCE = 1e-9
"""Seconds of a window that ends as soon as there are enough points."""


class Gathered(NamedTuple):
    """The sum of a client's answers at this model, how many, and the points behind them."""

    total: Array
    answers: int
    points: int


@dataclass(frozen=True, eq=False)
class GatheringState(Descent):
    """What came at this model, by client, and in which exchange it was first asked about.

    Answers are over whole blocks (`in_blocks`) where nodes give them.
    """

    gathered: Mapping[int, Gathered] = field(default_factory=dict)
    began: int = 0
    in_blocks: bool = False

    @property
    def checkpointed(self) -> bool:
        """False: what was gathered is a memory."""
        return False


@dataclass(frozen=True)
class Malenia(Scheme):
    """Answers at one model until the harmonic mean of the clients' points suffices.

    Parameters
    ----------
    load
        Points behind every answer, drawn anew; of real nodes so many or a few more.
    enough
        The harmonic mean of the points (S/n in the paper).
    optimiser
        ``gd``, ``adam``, …
    """

    load: int = 1
    enough: float = 1.0
    optimiser: str = "gd"

    info: ClassVar[Info] = Info(
        "malenia",
        frozenset({Disclosure.GRADIENTS}),
        in_blocks=True,
    )

    def __post_init__(self) -> None:
        check_at_least_1(self, "load")
        check_positive(self, "enough")
        optimiser(self.info.name, self.optimiser, same_points=False)

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> GatheringState:
        """Begin to gather."""
        chosen = optimiser(self.info.name, self.optimiser, same_points=False)
        return GatheringState(task, model, optimiser=chosen, in_blocks=limits is not None)

    def ask(self, state: GatheringState) -> Ask | None:
        """Ask the idle clients, and continue with the next answer."""
        if state.finished:
            return None
        task, batch = state.task, state.task.batch(state.began)
        loads = points = task.points[batch]
        work: DrawnGradient
        if state.in_blocks:
            work = WindowGradient(batch, state.round, points, seconds=AT_ONCE, least=self.load)
        else:
            work, loads = DrawnGradient(batch, state.round, points), np.minimum(points, self.load)
        return Ask(
            work,
            Next(1),
            loads,
            combine=EACH,
            keep_late=True,
            restarts=state.round == state.began,
            model=state.question,
        )

    def receive(self, state: GatheringState, inbox: Inbox) -> GatheringState:
        """Gather, and step when it is enough."""
        gathered = dict(state.gathered)
        for reply in inbox.replies:
            before = gathered.get(reply.client, Gathered(0.0, 0, 0))
            total = before.total + reply.arrays["gradient"]
            points = before.points + reply.points
            gathered[reply.client] = Gathered(total, before.answers + 1, points)
        held = state.task.points[state.task.batch(state.began)]
        asked = np.flatnonzero(held > 0).tolist()
        inverse = sum(1 / gathered[j].points if j in gathered else np.inf for j in asked)
        if len(asked) < self.enough * inverse:
            return replace(state, gathered=gathered, round=state.round + 1)
        total = sum((mine.total / mine.answers for mine in gathered.values()), start=0.0)
        moved = state.descended(total, float(held.sum()))
        return replace(moved, gathered={}, began=moved.round)
