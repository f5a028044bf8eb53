"""`mifa`: a client that misses a round is replaced by its last gradient (Gu et al., NeurIPS 2021).

MIFA, *Memory-augmented Impatient Federated Averaging*: G_j is client j's latest update, and every
round steps along the mean of all G_j. The first round waits for all clients, so that the table is
complete. It is what `coded-newton` would be without parity. Local updates are one gradient here;
the step is the schedule's over 1 + the mean age of the table, so that delayed gradients are stable.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from codedfedl.arrays import Array
from codedfedl.core.protocol import Ask, Inbox, Info, Reply, Task
from codedfedl.core.waiting import Everyone, Fastest, Wait
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
