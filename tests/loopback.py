"""A Flower grid without processes: nodes answer in threads of this one, as a script says.

It carries the very messages that the engine carries. What the engine itself does is tested on the
engine (`test_engine.py`); here go the many ways in which clients can be late, wrong or gone.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from codedfedl.data import load_dataset
from codedfedl.federate import client_app
from codedfedl.federate.local import node_name, write_shards
from codedfedl.federate.node import Answer, Node
from codedfedl.federate.wire import pack, question_of, unpack
from codedfedl.runs.config import Experiment, check
from codedfedl.streams import stream

FIRST_NODE = 1000
SEED = 0

# A message knows the run that its process belongs to; here there is no such process.
TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1

Change = Callable[[int, str, Answer], Answer | RecordDict]
"""What a client's answer becomes: client, question, answer."""


@dataclass
class Script:
    """How the nodes behave: seconds of delay (∞: never), and what their answers become."""

    delay: Callable[[int, str, dict[str, Any]], float] = lambda _c, _q, _f: 0.0
    change: Change = lambda _c, _q, answer: answer


class LoopbackGrid(Grid):
    """The nodes of a federation, and what they were asked."""

    def __init__(self, folder: Path, shards: list[Path], script: Script | None = None) -> None:
        self.folder, self.shards, self.script = folder, shards, script or Script()
        self.online = set(range(FIRST_NODE, FIRST_NODE + len(shards)))
        self.asked: list[tuple[int, str, dict[str, Any]]] = []
        self.crash_after: int | None = None  # pushes of the main thread
        self._replies: dict[str, tuple[float, Message]] = {}
        self._count = 0
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
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        if self.crash_after is not None and threading.current_thread() is threading.main_thread():
            if self.crash_after == 0:
                raise KeyboardInterrupt  # as good as a kill: nothing more happens
            self.crash_after -= 1
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        with self._lock:
            self._count += 1
            identity = str(self._count)
        client = message.metadata.dst_node_id - FIRST_NODE
        question = question_of(message)
        facts, _ = unpack(message.content)
        self.asked.append((client, question, facts))
        if message.metadata.dst_node_id in self.online:
            seconds = self.script.delay(client, question, facts)
            if np.isfinite(seconds):
                message.metadata.__dict__["_message_id"] = identity
                reply = client_app.respond(message, lambda: self.node(client))
                answered = self.script.change(client, question, unpack(reply.content))
                if isinstance(answered, RecordDict):
                    reply = Message(answered, reply_to=message)
                else:
                    reply = Message(pack(*answered), reply_to=message)
                self._replies[identity] = (time.monotonic() + seconds, reply)
        return identity

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = [
            self._replies[identity]
            for identity in message_ids
            if identity in self._replies and self._replies[identity][0] <= time.monotonic()
        ]
        return [message for _, message in found]

    def node(self, client: int) -> Node:
        """Return a node as the app makes it, but with a seed for its code."""
        made = client_app.node_of(self.context(client))
        entropy = stream(SEED, "code", client).bytes
        return Node(made.name, made.load, made.cache, least=made.least, entropy=entropy)

    def context(self, client: int) -> Context:
        name = node_name(client)
        config = {
            "name": name,
            "data": str(self.shards[client]),
            "cache": str(self.folder / "caches" / name),
        }
        return Context(
            run_id=1,
            node_id=FIRST_NODE + client,
            node_config=config,  # type: ignore[arg-type]
            state=RecordDict(),
            run_config={},
        )


def experiment_of(
    clients: int = 3, rounds: int = 3, scheme: dict[str, Any] | None = None, **more: Any
) -> Experiment:
    """Return a small federation on digits; `more` overrides keys of the [federation] table."""
    table = {"clients": clients, "rounds": rounds, "probes": 2, "test": "digits", "deadline": 0.8}
    return check(
        {
            "data": {"name": "digits", "batches": more.pop("batches", 1)},
            "features": {"n_components": 64, "sigma": 2.0},
            "training": {"step": 2.0, "epochs": 10, "ridge": 9e-6},
            "schemes": [scheme or {"name": "coded", "redundancy": 0.2}],
            "federation": {**table, **more},
        },
        "a test",
    )


def grid_of(experiment: Experiment, folder: Path, script: Script | None = None) -> LoopbackGrid:
    """Deal the data, and return the nodes that hold them."""
    return LoopbackGrid(folder, write_shards(experiment, load_dataset("digits"), folder), script)
