"""A node's connection, on Flower's own server code in this process."""

import inspect
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import httpx
import numpy as np
import pytest
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.supernode import fleet_http_client

from codedfedl.errors import InputError
from codedfedl.federate.flower import connection as connecting
from codedfedl.federate.flower.connection import Connection, KeyRefusedError
from codedfedl.federate.flower.messaging import FlowerTransport
from codedfedl.federate.node.config import Access
from codedfedl.federate.transport import Answered, Arrays, Arrival
from tests.own_superlink import OwnSuperLink, numbers
from tests.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what a SuperLink uses

HANDLERS: dict[str, Callable[..., Any]] = {
    name: getattr(fleet_handlers, handler)
    for name, handler in {
        **{"RegisterNode": "register_node", "ActivateNode": "activate_node"},
        **{"DeactivateNode": "deactivate_node", "UnregisterNode": "unregister_node"},
        **{"PullMessages": "pull_messages", "PullObject": "pull_object"},
        **{"PushMessages": "push_messages", "PushObject": "push_object"},
        **{"ConfirmMessageReceived": "confirm_message_received"},
    }.items()
}


def status_error(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "https://server.example")
    return httpx.HTTPStatusError("", request=request, response=httpx.Response(status))


class Server:
    """The nodes' API without a network; errors, or other replies, stand before those of a kind.

    Attributes
    ----------
    asked
        The names of all requests.
    node
        The number of the node that was activated last.
    """

    node = 0

    def __init__(self, link: OwnSuperLink, **errors: list[Any]) -> None:
        self.link, self.errors, self.asked = link, errors, list[str]()
        self.all_asked = (
            threading.Event()
        )  # questions are pulled once they are there with all parts

    def from_server_address(self, **_: Any) -> "Server":
        return self

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        handler, state = HANDLERS[name], self.link.state
        extra = {"store": state.object_store, "enable_supernode_auth": False}
        more = {key: extra[key] for key in extra if key in inspect.signature(handler).parameters}

        def call(request: Any) -> Any:
            self.asked.append(name)
            if name == "PullMessages":
                self.all_asked.wait(60)
            if self.errors.get(name):
                if isinstance(error := self.errors[name].pop(0), Exception):
                    raise error
                return error
            reply = handler(request, state, **more)
            self.node = reply.node_id if name == "ActivateNode" else self.node
            return reply

        return call


class Echo:
    """Answers with what it was asked; its second answer is an error, and its third a bug."""

    count = 0

    def answer(self, kind: str, facts: Mapping[str, Any], arrays: Arrays) -> Answered:
        self.count += 1
        if self.count == 3:
            raise ZeroDivisionError("a secret")
        if self.count == 2:
            raise InputError("name the column: --label")
        return {"kind": kind, **facts}, {name: 2 * array for name, array in arrays.items()}


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnSuperLink]:
    link = OwnSuperLink(tmp_path_factory.mktemp("superlink") / "link.db", 0)
    yield link
    link.close()
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    pause = time.sleep
    monkeypatch.setattr(fleet_handlers, "check_abort", lambda *_: None)  # the run counts as begun
    monkeypatch.setattr(time, "sleep", lambda seconds: pause(min(seconds, 0.01)))


def asked_three_times(
    link: OwnSuperLink, server: Server, monkeypatch: pytest.MonkeyPatch, answers: int = 3
) -> tuple[list[Arrival], list[str]]:
    """Ask a node three times, and then refuse its signature."""
    monkeypatch.setattr(fleet_http_client, "FleetHttpClient", server)
    said, transport = list[str](), FlowerTransport(link.grid)

    def take_part() -> None:
        with Connection(Access("server.example:1"), said.append) as connection:
            connection.answer(Echo())

    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(take_part)
        eventually(lambda: server.node, 60, "the node was not activated")
        asked = dict[int, int]()
        for k in range(3):
            asked |= transport.ask(
                "work", {0: (server.node, {"k": k})}, {"model": numbers(k)}, 60.0
            )
        server.all_asked.set()
        arrivals = list(islice(transport.gather(asked, transport.now() + 60.0), answers))
        server.errors["PullMessages"] = [status_error(401)]
        with pytest.raises(KeyRefusedError) as refused:
            ended.result()
    assert refused.value.signature
    return sorted(arrivals, key=lambda arrival: arrival.question), said


def test_questions_are_answered_and_our_own_errors_are_not_told(
    link: OwnSuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(link)
    (first, second, third), said = asked_three_times(link, server, monkeypatch)
    assert first.facts == {"kind": "work", "k": 0}
    np.testing.assert_array_equal(first.arrays["model"], 2 * numbers(0))
    assert (second.status, second.reason) == ("problem", "name the column: --label")
    assert (third.status, third.reason) == ("gone", "ZeroDivisionError: see the node's log")
    assert said == []
    assert server.asked[:2] == ["RegisterNode", "ActivateNode"]
    assert server.asked[-2:] == ["DeactivateNode", "UnregisterNode"]
    assert not {"GetFab", "GetRun"} & set(server.asked), "delivered code is not asked for"


def test_requests_are_repeated_while_the_server_is_away(
    link: OwnSuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(link)
    for name in ("ActivateNode", "PushObject"):
        server.errors[name] = [httpx.ConnectError("refused"), status_error(503)]
    arrivals, said = asked_three_times(link, server, monkeypatch)
    assert [arrival.status for arrival in arrivals] == ["answer", "problem", "gone"]
    assert said == ["server.example:1 does not answer; trying again until it does"]


def test_questions_that_cannot_be_had_are_passed_over(
    link: OwnSuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(link, PullMessages=[status_error(500)], ConfirmMessageReceived=[OSError("x")])
    arrivals, _ = asked_three_times(link, server, monkeypatch, answers=2)
    assert [arrival.status for arrival in arrivals] == ["answer", "problem"]


def test_parts_that_a_killed_server_lost_are_not_waited_for(
    link: OwnSuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "PARTS_SECONDS", 0.0)
    lost = PullObjectResponse(object_found=True, object_available=False)
    server = Server(link, PullObject=[lost])
    arrivals, _ = asked_three_times(link, server, monkeypatch, answers=2)
    assert [arrival.status for arrival in arrivals] == ["answer", "problem"]


def test_a_key_that_is_not_known(link: OwnSuperLink, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(link, ActivateNode=[status_error(412)])
    monkeypatch.setattr(fleet_http_client, "FleetHttpClient", server)
    connection = Connection(Access("server.example:1"), print)
    with pytest.raises(KeyRefusedError) as refused, connection:
        pass
    assert not refused.value.signature
    assert not connection.is_accepted
