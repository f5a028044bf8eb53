"""`balanced`: loads by speed, no parity, and block conjugate gradients; wait for all.

The baseline for any gain of parity: everything in this package except parity.

Loads follow the actual speed by themselves, since everybody embeds for the same time. But clients
that are slower than planned have then too few points, and the answers are about these for ever. So
every so many rounds, where the points are too few for the planned excess, everybody answers for all
that it has embedded by then while it waited for others, and the optimiser starts anew from the
model that it has.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from codedfedl.arrays import Array
from codedfedl.core.protocol import Ask, Inbox, Task, refuse_absent
from codedfedl.core.waiting import Everyone
from codedfedl.fitting.drift import Timings, check_replan
from codedfedl.fleet.delays import DelayDistribution
from codedfedl.fleet.devices import Fleet
from codedfedl.learning.optimisers import optimiser
from codedfedl.planning.cold_start import sampling_excess
from codedfedl.schemes.pace import Paced, PacedState

__all__ = ["Balanced"]

_FAR_OFF = 1.2  # times the planned excess: with α = 2, luck alone brings more in one run of 100


@dataclass(frozen=True, eq=False)
class BalancedState(PacedState):
    """The same, and whether the next answers are about more points."""

    grows: bool = False


@dataclass(frozen=True)
class Balanced(Paced):
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

    name: ClassVar[str] = "balanced"

    def __post_init__(self) -> None:
        super().__post_init__()
        optimiser(self.name, self.optimiser, same_points=True)
        check_replan(self.name, self.replan)

    def check(self, fleet: Fleet | DelayDistribution) -> None:
        """Refuse fleets for which waiting would never end."""
        refuse_absent(fleet, "balanced waits for all")

    def first_state(self, task: Task, model: Array, setup_deadline: float) -> BalancedState:
        """Return the state before the set-up."""
        chosen = optimiser(self.name, self.optimiser, same_points=True)
        return BalancedState(task, model, optimiser=chosen, setup_deadline=setup_deadline)

    def ask_round(self, state: BalancedState) -> Ask:
        """Ask everybody for the gradient over what it has."""
        return Ask(replace(self.work, grows=state.grows), Everyone(), model=state.question)

    def receive_round(self, state: BalancedState, inbox: Inbox) -> BalancedState:
        """Take a step of the optimiser; every so many rounds, let loads grow if they must."""
        state = replace(state.descended(inbox.total(), state.held), grows=False)
        due = self.replan > 0 and state.round % self.replan == 0
        if due and self.setup_deadline is None and self._too_few(state, inbox.timings):
            return replace(state, grows=True, question=None, memory=None)
        return state

    def _too_few(self, state: BalancedState, seen: Timings | None) -> bool:
        """Say whether the points cost far more by sampling than was planned."""
        if seen is None:
            return False
        held, features = state.task.held.astype(np.float64), state.task.workload.features
        return (
            sampling_excess(held, np.where(seen.answered, seen.loads, 0), features)
            > _FAR_OFF * self.excess
        )
