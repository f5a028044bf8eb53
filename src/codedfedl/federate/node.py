"""One client of a federation: its data, what it keeps on its own disk, and what it answers.

The engine starts a new process for every message. So features, targets and parity lie in a cache
folder, memory-mapped, and are made once. The code's randomness is drawn from the operating system
when the parity is made, is never written down, and cannot be asked for.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache as once
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl import __version__
from codedfedl.data.partitions import mini_batches, processing_order
from codedfedl.data.shards import Shard
from codedfedl.errors import InputError
from codedfedl.io.files import make_folder, replacing
from codedfedl.io.names import nearest
from codedfedl.learning.codes import LEAST_MIXING, Code
from codedfedl.learning.features import FeatureMap, feature_map, fingerprint
from codedfedl.learning.gradients import gradient
from codedfedl.learning.parity import encode, point_weights

__all__ = ["NAME", "QUESTIONS", "Answer", "Arrays", "Job", "Node"]

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What a node may be called."""

QUESTIONS = (
    "hello",
    "probe",
    "prepare",
    "parity",
    "block_parity",
    "gradient",
    "embedded_gradient",
    "goodbye",
)
"""All that a server may ask of a node."""

Arrays = dict[str, npt.NDArray[Any]]
Answer = tuple[dict[str, Any], Arrays]

_ROWS_AT_ONCE = 4096  # points embedded between two looks at the clock
_GROWTH = 1.5  # answers for the same points can be compared: take in new ones in large steps


@dataclass(frozen=True)
class Job:
    """What all nodes of a federation must agree on.

    Attributes
    ----------
    key
        The federation's own name, which names the cache folder.
    columns
        Label columns (c), once all nodes have said what they hold; 0 until then.
    """

    key: str
    kind: str
    n_components: int
    sigma: float
    seed: int
    batches: int
    columns: int = 0

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{32}", self.key):  # it becomes part of a path
            raise InputError(f"the federation's key is {self.key!r}: must be 32 hexadecimal digits")

    @cached_property
    def features(self) -> FeatureMap:
        """The feature map."""
        return feature_map(self.kind, self.n_components, self.sigma, self.seed)


