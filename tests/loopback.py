"""Federations in one process: the real server and the real nodes on an in-memory transport.

What an engine itself does is tested on the engine (`test_engine.py`); here go the many ways in
which clients can be late, wrong or gone. Time is virtual, so nothing sleeps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from codedfedl.core.record import Record
from codedfedl.data import load_dataset
from codedfedl.data.shards import read_shard
from codedfedl.federate.deploy.local import node_name, write_shards
from codedfedl.federate.memory import MemoryTransport, Respond
from codedfedl.federate.node.node import Node
from codedfedl.federate.secure.vault import Vault
from codedfedl.federate.server.session import federate
from codedfedl.federate.transport import Answered, Arrays
from codedfedl.random import stream
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import check
from codedfedl.runs.exchange import Exchange
from codedfedl.runs.journal import Journal

FIRST_NODE = 1000
SEED = 0
TICK = 1e-4  # seconds that a node's clock advances whenever it is read

Change = Callable[[int, str, Answered], Answered]
"""What a client's answer becomes: client, kind of question or work, answer."""


@dataclass
class Script:
    """How the nodes behave: seconds of delay (∞: never), and what their answers become."""

    delay: Callable[[int, str, dict[str, Any]], float] = lambda _c, _q, _f: 0.0
    change: Change = lambda _c, _q, answer: answer


class Loopback(MemoryTransport):
    """The nodes of a federation, and what they were asked."""

    def __init__(self, folder: Path, shards: list[Path], script: Script | None = None) -> None:
        self.folder, self.shards, self.script = folder, shards, script or Script()
        self.encoders: dict[int, str] = {}  # those of nodes that have one
        self.text: str | None = None
        self.preparation: Path | None = None
        self.crash_after: int | None = None  # asks
        nodes = {FIRST_NODE + j: self._respond(j) for j in range(len(shards))}
        super().__init__(nodes, self._delay)

    def ask(self, *arguments: Any, **named: Any) -> dict[int, int]:
        if self.crash_after is not None:
            if self.crash_after == 0:
                raise KeyboardInterrupt  # as good as a kill: nothing more happens
            self.crash_after -= 1
        return super().ask(*arguments, **named)

    def kinds(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        """Return who was asked for a kind of question or work, and how."""
        asked = [
            (node - FIRST_NODE, named(question, facts), facts)
            for node, question, facts in self.asked
        ]
        return [(client, facts) for client, found, facts in asked if found == kind]

    def node(self, client: int) -> Node:
        """Return a node as a process would make it anew, but with a seed for its code."""
        name, shard = node_name(client), self.shards[client]
        ticks = count()
        vault = self.vault(client)
        return Node(
            name,
            lambda: read_shard(shard, text=self.text, preparation=self.preparation),
            self.folder / "caches" / name,
            works=("tests.own_scheme", "examples.buffered"),
            encoder=self.encoders.get(client),
            entropy=stream(SEED, "code", client).bytes,
            clock=lambda: TICK * next(ticks),
            vault=vault,
            networks=True,
        )

    def vault(self, client: int) -> Vault | None:
        """Return what a node keeps for itself, where it answers in noisy sums."""
        return None

    def _delay(self, node: int, kind: str, facts: dict[str, Any]) -> float:
        return 0.05 + self.script.delay(node - FIRST_NODE, named(kind, facts), facts)

    def _respond(self, client: int) -> Respond:
        def respond(kind: str, facts: dict[str, Any], arrays: Arrays) -> Answered:
            answer = self.node(client).answer(kind, facts, arrays)
            return self.script.change(client, named(kind, facts), answer)

        return respond


def named(kind: str, facts: dict[str, Any]) -> str:
    """Return what a question is about: its kind, or that of the work."""
    return str(facts["work"]["kind"]) if kind == "work" else kind


def experiment_of(
    clients: int = 3, rounds: int = 3, scheme: dict[str, Any] | None = None, **more: Any
) -> Experiment:
    """Return a small federation on digits; `more` overrides keys of the [federation] table."""
    table = {"clients": clients, "rounds": rounds, "probes": 2, "test": "digits", "deadline": 0.8}
    return check(
        {
            "data": {"name": "digits", "batches": more.pop("batches", 1)},
            "features": {"kind": "fourier", "n_components": 64, "sigma": 2.0},
            "training": {"step": 2.0, "epochs": 10, "ridge": 9e-6},
            "schemes": [scheme or {"name": "coded", "redundancy": 0.2}],
            "federation": {**table, **more},
        },
        "a test",
    )


def transport_of(experiment: Experiment, folder: Path, script: Script | None = None) -> Loopback:
    """Deal the data, and return the nodes that hold them."""
    return Loopback(folder, write_shards(experiment, load_dataset("digits"), folder), script)


def far(array: Any) -> Any:
    """Return an array that no points can add up to."""
    return np.full_like(array, 3e38)


NEWTON = {"name": "coded-newton", "setup_deadline": 2.0, "mixing": 10}


def run(
    experiment: Experiment, tmp_path: Path, script: Script | None = None
) -> tuple[Loopback, list[Exchange], list[str]]:
    grid = transport_of(experiment, tmp_path / "nodes", script)
    said: list[str] = []
    federate(grid, experiment, RunDirectory(tmp_path / "run"), said.append)
    return grid, list(Journal(tmp_path / "run").exchanges()), said


def rounds_of(exchanges: list[Exchange]) -> list[Record]:
    return [exchange.record for exchange in exchanges if not exchange.record.is_setup]


def parity_of(exchanges: list[Exchange]) -> Exchange:
    """Return the exchange in which parity was asked for: label counts may come before it."""
    return [exchange for exchange in exchanges if exchange.record.is_setup][-1]


def model_of(tmp_path: Path) -> np.ndarray[Any, Any]:
    stored = RunDirectory(tmp_path / "run").checkpoint()
    assert stored is not None
    return stored["model"]
