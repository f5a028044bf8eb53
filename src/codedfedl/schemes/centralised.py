"""`centralised`: every client uploads its raw points, and the server solves.

Not federated learning at all: the speed limit where the data may be copied.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from codedfedl.arrays import IntArray
from codedfedl.core.client import Gram
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import Ask, Info, State, Task
from codedfedl.core.waiting import Everyone
from codedfedl.fleet import costs
from codedfedl.fleet.costs import Cost
from codedfedl.schemes.one_shot import OneShot


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
