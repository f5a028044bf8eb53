"""Schemes that keep each client's newest gradient in a table: `mifa`, `dsag` and `ringleader`.

`mifa`: a client that misses a round is replaced by its last gradient (Gu et al., NeurIPS 2021).
MIFA, *Memory-augmented Impatient Federated Averaging*: G_j is client j's latest update, and every
round steps along the mean of all G_j. The first round waits for all clients, so that the table is
complete. It is what `coded-newton` would be without parity. Local updates are one gradient here;
the step is the schedule's over 1 + the mean age of the table, so that delayed gradients are stable.

`dsag`: stale and fresh gradients mixed (Severinson, Rosnes and Graell i Amat, arXiv 2111.13877).
DSAG is SAG's table for stragglers: a round waits for w of the n clients; a late client keeps
working, and its answer enters the table when it arrives, as a gradient of the old model. Until all
clients have answered, the step is along those that have. Loads are balanced by speed, once; its
authors rebalance during the run. The step is as in `mifa`.

`ringleader`: a table with a fresh slot for every client (Maranjyan and Richtárik, ICLR 2026).
Ringleader ASGD has the best possible time complexity for clients whose data differ. It alternates
between two phases. First it gathers, until every client has answered since the last phase began.
Then it takes n steps, one for each client's next answer, which replaces that client's entry in the
table; further answers of a client are kept for the next gathering. So no slot is ever older than
two phases.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from codedfedl.arrays import Array
from codedfedl.core.protocol import Ask, Inbox, Info, Reply, Task
from codedfedl.core.waiting import Everyone, Fastest, Next, Wait
from codedfedl.schemes.embedded_loads import EmbeddedState, EqualOrEmbedded, Table
from codedfedl.schemes.settings import all_but_slowest, check_drop


@dataclass(frozen=True, eq=False)
class TableState(EmbeddedState):
    """The newest gradient of every client."""

    table: Table = field(default_factory=lambda: Table({}))

    def moved(self, replies: Iterable[Reply]) -> Self:
        """Return the state after a step along the table with some newer answers."""
        task, table = self.task, self.table.updated(replies)
        slower = 1 + table.age(task, self.round) if table.entries else 1.0
        return replace(self, table=table).descended(table.total, table.points(task), slower)


@dataclass(frozen=True)
class MIFA(EqualOrEmbedded):
    """Wait for the fastest, reuse the others' last gradients; late clients drop their work.

    Parameters
    ----------
    drop
        Share of the clients that a round does not wait for, as in `greedy`.
    """

    drop: float = 0.2

    info: ClassVar[Info] = replace(EqualOrEmbedded.info, name="mifa")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_drop(self.info.name, self.drop)

    def awaited(self, task: Task) -> Fastest:
        """Return how many answers a round waits for."""
        return all_but_slowest(self.drop, task.clients)

    def first_state(self, task: Task, model: Array, setup_deadline: float) -> TableState:
        """Return the state before the set-up."""
        return TableState(task, model, setup_deadline=setup_deadline)

    def ask_round(self, state: TableState) -> Ask:
        """Ask everybody."""
        wait: Wait = self.awaited(state.task) if state.table.entries else Everyone()
        return self.asked(state, wait, keep_late=False)

    def receive_round(self, state: TableState, inbox: Inbox) -> TableState:
        """Step along the table."""
        return state.moved(inbox.replies)


@dataclass(frozen=True)
class DSAG(MIFA):
    """Wait for the fastest of those asked now, and use late answers.

    Parameters
    ----------
    drop
        1 − w/n: share of the clients that a round does not wait for, as in `greedy`.
    """

    info: ClassVar[Info] = replace(MIFA.info, name="dsag")

    def ask_round(self, state: TableState) -> Ask:
        """Ask the idle clients."""
        return self.asked(state, self.awaited(state.task))


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
