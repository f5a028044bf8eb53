"""Replies as they come: a pull that blocks delays no deadline."""

import heapq
import logging
import threading
import time
from collections.abc import Callable, Iterable
from math import inf
from queue import Empty, SimpleQueue

from flwr.app import Message
from flwr.serverapp import Grid

from codedfedl.pacing.flower.replies import virtual_seconds

__all__ = ["Mail", "Reply", "VirtualMail", "puller"]

Reply = tuple[str, Message | None, float]
"""The id of a question, its reply (None: it cannot be read), and when it came."""

LOOK_SECONDS = 0.1  # Between two looks for replies.
RETRY_SECONDS = 1.0  # After a look that failed.

_log = logging.getLogger("flwr")


def puller(grid: Grid) -> Callable[[set[str]], Iterable[tuple[str, Message | None]]]:
    """Return how replies are pulled from a grid.

    A SuperLink's grid waits for uploads, one after the other, so that a slow one would hold up all
    others: there, parts of replies are pulled as they come.
    """
    from codedfedl.federate.flower.wire import MalformedError, has_parts, pulls_of

    if not has_parts(grid):
        return lambda ids: [(m.metadata.reply_to_message_id, m) for m in grid.pull_messages(ids)]
    pulls = pulls_of(grid)

    def pull(ids: set[str]) -> Iterable[tuple[str, Message | None]]:
        for identity, pulled in pulls.ready(dict.fromkeys(ids)):
            if isinstance(pulled, Message | MalformedError):  # an error of the engine may pass
                yield identity, pulled if isinstance(pulled, Message) else None

    return pull


class Mail:
    """A thread that looks for replies, and a queue of those that are there."""

    is_virtual = False  # whether its clock is another one than that of the engine

    def __init__(self, pull: Callable[[set[str]], Iterable[tuple[str, Message | None]]]) -> None:
        self._pull, self._queue = pull, SimpleQueue[Reply]()
        self._ids: set[str] = set()
        self._wanted = threading.Condition()
        self._thread: threading.Thread | None = None

    def now(self) -> float:
        """Return the monotonic clock."""
        return time.monotonic()

    def expect(self, ids: Iterable[str]) -> None:
        """Look for the replies to these questions, too."""
        with self._wanted:
            self._ids |= set(ids)
            self._wanted.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()

    def forget(self, identity: str) -> None:
        """Look for it no more."""
        with self._wanted:
            self._ids.discard(identity)

    def next(self, until: float) -> Reply | None:
        """Return the next reply; None if there is none until then."""
        left = until - time.monotonic()
        try:
            return self._queue.get(left > 0, min(max(left, 0.0), threading.TIMEOUT_MAX))
        except Empty:
            return None

    def _look(self) -> None:
        while True:
            with self._wanted:
                self._wanted.wait_for(lambda: self._ids)
                ids = set(self._ids)
            pause = LOOK_SECONDS
            try:
                for identity, reply in self._pull(ids):
                    if identity in ids:
                        self.forget(identity)
                        self._queue.put((identity, reply, time.monotonic()))
            except Exception as error:  # whatever an engine raises: it is asked again
                _log.warning("paced: replies cannot be pulled (%s); trying again", error)
                pause = RETRY_SECONDS
            time.sleep(pause)


class VirtualMail(Mail):
    """Replies in the order of the seconds that clients report: for engines that simulate nodes.

    Whatever was asked is waited for, as long as that takes; the clock knows virtual seconds alone.
    """

    is_virtual = True

    def __init__(self, pull: Callable[[set[str]], Iterable[tuple[str, Message | None]]]) -> None:
        super().__init__(pull)
        self._clock, self._count = 0.0, 0
        self._asked: dict[str, float] = {}  # when, on this clock: questions without a reply
        self._came: list[tuple[float, int, str, Message | None]] = []

    def now(self) -> float:
        """Return the virtual clock."""
        return self._clock

    def expect(self, ids: Iterable[str]) -> None:
        """Look for the replies to these questions, too."""
        new = dict.fromkeys(ids, self._clock)
        self._asked |= new
        super().expect(new)

    def next(self, until: float) -> Reply | None:
        """Return the next reply; None if there is none until then."""
        while self._asked and (reply := super().next(inf)) is not None:
            identity, message, _ = reply
            self._count += 1
            when = self._asked.pop(identity) + virtual_seconds(message)
            heapq.heappush(self._came, (when, self._count, identity, message))
        if self._came and self._came[0][0] <= max(until, self._clock):
            when, _, identity, message = heapq.heappop(self._came)
            self._clock = max(self._clock, when)
            return identity, message, when
        if until < inf:
            self._clock = max(self._clock, until)
        return None
