"""A node's connection to the server, with internals of Flower (as `wire` and `worker`).

A node speaks the nodes' API of the server itself, and answers in its own process with the installed
client: the code that a run delivers is never asked for, nothing listens on the node, and no process
starts for a message.
"""

import logging
import threading
import time
import traceback
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, Self

import httpx
from flwr.app import Error, Message

from codedfedl.errors import InputError
from codedfedl.federate.deploy.keys import check_server, private_key
from codedfedl.federate.flower.wire import respond
from codedfedl.federate.node.config import Access
from codedfedl.federate.transport import Answerer, Say, printable, quietly

# Seconds between two looks for questions, where no gate holds them.
LOOK_SECONDS = 3.0

# Seconds between two heartbeats of a node, and for which the server counts it as connected.
HEARTBEAT_SECONDS, ONLINE_SECONDS = 12.0, 30.0

# Seconds for which the parts of a question are waited for: the server may have lost them.
PARTS_SECONDS = 80.0

# The longest pause before a request is repeated, in seconds.
LONGEST_PAUSE_SECONDS = 10.0

# Statuses of a server that is away, or of its gate.
AWAY = {502, 503, 504}

# The code of an error reply: any number but 0 will do.
FAILED = 1

_log = logging.getLogger(__name__)
_fault = quietly(_log.error)
_warn = quietly(_log.warning)


class KeyRefusedError(InputError):
    """The server does not accept a node's key, or a signature by it.

    Attributes
    ----------
    signature
        Whether it is the signature: of a key that it accepted before, or at the wrong time.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"the server refuses the node's key ({status})")
        self.signature = status == httpx.codes.UNAUTHORIZED


class Connection:
    """A node's connection to the server; a context manager that is entered once it is accepted.

    While the server is away, requests are repeated.

    Attributes
    ----------
    is_accepted
        Whether the server knows the node's key, and counts no other node with it.
    """

    def __init__(self, access: Access, say: Say) -> None:
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

        self.access, self._say = access, quietly(say)
        key = generate_key_pairs()[0] if access.key is None else private_key(access.key)
        self._public = public_key_to_bytes(key.public_key())
        self._client = FleetHttpClient.from_server_address(
            server_address=access.superlink,
            insecure=access.ca is None,
            root_certificates=None if access.ca is None else access.ca.read_bytes(),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(key, key.public_key()),
            ],
        )
        self.is_accepted, self._ended = False, threading.Event()

    def __enter__(self) -> Self:
        """Take the node's place at the server; one without a key is given one."""
        from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest
        from flwr.proto.node_pb2 import Node

        try:
            if self.access.key is None:
                self._request("RegisterNode", RegisterNodeFleetRequest(public_key=self._public))
            asked = ActivateNodeRequest(public_key=self._public, heartbeat_interval=ONLINE_SECONDS)
            self._node = Node(node_id=self._request("ActivateNode", asked).node_id)
        except httpx.HTTPStatusError as error:
            self._client.close()
            raise KeyRefusedError(error.response.status_code) from None
        self.is_accepted = True
        threading.Thread(target=self._live, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        from flwr.proto.fleet_pb2 import DeactivateNodeRequest, UnregisterNodeFleetRequest

        self._ended.set()
        with suppress(httpx.HTTPError):  # it may be the server that has ended
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
            if self.access.key is None:
                self._client.UnregisterNode(UnregisterNodeFleetRequest(node_id=self._node.node_id))
        self._client.close()

    def answer(self, node: Answerer) -> NoReturn:
        """Answer every question, one after the other."""
        from flwr.proto.fleet_pb2 import PullMessagesRequest

        while True:
            began = time.monotonic()
            try:
                pulled = self._request("PullMessages", PullMessagesRequest(node=self._node))
                if pulled.messages_list:
                    self._answer(pulled, node)
                    continue
            except InputError:  # the key or the server's certificate is refused
                raise
            except Exception as error:  # the run of a question may be over
                _warn(f"a question was lost ({printable(f'{type(error).__name__}: {error}')})")
            if time.monotonic() - began < LOOK_SECONDS:
                time.sleep(LOOK_SECONDS)

    def _answer(self, pulled: Any, node: Answerer) -> None:
        """Get the parts of a question, and send the parts of the answer."""
        import flwr.supercore.inflatable.inflatable_protobuf_utils as parts
        from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree

        run, (tree, *_) = pulled.messages_list[0].metadata.run_id, pulled.message_object_trees
        pull, confirm = (
            partial(self._request, x) for x in ("PullObject", "ConfirmMessageReceived")
        )
        message = pull_and_inflate_object_from_tree(
            tree,
            parts.make_pull_object_fn_protobuf(pull, self._node, run),
            parts.make_confirm_message_received_fn_protobuf(confirm, self._node, run),
            return_type=Message,
            max_time=PARTS_SECONDS,
            initial_backoff=0.2,
            backoff_cap=2.0,
        )
        message.metadata.__dict__["_message_id"] = tree.object_id
        kind, began = message.metadata.message_type, time.monotonic()
        try:
            reply = respond(message, lambda: node)
        except Exception as error:  # our own bug: the server sees a dropped node, and no values
            lines = " | ".join(printable(line) for line in traceback.format_exception(error))
            _fault(f"no answer to {printable(kind)}: {lines}")
            why = f"{type(error).__name__}: see the node's log"
            reply = Message(Error(code=FAILED, reason=why), reply_to=message)
        del message
        self._push(reply, run, time.monotonic() - began)

    def _push(self, reply: Message, run: int, seconds: float) -> None:
        import flwr.supercore.inflatable.inflatable_object as inflatable
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
        from flwr.supercore.inflatable.inflatable_utils import push_objects

        reply.metadata.__dict__["_message_id"] = reply.object_id
        with inflatable.no_object_id_recompute():
            asked = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[inflatable.get_object_tree(reply)],
                clientapp_runtime_list=[seconds],
            )
            objects = inflatable.get_all_nested_objects(reply)
            del reply
            taken = self._request("PushMessages", asked)
            push = make_push_object_fn_protobuf(
                partial(self._request, "PushObject"), self._node, run, taken.session_id
            )
            push_objects(objects, push, object_ids_to_push=set(taken.objects_to_push))

    def _request(self, name: str, request: Any) -> Any:
        """Send a request, and repeat it while the server is away."""
        pause = 0.5
        while True:
            try:
                return getattr(self._client, name)(request)
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                if status == httpx.codes.UNAUTHORIZED:
                    raise KeyRefusedError(status) from None
                if status not in AWAY:
                    raise
            except httpx.TransportError:
                if self.access.ca is not None:
                    check_server(self.access.superlink, self.access.ca)
            self._say(f"{self.access.superlink} does not answer; trying again until it does")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _live(self) -> None:
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

        beat = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=ONLINE_SECONDS)
        while not self._ended.wait(HEARTBEAT_SECONDS):
            with suppress(Exception):  # the next one may get through, or a question says why not
                self._client.SendNodeHeartbeat(beat)
