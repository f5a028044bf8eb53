"""A Flower grid in memory, on a virtual clock: nodes that take their time, and never a sleep."""

import heapq
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.error import Error
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from codedfedl.pacing.flower.grid import PacedGrid
from codedfedl.pacing.flower.mail import Reply
from codedfedl.pacing.flower.recorder import Recorder
from codedfedl.pacing.flower.replies import treatment_of
from codedfedl.pacing.pacer import Pacer
from codedfedl.pacing.rounds import PacingJournal

__all__ = ["World", "arrays_of", "pace", "reply_of", "window_of"]

Answers = Callable[[Message, int], RecordDict | Error | None]
"""What a node answers to a question in the world's round; None: never."""


class World(Grid):
    """Nodes, and their replies in the order in which they come.

    Parameters
    ----------
    seconds
        How long each node takes for a question, by its number and the round's.
    """

    def __init__(
        self,
        nodes: Iterable[int],
        answer: Answers,
        seconds: Callable[[int, int], float] = lambda _node, _question: 1.0,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id = 1, 1  # messages want to know who makes them
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        self.nodes, self.answer, self.seconds = list(nodes), answer, seconds
        self.clock = 0.0
        self.pushed: list[Message] = []
        self.refused: set[int] = set()  # nodes for which the engine takes no message
        self._coming: list[tuple[float, int, str, Message | None]] = []
        self._asked = dict.fromkeys(self.nodes, 0)

    # A grid.

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]  # type: ignore[misc]

    def _push(self, message: Message) -> str | None:
        node = message.metadata.dst_node_id
        if node in self.refused:
            return None
        identity = f"message {len(self.pushed)}"
        message.metadata.__dict__["_message_id"] = identity
        self.pushed.append(message)
        self._asked[node] += 1
        content = self.answer(message, self._asked[node])
        takes = self.seconds(node, self._asked[node])
        if content is not None and takes < inf:
            reply = Message(content, reply_to=message)
            when = self.clock + takes
            heapq.heappush(self._coming, (when, len(self.pushed), identity, reply))
        return identity

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Wait for all."""
        identities, until = set(self.push_messages(messages)), self.clock + (timeout or inf)
        replies = []
        while identities and (reply := self.next(until)) is not None:
            if reply[0] in identities and reply[1] is not None:
                identities.remove(reply[0])
                replies.append(reply[1])
        return replies

    # Its mail.

    is_virtual = False

    def now(self) -> float:
        return self.clock

    def expect(self, ids: Iterable[str]) -> None: ...

    def forget(self, identity: str) -> None: ...

    def next(self, until: float) -> Reply | None:
        until = max(until, self.clock)
        if self._coming and self._coming[0][0] <= until:
            when, _, identity, reply = heapq.heappop(self._coming)
            self.clock = max(self.clock, when)
            return identity, reply, when
        if until < inf:
            self.clock = until
        return None


def pace(
    world: World, strategy: Any = None, *, journal: PacingJournal | None = None, **options: Any
) -> PacedGrid:
    """Return what `paced` returns, on the world's clock."""
    treatment = treatment_of(strategy)
    late: Any = options.pop("late", "count") if treatment.factors else "drop"
    options = {"learn_only": treatment.waits} | options
    pacer = Pacer(late=late, factors=treatment.factors, **options)
    return PacedGrid(world, pacer, treatment, world, Recorder(journal, treatment))  # type: ignore[arg-type]


def arrays_of(**values: npt.ArrayLike) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in values.items()})


def reply_of(
    arrays: Mapping[str, npt.ArrayLike], examples: Any = 10, **metrics: float
) -> RecordDict:
    numbers = {"num-examples": examples, "loss": 1.0, **metrics}
    known = {name: value for name, value in numbers.items() if value is not None}
    return RecordDict({"arrays": arrays_of(**arrays), "metrics": MetricRecord(known)})


def window_of(message: Message) -> float:
    record = message.content.get("paced")
    return float(record["window"]) if isinstance(record, ConfigRecord) else inf  # type: ignore[arg-type]
