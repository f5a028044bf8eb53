"""Work on several processes, of this machine or of a Dask cluster.

Every worker receives what all items share once, and is then given items by their numbers. What it
reports, and what it wants kept, comes back over one queue, in order.
"""

import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing import get_context, parent_process
from os import _exit
from queue import Empty
from threading import Thread
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from codedfedl import __version__
from codedfedl.arrays import to_device
from codedfedl.errors import InputError
from codedfedl.runs.directory import Checkpoint
from codedfedl.simulation.progress import Progress, on_host

__all__ = [
    "Message",
    "Order",
    "Pool",
    "Worker",
    "limited",
    "on_dask",
    "on_processes",
    "results",
    "set_threads",
    "usable_threads",
]

SECONDS_BETWEEN_MESSAGES = 0.5
SECONDS_TO_WAIT = 0.2  # For a message, before it is asked whether a worker has failed.
SECONDS_TO_CONNECT = 10


@dataclass(frozen=True, eq=False)
class Message:
    """What a worker sends of an item.

    Attributes
    ----------
    reports
        What is being done, and the rounds since the last message.
    arrays
        To be kept.
    last
        Whether the item is finished.
    """

    item: int
    reports: Sequence[tuple[str, Progress | None]]
    arrays: Checkpoint
    last: bool = False


class Worker:
    """How an item in a worker reports: now and then, but what is to be kept at once."""

    def __init__(
        self, item: int, send: Callable[[bytes], object], stopped: Callable[[], bool]
    ) -> None:
        self.item, self.send, self.stopped = item, send, stopped
        self._reports: list[tuple[str, Progress | None]] = []
        self._sent = 0.0

    def report(self, what: str, progress: Progress | None) -> None:
        """Remember it, and send it with the next message."""
        self._reports.append((what, None if progress is None else on_host(progress)))
        if progress is None or time.monotonic() - self._sent > SECONDS_BETWEEN_MESSAGES:
            self.keep({})

    def keep(self, arrays: Checkpoint, *, last: bool = False) -> None:
        """Send it; end where the first process was interrupted, and nobody waits any more."""
        if self.stopped():
            raise KeyboardInterrupt
        self.send(pickle.dumps(Message(self.item, tuple(self._reports), arrays, last)))
        self._reports, self._sent = [], time.monotonic()


Task = Callable[[Any, int, Checkpoint, Worker], None]
"""What workers do: with what all items share, an item, its part of a checkpoint, and reports."""


@dataclass(frozen=True, eq=False)
class Order:
    """What every worker needs.

    Attributes
    ----------
    shared
        By all items.
    threads
        Of the linear algebra; None changes nothing.
    """

    task: Task
    shared: Any
    device: str
    threads: int | None


class Pool(Protocol):
    """Processes that work on items."""

    def submit(self, item: int, checkpoint: Checkpoint) -> Any:
        """Have an item worked on; return a future."""

    def receive(self) -> Message | None:
        """Return the next message; None where none comes before long."""


def results(pool: Pool, items: Mapping[int, Checkpoint]) -> Iterator[Message]:
    """Have items worked on, and yield every message until all are finished."""
    futures = {item: pool.submit(item, checkpoint) for item, checkpoint in items.items()}
    while futures:
        for future in futures.values():
            if future.done():
                future.result()  # raises what it has failed with
        message = pool.receive()
        if message is not None:
            if message.last:
                futures.pop(message.item, None)
            yield message


def _work(
    order: Order,
    item: int,
    checkpoint: Checkpoint,
    send: Callable[[bytes], object],
    stopped: Callable[[], bool],
) -> None:
    """Work on an item in a worker, as long as somebody waits for it."""
    worker = Worker(item, send, stopped)
    try:
        order.task(order.shared, item, checkpoint, worker)
        worker.keep({}, last=True)
    except KeyboardInterrupt:
        if not stopped():
            raise


class _Processes:
    """Processes of this machine."""

    def __init__(self, executor: ProcessPoolExecutor, queue: Any) -> None:
        self.executor, self.queue = executor, queue

    def submit(self, item: int, checkpoint: Checkpoint) -> Any:
        return self.executor.submit(_work_here, item, checkpoint)

    def receive(self) -> Message | None:
        try:
            message: Message = pickle.loads(self.queue.get(timeout=SECONDS_TO_WAIT))
        except Empty:
            return None
        return message


