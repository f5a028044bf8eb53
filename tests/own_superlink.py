"""Flower's own SuperLink code and data base in this process: no sockets, and nodes by hand."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate.linkstate_factory import LinkStateFactory
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.object_store.object_store_factory import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation.noop_federation_manager import NoOpFederationManager
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

from codedfedl.federate.flower.wire import pack

__all__ = ["OwnSuperLink", "numbers"]

_ONLINE = 3000.0  # seconds


class OwnSuperLink:
    """A SuperLink with a run and some nodes.

    Attributes
    ----------
    grid
        As a server app has it, without the network.
    nodes : list
        Their numbers.
    requests
        How many of each kind the server app has made.
    """

    def __init__(self, database: Path, nodes: int) -> None:
        stores = ObjectStoreFactory(str(database))
        self.state = LinkStateFactory(str(database), NoOpFederationManager(), stores).state()
        self.run = self.state.create_run(
            None, None, "hash", {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        TaskIdentity.run_id, TaskIdentity.task_id = self.run, 1
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        self.nodes = [
            self.state.create_node(NOOP_FLWR_AID, "none", f"key {j}".encode(), _ONLINE)
            for j in range(nodes)
        ]
        for node in self.nodes:
            self.state.activate_node(node, _ONLINE)
        self.requests: Counter[str] = Counter()
        self.grid = _OwnGrid(self)

    def answer(self, j: int, array: npt.NDArray[Any]) -> list[PushObjectRequest]:
        """Let node j take its message and announce its answer; return the parts to upload."""
        node = Node(node_id=self.nodes[j])
        given = fleet_handlers.pull_messages(
            PullMessagesRequest(node=node), self.state, self.state.object_store
        )
        question = message_from_proto(given.messages_list[0])
        question.content = RecordDict()  # it stays in the store
        reply = Message(pack({"node": j}, {"own": array}), reply_to=question)
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            parts, tree = get_all_nested_objects(reply), get_object_tree(reply)
            told = message_to_proto(remove_content_from_message(reply))
            session = self.state.start_session(self.run)
            _, wanted = self.state.store_message_and_object_tree(
                message_from_proto(told), tree, session
            )
            return [
                PushObjectRequest(
                    node=node,
                    run_id=self.run,
                    object_id=part,
                    object_content=parts[part].deflate(),
                    session_id=session,
                )
                for part in wanted
            ]

    def upload(self, parts: list[PushObjectRequest]) -> None:
        """Upload parts of an answer."""
        for part in parts:
            self.state.store_object(self.run, part.session_id, part.object_id, part.object_content)

    def close(self) -> None:
        """Close the connections to the data base."""
        stores: list[Any] = [self.state, self.state.object_store]
        for store in stores:
            store._engine.dispose()


class _OwnGrid(HttpGrid):
    """The grid of a server app, whose requests go to the handlers directly."""

    def __init__(self, link: OwnSuperLink) -> None:  # without a connection
        self._link, self._run = link, SimpleNamespace(run_id=link.run)  # type: ignore[assignment]
        self.node = Node(node_id=SUPERLINK_NODE_ID)

    @property
    def _runtime_client(self) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        handlers = {
            "PushMessages": runtime_handlers.push_messages,
            "PullMessages": runtime_handlers.pull_messages,
            "PushObject": runtime_handlers.push_object,
            "PullObject": runtime_handlers.pull_object,
            "ConfirmMessageReceived": runtime_handlers.confirm_message_received,
        }
        if name not in handlers:
            raise AttributeError(name)

        def call(request: Any) -> Any:
            self._link.requests[name] += 1
            task: Any = SimpleNamespace(run_id=self._link.run)
            return handlers[name](request, self._link.state, task)

        return call

    def close(self) -> None:
        """Do nothing: there is no connection."""


def numbers(j: int, size: int = 5000) -> npt.NDArray[np.float32]:
    """Return what node j sends."""
    return np.full(size, j, np.float32)
