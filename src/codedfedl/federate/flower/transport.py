"""Answers as they come, and a deadline that holds whatever the clients do.

Every ask has a thread of its own, which looks for the answers to all its questions (`pulls`) and
puts them into one queue; whoever waits for a deadline waits for the queue alone.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from codedfedl.errors import InputError
from codedfedl.federate.flower.pulls import Pulled, Pulls, pulls_of, tried
from codedfedl.federate.flower.wire import (
    MalformedError,
    message_type,
    pack,
    pack_arrays,
    unpack,
)
from codedfedl.federate.transport import Arrays, Arrival, Status, printable

__all__ = ["FlowerTransport"]

_BEFORE_THE_DEADLINE = 0.3  # seconds; when one looks once more
_TRIES = 3
_AGAIN = 5.0  # seconds until a question that got lost is asked again

_Slot = threading.Semaphore | None  # of the memory that an answer takes up


class FlowerTransport:
    """A `Transport` on a Flower grid.

    Parameters
    ----------
    pulls
        How answers are got from a grid.
    """

    def __init__(self, grid: Grid, pulls: Callable[[Grid], Pulls] = pulls_of) -> None:
        self._grid, self._pulls = grid, pulls
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
        return set(tried(self._grid.get_node_ids))

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
        """Push a message to every node: in this thread, or as memory for answers becomes free."""
        until = time.monotonic() + seconds
        shared = pack_arrays(arrays)
        asked = {}
        waiting = []
        for client, (node, facts) in questions.items():
            asked[self._questions] = client
            content = pack(facts, shared)
            waiting.append(_Question(self._questions, client, node, kind, content, until, largest))
            self._questions += 1
        if not waiting:
            return asked
        slots = None if at_once is None else threading.Semaphore(at_once)
        watch = _Watch(self._push, self._pulls(self._grid), self._arrivals, slots)
        if slots is not None:
            watch.queue.extend(waiting)
        elif not watch.asked(waiting):  # a node that is gone still has messages stored for it
            raise InputError(
                "the engine accepts no more messages: see the SuperLink's log, and run this "
                "again to continue"
            )
        threading.Thread(target=watch.run, daemon=True).start()
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

    def _push(self, messages: list[Message]) -> list[str | None]:
        """Send messages; None stands for one that the engine does not take."""
        try:
            sent = tried(lambda: self._grid.push_messages(messages))
        except InputError:
            sent = []
        return [*sent, *[None] * (len(messages) - len(sent))]


class _Watch:
    """All questions of one ask, until each has an answer or its time is up.

    Parameters
    ----------
    slots
        Where answers are large: how many may be on their way; a question waits in `queue` until
        there is a place, and is asked again if it or its answer got lost.
    """

    def __init__(
        self,
        push: Callable[[list[Message]], list[str | None]],
        pulls: Pulls,
        arrivals: "SimpleQueue[tuple[Arrival, _Slot]]",
        slots: _Slot,
    ) -> None:
        self.queue: deque[_Question] = deque()
        self._push, self._pulls, self._arrivals, self._slots = push, pulls, arrivals, slots
        self._waiting: dict[str, _Question] = {}
        self._again: list[_Question] = []  # which have their place already

    def run(self) -> None:
        """Ask, look, and sleep, until there is nothing to wait for."""
        while self.queue or self._again or self._waiting:
            self._ask_more()
            self._look()
            self._end_late_ones()
            self._sleep()

    def asked(self, questions: list["_Question"]) -> bool:
        """Push questions; return whether the engine took any of them."""
        identities = self._push([question.message() for question in questions])
        for question, identity in zip(questions, identities, strict=True):
            if identity:
                self._waiting[identity] = question
            else:
                reason = "the engine does not accept a message for the node"
                self._arrived(question, question.nothing("gone", reason))
        return any(identities)

    def _ask_more(self) -> None:
        now = time.monotonic()
        due = [question for question in self._again if question.not_before <= now]
        self._again = [question for question in self._again if question.not_before > now]
        while self.queue and self._slots is not None and self._slots.acquire(blocking=False):
            due.append(self.queue.popleft())
        for question in due:
            self.asked([question])

    def _look(self) -> None:
        sizes = {identity: question.largest for identity, question in self._waiting.items()}
        for identity, pulled in self._pulls.ready(sizes) if sizes else ():
            question = self._waiting.pop(identity)
            self._arrived(question, question.arrival(pulled))
            del pulled  # it may be large

    def _arrived(self, question: "_Question", arrival: Arrival) -> None:
        again = self._slots is not None and question.tries + 1 < _TRIES
        if again and arrival.status == "gone" and question.left >= _AGAIN:
            later = time.monotonic() + _AGAIN
            self._again.append(replace(question, tries=question.tries + 1, not_before=later))
            return
        self._arrivals.put((arrival, self._slots))

    def _end_late_ones(self) -> None:
        for identity, question in list(self._waiting.items()):
            if question.left <= 0:
                del self._waiting[identity]
                self._arrivals.put((question.nothing("late", "no answer in time"), self._slots))
        while self.queue and self.queue[0].left <= 0:
            late = self.queue.popleft().nothing("late", "no answer in time")
            self._arrivals.put((late, None))

    def _sleep(self) -> None:
        waiting = [*self._waiting.values(), *self._again, *self.queue]
        if waiting:
            pause = self._pulls.pause(len(self._waiting))
            last = min(question.left for question in waiting) - _BEFORE_THE_DEADLINE
            time.sleep(min(pause, last) if last > 0 else min(pause, 0.1))


@dataclass(frozen=True, eq=False)
class _Question:
    """What is asked of one node, until when, and how often it was asked before."""

    number: int
    client: int
    node: int
    kind: str
    content: RecordDict
    until: float
    largest: int | None
    tries: int = 0
    not_before: float = 0.0

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

    def arrival(self, pulled: Pulled) -> Arrival:
        if isinstance(pulled, Message):
            return self.answered(pulled)
        if isinstance(pulled, MalformedError):
            return self.malformed(pulled)
        return self.nothing("gone", str(pulled))

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
