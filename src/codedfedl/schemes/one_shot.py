"""`one-shot`: every client's Gram matrix and moments, once, and exact ridge regression."""

from dataclasses import dataclass, replace
from typing import ClassVar

from array_api_compat import array_namespace

from codedfedl.core.client import Gram
from codedfedl.core.disclosure import Disclosed, Disclosure
from codedfedl.core.protocol import Ask, Inbox, Scheme, State, refuse_absent
from codedfedl.core.waiting import Everyone
from codedfedl.fleet.delays import DelayModel
from codedfedl.learning.least_squares import Quadratic

__all__ = ["OneShot"]


@dataclass(frozen=True)
class OneShot(Scheme):
    """The exact minimiser of the ridge objective over all points, from one upload."""

    name: ClassVar[str] = "one-shot"
    disclosure: ClassVar[Disclosed] = frozenset({Disclosure.STATISTICS})
    solves: ClassVar[bool] = True
    descends: ClassVar[bool] = False
    solver: ClassVar[str] = "exact"

    def check(self, fleet: DelayModel) -> None:
        """Refuse fleets for which waiting would never end."""
        refuse_absent(fleet, "one-shot waits for all")

    def ask(self, state: State) -> Ask | None:
        """Ask once. This is its training, so it takes time on the paper's clock too."""
        return Ask(Gram(), Everyone()) if state.round == 0 else None

    def receive(self, state: State, inbox: Inbox) -> State:
        """Solve."""
        gram = Quadratic(inbox.total("hessian"), inbox.total("moment"))
        xp = array_namespace(state.model)
        solution = gram.minimum(state.task.ridge * inbox.points)
        return replace(state, model=xp.astype(solution, xp.float32), round=1)
