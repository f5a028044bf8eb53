"""What a node does for one federation: an answer to every kind of question."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from codedfedl import __version__
from codedfedl.core.client import work_from
from codedfedl.core.clipped import PrivateSum
from codedfedl.core.masked import GradientDelta, Masked
from codedfedl.data.partitions import processing_order
from codedfedl.data.shards import Scaling, Shard
from codedfedl.errors import InputError
from codedfedl.federate.job import Job
from codedfedl.federate.node.cache import Cache, clear_old, scaled_targets
from codedfedl.federate.node.limits import DataLimits, Embedding, digest_of
from codedfedl.federate.node.schema import (
    Sizes,
    checked_model,
    checked_work,
)
from codedfedl.federate.transport import Answered
from codedfedl.learning.features import FeatureMap, fingerprint
from codedfedl.learning.learner import Learner
from codedfedl.learning.modules import MODULES, import_torch

if TYPE_CHECKING:
    from codedfedl.federate.node.node import Node

HOUSE_MAPS = ("fourier", "structured", "patches")
"""Feature maps in which every feature depends on many numbers of a point."""


class Desk:
    """What a node does for one federation: a method for every kind of question."""

    def __init__(self, job: Job, node: "Node") -> None:
        self.job, self.node = job, node
        most = max(job.points, node.least) if job.points else 0
        self.cache = Cache(node.cache / job.key, node.name, self.load, node.clock, most)

    def load(self) -> Shard:
        """Return the node's points, labels in this federation's classes."""
        shard = self.node.load()
        return shard.in_classes(self.job.words) if self.job.columns else shard

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
        return self.job.learner(self.features.size(self.load().inputs.shape[1]))

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
        shard, job = self.load(), self.job
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
        shard, vault = self.load(), self.node.vault
        width, features = shard.inputs.shape[1], self.features
        if shard.is_text != self.job.encoder.get("text", False):
            has, wanted = ("texts", "numbers") if shard.is_text else ("numbers", "texts")
            raise InputError(
                f"{self.node.name} has {has}, and the federation trains on {wanted}: "
                f"{'leave --text out' if shard.is_text else 'name the column of texts, --text'}"
            )
        if vault is not None and shard.words:
            raise InputError(
                f"{self.node.name} has words for labels, and which of them stays its own under "
                "secure sums: number the classes, or name all in a preparation.json"
            )
        return {
            "name": self.node.name,
            "points": len(shard.inputs),
            "inputs": width,
            "columns": shard.columns,
            "classes": shard.is_classification,
            "table": list(shard.names),
            "words": list(shard.words),
            "fingerprint": fingerprint(features, width).ravel().tolist(),
            "encoder": getattr(features, "digest", ""),
            "version": __version__,
            "epsilon_left": None if vault is None else vault.left(self.node.data),
        }, {}

    def moments(self) -> Answered:
        """Return rounded means and spreads of every column, for a scale that all agree on."""
        self.node.refuse_few()
        if self.node.vault is not None:
            raise InputError(
                f"the moments of {self.node.name} would be its own, and it answers in sums alone: "
                "leave federation.scale out, and scale by public constants"
            )
        return {}, self.limits.moments(self.job, self.load())

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
        shard, sizes = self.load(), self.sizes
        order, scaling = self.limits.pin(self.job), Scaling(**self.job.scaling)
        rows = processing_order(len(shard.inputs), order)[: sizes.points]
        targets = scaled_targets(shard, rows, sizes.columns, scaling)
        nothing = np.zeros((sizes.points, 1), dtype=np.float32)
        return Embedding(nothing, targets, sizes.points, sizes.batches, is_raw=False)

    def _stream(self, *_: int) -> np.random.Generator:
        return np.random.default_rng(int.from_bytes(self.node.entropy(32)))


def _as_sent(array: Any) -> npt.NDArray[Any]:
    """Return an array as it travels: halves, integers and bytes as they are, else as float32."""
    values = np.asarray(array)
    if values.dtype in (np.float16, np.uint32, np.uint8):
        return values
    return values.astype(np.float32, copy=False)
