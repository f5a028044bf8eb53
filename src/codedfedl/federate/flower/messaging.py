"""Answers as they come, and a deadline that holds whatever the clients do.

Every ask has a thread of its own, which looks for the answers to all its questions (`Pulls`) and
puts them into one queue; whoever waits for a deadline waits for the queue alone.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from queue import Empty, SimpleQueue
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from codedfedl.errors import InputError
from codedfedl.federate.flower.wire import (
    MalformedError,
    Pulled,
    Pulls,
    message_type,
    pack,
    pack_arrays,
    pulls_of,
    tried,
    unpack,
)
from codedfedl.federate.transport import Arrays, Arrival, Status, printable

# Seconds between two looks: a look for a thousand answers is one request, too.
LOOK_SECONDS = 0.1

# Seconds before the deadline when one looks once more.
LAST_LOOK_SECONDS = 0.3

# How often a question is asked whose answer is large, if it gets lost.
TRIES = 3

# Seconds until a question that got lost is asked again.
RETRY_SECONDS = 5.0

_Slot = threading.Semaphore | None
"""Of the memory that an answer takes up."""


class FlowerTransport:
    """A `Transport` on a Flower grid.

    Parameters
    ----------
    pulls
        How answers are fetched from a grid.
    ring
        Called when messages were sent.
    """

    def __init__(
        self,
        grid: Grid,
        pulls: Callable[[Grid], Pulls] = pulls_of,
        ring: Callable[[], object] = lambda: None,
    ) -> None:
        self._grid, self._pulls, self._ring = grid, pulls, ring
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

    def called(self, node: int) -> str:
        """Return the node's number."""
        return f"node {node}"

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
        elif not watch.asked(waiting) and self.nodes() & {question.node for question in waiting}:
            raise InputError(  # messages for a node that is gone are stored, unless it was revoked
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
        self._ring()
        return [*sent, *[None] * (len(messages) - len(sent))]


class _Watch:
    """All questions of one ask, until each has an answer or its time is up.

    Parameters
    ----------
    slots
        Where answers are large: how many may be on their way; a question waits in `queue` until
        there is a slot, and is asked again if it or its answer got lost.
    """

    def __init__(
        self,
        push: Callable[[list[Message]], list[str | None]],
        pulls: Pulls,
        arrivals: "SimpleQueue[tuple[Arrival, _Slot]]",
        slots: _Slot,
    ) -> None:
        self.queue: list[_Question] = []
        self._push, self._pulls, self._arrivals, self._slots = push, pulls, arrivals, slots
        self._waiting: dict[str, _Question] = {}

    def run(self) -> None:
        """Ask, look, and sleep, until there is nothing to wait for."""
        while self.queue or self._waiting:
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
                self._arrived(question, question.unanswered("gone", reason))
        return any(identities)

    def _ask_more(self) -> None:
        queue, self.queue, now = self.queue, [], time.monotonic()
        for question in queue:
            is_due = question.not_before <= now
            if is_due and (question.tries or (self._slots and self._slots.acquire(blocking=False))):
                self.asked([question])
            else:
                self.queue.append(question)

    def _look(self) -> None:
        sizes = {identity: question.largest for identity, question in self._waiting.items()}
        for identity, pulled in self._pulls.ready(sizes) if sizes else ():
            question = self._waiting.pop(identity)
            self._arrived(question, question.arrival(pulled))
            del pulled  # it may be large

    def _arrived(self, question: "_Question", arrival: Arrival) -> None:
        may_retry = self._slots is not None and question.tries + 1 < TRIES
        if may_retry and arrival.status == "gone" and question.left >= RETRY_SECONDS:
            later = time.monotonic() + RETRY_SECONDS
            self.queue.append(replace(question, tries=question.tries + 1, not_before=later))
        else:
            self._arrivals.put((arrival, self._slots))

    def _end_late_ones(self) -> None:
        for identity, question in list(self._waiting.items()):
            if question.left <= 0:
                del self._waiting[identity]
                self._late(question, self._slots)
        for question in [question for question in self.queue if question.left <= 0]:
            self.queue.remove(question)
            self._late(question, self._slots if question.tries else None)

    def _late(self, question: "_Question", slot: _Slot) -> None:
        self._arrivals.put((question.unanswered("late", "no answer in time"), slot))

    def _sleep(self) -> None:
        waiting = [*self._waiting.values(), *self.queue]
        if waiting:
            last = min(question.left for question in waiting) - LAST_LOOK_SECONDS
            time.sleep(min(LOOK_SECONDS, last) if last > 0 else LOOK_SECONDS)


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

    def unanswered(self, status: Status, reason: str, when: float = inf) -> Arrival:
        return Arrival(self.number, self.client, status, when, reason=reason)

    def arrival(self, pulled: Pulled) -> Arrival:
        """Return what was pulled as an answer, or why it is none."""
        now = time.monotonic()
        if isinstance(pulled, InputError):
            return self.unanswered("gone", str(pulled))
        if isinstance(pulled, MalformedError):
            return self.unanswered("malformed", str(pulled), now)
        if pulled.has_error():
            return self.unanswered("gone", printable(pulled.error.reason))
        try:
            facts, arrays = unpack(pulled.content, self.largest)
        except MalformedError as error:
            return self.unanswered("malformed", str(error), now)
        if "problem" in facts:
            return self.unanswered("problem", printable(facts["problem"]), now)
        return Arrival(self.number, self.client, "answer", now, facts, arrays)
