"""`one-shot`: every client's Gram matrix and moments, once, and exact ridge regression."""

from dataclasses import dataclass, replace
from typing import ClassVar

from array_api_compat import array_namespace

from codedfedl.core.client import Gram
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import Ask, Inbox, Info, Scheme, State
from codedfedl.core.waiting import Everyone
from codedfedl.learning.least_squares import Quadratic

__all__ = ["OneShot"]


@dataclass(frozen=True)
class OneShot(Scheme):
    """The exact minimiser of the ridge objective over all points, from one upload."""

    info: ClassVar[Info] = Info(
        "one-shot",
        frozenset({Disclosure.STATISTICS}),
        solver="exact",
        solves=True,
        quadratic=True,
        descends=False,
        waits="waits for all",
    )

    def ask(self, state: State) -> Ask | None:
        """Ask once. This is its training, so it takes time on the paper's clock too."""
        return Ask(Gram(), Everyone()) if state.round == 0 else None

    def receive(self, state: State, inbox: Inbox) -> State:
        """Solve."""
        gram = Quadratic(inbox.total("hessian"), inbox.total("moment"))
        xp = array_namespace(state.model)
        solution = gram.minimum(state.task.ridge * inbox.points)
        return replace(state, model=xp.astype(solution, xp.float32), round=1)
