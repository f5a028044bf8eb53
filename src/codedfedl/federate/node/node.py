"""One client of a federation: what it is asked, and what it answers.

It does the work of `core.client` on its own data. The code's randomness is drawn from the operating
system when parity is made, is never written down, and cannot be asked for.
"""

import importlib
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from functools import cache as once
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codedfedl.core.work import Work
from codedfedl.data.shards import Shard
from codedfedl.errors import InputError
from codedfedl.federate.node.cache import RECORDS
from codedfedl.federate.node.desk import Desk
from codedfedl.federate.node.schema import (
    check_question,
    checked_job,
)
from codedfedl.federate.transport import Answered, Arrays
from codedfedl.io.files import locked
from codedfedl.io.names import nearest
from codedfedl.learning.codes import LEAST_MIXING
from codedfedl.learning.features import load_encoder

if TYPE_CHECKING:
    from codedfedl.federate.secure.vault import Vault

__all__ = ["NAME", "QUESTIONS", "Node"]

_log = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What a node may be called."""

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
            answer: Answered = getattr(Desk(job, self), kind)(**asked, **arrays)
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
