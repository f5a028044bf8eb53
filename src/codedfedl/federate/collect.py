"""Answers as they come, and a deadline that holds whatever the clients do.

Pulling an answer blocks while it is still being uploaded. So every question has a thread of its
own, which waits for its answer and puts it into one queue; whoever waits for a deadline waits for
the queue alone.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any, Literal

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from codedfedl.errors import InputError
from codedfedl.federate.node import Arrays
from codedfedl.federate.wire import (
    MalformedError,
    message_type,
    pack,
    pack_arrays,
    printable,
    unpack,
)

__all__ = ["Arrival", "Collector"]

_SECONDS_PER_LOOK = 0.03  # of the engine's time: with many clients each looks less often
_BEFORE_THE_DEADLINE = 0.3  # when everybody looks once more
_TRIES = 3
_AGAIN = 5.0  # seconds until a question that got lost is asked again


Status = Literal["answer", "malformed", "problem", "gone", "late"]
"""An answer; one that is not ours; the node's own trouble; no such node; nothing in time."""


@dataclass(frozen=True, eq=False)
class Arrival:
    """An answer, or why there is none.

    Attributes
    ----------
    question
        The number that `Collector.ask` gave.
    when
        On the monotonic clock; ∞ where nothing came.
    reason
        Why there is no answer.
    """

    question: int
    client: int
    status: Status
    when: float = np.inf
    facts: dict[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    reason: str = ""
    slot: threading.Semaphore | None = None  # of the memory that it takes up


class Collector:
    """Asks nodes, and collects their answers.

    The engine may refuse a request when it is busy; every one is tried a few times.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._arrivals: SimpleQueue[Arrival] = SimpleQueue()
        self._questions = 0

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
    ) -> dict[int, int]:
        """Send a question to some clients; it expires after so many seconds.

        Parameters
        ----------
        questions
            The node and the facts for each client.
        arrays
            What goes to all of them, such as the model.
        at_once
            How many clients may be at it at a time, where answers are large: the next is asked when
            an answer is dealt with, and one that got lost on the way is asked for again.

        Returns
        -------
        dict
            The client of every question's number.
        """
        until = time.monotonic() + seconds
        shared = pack_arrays(arrays)
        look = max(0.1, _SECONDS_PER_LOOK * len(questions))
        asked = {}
        waiting = []
        for client, (node, facts) in questions.items():
            asked[self._questions] = client
            content = pack(facts, shared)
            waiting.append(_Question(self._questions, client, node, kind, content, until, look))
            self._questions += 1
        if at_once is not None:
            slots = threading.Semaphore(at_once)
            for question in waiting:
                _in_background(self._insist, question, slots)
        elif waiting:
            identities = self._push([question.message() for question in waiting])
            if not any(identities):  # a node that is gone still has messages stored for it
                raise InputError(
                    "the engine takes no message any more: see the SuperLink's log, and run this "
                    "again to go on"
                )
            for question, identity in zip(waiting, identities, strict=True):
                _in_background(self._wait, question, identity)
        return asked

    def gather(self, wanted: Collection[int], until: float) -> Iterator[Arrival]:
        """Yield answers to these questions as they come; those to others are forgotten.

        Ends when all wanted ones are there, or on the monotonic clock at `until`; what was there by
        then is still yielded.
        """
        missing = set(wanted)
        while missing:
            left = until - time.monotonic()
            try:
                arrival = self._arrivals.get(left > 0, max(left, 0.0))
            except Empty:
                return
            if arrival.question in missing:
                missing.remove(arrival.question)
                yield arrival
            if arrival.slot is not None:
                arrival.slot.release()

    def _wait(self, question: "_Question", identity: str | None) -> None:
        self._arrivals.put(self._pulled(question, identity))

    def _insist(self, question: "_Question", slots: threading.Semaphore) -> None:
        """Ask when there is a place, and again where the question or its answer got lost."""
        arrival = question.nothing("late", "no answer in time")
        if slots.acquire(timeout=max(question.left, 0.0)):
            for _ in range(_TRIES):
                arrival = self._pulled(question, *self._push([question.message()]))
                if arrival.status != "gone" or question.left < _AGAIN:
                    break
                time.sleep(_AGAIN)
            arrival = replace(arrival, slot=slots)
        self._arrivals.put(arrival)

    def _push(self, messages: list[Message]) -> list[str | None]:
        """Send messages; None stands for one that the engine does not take."""
        try:
            sent = list(self._tried(lambda: self._grid.push_messages(messages)))
        except InputError:
            sent = []
        return [*sent, *[None] * (len(messages) - len(sent))]

    def _pulled(self, question: "_Question", identity: str | None) -> Arrival:
        if not identity:
            return question.nothing("gone", "the engine does not take a message for the node")
        while question.left > 0:
            try:
                found = list(self._tried(lambda: self._grid.pull_messages([identity])))
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

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    def message(self) -> Message:
        kind = message_type(self.kind)
        return Message(self.content, self.node, kind, ttl=max(self.left, 0.1), group_id=self.kind)

    def nothing(self, status: Status, reason: str) -> Arrival:
        return Arrival(self.number, self.client, status, reason=reason)

    def answered(self, message: Message) -> Arrival:
        now = time.monotonic()
        if message.has_error():
            return self.nothing("gone", printable(message.error.reason))
        try:
            facts, arrays = unpack(message.content)
        except MalformedError as error:
            return Arrival(self.number, self.client, "malformed", now, reason=str(error))
        if "problem" in facts:
            reason = printable(facts["problem"])
            return Arrival(self.number, self.client, "problem", now, reason=reason)
        return Arrival(self.number, self.client, "answer", now, facts, arrays)


def _in_background(work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()
