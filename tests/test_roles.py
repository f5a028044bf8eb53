"""Whose key is a helper's: the registry, and greetings in another role."""

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from codedfedl.data import load_dataset
from codedfedl.errors import InputError
from codedfedl.federate.deploy.keys import make_node_key
from codedfedl.federate.deploy.local import node_name, write_shards
from codedfedl.federate.deploy.registry import (
    BoundTransport,
    RegisteredKey,
    Registry,
    fingerprint_of,
)
from codedfedl.federate.flower.apps import federate_on
from codedfedl.federate.memory import MemoryTransport
from codedfedl.federate.secure.helper import HelperNode
from codedfedl.federate.secure.vault import Vault
from codedfedl.federate.transport import Answered, Arrays, Arrival
from codedfedl.privacy.masks import own_key, public_digits
from codedfedl.runs.config import Experiment
from codedfedl.runs.journal import Journal
from tests.conftest import Run
from tests.engine import serving
from tests.loopback import FIRST_NODE, Loopback, experiment_of

CLIENTS = 3
HELPER, IMPOSTOR = 2000, 3000


class Summing(Loopback):
    """Nodes with vaults, their helper, and a node that calls itself one."""

    def __init__(self, folder: Path, shards: list[Path]) -> None:
        super().__init__(folder, shards)
        self.pinned = public_digits(own_key(folder / "helper" / "masks.key"))
        self.responds |= {HELPER: self._as("helper"), IMPOSTOR: self._as("impostor")}
        self.online |= {HELPER, IMPOSTOR}

    def vault(self, client: int) -> Vault:
        return Vault(self.folder / "vaults" / node_name(client), self.pinned, epsilon_cap=10.0)

    def _as(self, name: str) -> Any:
        def respond(kind: str, facts: dict[str, Any], arrays: Arrays) -> Answered:
            return HelperNode(name, self.folder / name).answer(kind, facts, arrays)

        return respond


def registry_of(path: Path, **roles: str) -> Registry:
    """Write a registry of all nodes; those that are not named have no role, as in old files."""
    numbers = {node_name(j): FIRST_NODE + j for j in range(CLIENTS)}
    numbers |= {"helper": HELPER, "impostor": IMPOSTOR}
    entries: list[dict[str, Any]] = [
        {"name": name, "node": node, "key": f"key of {name}", "revoked": False}
        for name, node in numbers.items()
    ]
    for entry in entries:
        if entry["name"] in roles:
            entry["role"] = roles[entry["name"]]
    path.write_text(json.dumps(entries))
    return Registry(path)


def private_experiment() -> Experiment:
    return experiment_of(CLIENTS, 3, {"name": "private", "epsilon": 8.0}, ready_timeout=20.0)


def play(tmp_path: Path, registry: Registry | None) -> str:
    """Run a federation on secure sums as the server app does; return what it said."""
    experiment = private_experiment()
    shards = write_shards(experiment, load_dataset("digits"), tmp_path / "nodes")
    path, out = tmp_path / "fed.toml", tmp_path / "run"
    path.write_text(tomli_w.dumps(experiment.model_dump(exclude_none=True)))
    config = {"experiment": str(path), "out": str(out)}
    config |= {} if registry is None else {"registry": str(registry.path)}
    federate_on(Summing(tmp_path / "nodes", shards), config)
    return (out / "server.log").read_text()


class TestFederation:
    def test_a_node_that_calls_itself_a_helper_blocks_nothing(self, tmp_path: Path) -> None:
        said = play(tmp_path, registry_of(tmp_path / "nodes.json", helper="helper"))
        assert "impostor greets as a helper, and its key is registered as a node" in said
        assert Journal(tmp_path / "run").rounds() == 3

    def test_without_roles_it_does(self, tmp_path: Path) -> None:
        """So that the test above can fail: there is no registry without keys."""
        with pytest.raises(InputError, match="2 helpers are connected: leave only one"):
            play(tmp_path, None)

    def test_a_helper_of_an_old_registry_is_told_what_to_do(self, tmp_path: Path) -> None:
        remedy = "no helper has connected after 20 s.*; helper greets as a helper, and its key is "
        remedy += "registered as a node: .*register its key again with --role helper"
        with pytest.raises(InputError, match=remedy):
            play(tmp_path, registry_of(tmp_path / "nodes.json"))


