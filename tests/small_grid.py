"""An engine in memory, for the transport on Flower."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from codedfedl.errors import InputError
from codedfedl.federate.flower.wire import Pulled, pack, question_of, tried, unpack
from codedfedl.federate.transport import Answered

Answering = Callable[[int, str, dict[str, Any]], Answered | RecordDict | Error | None]


def echo(node: int, question: str, facts: dict[str, Any]) -> Answered:
    return {"node": node, "question": question, **facts}, {"own": np.full(3, node, np.float32)}


class SmallGrid(Grid):
    """Nodes in this process: an answer is there as soon as the message is pushed.

    Attributes
    ----------
    asked : list
        The node of every message that was taken, in order.
    """

    def __init__(self, answer: Answering = echo) -> None:
        self.answer = answer
        self.asked: list[int] = []
        self._replies: dict[str, Message] = {}
        self._lock = threading.Lock()

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("it polls every three seconds and looks past the deadline")

    def get_node_ids(self) -> Iterable[int]:
        return [0, 1, 2]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies[one] for one in message_ids if one in self._replies]

    def _push(self, message: Message) -> str:
        node = message.metadata.dst_node_id
        with self._lock:
            self.asked.append(node)
            identity = str(len(self.asked))
        message.metadata.__dict__["_message_id"] = identity
        facts, _ = unpack(message.content)
        given = self.answer(node, question_of(message), facts)
        if given is not None:
            content = pack(*given) if isinstance(given, tuple) else given
            self._replies[identity] = Message(content, reply_to=message)
        return identity


class Direct:
    """Answers from a grid that never blocks, one question at a time."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def ready(self, waiting: Mapping[str, int | None]) -> Iterator[tuple[str, Pulled]]:
        for identity in list(waiting):
            try:
                yield from ((identity, message) for message in self._pulled(identity)[:1])
            except InputError as error:
                yield identity, error

    def _pulled(self, identity: str) -> list[Message]:
        return tried(lambda: self._grid.pull_messages([identity]))
