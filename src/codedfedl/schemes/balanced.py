"""`balanced`: loads by speed, no parity, and block conjugate gradients; wait for all.

The baseline for any gain of parity: everything in this package except parity.

Loads follow the actual speed by themselves, since everybody embeds for the same time. But clients
that are slower than planned have then too few points, and the answers are about these for ever. So
every so many rounds, and before training ends, where the points are too few for the planned excess,
everybody takes in points that it has embedded by then while it waited for others: as many as a
set-up planned now would give it, but no more than as many again, since rounds grow with the loads.
The optimiser starts anew from the model that it has.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from codedfedl.arrays import Array, IntArray
from codedfedl.core.protocol import Ask, Inbox, Info, Task
from codedfedl.core.waiting import Everyone
from codedfedl.fitting.drift import check_replan
from codedfedl.learning.optimisers import optimiser
from codedfedl.planning.cold_start import plan_embedding, sampling_excess
from codedfedl.schemes.embedded_loads import EmbeddedLoads, EmbeddedState

__all__ = ["Balanced"]

_FAR_OFF = 1.2  # times the planned excess: with α = 2, luck alone brings more in one run of 100
_GROWTH = 2.0  # times the loads, at most: rounds grow with them


@dataclass(frozen=True, eq=False)
class BalancedState(EmbeddedState):
    """The same, with loads that may grow.

    Attributes
    ----------
    grown : array of shape (n,), optional
        Points up to which loads grow in the next round; None: not at all.
    smaller : array of shape (n,), optional
        Loads before they grew the last time.
    """

    grown: IntArray | None = None
    smaller: IntArray | None = None


@dataclass(frozen=True)
class Balanced(EmbeddedLoads):
    """Every client embeds for the same time and answers for those points; the server waits for all.

    Parameters
    ----------
    optimiser
        ``block-cg``, ``nesterov`` or ``gd``.
    replan
        Rounds after which loads that are too small for a planned set-up's excess grow; 0 keeps
        them.
    """

    optimiser: str = "block-cg"
    replan: int = 10

    info: ClassVar[Info] = replace(EmbeddedLoads.info, name="balanced", waits="waits for all")

    def __post_init__(self) -> None:
        super().__post_init__()
        optimiser(self.info.name, self.optimiser, same_points=True)
        check_replan(self.info.name, self.replan)

    def first_state(self, task: Task, model: Array, setup_deadline: float) -> BalancedState:
        """Return the state before the set-up."""
        chosen = optimiser(self.info.name, self.optimiser, same_points=True)
        return BalancedState(task, model, optimiser=chosen, setup_deadline=setup_deadline)

    def ask_round(self, state: BalancedState) -> Ask:
        """Ask everybody for the gradient over what it has."""
        work = replace(self.work, grows=state.grown is not None)
        return Ask(work, Everyone(), state.grown, model=state.question)

    def receive_round(self, state: BalancedState, inbox: Inbox) -> BalancedState:
        """Take a step of the optimiser; every so many rounds, let loads grow if they must."""
        state = replace(state.descended(inbox.total(), state.held), grown=None)
        seen = inbox.timings
        if not self.replan or not state.planned or seen is None:
            return state
        if state.round % self.replan and not state.finished:
            return state
        return self._grown(state, np.where(seen.answered, seen.loads, 0))

    def _grown(self, state: BalancedState, points: IntArray) -> BalancedState:
        """Let loads grow that are too small, unless the last time brought nothing."""
        held, features = state.task.held, state.task.workload.features
        enough = (
            sampling_excess(held.astype(np.float64), points, features) <= _FAR_OFF * self.excess
        )
        if enough or (state.smaller is not None and (points == state.smaller).all()):
            return state
        embedded = np.maximum(points, 1)
        seconds = plan_embedding(state.setup_deadline / embedded, held, features, self.excess)
        factor = min(max(seconds / state.setup_deadline, 1.0), _GROWTH)
        grown = np.minimum(np.ceil(factor * embedded).astype(np.int64), held)
        return replace(state, grown=grown, smaller=points, question=None, memory=None)
