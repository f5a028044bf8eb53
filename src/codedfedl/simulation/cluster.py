"""Units on a Dask cluster: any machines that can be reached and have the same packages."""

import pickle
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any
from uuid import uuid4

from codedfedl import __version__
from codedfedl.errors import InputError
from codedfedl.runs.directory import Checkpoint
from codedfedl.simulation.threads import set_threads
from codedfedl.simulation.workers import Future, Message, Order, Workers, play_for

__all__ = ["on_cluster"]

_SECONDS_TO_CONNECT = 10


@contextmanager
def on_cluster(order: Order, address: str) -> Iterator[Workers]:
    """Connect to a Dask scheduler, and send its workers all they need, once."""
    try:
        from distributed import Client, Event, Queue
    except ImportError:
        raise InputError("--dask needs the package distributed: install codedfedl[dask]") from None
    try:
        client = Client(address, timeout=_SECONDS_TO_CONNECT)
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


class _Cluster:
    """The workers of a cluster."""

    def __init__(self, client: Any, order: Any, queue: Any, name: str) -> None:
        self.client, self.order, self.queue, self.name = client, order, queue, name
        self._received: deque[bytes] = deque()

    def submit(self, place: int, checkpoint: Checkpoint) -> Future:
        future: Future = self.client.submit(
            _play_there, self.order, place, checkpoint, self.name, pure=False
        )
        return future

    def receive(self, seconds: float) -> Message | None:
        if not self._received:  # a wait with a timeout would be an error in the scheduler's log
            self._received += self.queue.get(batch=True)
        if not self._received:
            time.sleep(seconds)
            return None
        message: Message = pickle.loads(self._received.popleft())
        return message


def _play_there(order: Order, place: int, checkpoint: Checkpoint, name: str) -> None:
    """Play a unit in a worker of the cluster."""
    from distributed import Event, Queue

    set_threads(order.threads, order.device)  # for good: units in other threads have as many
    queue, stop = Queue(name), Event(name)
    play_for(order, place, checkpoint, queue.put, stop.is_set)


def _packages() -> dict[str, str]:
    """Return the versions that the bits of a result depend on."""
    return {"codedfedl": __version__} | {name: version(name) for name in ("numpy", "scipy")}


def _check_packages(client: Any) -> None:
    """Refuse a cluster without workers, and workers that would compute something else."""
    try:
        found: dict[str, dict[str, str]] = client.run(_packages)
    except ModuleNotFoundError as error:
        raise InputError(
            f"a worker of the cluster lacks the package {error.name}: install codedfedl there"
        ) from None
    if not found:
        raise InputError("the cluster has no workers: start some with `dask worker ADDRESS`")
    for worker, packages in found.items():
        for name, here in _packages().items():
            if packages[name] != here:
                raise InputError(
                    f"worker {worker} has {name} {packages[name]} and not {here} as here: install "
                    "the same version there"
                )
