"""Work on several processes, of this machine or of a Dask cluster.

Workers are sent what all items share, and then items by their numbers. What they report, and what
they want kept, comes back over one queue, in order.
"""

import pickle
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context, parent_process
from multiprocessing.managers import SyncManager
from os import _exit
from threading import Thread
from typing import Any
from uuid import uuid4

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from codedfedl import __version__
from codedfedl.arrays import to_device
from codedfedl.errors import InputError
from codedfedl.runs.directory import Checkpoint
from codedfedl.simulation.progress import Progress, on_host

SECONDS_BETWEEN_MESSAGES = 0.5  # Of a worker, but for what is to be kept.
SECONDS_BETWEEN_LOOKS = 0.05  # For messages that have come.
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
    """How an item in a worker reports: now and then, but what is to be kept at once.

    Parameters
    ----------
    queue
        Takes pickled messages.
    stop
        Set where the first process was interrupted, and nobody waits any more.
    """

    def __init__(self, item: int, queue: Any, stop: Any) -> None:
        self.item, self.queue, self.stop = item, queue, stop
        self._reports: list[tuple[str, Progress | None]] = []
        self._sent = 0.0

    def report(self, what: str, progress: Progress | None) -> None:
        """Remember it, and send it with the next message."""
        self._reports.append((what, None if progress is None else on_host(progress)))
        if progress is None or time.monotonic() - self._sent > SECONDS_BETWEEN_MESSAGES:
            self.keep({})

    def keep(self, arrays: Checkpoint, *, last: bool = False) -> None:
        """Send it, or end."""
        if self.stop.is_set():
            raise KeyboardInterrupt
        self.queue.put(pickle.dumps(Message(self.item, tuple(self._reports), arrays, last)))
        self._reports, self._sent = [], time.monotonic()


@dataclass(frozen=True, eq=False)
class Order:
    """What every worker needs.

    Attributes
    ----------
    task
        What workers do with an item and its part of a checkpoint; sent to each of them once.
    threads
        Of the linear algebra; None changes nothing.
    """

    task: Callable[[int, Checkpoint, Worker], None]
    device: str
    threads: int | None


def _work(order: Order, item: int, checkpoint: Checkpoint, queue: Any, stop: Any) -> None:
    """Work on an item, as long as somebody waits for it."""
    _load(order.device)
    if order.threads is not None:  # for good: items in other threads have as many
        threadpool_limits(order.threads)
    worker = Worker(item, queue, stop)
    try:
        order.task(item, checkpoint, worker)
        worker.keep({}, last=True)
    except KeyboardInterrupt:
        if not stop.is_set():
            raise


@dataclass(frozen=True, eq=False)
class Pool:
    """Processes that work on items.

    Attributes
    ----------
    submit
        Has `_work` done with these arguments, without the order; returns a future.
    """

    submit: Callable[..., Any]
    queue: Any
    stop: Any

    def results(self, items: Mapping[int, Checkpoint]) -> Iterator[Message]:
        """Have items worked on, and yield every message until all are finished."""
        futures = {
            item: self.submit(item, checkpoint, self.queue, self.stop)
            for item, checkpoint in items.items()
        }
        while futures:
            for future in futures.values():
                if future.done():
                    future.result()  # raises what it has failed with
            if not self.queue.qsize():  # Dask's scheduler logs a wait that times out as an error
                time.sleep(SECONDS_BETWEEN_LOOKS)
                continue
            message: Message = pickle.loads(self.queue.get())
            if message.last:
                del futures[message.item]
            yield message


@contextmanager
def on_processes(order: Order, jobs: int, remedy: str) -> Iterator[Pool]:
    """Start so many processes; they end when this does, or when this process dies."""
    context = get_context("spawn")  # a fork would copy the locks of the threads of this process
    manager = SyncManager(ctx=context)
    manager.start(_end_with_parent)
    queue, stop = manager.Queue(), manager.Event()
    executor = ProcessPoolExecutor(jobs, context, _begin, (order,))
    try:
        yield Pool(lambda *item: executor.submit(_work_here, *item), queue, stop)
    except BrokenProcessPool:
        raise InputError(
            f"one of {jobs} processes was ended from outside, perhaps for want of memory: {remedy}"
        ) from None
    finally:
        stop.set()
        executor.shutdown(cancel_futures=True)
        manager.shutdown()


_order: Order | None = None  # of a worker process: sent once, and not with every item


def _begin(order: Order) -> None:
    """Prepare a worker process."""
    global _order  # noqa: PLW0603
    _order = order
    _end_with_parent()


def _work_here(item: int, checkpoint: Checkpoint, queue: Any, stop: Any) -> None:
    assert _order is not None
    _work(_order, item, checkpoint, queue, stop)


def _end_with_parent() -> None:
    """End this process when the first one dies, which alone is interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        _exit(1)

    Thread(target=wait, daemon=True).start()


def _work_on_dask(order: Order, name: str, item: int, checkpoint: Checkpoint) -> None:
    """Work on an item; a queue that is sent hangs a scheduler in the process of a client."""
    from distributed import Event, Queue

    _work(order, item, checkpoint, Queue(name), Event(name))


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
            submit = partial(client.submit, _work_on_dask, scattered, name, pure=False)
            yield Pool(lambda item, checkpoint, *_: submit(item, checkpoint), queue, stop)
        finally:
            stop.set()
            queue.close()


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


@contextmanager
def limited(threads: int | None, device: str) -> Iterator[None]:
    """Give the linear algebra so many threads for a while; None changes nothing.

    Another number of threads gives other last digits.
    """
    _load(device)
    with threadpool_limits(threads):
        yield


def _load(device: str) -> None:
    """Load the library of a device: one that is loaded later would not be limited."""
    import scipy.linalg  # noqa: F401

    to_device(np.zeros(1), device)
