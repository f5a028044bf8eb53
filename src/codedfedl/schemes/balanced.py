"""`balanced`: loads by speed, no parity, and block conjugate gradients; wait for all.

The baseline for any gain of parity: everything in this package except parity. Loads follow the
actual speed by themselves, since everybody embeds for the same time; what the delays decide is how
long that must be. A set-up that brought far fewer points than planned is prolonged: what a point
took each client is known then, and the plan is made anew with that.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from codedfedl._types import IntArray
from codedfedl.arrays import Array
from codedfedl.core.protocol import Ask, Inbox, Task, refuse_absent
from codedfedl.core.waiting import Everyone
from codedfedl.fleet.delays import DelayDistribution
from codedfedl.fleet.devices import Fleet
from codedfedl.learning.optimisers import optimiser
from codedfedl.planning.cold_start import plan_embedding, sampling_excess
from codedfedl.schemes.pace import Paced, PacedState

__all__ = ["Balanced"]

_FAR_OFF = 1.2  # times the excess that was planned for: with α = 2, luck alone brings 1.15 at most


@dataclass(frozen=True)
class Balanced(Paced):
    """Every client embeds for the same time and answers for those points; the server waits for all.

    Parameters
    ----------
    optimiser
        ``block-cg``, ``nesterov`` or ``gd``.
    replan
        Whether to prolong a set-up that was planned, if it brought too few points.
    """

    optimiser: str = "block-cg"
    replan: bool = True

    name: ClassVar[str] = "balanced"

    def __post_init__(self) -> None:
        super().__post_init__()
        optimiser(self.name, self.optimiser, same_points=True)

    def check(self, fleet: Fleet | DelayDistribution) -> None:
        """Refuse fleets for which waiting would never end."""
        refuse_absent(fleet, "balanced waits for all")

    def first_state(self, task: Task, model: Array, setup_deadline: float) -> PacedState:
        """Return the state before the set-up."""
        chosen = optimiser(self.name, self.optimiser, same_points=True)
        return PacedState(task, model, optimiser=chosen, setup_deadline=setup_deadline)

    def receive(self, state: Any, inbox: Inbox) -> Any:
        """Learn from the answers, once everybody has embedded for long enough."""
        seen = inbox.timings
        if state.set_up or not self.replan or self.setup_deadline is not None or seen is None:
            return super().receive(state, inbox)
        done = np.where(seen.answered, seen.loads, 0)
        longer = self._longer(state, done)
        if longer <= 0:
            return super().receive(state, inbox)
        return replace(state, setup_deadline=state.setup_deadline + longer, embedding=longer)

    def _longer(self, state: PacedState, done: IntArray) -> float:
        """Return for how many seconds more everybody should embed, after so many points each."""
        held, features = state.task.held, state.task.workload.features
        if sampling_excess(held.astype(np.float64), done, features) <= _FAR_OFF * self.excess:
            return 0.0
        each = state.setup_deadline / np.maximum(done, 1)
        return plan_embedding(each, held, features, self.excess) - state.setup_deadline

    def ask_round(self, state: PacedState) -> Ask:
        """Ask everybody for the gradient over what it has."""
        return Ask(self.work, Everyone(), model=state.question)

    def receive_round(self, state: PacedState, inbox: Inbox) -> PacedState:
        """Take a step of the optimiser."""
        return state.descended(inbox.total(), state.held)
