"""Flower's messages, and the transport on a Flower grid without processes.

What the engine itself does is tested on the engine (`test_engine.py`).
"""

import gc
import pickle
import re
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from codedfedl.errors import InputError
from codedfedl.federate.flower import messaging
from codedfedl.federate.flower.messaging import FlowerTransport
from codedfedl.federate.flower.wire import (
    Batched,
    MalformedError,
    message_type,
    pack,
    pack_arrays,
    pulls_of,
    question_of,
    unpack,
)
from codedfedl.federate.transport import Answered, Arrays, Arrival
from tests.own_superlink import OwnSuperLink, numbers
from tests.small_grid import Direct, SmallGrid, echo
from tests.waiting import eventually

# A message knows the run that its process belongs to; here there is no such process.
TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1

PATIENCE = 0.5  # seconds by which a busy machine may be late

"""What a node sends: node, question, facts; None for nothing at all."""


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten what the transport waits between two tries."""
    monkeypatch.setattr(messaging, "RETRY_SECONDS", 0.05)
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.05)))


def answers(
    grid: Grid, nodes: Iterable[int] = range(3), seconds: float = 5.0, **named: Any
) -> dict[int, Arrival]:
    """Ask nodes, and return what came of it by client, which has the number of its node."""
    transport = FlowerTransport(grid, Direct)
    questions: dict[int, tuple[int, dict[str, Any]]] = {j: (j, {"place": j}) for j in nodes}
    until = transport.now() + seconds
    asked = transport.ask("work", questions, {}, seconds, **named)
    arrivals = list(transport.gather(asked, until))
    assert all(asked[arrival.question] == arrival.client for arrival in arrivals)
    assert len({arrival.client for arrival in arrivals}) == len(arrivals)
    return {arrival.client: arrival for arrival in arrivals}


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds + PATIENCE


@contextmanager
def without_collector() -> Iterator[None]:
    """Free what nobody refers to, and no cycles."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


class TestWire:
    def test_facts_and_arrays_come_back_as_they_were(self) -> None:
        facts = {"round": 3, "seconds": None, "work": {"kind": "gradient", "rows": [1, 2]}}
        arrays: Arrays = {
            "model": np.arange(6, dtype=np.float32).reshape(2, 3),
            "none": np.empty((0, 4), np.float64),
        }
        for content in (pack(facts, arrays), pack(facts, pack_arrays(arrays))):
            found, given = unpack(content)
            assert found == facts
            assert given.keys() == arrays.keys()
            for name, array in arrays.items():
                np.testing.assert_array_equal(given[name], array)
                assert given[name].dtype == array.dtype

    def test_a_message_says_which_question_it_asks(self) -> None:
        message = Message(pack({}, {}), 7, message_type("hello"))
        assert question_of(message) == "hello"

    def test_a_message_is_freed_once_it_is_unpacked(self) -> None:
        """By its reference count: a cycle would keep the bytes of a large answer for long."""
        with without_collector():
            content = pack({"round": 1}, {"model": np.zeros((100, 10), np.float32)})
            record = content["arrays"]
            assert isinstance(record, ArrayRecord)
            inside: list[weakref.ref[Any]] = [
                weakref.ref(part) for part in (content, record, record["model"])
            ]
            del record
            facts, arrays = unpack(content)
            del content
            assert [part() for part in inside] == [None, None, None]
        assert facts == {"round": 1}
        assert arrays["model"].shape == (100, 10)

    @pytest.mark.parametrize("view", ["array_records", "config_records"])
    def test_a_view_by_type_would_keep_it(self, view: str) -> None:
        """This is why `unpack` takes records by name, and how the test above can fail."""
        with without_collector():
            content = pack({}, {})
            inside = weakref.ref(content)
            assert len(getattr(content, view)) == 1
            del content
            assert inside() is not None
        gc.collect()
        assert inside() is None


def _facts(text: str) -> RecordDict:
    return RecordDict({"facts": ConfigRecord({"json": text}), "arrays": ArrayRecord({})})


def _array(dtype: str, kind: str, data: bytes) -> RecordDict:
    record = ArrayRecord({"gradient": Array(dtype, (1,), kind, data)})
    return RecordDict({"facts": ConfigRecord({"json": "{}"}), "arrays": record})


