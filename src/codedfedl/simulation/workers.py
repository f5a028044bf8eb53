"""Units on several processes, of this machine or of a Dask cluster.

Every worker receives the list of units once and is then given places in it. What it tells and what
it wants kept comes back over one queue, in order, and so do its results.
"""

import pickle
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from os import _exit, cpu_count
from queue import Empty
from threading import Thread
from typing import Any, Protocol

from codedfedl.errors import InputError
from codedfedl.runs.directory import Checkpoint
from codedfedl.simulation.playing import done, play
from codedfedl.simulation.progress import Progress, on_host
from codedfedl.simulation.threads import set_threads, usable_threads
from codedfedl.simulation.units import Unit

__all__ = [
    "SECONDS_BETWEEN_MESSAGES",
    "Future",
    "Instructions",
    "Message",
    "Order",
    "Workers",
    "check_workers",
    "here",
    "on_processes",
    "play_for",
    "played",
    "processes",
    "threads_of",
]

SECONDS_BETWEEN_MESSAGES = 0.5
_PATIENCE = 0.2  # seconds


@dataclass(frozen=True, eq=False)
class Order:
    """What every worker needs to play any unit."""

    units: Sequence[Unit]
    device: str
    threads: int | None


class Instructions(Protocol):
    """What every process has to know before it begins."""

    @property
    def device(self) -> str:
        """Where its arrays are."""

    @property
    def threads(self) -> int | None:
        """Threads of its linear algebra."""


@dataclass(frozen=True, eq=False)
class Message:
    """What a worker sends of a unit: what it has told, and what is to be kept."""

    place: int
    told: Sequence[tuple[str, Progress | None]]
    arrays: Checkpoint


class Future(Protocol):
    """A unit that is being played somewhere."""

    def done(self) -> bool:
        """Whether it has ended, in whatever way."""

    def result(self) -> Any:
        """Raise what it has failed with."""


class Workers(Protocol):
    """Processes that play units."""

    def submit(self, place: int, checkpoint: Checkpoint) -> Future:
        """Have a unit played."""

    def receive(self, seconds: float) -> Message | None:
        """Return the next message; None where none comes in time."""


def check_workers(jobs: int, dask: str | None, threads: int | None) -> None:
    """Refuse numbers of workers that make no sense."""
    for name, value in (("--jobs", jobs), ("--threads", threads)):
        if value is not None and value < 1:
            raise InputError(f"{name} is {value}: must be at least 1")
    if dask is not None and jobs > 1:
        raise InputError("--jobs is for this machine and --dask for a cluster: leave one out")


def threads_of(jobs: int, dask: str | None) -> int | None:
    """Return how many threads each unit has by default: all, divided among the units.

    None where the library of the linear algebra, such as Apple's, does not let its threads be set.
    """
    usable = usable_threads()
    if usable is None or (dask is None and jobs == 1):
        return usable
    return 1 if dask is not None else max(1, min(usable, cpu_count() or 1) // jobs)


def played(workers: Workers, places: Sequence[int], checkpoint: Checkpoint) -> Iterator[Message]:
    """Have units played, and yield every message until all are finished."""
    futures = {place: workers.submit(place, _part_of(checkpoint, place)) for place in places}
    while futures:
        for future in futures.values():
            if future.done():
                future.result()
        message = workers.receive(_PATIENCE)
        if message is not None:
            if done(message.place) in message.arrays:
                futures.pop(message.place, None)
            yield message


def _part_of(checkpoint: Checkpoint, place: int) -> Checkpoint:
    """Return what a checkpoint holds of one unit."""
    return {key: value for key, value in checkpoint.items() if key.startswith(f"{place}/")}


class _StoppedError(Exception):
    """The run has been interrupted, and nobody waits for this unit."""


class _Sender:
    """The sink of a unit in a worker: sends what it is told now and then, what it keeps at once.

    Parameters
    ----------
    send
        Takes a pickled `Message`.
    stopped
        Says whether anybody still waits.
    """

    def __init__(
        self, place: int, send: Callable[[bytes], object], stopped: Callable[[], bool]
    ) -> None:
        self.place, self.send, self.stopped = place, send, stopped
        self._told: list[tuple[str, Progress | None]] = []
        self._sent = 0.0

    def tell(self, what: str, progress: Progress | None) -> None:
        """Remember it, and send it with the next message."""
        self._told.append((what, None if progress is None else on_host(progress)))
        if time.monotonic() - self._sent > SECONDS_BETWEEN_MESSAGES:
            self.keep({})

    def keep(self, arrays: Checkpoint) -> None:
        """Send it."""
        if self.stopped():
            raise _StoppedError
        self.send(pickle.dumps(Message(self.place, tuple(self._told), arrays)))
        self._told, self._sent = [], time.monotonic()


def play_for(
    order: Order,
    place: int,
    checkpoint: Checkpoint,
    send: Callable[[bytes], object],
    stopped: Callable[[], bool],
) -> None:
    """Play a unit in a worker, as long as somebody waits for it."""
    with suppress(_StoppedError):
        sender = _Sender(place, send, stopped)
        play(order.units[place], place, checkpoint, order.device, sender)


class _Pool:
    """Processes of this machine."""

    def __init__(self, executor: ProcessPoolExecutor, queue: Any) -> None:
        self.executor, self.queue = executor, queue

    def submit(self, place: int, checkpoint: Checkpoint) -> Future:
        return self.executor.submit(_play_here, place, checkpoint)

    def receive(self, seconds: float) -> Message | None:
        try:
            message: Message = pickle.loads(self.queue.get(timeout=seconds))
        except Empty:
            return None
        return message


@contextmanager
def on_processes(order: Order, jobs: int) -> Iterator[Workers]:
    """Start so many processes that play units."""
    with processes(order, jobs, f"continue with --resume and fewer than {jobs} --jobs") as found:
        yield _Pool(*found)


@contextmanager
def processes(
    order: Instructions, jobs: int, remedy: str
) -> Iterator[tuple[ProcessPoolExecutor, Any]]:
    """Start so many processes; they end when this does, or when this process dies.

    Gives them with the queue of what they send.
    """
    context = get_context("spawn")  # a fork would copy the locks of the threads of this process
    queue, stop = context.Queue(), context.Event()
    executor = ProcessPoolExecutor(jobs, context, _begin, (order, queue, stop))
    try:
        yield executor, queue
    except BrokenProcessPool:
        raise InputError(
            f"one of {jobs} processes was ended from outside, perhaps for want of memory: {remedy}"
        ) from None
    finally:
        stop.set()
        executor.shutdown(cancel_futures=True)


_here: tuple[Any, Any, Any] | None = None  # of a worker process: order, queue, stop


def here() -> tuple[Any, Any, Any]:
    """Return what this process was started with: its order, the queue, and when to stop."""
    assert _here is not None
    return _here


def _begin(order: Instructions, queue: Any, stop: Any) -> None:
    """Prepare a worker process."""
    global _here  # noqa: PLW0603
    _here = order, queue, stop
    queue.cancel_join_thread()  # whoever stopped reads no more; results are awaited
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process says when to stop
    Thread(target=_end_with_parent, daemon=True).start()
    set_threads(order.threads, order.device)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    _exit(1)


def _play_here(place: int, checkpoint: Checkpoint) -> None:
    order, queue, stop = here()
    play_for(order, place, checkpoint, queue.put, stop.is_set)
