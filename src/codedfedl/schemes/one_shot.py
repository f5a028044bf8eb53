"""Exact ridge regression from one upload: `one-shot` and `centralised`.

`one-shot`: every client sends its Gram matrix and moments. `centralised`: every client uploads its
raw points, and the server solves. That is not federated learning at all: the speed limit where the
data may be copied.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from array_api_compat import array_namespace

from codedfedl.arrays import IntArray
from codedfedl.core.client import Gram
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import Ask, Inbox, Info, Scheme, State, Task
from codedfedl.core.waiting import Everyone
from codedfedl.fleet import costs
from codedfedl.fleet.costs import Cost
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


@dataclass(frozen=True)
class Raw(Gram):
    """All raw points; the answer is what the server computes from them, at no cost to anybody.

    The server computes features and Gram matrix, and its algebra is free.
    """

    kind: ClassVar[str] = "raw"
    discloses: ClassVar[Disclosure | None] = Disclosure.RAW
    embeds: ClassVar[bool] = False

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return the bits of the points."""
        return costs.raw(task.held, task.workload, task.raw_bits)


@dataclass(frozen=True)
class Centralised(OneShot):
    """Exact ridge regression on raw points; their bits are charged, the server's algebra is not."""

    info: ClassVar[Info] = replace(
        OneShot.info,
        name="centralised",
        disclosure=frozenset({Disclosure.RAW}),
        only_simulated="sends raw points, which no node does",
    )

    def ask(self, state: State) -> Ask | None:
        """Ask once."""
        return Ask(Raw(), Everyone()) if state.round == 0 else None