class Node:
    """A client's side of a federation.

    Parameters
    ----------
    name
        What the server calls it.
    load
        Returns the client's data; only called where the cache does not hold what is needed.
    cache
        A folder of its own.
    least
        It answers for no fewer points together, in a gradient or behind a parity row.
    entropy
        Where the code's randomness comes from: the operating system, unless a test says otherwise.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], Shard],
        cache: Path,
        *,
        least: int = LEAST_MIXING,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.name, self.load, self.cache = name, once(load), cache
        self.least, self.entropy = least, entropy

    def answer(self, kind: str, facts: Mapping[str, Any], arrays: Arrays) -> Answer:
        """Answer a question of the server, one of `QUESTIONS`."""
        if kind not in QUESTIONS:
            raise InputError(f"the question {kind!r} is unknown: {nearest(kind, QUESTIONS)}")
        desk = _Desk(Job(**facts["job"]), self)
        asked = {name: value for name, value in facts.items() if name != "job"}
        answer: Answer = getattr(desk, kind)(**asked, **arrays)
        return answer


class _Desk:
    """What a node does for one federation: a method for every kind of question."""

    def __init__(self, job: Job, node: Node) -> None:
        self.job, self.name, self.shard = job, node.name, node.load
        self.least, self.entropy = node.least, node.entropy
        self.folder = node.cache / job.key

    def hello(self) -> Answer:
        """Say who this is and what it holds, with a fingerprint of its feature map."""
        shard = self.shard()
        width = shard.inputs.shape[1]
        return {
            "name": self.name,
            "points": len(shard.inputs),
            "inputs": width,
            "columns": shard.columns,
            "classes": shard.is_classification,
            "fingerprint": fingerprint(self.job.features, width).ravel().tolist(),
            "version": __version__,
        }, {}

    def probe(self, load: int, model: npt.NDArray[np.float32]) -> Answer:
        """Measure a gradient over some points, and how long all took; embeds no more than these."""
        began = time.perf_counter()
        features, targets, _ = self._embed(load)
        start = time.perf_counter()
        gradient(features[:load], targets[:load], model)
        now = time.perf_counter()
        nothing = np.zeros_like(model)  # as large as a gradient
        return {"seconds": now - start, "busy": now - began}, {"gradient": nothing}

    def prepare(self) -> Answer:
        """Embed all points."""
        began = time.perf_counter()
        self._embed(None)
        return {"seconds": time.perf_counter() - began}, {}

    def parity(
        self,
        rows: list[int],
        loads: list[int],
        return_probabilities: list[float],
        code: Mapping[str, Any],
    ) -> Answer:
        """Embed all points, and mix each mini-batch into parity rows."""
        asked = {"rows": rows, "loads": loads, "probabilities": return_probabilities}

        def make() -> Answer:
            began = time.perf_counter()
            features, targets, _ = self._embed(None)
            arrays: Arrays = {}
            for b, part in enumerate(self._batches(len(targets))):
                each = Code(**code).points_per_row(len(part), rows[b])
                self._refuse_few("a parity row mixes", each, len(part))
                weights = point_weights(len(part), loads[b], return_probabilities[b])
                place = slice(int(part[0]), int(part[-1]) + 1)
                mixed = encode(
                    features[place], targets[place], weights, rows[b], self._rng(), Code(**code)
                )
                arrays |= {f"features{b}": mixed.features, f"targets{b}": mixed.targets}
            return {"seconds": time.perf_counter() - began}, arrays

        return self._once(asked | {"code": dict(code)}, make)

    def block_parity(
        self, code: Mapping[str, Any], mixing: int, points: int, seconds: float
    ) -> Answer:
        """Embed so many points, or what `seconds` allow, and mix what is embedded."""
        self._refuse_few("a parity row mixes", mixing, points)

        def make() -> Answer:
            began = time.perf_counter()
            features, targets, embedded = self._embed(points, seconds)
            used = min(points, embedded)
            rows = used // mixing
            if rows == 0:
                return {"seconds": time.perf_counter() - began, "points": 0}, {}
            weights = np.full(used, np.sqrt(len(targets) / used))
            chosen = features[:used], targets[:used]
            mixed = encode(*chosen, weights, rows, self._rng(), Code(**code))
            facts = {"seconds": time.perf_counter() - began, "points": used}
            return facts, {"features0": mixed.features, "targets0": mixed.targets}

        return self._once({"code": dict(code), "mixing": mixing}, make)

    def gradient(
        self,
        round: int,
        batch: int,
        load: int,
        model: npt.NDArray[np.float32],
    ) -> Answer:
        """Return the gradient over the first `load` points of a mini-batch."""
        began = time.perf_counter()
        features, targets, _ = self._embed(None)
        part = self._batches(len(targets))[batch]
        self._refuse_few("a gradient is over", load, len(part))
        rows = slice(int(part[0]), int(part[0]) + load)
        total = gradient(features[rows], targets[rows], model)
        facts = {"round": round, "points": load, "seconds": time.perf_counter() - began}
        return facts, {"gradient": np.asarray(total, dtype=np.float32)}

    def embedded_gradient(
        self,
        round: int,
        least: int,
        seconds: float,
        answered: int,
        model: npt.NDArray[np.float32],
    ) -> Answer:
        """Return the gradient over what is embedded, as heavy as all points.

        Some of the time goes into embedding more; new points are taken in when they are half as
        many again as those of the last answer, or all.
        """
        began = time.perf_counter()
        features, targets, embedded = self._embed(None, seconds)
        grown = embedded >= _GROWTH * answered or embedded == len(targets)
        points = embedded if grown else min(answered, embedded)  # fewer after a lost cache
        if points < min(max(least, self.least), len(targets)):
            return {"round": round, "points": 0, "seconds": time.perf_counter() - began}, {}
        total = gradient(features[:points], targets[:points], model) * (len(targets) / points)
        facts = {"round": round, "points": points, "seconds": time.perf_counter() - began}
        return facts, {"gradient": np.asarray(total, dtype=np.float32)}

    def goodbye(self) -> Answer:
        """Clear the cache: the federation is over."""
        if self.folder.is_dir():
            for file in self.folder.iterdir():
                file.unlink()
            self.folder.rmdir()
        return {}, {}

    def _refuse_few(self, what: str, points: int, most: int) -> None:
        """Refuse what would show single points; a client with few has no choice."""
        if points < min(self.least, most):
            raise InputError(
                f"{what} {points} points, and {self.name} answers for {self.least} together at "
                "least: ask for more, or lower least in its node configuration"
            )

    def _batches(self, points: int) -> list[npt.NDArray[np.int64]]:
        return [part[0] for part in mini_batches([np.arange(points)], self.job.batches)]

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(int.from_bytes(self.entropy(32)))

    def _embed(
        self, points: int | None, seconds: float = np.inf
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], int]:
        """Embed until so many points are in the cache, or the time is up.

        Returns
        -------
        features, targets, embedded
            Both memory-mapped, in the order of processing, and how many rows of them are filled.
        """
        until = time.perf_counter() + seconds
        paths = [self.folder / f"{name}.npy" for name in ("features", "targets")]
        counter = self.folder / "embedded"
        embedded = int(counter.read_text()) if counter.is_file() else 0
        if embedded == 0:
            self._allocate(paths)
        arrays = [np.load(path, mmap_mode="r+") for path in paths]
        features, targets = arrays
        wanted = len(targets) if points is None else min(points, len(targets))
        if embedded < wanted:
            shard, order = self.shard(), processing_order(len(targets), self.job.seed)
        while embedded < wanted and time.perf_counter() < until:
            rows = slice(embedded, min(embedded + _ROWS_AT_ONCE, wanted))
            features[rows] = self.job.features.transform(shard.inputs[order[rows]])
            targets[rows] = shard.targets(order[rows], self.job.columns)
            if not (np.isfinite(features[rows]).all() and np.isfinite(targets[rows]).all()):
                raise InputError(f"{self.name} has points that are not finite: leave them out")
            for array in arrays:
                array.flush()
            embedded = rows.stop
            with replacing(counter) as partial:  # after the rows are on the disk
                partial.write_text(str(embedded))
        return features, targets, embedded

    def _allocate(self, paths: list[Path]) -> None:
        shard = self.shard()
        points, width = shard.inputs.shape
        if points < self.job.batches:
            raise InputError(
                f"{self.name} has {points} points for {self.job.batches} mini-batches: "
                "ask for fewer mini-batches"
            )
        make_folder(self.folder)
        self.folder.chmod(0o700)
        sizes = (self.job.features.size(width), self.job.columns)
        for path, columns in zip(paths, sizes, strict=True):
            np.lib.format.open_memmap(path, "w+", np.float32, (points, columns)).flush()
            self._reserve(path)

    @staticmethod
    def _reserve(path: Path) -> None:
        """Take the disk space at once: a memory map on a full disk dies without a word."""
        with path.open("r+b") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
            except OSError as error:
                raise InputError(
                    f"the cache needs {path.stat().st_size:,} bytes for {path}: {error.strerror}"
                ) from None

    def _once(self, asked: Mapping[str, Any], make: Callable[[], Answer]) -> Answer:
        """Give parity once in a federation; asked again, give the same, and refuse any other.

        Whoever got several would learn more of the data with each. A new federation has a new key,
        and gets new parity.
        """
        path = self.folder / "parity.npz"
        digest = hashlib.sha256(json.dumps([asdict(self.job), asked]).encode()).hexdigest()
        if path.is_file():
            with np.load(path) as stored:
                facts = json.loads(str(stored["facts"]))
                if facts.pop("digest") != digest:
                    raise InputError("this node gave its parity already, for another plan")
                return facts, {name: stored[name] for name in stored.files if name != "facts"}
        facts, arrays = make()
        if not arrays:  # nothing is given yet
            return facts, arrays
        make_folder(self.folder)
        text = json.dumps(facts | {"digest": digest})
        with replacing(path) as partial, partial.open("wb") as file:
            np.savez(file, facts=np.array(text), **arrays)  # type: ignore[arg-type]
        return facts, arrays
