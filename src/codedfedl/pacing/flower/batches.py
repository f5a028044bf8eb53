"""A client's side: a loader whose batches end when the window of its question closes.

Nothing of Flower or of a framework is imported: a loader is any iterable.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from math import inf
from typing import Any, Generic, TypeVar

from codedfedl.errors import InputError

__all__ = ["RECORD", "TimedBatches", "timed"]

RECORD = "paced"
"""The `ConfigRecord` that a paced question has beside those of the app, and the prefix of metrics.

Its keys: `window`, seconds in which to compute; `examples`, how many are expected to fit into them.
Either is missing where a client should do all of its work.
"""

Batch = TypeVar("Batch")


class TimedBatches(Generic[Batch]):
    """The batches of a loader until the window closes, from when it is made.

    Several loops over it are several passes, within one window. At least one batch is yielded.
    With `batch_seconds` the clock is virtual: it passes by so much with every batch.
    """

    def __init__(
        self,
        loader: Iterable[Batch],
        window: float,
        *,
        repeat: bool = False,
        batch_seconds: float | None = None,
        link_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loader, self.window, self._repeat, self._clock = loader, window, repeat, clock
        self._batches = self._examples = self._passes = 0
        self._virtual = {} if batch_seconds is None else {f"{RECORD}-link": link_seconds}
        if batch_seconds is not None:
            self._clock = lambda: self._batches * batch_seconds
        self._began = self._last = self._clock()
        self._whole = True  # no pass was cut short

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self._passes += 1
            for batch in self._loader:
                if self._is_over():
                    self._whole = False
                    return
                yield batch
                self._batches, self._examples = self._batches + 1, self._examples + _size(batch)
                self._last = self._clock()
            if not self._repeat or self.window == inf or not self._batches:
                return

    def _is_over(self) -> bool:
        """Whether another batch, as long as the others were, would end after the window."""
        spent = self._clock() - self._began
        return self._batches > 0 and spent + spent / self._batches > self.window

    @property
    def metrics(self) -> dict[str, float]:
        """What the pacer wants to know; the server takes it out of the reply's metrics again."""
        share = float(self._batches > 0)
        if not self._whole or self._repeat:
            size = len(self._loader) if isinstance(self._loader, Sized) else 0
            passes = 1 if self._repeat else self._passes
            share = self._batches / (size * passes) if size else 0.0
        return {
            f"{RECORD}-seconds": self._last - self._began,
            f"{RECORD}-examples": float(self._examples),
            f"{RECORD}-share": share,
            **self._virtual,
        }


def timed(
    msg: Any,
    loader: Iterable[Batch],
    *,
    repeat: bool = False,
    batch_seconds: float | None = None,
    link_seconds: float = 0.0,
) -> TimedBatches[Batch]:
    """Return the batches of a loader that fit into the window of a message's question.

    Parameters
    ----------
    msg
        The message that the client app got. Without a window in it, one pass is done.
    repeat
        Go on with further passes until the window closes.
    batch_seconds, link_seconds
        For simulations, with `paced(…, virtual=True)` at the server: the seconds that a batch takes
        on this device, and those of the way there and back. No clock of this machine is read.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> batches = timed(SimpleNamespace(content={}), [[1, 2], [3]])
    >>> [sum(batch) for batch in batches], batches.metrics["paced-examples"]
    ([3, 3], 3.0)
    """
    record = msg.content.get(RECORD, {})
    window = record.get("window", inf) if isinstance(record, Mapping) else inf
    for name, value in (("batch_seconds", batch_seconds), ("link_seconds", link_seconds)):
        if value is not None and not 0 <= value < inf:
            raise InputError(f"{name} is {value}: must be a number of seconds from 0")
    return TimedBatches(
        loader,
        float(window),
        repeat=repeat,
        batch_seconds=batch_seconds,
        link_seconds=link_seconds,
    )


def _size(batch: Any) -> int:
    """Return the examples in a batch: its length, or that of the first of its parts."""
    if isinstance(batch, Mapping):
        batch = next(iter(batch.values()), ())
    elif isinstance(batch, tuple | list) and batch and hasattr(batch[0], "shape"):
        batch = batch[0]
    return len(batch) if hasattr(batch, "__len__") else 1
