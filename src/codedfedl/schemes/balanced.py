"""`balanced`: loads by speed, no parity, and block conjugate gradients; wait for all.

The baseline for any gain of parity: everything in this package except parity.

Clients say first how many points of each class they hold. Then everybody embeds for the same time,
so that loads follow the actual speed. The first round is at β = 0, where a gradient is a sum of
features for each class and takes a fraction of the work; how far these sums differ between clients
says how far a client's points stand for its own or for its class (`planning.strata`).

Then loads grow: everybody takes in points that it has embedded by then while it waited for others,
but no more than as many again, since rounds grow with the loads. They do once another step brings
less than 3% of all that steps have brought, until nearly all points are in. And they do
every so many rounds where clients are slower than planned, and have too few points. The optimiser
starts anew from the model that it has.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from codedfedl.arrays import Array, FloatArray, IntArray
from codedfedl.core.client import FirstGradient
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import EACH, AnyLimits, Ask, Inbox, Info, Rng, Task
from codedfedl.core.waiting import Everyone
from codedfedl.fitting.drift import check_replan
from codedfedl.fleet.delays import DelayModel
from codedfedl.learning.optimisers import optimiser
from codedfedl.planning.cold_start import plan_embedding
from codedfedl.planning.strata import sampling_excess
from codedfedl.schemes.by_class import ByClass, ahead, ask_counts
from codedfedl.schemes.embedded_loads import EmbeddedLoads, EmbeddedState

__all__ = ["Balanced", "BalancedState"]

_FAR_OFF = 1.2  # times the planned excess: with α = 2, luck alone brings more in one run of 100
_GROWTH = 2.0  # times the loads, at most: rounds grow with them
_LITTLE = 0.03  # of what all steps have brought: then more points bring more
_NEARLY_ALL = 0.01  # excess by sampling: then more points bring nothing


@dataclass(frozen=True, eq=False)
class BalancedState(EmbeddedState):
    """The same, with loads that may grow.

    Attributes
    ----------
    by_class : optional
        Label counts; None until they are there, or if nobody is asked.
    represents : array of shape (n,), optional
        For how many points each client answers; by default all that it holds.
    grown : array of shape (n,), optional
        Points up to which loads grow in the next round; None: not at all.
    smaller : array of shape (n,), optional
        Loads before they grew the last time.
    lowered : float
        By how much the optimiser lowered the objective from the start, over its first points.
    answered : array of shape (n,), optional
        Points of each client's newest answer.
    """

    by_class: ByClass | None = None
    represents: FloatArray | None = None
    grown: IntArray | None = None
    smaller: IntArray | None = None
    lowered: float = 0.0
    answered: IntArray | None = None


@dataclass(frozen=True)
class Balanced(EmbeddedLoads):
    """Every client embeds for the same time and answers for those points; the server waits for all.

    Parameters
    ----------
    optimiser
        ``block-cg``, ``nesterov`` or ``gd``. In a simulation where clients may be absent, nesterov
        takes the place of block-cg, which needs the answers of all.
    replan
        Rounds after which loads that are too small for a planned set-up's excess grow; 0 keeps
        loads as they are.
    """

    optimiser: str = "block-cg"
    replan: int = 10

    info: ClassVar[Info] = replace(
        EmbeddedLoads.info,
        name="balanced",
        disclosure=frozenset({Disclosure.GRADIENTS, Disclosure.COUNTS}),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        optimiser(self.info.name, self.optimiser, same_points=True)
        check_replan(self.info.name, self.replan)

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> BalancedState:
        """Plan the set-up."""
        state: BalancedState = super().start(task, fleet, model, limits, rng)
        absent = limits is None and bool((fleet.availability < 1).any())
        if not absent or self.optimiser != "block-cg":
            return state
        return replace(state, optimiser=optimiser(self.info.name, "nesterov", same_points=True))

    def first_state(self, task: Task, model: Array, setup_deadline: float) -> BalancedState:
        """Return the state before the set-up."""
        chosen = optimiser(self.info.name, self.optimiser, same_points=True)
        return BalancedState(task, model, optimiser=chosen, setup_deadline=setup_deadline)

    def counts_classes(self, task: Task) -> bool:
        """Return whether clients say how many points of each class they hold.

        Not where the server sees sums alone, nor for a loss whose first gradients show no classes.
        """
        return not self.secure and task.learner.quadratic

    def ask(self, state: BalancedState) -> Ask | None:
        """Ask for counts first."""
        if self.counts_classes(state.task) and state.by_class is None:
            return ask_counts()
        return super().ask(state)

    def receive(self, state: BalancedState, inbox: Inbox) -> BalancedState:
        """Plan again with the counts."""
        if not self.counts_classes(state.task) or state.by_class is not None:
            return super().receive(state, inbox)  # type: ignore[no-any-return]
        by_class = ByClass.of(inbox.replies, state.task, federated=state.federated)
        state = replace(state, by_class=by_class)
        if state.seconds_a_point is None:
            return state
        planned = self._planned(state, state.seconds_a_point, self.excess)
        left = max(planned - float(ahead(inbox).max()), planned / 2)
        return replace(state, setup_deadline=left)

    def ask_round(self, state: BalancedState) -> Ask:
        """Ask everybody for the gradient over what it has."""
        if self.counts_classes(state.task) and state.represents is None:
            return Ask(FirstGradient(grows=False), Everyone(), combine=EACH)
        work = replace(self.work, grows=state.grown is not None, represents=state.represents)
        return Ask(work, Everyone(), state.grown, model=state.question)

    def receive_round(self, state: BalancedState, inbox: Inbox) -> BalancedState:
        """Take a step of the optimiser; every so many rounds, let loads grow if they must."""
        if self.counts_classes(state.task) and state.represents is None:
            return self._first_step(state, inbox)
        state = replace(state.descended(inbox.total(), state.held), grown=None)
        seen = inbox.timings
        if not self.replan or state.seconds_a_point is None or seen is None:
            return state
        before = 0 if state.answered is None else state.answered
        answered = np.where(seen.answered, seen.loads, before)
        state = replace(state, answered=answered)
        gain, lowered = state.optimiser.gains(state.memory)
        state = replace(state, lowered=max(state.lowered, lowered))
        wanted = _FAR_OFF * self.excess
        if gain <= _LITTLE * state.lowered:
            wanted = min(wanted, _NEARLY_ALL)
        elif state.round % self.replan and not state.finished:
            return state
        return self._grown(state, answered, wanted)

    def _first_step(self, state: BalancedState, inbox: Inbox) -> BalancedState:
        """Weight clients by how far their class sums agree, and take a step along the sums."""
        assert state.by_class is not None
        points = np.zeros_like(state.task.held)
        if state.seconds_a_point is not None:  # the plan's, of a client that is absent now
            planned = state.setup_deadline / np.maximum(state.seconds_a_point, 1e-300)
            points = np.clip(planned, 1, state.task.held).astype(np.int64)
        points[[reply.client for reply in inbox.replies]] = [r.points for r in inbox.replies]
        by_class, represents, total = state.by_class.first_step(inbox, state.task, points)
        state = replace(state, by_class=by_class, represents=represents, answered=points)
        return state.descended(total, state.held)

    @staticmethod
    def _planned(state: BalancedState, seconds: FloatArray, excess: float) -> float:
        """Return how long the set-up of clients takes that embed a point in some seconds."""
        held, features, classes = state.task.held, state.task.workload.features, state.by_class
        given = (None, 0.0) if classes is None else (classes.counts, classes.shift)
        return plan_embedding(seconds, held, features, excess, *given)

    def _grown(self, state: BalancedState, points: IntArray, wanted: float) -> BalancedState:
        """Let loads grow that are too small, unless the last time brought nothing."""
        held, features = state.task.held, state.task.workload.features
        if state.by_class is None:
            excess = sampling_excess(held.astype(float), points, features)
        else:
            excess = state.by_class.excess(points, features)
        if excess <= wanted:
            return state
        if state.smaller is not None and (points == state.smaller).all():
            return state
        embedded = np.maximum(points, 1)
        seconds = self._planned(state, state.setup_deadline / embedded, wanted)
        factor = min(max(seconds / state.setup_deadline, 1.0), _GROWTH)
        grown = np.minimum(np.ceil(factor * embedded).astype(np.int64), held)
        state = replace(state, grown=grown, smaller=points, question=None, memory=None)
        if state.by_class is None:
            return state
        return replace(state, represents=state.by_class.represented(grown))