class Evil:
    """An object that runs code when somebody reads it with `pickle`."""

    ran: ClassVar[list[str]] = []

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return Evil.ran.append, ("evil",)


def _array_of_objects() -> bytes:
    file = BytesIO()
    np.save(file, np.array([Evil()], dtype=object), allow_pickle=True)
    return file.getvalue()


MALFORMED: dict[str, tuple[RecordDict, str]] = {
    "nothing": (RecordDict({}), "KeyError"),
    "another record": (RecordDict({"x": MetricRecord({"y": 1.0})}), "KeyError"),
    "no arrays": (RecordDict({"facts": ConfigRecord({"json": "{}"})}), "KeyError"),
    "no JSON": (
        RecordDict({"facts": ConfigRecord({"yaml": "a: 1"}), "arrays": ArrayRecord({})}),
        "KeyError",
    ),
    "records of other types": (
        RecordDict({"facts": MetricRecord({"json": 1}), "arrays": ArrayRecord({})}),
        "AssertionError",
    ),
    "half a table": (_facts("{"), "JSONDecodeError"),
    "a list": (_facts("[1]"), "facts are not a table"),
    "a number": (_facts("3"), "facts are not a table"),
    "junk bytes": (_array("float32", "numpy.ndarray", b"junk"), r"\w+Error"),
    "no bytes": (_array("float32", "numpy.ndarray", b""), r"\w+Error"),
    "another kind of array": (_array("float32", "torch.tensor", b"junk"), r"\w+Error"),
    "a pickle": (_array("float32", "numpy.ndarray", pickle.dumps(Evil())), r"\w+Error"),
    "pickled objects": (_array("object", "numpy.ndarray", _array_of_objects()), r".+"),
}
"""What a rogue may send, and why it is refused; of arrays, NumPy says why."""


@pytest.mark.parametrize("name", MALFORMED)
class TestMalformed:
    def test_is_refused(self, name: str) -> None:
        content, why = MALFORMED[name]
        with pytest.raises(MalformedError, match=rf"malformed message \({why}\)"):
            unpack(content)
        assert Evil.ran == []

    def test_is_an_arrival_like_any_other(self, name: str) -> None:
        """The others' answers are there all the same."""
        content, why = MALFORMED[name]

        def answer(node: int, question: str, facts: dict[str, Any]) -> Answered | RecordDict:
            return content if node == 1 else echo(node, question, facts)

        found = answers(SmallGrid(answer))
        assert [found[j].status for j in range(3)] == ["answer", "malformed", "answer"]
        assert re.fullmatch(rf"malformed message \({why}\)", found[1].reason)
        assert (found[1].facts, found[1].arrays) == ({}, {})
        assert np.isfinite(found[1].when)


