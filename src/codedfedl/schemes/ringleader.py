"""`ringleader`: a table with a fresh slot for every client (Maranjyan and Richtárik, ICLR 2026).

Ringleader ASGD has the best possible time complexity for clients whose data differ. It alternates
between two phases. First it gathers, until every client has answered since the last phase began.
Then it takes n steps, one for each client's next answer, which replaces that client's entry in the
table; further answers of a client are kept for the next gathering. So no slot is ever older than
two phases.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from codedfedl.arrays import Array
from codedfedl.core.protocol import Ask, Inbox, Info, Reply, Task
from codedfedl.core.waiting import Next
from codedfedl.schemes.embedded_loads import EqualOrEmbedded
from codedfedl.schemes.mifa import TableState


@dataclass(frozen=True, eq=False)
class RingState(TableState):
    """The table, and where the two phases are.

    Attributes
    ----------
    gathered
        Clients that answered in this gathering; the steps begin when all have.
    stepped
        Clients whose answer made a step since.
    """

    gathered: frozenset[int] = frozenset()
    stepped: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Ringleader(EqualOrEmbedded):
    """Asynchronous steps along a table in which every client is represented."""

    info: ClassVar[Info] = replace(EqualOrEmbedded.info, name="ringleader")

    def first_state(self, task: Task, model: Array, setup_deadline: float) -> RingState:
        """Return the state before the set-up."""
        return RingState(task, model, setup_deadline=setup_deadline)

    def ask_round(self, state: RingState) -> Ask:
        """Ask the idle clients, and continue with the next answer."""
        return self.asked(state, Next(1))

    def receive_round(self, state: RingState, inbox: Inbox) -> RingState:
        """Gather, or step."""
        everybody = frozenset(range(state.task.clients))
        for reply in inbox.replies:
            if state.gathered != everybody:
                state = replace(
                    state,
                    table=state.table.updated([reply]),
                    gathered=state.gathered | {reply.client},
                )
                if state.gathered == everybody:
                    state = replace(_stepped(state, []), stepped=frozenset())
            elif reply.client in state.stepped:  # early for the next gathering
                state = replace(state, table=state.table.updated([reply]))
            else:
                state = _stepped(state, [reply])
                state = replace(state, stepped=state.stepped | {reply.client})
                if state.stepped == everybody:
                    state = replace(state, gathered=frozenset(), stepped=frozenset())
        return replace(state, round=state.round + 1)


def _stepped(state: RingState, replies: Iterable[Reply]) -> RingState:
    """Return the state after a step, in the same round: an answer is a round, and a step is not."""
    return replace(state.moved(replies), round=state.round)
