"""Secure sums as Flower messages: the real nodes, helper and server on a grid without processes.

The engine itself is in `test_sums_engine.py`.
"""

from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from codedfedl.data import load_dataset
from codedfedl.federate.deploy.local import node_name, write_shards
from codedfedl.federate.flower.apps import node_from
from codedfedl.federate.flower.messaging import FlowerTransport
from codedfedl.federate.flower.wire import respond
from codedfedl.federate.node.config import NodeConfig
from codedfedl.federate.secure.helper import HelperNode
from codedfedl.federate.server.session import federate
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.journal import Journal
from codedfedl.simulation.replay import replay
from tests.small_grid import Direct, SmallGrid
from tests.summing import private, secure, share_spent

CLIENTS = 3


class NodesOnGrid(SmallGrid):
    """Nodes from their configuration, and a helper, which answer as a worker lets them."""

    def __init__(self, folder: Path, shards: list[Path], **config: Any) -> None:
        super().__init__()
        self.helper = HelperNode("helper", folder / "helper")
        self.nodes: list[Any] = [
            node_from(
                NodeConfig(
                    node_name(j),
                    data=shard,
                    cache=folder / "caches" / node_name(j),
                    helper=folder / "helper" / "masks.pub",
                    vault=folder / "vaults" / node_name(j),
                    **{"epsilon_cap": 8.0, **config},
                )
            )
            for j, shard in enumerate(shards)
        ]
        self.nodes.append(self.helper)

    def get_node_ids(self) -> list[int]:
        return list(range(1, len(self.nodes) + 1))

    def _push(self, message: Message) -> str:
        node = message.metadata.dst_node_id
        with self._lock:
            self.asked.append(node)
            identity = str(len(self.asked))
        message.metadata.__dict__["_message_id"] = identity
        self._replies[identity] = respond(message, lambda: self.nodes[node - 1])
        return identity


def test_a_private_federation_in_flower_messages(tmp_path: Path) -> None:
    experiment = private(CLIENTS, 3, deadline=20.0)
    shards = write_shards(experiment, load_dataset("digits"), tmp_path / "data")
    grid = NodesOnGrid(tmp_path, shards)
    said: list[str] = []
    federate(FlowerTransport(grid, Direct), experiment, RunDirectory(tmp_path / "run"), said.append)
    exchanges = list(Journal(tmp_path / "run").exchanges())
    assert [one.record.arrived.sum() for one in exchanges[1:]] == [CLIENTS] * 3
    assert share_spent(tmp_path / "run") == pytest.approx(1.0)
    assert all(one.sums[name].dtype == np.uint32 for one in exchanges for name in one.sums)
    assert replay(RunDirectory(tmp_path / "run")).difference == 0.0


@pytest.mark.parametrize("name", ["uncoded", "partial", "balanced", "coded", "coded-newton"])
def test_sums_without_noise_in_flower_messages(name: str, tmp_path: Path) -> None:
    experiment = secure({"name": name}, CLIENTS, 3, deadline=20.0)
    shards = write_shards(experiment, load_dataset("digits"), tmp_path / "data")
    grid = NodesOnGrid(tmp_path, shards, epsilon_cap=inf, parity=name == "coded-newton")
    directory = RunDirectory(tmp_path / "run")
    federate(FlowerTransport(grid, Direct), experiment, directory, lambda _: None)
    exchanges = list(Journal(tmp_path / "run").exchanges())
    assert [one.record.arrived.sum() for one in exchanges[1:]] == [CLIENTS] * 3
    assert all(one.sums[name].dtype == np.uint32 for one in exchanges for name in one.sums)
    assert exchanges[-1].record.metric > 0.5  # of ten classes
    assert replay(directory).same