class TestTransport:
    def test_every_node_answers_its_own_question(self) -> None:
        found = answers(SmallGrid())
        for j in range(3):
            assert found[j].facts == {"node": j, "question": "work", "place": j}
            np.testing.assert_array_equal(found[j].arrays["own"], np.full(3, j))

    def test_a_nodes_own_problem_is_told(self) -> None:
        def answer(node: int, question: str, facts: dict[str, Any]) -> Answered:
            return ({"problem": "no\ndata"}, {}) if node == 2 else echo(node, question, facts)

        found = answers(SmallGrid(answer))
        assert (found[2].status, found[2].reason) == ("problem", "no data")

    def test_an_answer_that_is_too_large_is_malformed(self) -> None:
        """Three numbers of float32, and what NumPy writes before them."""
        for largest, status in ((10_000, "answer"), (100, "malformed")):
            found = answers(SmallGrid(), largest=largest)
            assert {arrival.status for arrival in found.values()} == {status}
        assert "100 at most" in found[0].reason
        assert found[0].arrays == {}

    def test_a_duplicate_counts_once(self) -> None:
        class Stammering(SmallGrid):
            def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
                return [*super().pull_messages(message_ids)] * 2

        grid = Stammering()
        transport = FlowerTransport(grid, Direct)
        asked = transport.ask("work", {j: (j, {}) for j in range(3)}, {}, 5.0)
        first = list(transport.gather(asked, transport.now() + 5.0))
        assert sorted(arrival.client for arrival in first) == [0, 1, 2]
        assert list(transport.gather(asked, transport.now() + 0.2)) == []

    def test_answers_to_other_questions_are_forgotten(self) -> None:
        transport = FlowerTransport(SmallGrid(), Direct)
        old = transport.ask("work", {0: (0, {"round": 0})}, {}, 5.0)
        new = transport.ask("work", {0: (0, {"round": 1})}, {}, 5.0)
        assert old.keys().isdisjoint(new)
        (arrival,) = transport.gather(new, transport.now() + 5.0)
        assert arrival.facts["round"] == 1

    def test_who_is_silent_is_late_at_the_deadline(self) -> None:
        def answer(node: int, question: str, facts: dict[str, Any]) -> Answered | None:
            return None if node == 1 else echo(node, question, facts)

        with at_most(0.3):
            found = answers(SmallGrid(answer), seconds=0.3)
        assert {0, 2} <= found.keys()
        assert 1 not in found or found[1].status == "late"

    @pytest.mark.parametrize("jump", [4 * PATIENCE, -4 * PATIENCE])
    def test_the_time_of_day_moves_no_deadline(
        self, jump: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It jumps while nodes are asked: who answers counts, and the wait is as long."""
        real, jumped = time.time, threading.Event()
        monkeypatch.setattr(time, "time", lambda: real() + jump * jumped.is_set())

        def answer(node: int, question: str, facts: dict[str, Any]) -> Answered | None:
            jumped.set()
            return None if node == 1 else echo(node, question, facts)

        began = time.monotonic()
        with at_most(0.3):
            found = answers(SmallGrid(answer), seconds=0.3)
        assert time.monotonic() - began > 0.2
        assert [found[j].status for j in (0, 2)] == ["answer", "answer"]

    def test_an_engine_that_fails_twice_in_three_calls_is_tried_again(self) -> None:
        class Failing(SmallGrid):
            calls = 0

            def fail(self) -> None:
                with self._lock:
                    self.calls += 1
                    failing = self.calls % 3
                if failing:
                    raise ConnectionError("500 Internal Server Error")

            def get_node_ids(self) -> Iterable[int]:
                self.fail()
                return super().get_node_ids()

            def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
                self.fail()
                return super().push_messages(messages)

            def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
                self.fail()
                return super().pull_messages(message_ids)

        grid = Failing()
        assert FlowerTransport(grid).nodes() == {0, 1, 2}
        found = answers(grid, [2])
        assert found[2].status == "answer"
        assert grid.asked == [2]
        assert grid.calls == 9

    def test_an_engine_that_always_fails_is_said(self) -> None:
        class Dead(SmallGrid):
            def get_node_ids(self) -> Iterable[int]:
                raise ConnectionError("refused\nby \ud800")

        with pytest.raises(InputError, match=r"ConnectionError: refused by \\ud800.*SuperLink's"):
            FlowerTransport(Dead()).nodes()

    @pytest.mark.parametrize("given", [[], ["", "", ""], ConnectionError()])
    def test_an_engine_that_takes_no_message_ends_the_run(self, given: Any) -> None:
        """Rounds without anybody are not played on: the run can be resumed."""

        class Closed(SmallGrid):
            def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
                if isinstance(given, Exception):
                    raise given
                return list(given)

        with pytest.raises(InputError, match="accepts no more messages"):
            answers(Closed())

    def test_who_gets_no_message_is_gone_and_the_others_are_not(self) -> None:
        class Choosy(SmallGrid):
            def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
                first, _, third = super().push_messages(messages)
                return [first, "", third]

        found = answers(Choosy())
        assert [found[j].status for j in range(3)] == ["answer", "gone", "answer"]
        assert np.isinf(found[1].when)

    def test_a_revoked_node_does_not_end_the_run(self) -> None:
        """An asynchronous scheme may ask nobody else: the engine takes messages for others."""

        class Revoking(SmallGrid):
            def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
                return ["" for _ in messages]

            def get_node_ids(self) -> Iterable[int]:
                return [0, 1]

        assert answers(Revoking(), [2])[2].status == "gone"
        with pytest.raises(InputError, match="accepts no more messages"):
            answers(Revoking(), [1, 2])

    def test_a_message_that_the_engine_lost_is_gone(self) -> None:
        """In a round nobody is asked twice: its deadline is near."""
        found = answers(SmallGrid(lambda *_: Error(code=3, reason="objects are unavailable")), [0])
        assert (found[0].status, found[0].reason) == ("gone", "objects are unavailable")


class TestAtOnce:
    """Where answers are large: what clients send once."""

    def test_what_gets_lost_on_the_way_is_asked_for_again(self) -> None:
        """Node 0's answer is lost twice, and node 1's message is not taken at first."""
        tries = {0: 0, 1: 0, 2: 0}

        class Losing(SmallGrid):
            def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
                messages = list(messages)
                nodes = [message.metadata.dst_node_id for message in messages]
                for node in nodes:
                    tries[node] += 1
                return [""] if nodes == [1] and tries[1] == 1 else super().push_messages(messages)

        def answer(node: int, question: str, facts: dict[str, Any]) -> Answered | Error:
            if node == 0 and tries[0] < 3:
                return Error(code=3, reason="objects are unavailable")
            return echo(node, question, facts)

        found = answers(Losing(answer), at_once=3)
        assert {j: arrival.status for j, arrival in found.items()} == dict.fromkeys(tries, "answer")
        assert tries == {0: 3, 1: 2, 2: 1}

    def test_not_for_ever(self) -> None:
        grid = SmallGrid(lambda *_: Error(code=3, reason="objects are unavailable"))
        found = answers(grid, [0], at_once=1)
        assert found[0].status == "gone"
        assert grid.asked == [0, 0, 0]

    def test_a_problem_of_the_node_is_not_asked_again(self) -> None:
        grid = SmallGrid(lambda *_: ({"problem": "no data"}, {}))
        assert answers(grid, [0], at_once=1)[0].status == "problem"
        assert grid.asked == [0]

    @pytest.mark.parametrize("most", [1, 2])
    def test_no_more_are_on_their_way_than_may_be(self, most: int) -> None:
        """The next node is asked when an answer before it is dealt with, not when it is there."""
        grid = SmallGrid()
        transport = FlowerTransport(grid, Direct)
        asked = transport.ask("work", {j: (j, {}) for j in range(5)}, {}, 5.0, at_once=most)
        dealt = 0
        for _ in transport.gather(asked, transport.now() + 5.0):
            time.sleep(0.05)  # enough for a thread that does not wait
            assert len(grid.asked) <= dealt + most
            dealt += 1
        assert dealt == 5
        assert sorted(grid.asked) == [0, 1, 2, 3, 4]

    def test_who_finds_no_place_is_late(self) -> None:
        """One upload stalls, and there is room for one."""
        grid = SmallGrid(lambda *_: None)
        with at_most(0.3):
            found = answers(grid, seconds=0.3, at_once=1)
        assert len(grid.asked) == 1
        assert {arrival.status for arrival in found.values()} <= {"late"}

    def test_stalled_uploads_leave_room_for_others(self) -> None:
        """Three of five stall, and there is room for one more than that."""

        def answer(node: int, question: str, facts: dict[str, Any]) -> Answered | None:
            return None if node < 3 else echo(node, question, facts)

        found = answers(SmallGrid(answer), range(5), seconds=0.4, at_once=4)
        assert {j for j, arrival in found.items() if arrival.status == "answer"} == {3, 4}

    def test_an_answer_is_not_kept_once_it_is_dealt_with(self) -> None:
        """When the next node is asked, the answer before it takes up no memory any more."""
        dealt: list[weakref.ref[Any]] = []
        alive: list[int] = []

        def answer(node: int, question: str, facts: dict[str, Any]) -> Answered:
            until = time.monotonic() + 0.3
            while any(one() is not None for one in dealt) and time.monotonic() < until:
                time.sleep(0.01)
            alive.append(sum(one() is not None for one in dealt))
            return echo(node, question, facts)

        transport = FlowerTransport(SmallGrid(answer), Direct)
        asked = transport.ask("work", {j: (j, {}) for j in range(3)}, {}, 5.0, at_once=1)
        for arrival in transport.gather(asked, transport.now() + 5.0):
            dealt.append(weakref.ref(arrival.arrays["own"]))
            del arrival
        assert (len(dealt), alive) == (3, [0, 0, 0])


class Engine:
    """The engine's API beneath a grid: answers in parts, each there once it is uploaded.

    Attributes
    ----------
    looks, pulled : list
        How many messages each look was for, and every part that was asked for.
    """

    def __init__(self, count: int) -> None:
        self.replies: dict[str, tuple[Any, Any]] = {}
        self.parts: dict[str, bytes] = {}
        self.looks: list[int] = []
        self.pulled: list[str] = []
        self.threads = 0
        self.grid: Any = SimpleNamespace(
            _run=SimpleNamespace(run_id=1), node=Node(node_id=1), _runtime_client=self
        )
        self.identities = [f"question {j}" for j in range(count)]

    def answer(
        self, j: int, *, uploaded: bool = True, arrays: Arrays | None = None
    ) -> dict[str, bytes]:
        """Let node j answer; return the parts that are not uploaded yet."""
        arrays = arrays or {"own": np.full(3, j, np.float32)}
        message = Message(pack({"node": j}, arrays), 1, "query.work")
        message.metadata.__dict__["_reply_to_message_id"] = self.identities[j]
        with no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            told = message_to_proto(remove_content_from_message(message))
            self.replies[self.identities[j]] = (told, get_object_tree(message))
            parts = get_all_nested_objects(message)
            later = {identity: part.deflate() for identity, part in parts.items()}
        if not uploaded:
            return later
        self.parts |= later
        return {}

    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        self.looks.append(len(request.message_ids))
        self.threads = max(self.threads, threading.active_count())
        told = [self.replies.pop(one) for one in request.message_ids if one in self.replies]
        return PullAppMessagesResponse(
            messages_list=[message for message, _ in told],
            message_object_trees=[tree for _, tree in told],
        )

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        self.pulled.append(request.object_id)
        content = self.parts.get(request.object_id)
        return PullObjectResponse(
            object_found=True, object_available=content is not None, object_content=content or b""
        )

    def ConfirmMessageReceived(self, request: Any) -> Any:  # noqa: N802
        return None

    def pulls(self) -> Batched:
        return Batched(self.grid, HttpGrid.pull_messages)


class TestBatched:
    """Pulls that never block, with Flower's own code to put messages together."""

    def facts(self, pulled: Any) -> int:
        facts, arrays = unpack(pulled.content)
        np.testing.assert_array_equal(arrays["own"], np.full(3, facts["node"]))
        return int(facts["node"])

    def nothing_is_held(self) -> bool:
        return not any(type(thing).__name__ == "_Parts" for thing in gc.get_objects())

    def test_what_nobody_asked_for_is_left_alone(self) -> None:
        engine = Engine(2)
        engine.answer(0)
        engine.replies["question 1"] = engine.replies.pop("question 0")
        assert dict(engine.pulls().ready({"question 1": None})) == {}

    def test_one_look_finds_all_that_are_there(self) -> None:
        engine = Engine(5)
        pulls, waiting = engine.pulls(), dict.fromkeys(engine.identities)
        assert dict(pulls.ready(waiting)) == {}
        for j in (1, 3):
            engine.answer(j)
        found = dict(pulls.ready(waiting))
        assert [self.facts(found[engine.identities[j]]) for j in (1, 3)] == [1, 3]
        assert len(found) == 2
        assert engine.looks == [5, 5]

    def test_an_upload_holds_nobody_up(self) -> None:
        engine = Engine(2)
        pulls, waiting = engine.pulls(), dict.fromkeys(engine.identities)
        slow = engine.answer(0, uploaded=False)
        engine.answer(1)
        with at_most(0.0):
            found = dict(pulls.ready(waiting))
        assert found.keys() == {"question 1"}
        del waiting["question 1"]
        assert dict(pulls.ready(waiting)) == {}
        assert engine.looks == [2]  # it is known to be on its way
        engine.parts |= slow
        assert self.facts(dict(pulls.ready(waiting))["question 0"]) == 0

    def test_a_look_at_an_upload_leaves_no_parts_behind(self) -> None:
        """Without the collector: parts of 50 MB must not wait for it."""
        engine = Engine(1)
        pulls, waiting = engine.pulls(), dict.fromkeys(engine.identities)
        engine.answer(0, uploaded=False)
        gc.collect()
        gc.disable()
        try:
            assert dict(pulls.ready(waiting)) == {}
            assert not self.nothing_is_held()
            assert dict(pulls.ready({})) == {}
            eventually(self.nothing_is_held, 2, "an answer that nobody waits for keeps its parts")
        finally:
            gc.enable()

    def test_no_part_is_pulled_twice(self) -> None:
        engine = Engine(1)
        pulls, waiting = engine.pulls(), dict.fromkeys(engine.identities)
        engine.answer(0)
        missing, content = engine.parts.popitem()
        for _ in range(3):
            assert dict(pulls.ready(waiting)) == {}
        engine.parts[missing] = content
        assert self.facts(dict(pulls.ready(waiting))["question 0"]) == 0
        times = Counter(engine.pulled)
        assert times.pop(missing) == 4
        assert set(times.values()) == {1}
        assert len(times) > 2

    def test_a_part_that_the_engine_fails_to_give_is_asked_for_again(self) -> None:
        engine = Engine(1)
        engine.answer(0)
        missing = set(engine.parts)
        give = engine.PullObject

        def fail_once(request: Any) -> Any:
            if request.object_id in missing and len(engine.pulled) == 2:
                missing.clear()
                raise ConnectionError
            return give(request)

        engine.PullObject = fail_once  # type: ignore[method-assign]
        pulls, waiting = engine.pulls(), dict.fromkeys(engine.identities)
        assert dict(pulls.ready(waiting)) == {}
        assert self.facts(dict(pulls.ready(waiting))["question 0"]) == 0

    def test_a_look_at_an_upload_asks_for_one_part_in_vain(self) -> None:
        """However many are missing: looks at a thousand uploads must not keep the engine busy."""
        engine = Engine(1)
        engine.answer(0, uploaded=False)
        pulls, waiting = engine.pulls(), dict.fromkeys(engine.identities)
        for count in (1, 2, 3):
            assert dict(pulls.ready(waiting)) == {}
            assert len(set(engine.pulled)) == len(engine.pulled) == count

    def test_a_rogue_spoils_its_own_answer_alone(self) -> None:
        engine = Engine(2)
        pulls, waiting = engine.pulls(), dict.fromkeys(engine.identities)
        engine.parts |= dict.fromkeys(engine.answer(0, uploaded=False), b"no message")
        engine.answer(1)
        found = dict(pulls.ready(waiting))
        assert self.facts(found["question 1"]) == 1
        for _ in range(2):
            found |= dict(pulls.ready({"question 0": None}))
        assert isinstance(found["question 0"], InputError)

    def test_an_answer_that_is_too_large_is_malformed(self) -> None:
        engine = Engine(1)
        engine.answer(0)
        assert isinstance(
            dict(engine.pulls().ready({"question 0": 5}))["question 0"], MalformedError
        )

    def test_no_more_parts_are_pulled_than_an_answer_may_have(self) -> None:
        """Chunks that all differ: nothing is inflated, and still the server would hold them all."""
        engine = Engine(1)
        chunks = {str(k): np.full(2**18, k, np.float32) for k in range(40)}  # 1 MiB each
        engine.answer(0, arrays=chunks)
        found = dict(engine.pulls().ready({"question 0": 2**20}))["question 0"]
        assert isinstance(found, MalformedError)
        assert sum(len(engine.parts[one]) for one in engine.pulled) < 2**24  # of 40 MiB

    @pytest.mark.parametrize("times", [1, 1000])
    def test_a_chunk_that_is_listed_again_and_again(self, times: int) -> None:
        """40 kB of chunk, listed a thousand times, would be 40 MB before anything is read."""
        engine = Engine(1)
        engine.answer(0, arrays={"own": np.zeros(10_000, np.float32)})
        listed = f'"arraychunk_ids": {[0] * times}'.encode()
        for identity, part in engine.parts.items():
            if part.startswith(b"Array "):
                head, body = part.split(b"\0", 1)
                body = body.replace(b'"arraychunk_ids": [0]', listed)
                head = b"%s %d" % (head.rpartition(b" ")[0], len(body))
                engine.parts[identity] = head + b"\0" + body
        pulled = dict(engine.pulls().ready({"question 0": 2**20}))["question 0"]
        assert isinstance(pulled, Message if times == 1 else MalformedError)

    @pytest.mark.parametrize("body", [b"", b"{", b'{"arraychunk_ids": [5]}'])
    def test_what_is_no_array(self, body: bytes) -> None:
        engine = Engine(1)
        engine.answer(0)
        for identity, part in engine.parts.items():
            if part.startswith(b"Array "):
                engine.parts[identity] = part.split(b"\0", 1)[0] + b"\0" + body
        pulled = dict(engine.pulls().ready({"question 0": 2**20}))["question 0"]
        assert isinstance(pulled, MalformedError)

    def test_a_dead_engine_is_said(self) -> None:
        engine = Engine(2)
        engine.grid._runtime_client = None
        found = dict(engine.pulls().ready(dict.fromkeys(engine.identities)))
        assert all("does not answer" in str(found[one]) for one in engine.identities)

    def test_two_hundred_questions_have_one_thread(self) -> None:
        engine = Engine(200)
        sent = iter(engine.identities)

        class Pushing(SmallGrid):
            def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
                return [next(sent) for _ in messages]

        transport = FlowerTransport(Pushing(), lambda _grid: engine.pulls())
        before = threading.active_count()
        asked = transport.ask("work", {j: (j, {}) for j in range(200)}, {}, 300.0)
        while len(engine.looks) < 3:  # nobody has answered yet
            time.sleep(0.01)
        assert engine.threads <= before + 1
        for j in range(200):
            engine.answer(j)
        found = list(transport.gather(asked, transport.now() + 300.0))
        assert sorted(arrival.facts["node"] for arrival in found) == list(range(200))
        assert all(arrival.client == arrival.facts["node"] for arrival in found)

    @pytest.mark.parametrize("most", [3, 50])
    def test_large_answers_have_one_thread_too(self, most: int) -> None:
        engine = Engine(50)
        sent = iter(range(50))

        class Answering(SmallGrid):
            def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
                places = [next(sent) for _ in messages]
                for j in places:
                    engine.answer(j)
                return [engine.identities[j] for j in places]

        transport = FlowerTransport(Answering(), lambda _grid: engine.pulls())
        before = threading.active_count()
        asked = transport.ask("work", {j: (j, {}) for j in range(50)}, {}, 300.0, at_once=most)
        found = list(transport.gather(asked, transport.now() + 300.0))
        assert sorted(arrival.facts["node"] for arrival in found) == list(range(50))
        assert max(engine.looks) <= most
        own = 1 + 32  # the engine puts the parts of one answer together side by side
        assert engine.threads <= before + own


def test_any_other_grid_is_refused() -> None:
    with pytest.raises(InputError, match="needs a SuperLink, not SmallGrid: start it with"):
        FlowerTransport(SmallGrid()).ask("work", {0: (0, {})}, {}, 1.0)


@pytest.fixture
def own_superlink(tmp_path: Path) -> Iterator[OwnSuperLink]:
    link = OwnSuperLink(tmp_path / "link.db", 3)
    yield link
    link.close()
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what the SuperLink uses
def test_on_the_superlinks_own_code(own_superlink: OwnSuperLink) -> None:
    """Its data base tells of an answer once, and before its parts are there."""
    link = own_superlink
    assert isinstance(pulls_of(link.grid), Batched)
    transport = FlowerTransport(link.grid)
    questions: dict[int, tuple[int, dict[str, Any]]] = {
        j: (node, {"place": j}) for j, node in enumerate(link.nodes)
    }
    asked = transport.ask("work", questions, {"model": numbers(9)}, 30.0, largest=10**6)
    slow, *others = [link.answer(j, numbers(j)) for j in range(3)]
    for parts in others:
        link.upload(parts)
    arrivals = transport.gather(asked, transport.now() + 30.0)
    found = [next(arrivals) for _ in others]
    assert sorted(arrival.client for arrival in found) == [1, 2]
    link.upload(slow)
    found.append(next(arrivals))
    for arrival in found:
        assert arrival.status == "answer"
        assert arrival.facts["node"] == arrival.client
        np.testing.assert_array_equal(arrival.arrays["own"], numbers(arrival.client))
    assert list(arrivals) == []
    assert link.requests["PushMessages"] == 1
    assert link.requests["ConfirmMessageReceived"] == 3
