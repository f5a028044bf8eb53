"""One client of a federation: what it is asked, and what it answers.

It does the work of `core.client` on its own data. The code's randomness is drawn from the operating
system when parity is made, is never written down, and cannot be asked for.
"""

import hashlib
import importlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from functools import cache as once
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from codedfedl import __version__
from codedfedl.core.client import work_from
from codedfedl.core.clipped import PrivateSum
from codedfedl.core.masked import GradientDelta, Masked
from codedfedl.core.work import Work
from codedfedl.data.partitions import processing_order
from codedfedl.data.shards import Scaling, Shard
from codedfedl.errors import InputError
from codedfedl.federate.job import Job
from codedfedl.federate.node.cache import RECORDS, Cache, clear_old, scaled_targets
from codedfedl.federate.node.limits import DataLimits, Embedding, digest_of
from codedfedl.federate.node.schema import (
    Sizes,
    check_question,
    checked_job,
    checked_model,
    checked_work,
)
from codedfedl.federate.transport import Answered, Arrays
from codedfedl.io.files import locked
from codedfedl.io.names import nearest
from codedfedl.learning.codes import LEAST_MIXING
from codedfedl.learning.features import FeatureMap, fingerprint, load_encoder
from codedfedl.learning.learner import Learner
from codedfedl.learning.modules import MODULES, import_torch

if TYPE_CHECKING:
    from codedfedl.federate.secure.vault import Vault

__all__ = ["NAME", "QUESTIONS", "Node"]

_log = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What a node may be called."""

HOUSE_MAPS = ("fourier", "structured", "semilinear", "patches")
"""Feature maps in which every feature depends on many numbers of a point."""

QUESTIONS = ("hello", "moments", "pair", "probe", "work", "goodbye")
"""All that a server may ask of a node."""


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
    data
        Name of its data set: what was given of it is judged together, in all federations.
    least
        Minimum number of points behind an answer: in a gradient, or behind a parity row.
    accepted
        Digests of further jobs on its data that its owner accepts.
    works
        Modules whose own kinds of work it does, besides the package's.
    encoder
        Its own encoder, for federations that train on one: an ONNX file or ``module:function``.
    entropy
        Where the code's randomness comes from: the operating system, unless a test says otherwise.
    clock
        Returns seconds, which never go back: for what a computation takes, and for windows.
    vault
        If given, it answers only in secure sums, under masks.
    networks
        Whether it trains networks: a malicious server can read single points from their gradients.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], Shard],
        cache: Path,
        *,
        data: str = "data",
        least: int = LEAST_MIXING,
        accepted: Collection[str] = (),
        works: Collection[str] = (),
        encoder: str | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
        clock: Callable[[], float] = time.perf_counter,
        vault: "Vault | None" = None,
        networks: bool = False,
    ) -> None:
        self.name, self.load, self.cache, self.vault = name, once(load), cache, vault
        self.least, self.works, self.entropy, self.clock = least, works, entropy, clock
        self.data, self.accepted, self.encoder = data, accepted, encoder
        self.networks = networks

    def answer(self, kind: str, facts: Mapping[str, Any], arrays: Arrays) -> Answered:
        """Answer a question of the server, one of `QUESTIONS`."""
        if kind not in QUESTIONS:
            raise InputError(f"the question {kind!r} is unknown: {nearest(kind, QUESTIONS)}")
        self._read()
        job = checked_job(facts.get("job"), self.load().inputs.shape[1])
        asked = {name: value for name, value in facts.items() if name != "job"}
        check_question(kind, asked, arrays)
        # One question at a time, also where each has a process of its own.
        with locked(self.cache / RECORDS / "node.lock", private=True):
            answer: Answered = getattr(_Desk(job, self), kind)(**asked, **arrays)
        return answer

    def _read(self) -> None:
        """Read the data; what an error says of them stays in this node's log."""
        try:
            self.load()
        except InputError as error:
            _log.error("%s cannot read its data: %s", self.name, error)
            raise InputError(
                f"{self.name} cannot read its data: its log, which the server does not see, says "
                "why"
            ) from None

    def ready(self) -> None:
        """Read the data, and try the encoder where there is one: what is wrong shows here."""
        self.refuse_few()
        shard = self.load()
        if self.encoder is not None:
            load_encoder(self.encoder, text=shard.is_text).size(shard.inputs.shape[1])

    def refuse_few(self) -> None:
        """Refuse to take part with fewer points than every answer must cover."""
        if (points := len(self.load().inputs)) < self.least:
            raise InputError(
                f"{self.name} holds {points} points, and answers for {self.least} "
                "together at least: add points, or lower --least"
            )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of its data, which are read once for it."""
        return self.load().fingerprint

    def allowed(self, kind: str) -> type[Work] | None:
        """Return a kind of work that is not the package's, ``module:Class``, if it may be done."""
        module, _, name = kind.partition(":")
        if not name or module not in self.works:
            return None
        work = getattr(importlib.import_module(module), name, None)
        is_own = isinstance(work, type) and issubclass(work, Work) and work.__module__ == module
        return work if is_own else None


