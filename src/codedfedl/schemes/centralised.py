"""`centralised`: every client uploads its raw points, and the server solves.

Not federated learning at all: the speed limit where the data may be copied.
"""

from dataclasses import dataclass
from typing import ClassVar

from codedfedl.core.disclosure import Disclosed, Disclosure
from codedfedl.core.protocol import Ask, Limits, State
from codedfedl.core.shared import Raw
from codedfedl.core.waiting import Everyone
from codedfedl.errors import InputError
from codedfedl.schemes.one_shot import OneShot

__all__ = ["Centralised"]


@dataclass(frozen=True)
class Centralised(OneShot):
    """Exact ridge regression on raw points; their bits are charged, the server's algebra is not."""

    name: ClassVar[str] = "centralised"
    disclosure: ClassVar[Disclosed] = frozenset({Disclosure.RAW})

    def within(self, limits: Limits) -> "Centralised":
        """Refuse: no node sends its raw points."""
        raise InputError("centralised sends raw points, which no node does: simulate it")

    def ask(self, state: State) -> Ask | None:
        """Ask once."""
        return Ask(Raw(), Everyone()) if state.round == 0 else None
