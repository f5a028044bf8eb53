"""Replies as they come: a pull that blocks delays no deadline."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue

from flwr.app import Message
from flwr.serverapp import Grid

__all__ = ["Mail", "Reply", "puller"]

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
            return self._queue.get(left > 0, max(left, 0.0))
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
