"""Answers as they come, and a deadline that holds whatever the clients do.

Pulling an answer blocks while it is still being uploaded. So every question has a thread of its
own, which waits for its answer and puts it into one queue; whoever waits for a deadline waits for
the queue alone.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from codedfedl.errors import InputError
from codedfedl.federate.flower.wire import (
    MalformedError,
    inflating,
    message_type,
    pack,
    pack_arrays,
    unpack,
)
from codedfedl.federate.transport import Arrays, Arrival, Status, printable

__all__ = ["FlowerTransport"]

_SECONDS_PER_LOOK = 0.03  # of the engine's time: with many clients each looks less often
_BEFORE_THE_DEADLINE = 0.3  # when everybody looks once more
_TRIES = 3
_AGAIN = 5.0  # seconds until a question that got lost is asked again

_Slot = threading.Semaphore | None  # of the memory that an answer takes up


class FlowerTransport:
    """A `Transport` on a Flower grid.

    The engine may refuse a request when it is busy; every one is tried a few times.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._arrivals: SimpleQueue[tuple[Arrival, _Slot]] = SimpleQueue()
        self._questions = 0

    def now(self) -> float:
        """Return the monotonic clock."""
        return time.monotonic()

    def remaining(self, until: float) -> float:
        """Return the seconds until then."""
        return max(until - time.monotonic(), 0.0)

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def nodes(self) -> set[int]:
        """Return the nodes that are there, as far as the engine knows."""
        return set(self._tried(self._grid.get_node_ids))

    def ask(
        self,
        kind: str,
        questions: Mapping[int, tuple[int, dict[str, Any]]],
        arrays: Arrays,
        seconds: float,
        *,
        at_once: int | None = None,
        largest: int | None = None,
    ) -> dict[int, int]:
        """Push a message to every node, in this thread or as there is room for answers."""
        until = time.monotonic() + seconds
        shared = pack_arrays(arrays)
        look = max(0.1, _SECONDS_PER_LOOK * len(questions))
        asked = {}
        waiting = []
        for client, (node, facts) in questions.items():
            asked[self._questions] = client
            content = pack(facts, shared)
            waiting.append(
                _Question(self._questions, client, node, kind, content, until, look, largest)
            )
            self._questions += 1
        if at_once is not None:
            slots = threading.Semaphore(at_once)
            for question in waiting:
                _in_background(self._insist, question, slots)
        elif waiting:
            identities = self._push([question.message() for question in waiting])
            if not any(identities):  # a node that is gone still has messages stored for it
                raise InputError(
                    "the engine accepts no more messages: see the SuperLink's log, and run this "
                    "again to continue"
                )
            for question, identity in zip(waiting, identities, strict=True):
                _in_background(self._wait, question, identity)
        return asked

    def gather(self, wanted: Collection[int], until: float) -> Iterator[Arrival]:
        """Yield answers from the queue."""
        missing = set(wanted)
        while missing:
            left = until - time.monotonic()
            try:
                arrival, slot = self._arrivals.get(left > 0, max(left, 0.0))
            except Empty:
                return
            if arrival.question in missing:
                missing.remove(arrival.question)
                yield arrival
            del arrival  # it may be large
            if slot is not None:
                slot.release()

    def _wait(self, question: "_Question", identity: str | None) -> None:
        self._arrivals.put((self._pulled(question, identity), None))

    def _insist(self, question: "_Question", slots: threading.Semaphore) -> None:
        """Ask when there is a place, and again where the question or its answer got lost."""
        arrival, slot = question.nothing("late", "no answer in time"), None
        if slots.acquire(timeout=max(question.left, 0.0)):
            for _ in range(_TRIES):
                arrival = self._pulled(question, *self._push([question.message()]))
                if arrival.status != "gone" or question.left < _AGAIN:
                    break
                time.sleep(_AGAIN)
            slot = slots
        self._arrivals.put((arrival, slot))

    def _push(self, messages: list[Message]) -> list[str | None]:
        """Send messages; None stands for one that the engine does not take."""
        try:
            sent = list(self._tried(lambda: self._grid.push_messages(messages)))
        except InputError:
            sent = []
        return [*sent, *[None] * (len(messages) - len(sent))]

    def _pulled(self, question: "_Question", identity: str | None) -> Arrival:
        if not identity:
            return question.nothing("gone", "the engine does not accept a message for the node")
        while question.left > 0:
            try:
                with inflating(question.largest):
                    found = list(self._tried(lambda: self._grid.pull_messages([identity])))
            except MalformedError as error:
                return question.malformed(error)
            except InputError as error:
                return question.nothing("gone", str(error))
            if found:
                return question.answered(found[0])
            last = question.left - _BEFORE_THE_DEADLINE
            time.sleep(min(question.look, last) if last > 0 else min(question.look, 0.1))
        return question.nothing("late", "no answer in time")

    @staticmethod
    def _tried(call: Callable[[], Iterable[Any]]) -> Iterable[Any]:
        for attempt in range(_TRIES):
            try:
                return call()
            except MalformedError:  # trying again would not mend it
                raise
            except Exception as error:  # whatever the engine's transport raises
                reason = printable(f"{type(error).__name__}: {error}")
            time.sleep(0.5 * (attempt + 1))
        raise InputError(f"the engine does not answer ({reason}): see the SuperLink's log")


@dataclass(frozen=True, eq=False)
class _Question:
    """What is asked of one node, until when, and how often one looks for its answer."""

    number: int
    client: int
    node: int
    kind: str
    content: RecordDict
    until: float
    look: float
    largest: int | None

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    def message(self) -> Message:
        kind = message_type(self.kind)
        return Message(self.content, self.node, kind, ttl=max(self.left, 0.1), group_id=self.kind)

    def nothing(self, status: Status, reason: str) -> Arrival:
        return Arrival(self.number, self.client, status, reason=reason)

    def malformed(self, error: MalformedError) -> Arrival:
        now = time.monotonic()
        return Arrival(self.number, self.client, "malformed", now, reason=str(error))

    def answered(self, message: Message) -> Arrival:
        now = time.monotonic()
        if message.has_error():
            return self.nothing("gone", printable(message.error.reason))
        try:
            facts, arrays = unpack(message.content, self.largest)
        except MalformedError as error:
            return self.malformed(error)
        if "problem" in facts:
            reason = printable(facts["problem"])
            return Arrival(self.number, self.client, "problem", now, reason=reason)
        return Arrival(self.number, self.client, "answer", now, facts, arrays)


def _in_background(work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()