@contextmanager
def on_processes(order: Order, jobs: int, remedy: str) -> Iterator[Pool]:
    """Start so many processes; they end when this does, or when this process dies."""
    context = get_context("spawn")  # a fork would copy the locks of the threads of this process
    queue, stop = context.Queue(), context.Event()
    executor = ProcessPoolExecutor(jobs, context, _begin, (order, queue, stop))
    try:
        yield _Processes(executor, queue)
    except BrokenProcessPool:
        raise InputError(
            f"one of {jobs} processes was ended from outside, perhaps for want of memory: {remedy}"
        ) from None
    finally:
        stop.set()
        executor.shutdown(cancel_futures=True)


_here: tuple[Order, Any, Any] | None = None  # of a worker process: its order, the queue, the stop


def _begin(order: Order, queue: Any, stop: Any) -> None:
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


def _work_here(item: int, checkpoint: Checkpoint) -> None:
    assert _here is not None
    order, queue, stop = _here
    _work(order, item, checkpoint, queue.put, stop.is_set)


class _Cluster:
    """The workers of a Dask cluster."""

    def __init__(self, client: Any, order: Any, queue: Any, name: str) -> None:
        self.client, self.order, self.queue, self.name = client, order, queue, name
        self._received: deque[bytes] = deque()

    def submit(self, item: int, checkpoint: Checkpoint) -> Any:
        return self.client.submit(_work_there, self.order, item, checkpoint, self.name, pure=False)

    def receive(self) -> Message | None:
        if not self._received:  # a wait with a timeout would be an error in the scheduler's log
            self._received += self.queue.get(batch=True)
        if not self._received:
            time.sleep(SECONDS_TO_WAIT)
            return None
        message: Message = pickle.loads(self._received.popleft())
        return message


@contextmanager
def on_dask(order: Order, address: str) -> Iterator[Pool]:
    """Connect to a Dask scheduler, and send its workers all they need, once."""
    try:
        from distributed import Client, Event, Queue
    except ImportError:
        raise InputError("--dask needs the package distributed: install codedfedl[dask]") from None
    try:
        client = Client(address, timeout=SECONDS_TO_CONNECT)
    except (OSError, ValueError) as error:
        raise InputError(
            f"--dask {address}: no scheduler answers there ({error}): start one with `dask "
            "scheduler`, and workers with `dask worker ADDRESS --nthreads 1`"
        ) from None
    with client:
        _check_packages(client)
        name = f"codedfedl-{uuid4().hex}"
        queue, stop = Queue(name, client=client), Event(name, client=client)
        try:
            scattered = client.scatter(order, broadcast=True, hash=False)
            yield _Cluster(client, scattered, queue, name)
        finally:
            stop.set()
            queue.close()


def _work_there(order: Order, item: int, checkpoint: Checkpoint, name: str) -> None:
    """Work on an item in a worker of the cluster."""
    from distributed import Event, Queue

    set_threads(order.threads, order.device)  # for good: items in other threads have as many
    queue, stop = Queue(name), Event(name)
    _work(order, item, checkpoint, queue.put, stop.is_set)


def _packages() -> dict[str, str]:
    """Return the versions that the bits of a result depend on."""
    return {"codedfedl": __version__} | {name: version(name) for name in ("numpy", "scipy")}


def _check_packages(client: Any) -> None:
    """Refuse a cluster without workers, and workers that would compute something else."""
    try:
        workers: dict[str, dict[str, str]] = client.run(_packages)
    except ModuleNotFoundError as error:
        raise InputError(
            f"a worker of the cluster lacks the package {error.name}: install codedfedl there"
        ) from None
    if not workers:
        raise InputError("the cluster has no workers: start some with `dask worker ADDRESS`")
    for worker, packages in workers.items():
        for name, here in _packages().items():
            if packages[name] != here:
                raise InputError(
                    f"worker {worker} has {name} {packages[name]} and not {here} as here: install "
                    "the same version there"
                )


def usable_threads() -> int | None:
    """Return how many threads a product has in this process; None: its library does not say."""
    libraries = [info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"]
    return max(libraries, default=None)


def set_threads(threads: int | None, device: str) -> None:
    """Give the linear algebra of this process so many threads, from now on; None changes nothing.

    Another number of threads gives other last digits.
    """
    _load(device)
    if threads is not None:
        threadpool_limits(threads)


@contextmanager
def limited(threads: int | None, device: str) -> Iterator[None]:
    """Give the linear algebra so many threads for a while; None changes nothing."""
    _load(device)
    with threadpool_limits(threads):
        yield


def _load(device: str) -> None:
    """Load the library of a device: one that is loaded later would not be limited."""
    import scipy.linalg  # noqa: F401

    to_device(np.zeros(1), device)