class _Desk:
    """What a node does for one federation: a method for every kind of question."""

    def __init__(self, job: Job, node: Node) -> None:
        self.job, self.node = job, node
        most = max(job.points, node.least) if job.points else 0
        self.cache = Cache(node.cache / job.key, node.name, node.load, node.clock, most)

    @cached_property
    def features(self) -> FeatureMap:
        """The feature map of this federation, with this node's own encoder where it is one."""
        return self.job.features(self.node.encoder)

    @cached_property
    def learner(self) -> Learner:
        """What is trained; a network only if this node's owner allows it, and its module."""
        node, name = self.node, self.job.model.get("module", "")
        if name and not node.networks:
            raise InputError(
                f"{node.name} trains no networks, of whose gradients a malicious server can read "
                "single points: start it with --networks, or train a linear model"
            )
        if name and name not in MODULES and name.partition(":")[0] not in node.works:
            raise InputError(
                f"the module {name[:64]!r} is not one of {node.name}'s: start it with --works and "
                f"the module's name, or choose one of {', '.join(MODULES)}"
            )
        return self.job.learner(self.features.size(node.load().inputs.shape[1]))

    @cached_property
    def limits(self) -> DataLimits:
        """What may leave of this node's data, for this job, which is pinned to them."""
        node = self.node
        return DataLimits(
            self.cache.records, node.data, node.fingerprint, node.least, node.accepted
        )

    @cached_property
    def sizes(self) -> Sizes:
        """The sizes that numbers of an ask are checked against."""
        shard, job = self.node.load(), self.job
        held, inputs = shard.inputs.shape
        points = min(held, self.cache.most or held)
        fewest = shard.columns if shard.is_classification else 1
        if job.columns < fewest or (not shard.is_classification and job.columns != shard.columns):
            raise InputError(
                f"job.columns is {job.columns}, and {self.node.name} has labels for "
                f"{shard.columns}: begin again with all nodes"
            )
        if points < job.batches:
            raise InputError(
                f"{self.node.name} has {points} points for {job.batches} mini-batches: "
                "ask for fewer mini-batches"
            )
        features = self.features.size(inputs)
        shape = self.learner.shape if job.model else ()
        return Sizes(points, inputs, job.batches, features, job.columns, shape)

    def hello(self) -> Answered:
        """Say who this is and what it holds, with a fingerprint of its feature map."""
        clear_old(self.node.cache)
        self.node.refuse_few()
        if self.job.model:
            import_torch()
        shard = self.node.load()
        width, features = shard.inputs.shape[1], self.features
        if shard.is_text != self.job.encoder.get("text", False):
            has, wanted = ("texts", "numbers") if shard.is_text else ("numbers", "texts")
            raise InputError(
                f"{self.node.name} has {has}, and the federation trains on {wanted}: "
                f"{'leave --text out' if shard.is_text else 'name the column of texts, --text'}"
            )
        return {
            "name": self.node.name,
            "points": len(shard.inputs),
            "inputs": width,
            "columns": shard.columns,
            "classes": shard.is_classification,
            "fingerprint": fingerprint(features, width).ravel().tolist(),
            "encoder": getattr(features, "digest", ""),
            "version": __version__,
        }, {}

    def moments(self) -> Answered:
        """Return rounded means and spreads of every column, for a scale that all agree on."""
        self.node.refuse_few()
        if self.node.vault is not None:
            raise InputError(
                f"the moments of {self.node.name} would be its own, and it answers in sums alone: "
                "leave federation.scale out, and scale by public constants"
            )
        return {}, self.limits.moments(self.job, self.node.load())

    def pair(self) -> Answered:
        """Return the helper key that this node has pinned, and its own public key."""
        if self.node.vault is None:
            raise InputError(
                f"{self.node.name} has no helper: start it with --helper and the helper's key"
            )
        return {**self.node.vault.keys()}, {}

    def probe(self, load: int, model: npt.NDArray[np.float32]) -> Answered:
        """Measure a gradient over some points, and how long all took; embeds no more than these."""
        checked_model(model, self.sizes)
        began = self.node.clock()
        data = self._embedded(load)
        start = self.node.clock()
        self.learner.gradient(model, data.features[:load], data.targets[:load])
        now = self.node.clock()
        nothing = np.zeros_like(model)  # as large as a gradient
        return {"seconds": now - start, "busy": now - began}, {"gradient": nothing}

    def work(
        self,
        work: Mapping[str, Any],
        round: int,
        load: int,
        answered: int,
        seconds: float | None,
        model: npt.NDArray[np.float32] | None = None,
        sum: Mapping[str, Any] | None = None,
    ) -> Answered:
        """Do what is asked, on as many points as the work says.

        Parameters
        ----------
        load
            Points that are asked for.
        answered
            Points of this node's last answer.
        seconds
            How long it may embed more points first; until all are embedded, if None.
        sum
            Contract, number and attempt of the secure sum that this is a part of.
        """
        checked_work(work, self.sizes, self.node.works)
        asked, vault = work_from(work, self.node.allowed), self.node.vault
        if model is not None or asked.needs_model:
            checked_model(model, self.sizes)
        if isinstance(asked, GradientDelta) and vault is not None:
            asked = vault.filled(self.job.key, asked)

        def make(charge: Callable[[], None]) -> Answered:
            began = self.node.clock()
            seconds_left = np.inf if seconds is None else seconds
            data = self._embedded(None, seconds_left) if asked.embeds else self._labels()
            numbers = (np.asarray(n) for n in (load, data.embedded, answered, len(data.targets)))
            points, arrays = int(asked.load(*numbers)), {}
            if points > 0:
                charge()
                # The vault draws a node's share of the noise, as it does its mask.
                done = replace(asked, noise=0.0) if isinstance(asked, PrivateSum) else asked
                clock = self.node.clock
                answer = self.limits.answer(done, points, data, model, self._stream, clock)
                points = answer.points
                arrays = {name: _as_sent(array) for name, array in answer.arrays.items()}
            seconds_taken = self.node.clock() - began
            return {"round": round, "points": points, "seconds": seconds_taken}, arrays

        def make_once(charge: Callable[[], None]) -> Answered:
            digest = hashlib.sha256(json.dumps([asdict(self.job), work]).encode()).hexdigest()
            return self.cache.once(digest, lambda: make(charge))

        wanted = make_once if asked.once else make
        if vault is not None:
            from codedfedl.federate.secure.vault import SumQuestion

            question = SumQuestion(self.job.key, asked, load, model, sum)
            data = (self.node.data, self.node.fingerprint)
            return vault.answer(question, data, self.sizes, wanted)
        if isinstance(asked, PrivateSum | Masked):
            raise InputError(
                f"{asked.kind} is for sums under masks: start {self.node.name} with --helper and "
                "the helper's key"
            )
        return wanted(lambda: None)

    def goodbye(self) -> Answered:
        """Clear the cache: the federation is over."""
        self.cache.clear()
        if self.node.vault is not None:
            self.node.vault.close(self.job.key)
        return {}, {}

    def _embedded(self, points: int | None, seconds: float = np.inf) -> Embedding:
        job, sizes = self.job, self.sizes
        order = self.limits.pin(job)
        self.cache.bind(digest_of(job, self.node.fingerprint))
        features, targets, embedded = self.cache.embed(
            self.features,
            sizes.columns,
            order,
            points=points,
            seconds=seconds,
            scaling=Scaling(**job.scaling),
            finite=self.node.vault is None,
        )
        is_raw = job.kind not in HOUSE_MAPS
        return Embedding(features, targets, embedded, sizes.batches, is_raw, self.learner)

    def _labels(self) -> Embedding:
        """Return all points with features of 0, for work that needs none."""
        shard, sizes = self.node.load(), self.sizes
        order, scaling = self.limits.pin(self.job), Scaling(**self.job.scaling)
        rows = processing_order(len(shard.inputs), order)[: sizes.points]
        targets = scaled_targets(shard, rows, sizes.columns, scaling)
        nothing = np.zeros((sizes.points, 1), dtype=np.float32)
        return Embedding(nothing, targets, sizes.points, sizes.batches, is_raw=False)

    def _stream(self, *_: int) -> np.random.Generator:
        return np.random.default_rng(int.from_bytes(self.node.entropy(32)))


def _as_sent(array: Any) -> npt.NDArray[Any]:
    """Return an array as it travels: halves and integers as they are, all else as float32."""
    values = np.asarray(array)
    if values.dtype in (np.float16, np.uint32):
        return values
    return values.astype(np.float32, copy=False)