def greeted(facts: dict[str, Any], registry: Registry) -> Arrival:
    """Return how node 7 with such a greeting arrives; its other answers arrive as they are."""
    memory = MemoryTransport({7: lambda _kind, _facts, _arrays: (facts, {})})
    transport = BoundTransport(memory, registry)
    work, hello = (
        next(transport.gather(transport.ask(kind, {0: (7, {})}, {}, 5.0), transport.now() + 5.0))
        for kind in ("work", "hello")
    )
    assert (work.status, work.facts) == ("answer", facts)
    assert hello.facts == (facts if hello.status == "answer" else {})
    return hello


@pytest.mark.parametrize(
    ("registered", "claimed", "status"),
    [
        ("node", None, "answer"),
        ("node", "helper", "problem"),
        ("helper", "helper", "answer"),
        ("helper", None, "problem"),
        ("helper", ["helper"], "problem"),
    ],
)
def test_who_may_greet_as_what(registered: str, claimed: Any, status: str, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "nodes.json")
    registry.add(RegisteredKey("ada", 7, "key", role=registered))
    facts = {"name": "ada"} if claimed is None else {"name": "ada", "role": claimed}
    assert greeted(facts, registry).status == status


@pytest.mark.parametrize("name", ["bob", "", None, ["ada"]])
def test_a_name_belongs_to_its_key(name: Any, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "nodes.json")
    registry.add(RegisteredKey("ada", 7, "key of ada"))
    registry.add(RegisteredKey("bob", 8, "key of bob"))
    arrival = greeted({"name": name}, registry)
    assert arrival.status == "problem"
    assert "has the key of ada: start it with --name ada" in arrival.reason


def test_a_key_that_is_not_registered_greets_in_vain(tmp_path: Path) -> None:
    """Nor one that was revoked; and one that is registered while a run waits is bound as well."""
    registry = Registry(tmp_path / "nodes.json")
    registry.begin()
    assert "the key of node 7 is not registered" in greeted({"name": "eve"}, registry).reason
    registry.add(RegisteredKey("eve", 7, "key"))
    assert greeted({"name": "eve"}, registry).status == "answer"
    assert greeted({"name": "ada"}, registry).status == "problem"
    registry.revoke(registry.find("eve"))
    assert greeted({"name": "eve"}, registry).status == "problem"


class TestRegistry:
    def test_a_file_without_roles_has_nodes_alone(self, tmp_path: Path) -> None:
        registry = registry_of(tmp_path / "nodes.json")
        assert {entry.role for entry in registry.entries()} == {"node"}

    def test_an_unknown_role_is_an_error(self, tmp_path: Path) -> None:
        registry = registry_of(tmp_path / "nodes.json", helper="server")
        with pytest.raises(InputError, match="the role of helper is 'server': must be node or"):
            registry.entries()

    def test_a_role_outlives_other_changes(self, tmp_path: Path) -> None:
        registry = registry_of(tmp_path / "nodes.json", helper="helper")
        registry.revoke(registry.find(node_name(0)))
        assert registry.find("helper").role == "helper"
        registry.revoke(registry.find("helper"))
        assert [entry.revoked for entry in registry.entries() if entry.role == "helper"] == [True]

    def test_a_registered_key_gets_another_role(self, tmp_path: Path, run: Run) -> None:
        """The SuperLink is not asked: there is none at this address."""
        _, public = make_node_key(tmp_path, "mask")
        registry = Registry(serving(tmp_path) / "nodes.json")
        registry.add(RegisteredKey("mask", 1, fingerprint_of(public)))
        command = ("federate", "register", public, "--federation", tmp_path)
        said = [run(*command, *more)[2].strip() for more in (("--role", "helper"), ())]
        assert said == ["registered mask as a helper", "mask is already registered"]
        assert registry.find("mask").role == "helper"
        assert "--role is 'server': must be node or helper" in run(*command, "--role", "server")[2]
