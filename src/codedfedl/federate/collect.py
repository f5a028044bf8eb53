"""Answers as they come, and a deadline that holds whatever the clients do.

Pulling an answer blocks while it is still being uploaded. So every question has a thread of its
own, which waits for its answer and puts it into one queue; whoever waits for a deadline waits for
the queue alone.
"""

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any, Literal

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

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
    """Asks nodes, and collects their answers."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._arrivals: SimpleQueue[Arrival] = SimpleQueue()
        self._questions = 0

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
            How many answers may be in memory. One whose upload stalls holds its place until the
            engine gives it up, after three minutes.

        Returns
        -------
        dict
            The client of every question's number.
        """
        began = time.monotonic()
        shared = pack_arrays(arrays)
        messages = [
            Message(pack(facts, shared), node, message_type(kind), ttl=seconds, group_id=kind)
            for node, facts in questions.values()
        ]
        identities = list(self.grid.push_messages(messages)) if messages else []
        identities += [""] * (len(messages) - len(identities))
        slots = threading.Semaphore(at_once) if at_once else None
        look = max(0.1, _SECONDS_PER_LOOK * len(messages))
        asked = {}
        for client, identity in zip(questions, identities, strict=True):
            number = self._questions
            self._questions += 1
            asked[number] = client
            if not identity:  # the engine does not know the node any more
                self._arrivals.put(Arrival(number, client, "gone", reason="no such node"))
                continue
            arguments = (number, client, identity, began + seconds, look, slots)
            threading.Thread(target=self._wait, args=arguments, daemon=True).start()
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

    def _wait(
        self,
        number: int,
        client: int,
        identity: str,
        until: float,
        look: float,
        slots: threading.Semaphore | None,
    ) -> None:
        """Put the answer to a question into the queue, or that there is none."""
        arrival = Arrival(number, client, "late", reason="no answer in time")
        while (left := until - time.monotonic()) > 0:
            if slots is not None and not slots.acquire(timeout=left):
                break
            try:
                found = [_arrival(number, client, m) for m in self.grid.pull_messages([identity])]
            except Exception as error:  # the engine is gone or refuses: that is a result too
                reason = printable(f"{type(error).__name__}: {error}")
                found = [Arrival(number, client, "gone", reason=reason)]
            if found:
                arrival = replace(found[0], slot=slots)
                break
            if slots is not None:
                slots.release()
            last = left - _BEFORE_THE_DEADLINE
            time.sleep(min(look, last) if last > 0 else min(look, left))
        self._arrivals.put(arrival)


def _arrival(number: int, client: int, message: Message) -> Arrival:
    now = time.monotonic()
    if message.has_error():
        return Arrival(number, client, "gone", reason=printable(message.error.reason))
    try:
        facts, arrays = unpack(message.content)
    except MalformedError as error:
        return Arrival(number, client, "malformed", now, reason=str(error))
    if "problem" in facts:
        return Arrival(number, client, "problem", now, reason=printable(facts["problem"]))
    return Arrival(number, client, "answer", now, facts, arrays)
