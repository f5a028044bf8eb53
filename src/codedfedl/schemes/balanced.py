"""`balanced`: loads by speed, no parity, and block conjugate gradients; wait for all.

The baseline for any gain of parity: everything in this package except parity.
"""

from dataclasses import dataclass
from typing import ClassVar

from codedfedl.arrays import Array
from codedfedl.core.protocol import Ask, Inbox, Task, refuse_absent
from codedfedl.core.waiting import Everyone
from codedfedl.fleet.delays import DelayDistribution
from codedfedl.fleet.devices import Fleet
from codedfedl.learning.optimisers import optimiser
from codedfedl.schemes.pace import Paced, PacedState

__all__ = ["Balanced"]


@dataclass(frozen=True)
class Balanced(Paced):
    """Every client embeds for the same time and answers for those points; the server waits for all.

    Parameters
    ----------
    optimiser
        ``block-cg``, ``nesterov`` or ``gd``.
    """

    optimiser: str = "block-cg"

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

    def ask_round(self, state: PacedState) -> Ask:
        """Ask everybody for the gradient over what it has."""
        return Ask(self.work, Everyone(), model=state.question)

    def receive_round(self, state: PacedState, inbox: Inbox) -> PacedState:
        """Take a step of the optimiser."""
        return state.descended(inbox.total(), state.held)
