"""What a client keeps on its own disk: embedded points, and the answers that it gives only once.

An engine may start a new process for every message. So features and targets are computed once and
memory-mapped from a folder.
"""

import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.data.partitions import processing_order
from codedfedl.data.shards import UNSCALED, Scaling, Shard
from codedfedl.errors import InputError
from codedfedl.federate.node.schema import MAX_NUMBER
from codedfedl.federate.transport import Answered
from codedfedl.io.archives import read_arrays
from codedfedl.io.files import durable, make_folder, replacing
from codedfedl.learning.features import FeatureMap

__all__ = ["RECORDS", "Cache", "clear_old", "scaled_targets"]

_log = logging.getLogger(__name__)

_OLD = 30 * 86400.0  # seconds
RECORDS = "given"
"""The folder of what was given, in all federations."""

ROWS_AT_ONCE = 4096  # points embedded between two looks at the clock


class Cache:
    """The folder of one client in one federation.

    Parameters
    ----------
    load
        Returns the client's data; only called where the folder does not hold what is needed.
    clock
        Returns seconds.
    most
        Points that are used, the first in the order of processing; 0: all.

    Attributes
    ----------
    records
        A folder for what was given in all federations.
    record
        A folder for what was given in this one. It has no data, and stays when the
        federation is over: a goodbye allows no second answer.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        load: Callable[[], Shard],
        clock: Callable[[], float],
        most: int = 0,
    ) -> None:
        self.folder, self.name, self.load, self.clock = folder, name, load, clock
        self.most, self.records = most, folder.parent / RECORDS
        self.record = self.records / folder.name

    def embed(
        self,
        features: FeatureMap,
        columns: int,
        seed: int,
        *,
        points: int | None = None,
        seconds: float = np.inf,
        scaling: Scaling = UNSCALED,
        finite: bool = True,
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], int]:
        """Embed until this many points are done, or the time is up.

        Parameters
        ----------
        finite
            Whether points that are not finite, or too large, are refused: private sums leave
            them out, since a refusal would show that there are some.

        Returns
        -------
        features, targets, embedded
            Both memory-mapped, in the order of processing, and how many rows of them are filled.
        """
        until = self.clock() + seconds
        if self.folder.is_dir():
            os.utime(self.folder)  # it is in use
        paths = [self.folder / f"{name}.npy" for name in ("features", "targets")]
        counter = self.folder / "embedded"
        embedded = int(counter.read_text()) if counter.is_file() else 0
        if embedded == 0:
            self._allocate(paths, features, columns)
        arrays = [np.load(path, mmap_mode="r+") for path in paths]
        rows_of_features, targets = arrays
        wanted = len(targets) if points is None else min(points, len(targets))
        if embedded < wanted:
            shard = self.load()
            order = processing_order(len(shard.inputs), seed)
        while embedded < wanted and self.clock() < until:
            rows_at_once = getattr(features, "rows_at_once", ROWS_AT_ONCE)
            rows = slice(embedded, min(embedded + rows_at_once, wanted))
            with np.errstate(over="ignore"):  # beyond any float: cut off with all that are large
                inputs = _bounded(scaling.inputs(shard.inputs[order[rows]]), scaling.low)
            targets[rows] = scaled_targets(shard, order[rows], columns, scaling)
            rows_of_features[rows] = self._transformed(features, inputs)
            if finite and not all((np.abs(array[rows]) <= MAX_NUMBER).all() for array in arrays):
                raise InputError(
                    f"{self.name} has points with numbers that are not finite, or beyond "
                    f"{MAX_NUMBER:g}: remove or scale them"
                )
            for array in arrays:
                array.flush()
            embedded = rows.stop
            with replacing(counter) as partial:  # after the rows are on the disk
                partial.write_text(str(embedded))
        return rows_of_features, targets, embedded

    def _transformed(
        self, features: FeatureMap, inputs: npt.NDArray[Any]
    ) -> npt.NDArray[np.float32]:
        """Return features; what an error says of the points stays in this node's log."""
        try:
            return np.asarray(features.transform(inputs))
        except InputError as error:
            _log.error("%s cannot embed its points: %s", self.name, error)
            raise InputError(
                f"{self.name} cannot embed its points: its log, which the server does not see, "
                "says why"
            ) from None

    def bind(self, job: str) -> None:
        """Refuse a second job under the key of a federation: its points are embedded for the first.

        Parameters
        ----------
        job
            Its digest.
        """
        path = self.folder / "job"
        if not path.is_file():
            make_folder(self.folder, private=True)
            with replacing(path) as partial:
                partial.write_text(job)
        elif path.read_text() != job:
            raise InputError(
                f"federation {self.folder.name} has another job already: begin a new federation"
            )

    def once(self, digest: str, make: Callable[[], Answered]) -> Answered:
        """Answer once in a federation; asked again, repeat the answer, and refuse other questions.

        Every further answer would reveal more about the data. A new federation has a new
        folder, and gets a new answer.
        """
        path = self.folder / "parity.npz"
        if path.is_file():
            stored = read_arrays(path, remedy="begin a new federation")
            facts: dict[str, Any] = json.loads(str(stored.pop("facts")))
            if facts.pop("digest") != digest:
                raise InputError("this node has already sent its parity, for another plan")
            return facts, stored
        if (given := self.record / "parity").is_file():
            raise InputError(
                "this node has already sent its parity, and has deleted it: begin a new federation"
            )
        facts, arrays = make()
        if not arrays:  # nothing is given yet
            return facts, arrays
        make_folder(self.folder, private=True)
        self._keep(path, facts | {"digest": digest}, arrays)
        make_folder(given.parent, private=True)
        with durable(given) as file:
            file.write(digest.encode())
        return facts, arrays

    def clear(self) -> None:
        """Remove everything but the record: the federation is over."""
        _clear(self.folder)

    @staticmethod
    def _keep(path: Path, facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        with replacing(path) as partial, partial.open("wb") as file:
            np.savez(file, facts=np.array(json.dumps(facts)), **arrays)

    def _allocate(self, paths: list[Path], features: FeatureMap, columns: int) -> None:
        held, width = self.load().inputs.shape
        points = min(held, self.most or held)
        make_folder(self.folder, private=True)
        for path, size in zip(paths, (features.size(width), columns), strict=True):
            np.lib.format.open_memmap(path, "w+", np.float32, (points, size)).flush()
            _reserve(path)


def scaled_targets(
    shard: Shard, rows: npt.NDArray[np.int64], columns: int, scaling: Scaling
) -> npt.NDArray[np.float32]:
    """Return what the model is fitted to, in the scale of a job."""
    with np.errstate(over="ignore"):
        return _bounded(scaling.targets(shard.targets(rows, columns)), scaling.offset)


def _bounded(values: npt.NDArray[Any], scale: Sequence[float]) -> npt.NDArray[Any]:
    """Cut off what a server's scale makes too large: a refusal would tell about single points."""
    return np.clip(values, -MAX_NUMBER, MAX_NUMBER) if len(scale) else values


def clear_old(caches: Path) -> None:
    """Remove caches that were not used for long: the goodbye of their federation got lost."""
    if not caches.is_dir():
        return
    for folder in caches.iterdir():
        old = time.time() - folder.stat().st_mtime > _OLD
        if old and folder.is_dir() and re.fullmatch("[0-9a-f]{32}", folder.name):
            _clear(folder)


def _clear(folder: Path) -> None:
    if folder.is_dir():
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def _reserve(path: Path) -> None:
    """Reserve the disk space up front: a memory map on a full disk crashes without a message."""
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            raise InputError(
                f"the cache needs {path.stat().st_size:,} bytes for {path}: {error.strerror}"
            ) from None
