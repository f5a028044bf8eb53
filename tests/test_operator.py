"""What an operator starts a federation with, and how it is watched: files, status, pauses."""

import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codedfedl import InputError
from codedfedl.cli.output import log_lines
from codedfedl.data.shards import read_shard
from codedfedl.federate.memory import MemoryTransport
from codedfedl.federate.node.config import Access, HelperConfig, NodeConfig, with_file
from codedfedl.federate.node.node import Node
from codedfedl.federate.secure.vault import Vault
from codedfedl.federate.server.meeting import job_of
from codedfedl.federate.server.session import federate
from codedfedl.io.tables import write_table
from codedfedl.runs.advice import no_better_than_chance
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import read_experiment
from codedfedl.runs.journal import Journal
from tests.conftest import Run
from tests.loopback import FIRST_NODE, Script, experiment_of, transport_of


class TestFiles:
    def test_what_init_writes_is_understood(self, tmp_path: Path, run: Run) -> None:
        pytest.importorskip("flwr")
        given = ("--host", "server.example", "--nodes", "ada,helper", "--port", 8123)
        assert run("federate", "init", tmp_path / "fleet", *given)[0] == 0
        fleet = tmp_path / "fleet"
        experiment = read_experiment(fleet / "federation.toml").with_whole_paths(fleet)
        assert experiment.server is not None
        assert experiment.server.port == 8123
        assert experiment.server.keys == str(fleet / "keys")
        access, node = with_file(fleet / "nodes/ada/node.toml", Access(), NodeConfig())
        folder = fleet / "nodes/ada"
        assert access == Access("server.example:8123", folder / "ca.crt", folder / "ada.key")
        assert (node.name, node.data) == ("ada", folder / "ada.npz")
        access, helper = with_file(fleet / "nodes/helper/helper.toml", Access(), HelperConfig())
        assert helper == HelperConfig("helper", fleet / "nodes/helper/home")

    def test_what_was_written_stays_and_certificates_are_renewed(
        self, tmp_path: Path, run: Run
    ) -> None:
        pytest.importorskip("flwr")
        command = ("federate", "init", tmp_path, "--host", "server.example", "--nodes", "ada")
        run(*command)
        file, certificate = tmp_path / "nodes/ada/node.toml", tmp_path / "keys/server.pem"
        file.write_text("name = 'ada'\n")
        before = certificate.read_bytes()
        assert run(*command)[0] == 0
        assert file.read_text() == "name = 'ada'\n"
        assert certificate.read_bytes() != before

    def test_a_file_of_federate_split_gets_a_server(self, tmp_path: Path, run: Run) -> None:
        pytest.importorskip("flwr")
        (tmp_path / "federation.toml").write_text(
            'data.preparation = "preparation.json"\nfederation.clients = 3\n'
        )
        assert run("federate", "init", tmp_path, "--host", "server.example")[0] == 0
        experiment = read_experiment(tmp_path / "federation.toml").with_whole_paths(tmp_path)
        assert experiment.server is not None
        assert experiment.server.keys == str(tmp_path / "keys")
        assert experiment.data.preparation == str(tmp_path / "preparation.json")

    def test_options_replace_keys_of_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "node.toml"
        path.write_text('name = "ada"\nleast = 20\ncache = "c"\n[settings]\ntable = "kinds"\n')
        _, config = with_file(path, Access(), NodeConfig(least=30))
        assert (config.name, config.least, config.cache) == ("ada", 30, tmp_path / "c")
        assert config.settings == {"table": "kinds"}

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("nane = 'ada'", "unknown key nane: did you mean 'name'"),
            ("least = '3'", "least is '3': write a whole number"),
            ("least = true", "least is True: write a whole number"),
            ("accept = 'a1'", "accept is 'a1': write a list of texts"),
            ("parity = 1", "parity is 1: write true or false"),
            ("data = 3", "data is 3: write a path in quotes"),
        ],
    )
    def test_keys_that_are_wrong(self, tmp_path: Path, line: str, message: str) -> None:
        (path := tmp_path / "node.toml").write_text(line)
        with pytest.raises(InputError, match=message):
            with_file(path, Access(), NodeConfig())

    def test_missing_files_name_who_has_them(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"ca.crt does not exist: get it from the operator"):
            Access("server.example:1", tmp_path / "ca.crt", tmp_path / "ada.key").check()

    def test_test_points_are_looked_for_before_anything_starts(
        self, tmp_path: Path, run: Run
    ) -> None:
        pytest.importorskip("flwr")
        (tmp_path / "federation.toml").write_text(
            'federation = {clients = 2, test = "no.npz"}\nfeatures.sigma = 2.0\nserver.home = "h"\n'
        )
        code, _, err = run("federate", "run", tmp_path)
        assert (code, f"cannot read {tmp_path / 'no.npz'}" in err) == (2, True)
        assert not (tmp_path / "run").exists()


Away = Callable[[float], set[int]]
"""Clients that do not answer, by the seconds since a round began: the second by default."""


def _paused(
    folder: Path, away: Away, begin: int = 1, **changes: Any
) -> tuple[RunDirectory, list[str]]:
    """Run a federation of three nodes, some of which do not answer from some round on."""
    experiment = experiment_of(3, rounds=4, deadline=10.0, **changes)
    said, began = list[str](), list[float]()

    def delay(client: int, _kind: str, facts: dict[str, Any]) -> float:
        if facts.get("round") == begin:
            began.append(grid.now())
        gone = bool(began) and client in away(grid.now() - began[0])
        return float("inf") if gone else 1.0

    grid = transport_of(experiment, folder / "nodes", Script(delay))
    directory = RunDirectory(folder / "run")
    try:
        federate(grid, experiment, directory, said.append)
    except InputError as error:
        said.append(f"error: {error}")
    return directory, said


def _state(directory: RunDirectory) -> str:
    status = directory.status.read()
    assert status is not None
    return status.state


class TestQuorum:
    def test_a_run_waits_until_nodes_are_back(self, tmp_path: Path) -> None:
        """Two of three are away for 100 s: one round is lost, not three."""
        directory, said = _paused(tmp_path, lambda now: {0, 1} if now < 100.0 else set())
        (pause,) = [line for line in said if line.startswith("paused: ")]
        assert pause.startswith("paused: 1 of 3 nodes answer, and 2 must; waiting for ")
        assert any(line.startswith("continuing with ") for line in said)
        rounds = [line for line in said if line.startswith("round ")]
        assert len(rounds) == 4
        assert sum("2 late" in line for line in rounds) == 1
        assert _state(directory) == "done"

    def test_patience_ends_and_the_run_can_be_continued(self, tmp_path: Path) -> None:
        directory, said = _paused(tmp_path, lambda _: {0, 1, 2}, patience=60.0)
        assert "0 of 3 nodes answer, and 2 must, after federation.patience = 60 s" in said[-1]
        assert _state(directory) == "failed"
        before = sum(line.startswith("round ") for line in said)
        assert before < 4
        directory, said = _paused(tmp_path, lambda _: set(), patience=60.0)
        assert _state(directory) == "done"
        assert sum(line.startswith("round ") for line in said) == 4 - before

    def test_the_last_round_is_not_played_for_nobody(self, tmp_path: Path) -> None:
        directory, said = _paused(tmp_path, lambda _: {0, 1, 2}, begin=2, patience=60.0)
        assert sum(line.startswith("round ") for line in said) == 3
        assert _state(directory) == "failed"

    def test_who_is_back_is_asked_at_once(self, tmp_path: Path) -> None:
        """What they were asked before, and can answer no more, keeps nobody busy."""
        scheme = {"name": "coded-newton", "setup_deadline": 20.0, "mixing": 10}
        _, said = _paused(tmp_path, lambda now: {0, 1, 2} if now < 500.0 else set(), scheme=scheme)
        rounds = [line for line in said if line.startswith("round ")]
        assert ["3 arrived" in line for line in rounds] == [True, False, True, True]

    def test_a_quorum_may_be_one(self, tmp_path: Path) -> None:
        _, said = _paused(tmp_path, lambda _: {0, 1}, quorum=1)
        assert not any(line.startswith("paused") for line in said)

    def test_more_than_there_are_is_refused(self, tmp_path: Path) -> None:
        _, said = _paused(tmp_path, lambda _: set(), quorum=4)
        assert "4 of 3 nodes would have to be there" in said[-1]


class TestTables:
    """CSV files of two sites, without a preparation: words for classes, columns in any order."""

    def node(self, folder: Path, name: str, columns: list[str], kinds: str, seed: int) -> Node:
        path, rng = folder / f"{name}.csv", np.random.default_rng(seed)
        kind = rng.choice(list(kinds), 60)
        cells = {"age": rng.normal(size=60) + 4 * (kind == "b"), "label": kind}
        cells["dose"] = rng.normal(size=60) + 4 * (kind == "c")
        write_table(path, {column: cells[column] for column in columns})
        return Node(name, lambda: read_shard(path), folder / name)

    def play(self, folder: Path, nodes: Sequence[Node], out: str = "run") -> RunDirectory:
        scheme = {"name": "coded-newton", "setup_deadline": 2.0}
        experiment = experiment_of(2, 3, scheme, test=str(folder / "test.csv"), deadline=5.0)
        transport = MemoryTransport({j: node.answer for j, node in enumerate(nodes)}, lambda *_: 1)
        directory = RunDirectory(folder / out)
        federate(transport, experiment, directory, lambda _: None)
        return directory

    def test_names_count_not_places(self, tmp_path: Path, run: Run) -> None:
        ada = self.node(tmp_path, "ada", ["age", "dose", "label"], "ab", 0)
        bob = self.node(tmp_path, "bob", ["label", "dose", "age"], "cb", 1)
        self.node(tmp_path, "test", ["dose", "label", "age"], "abc", 2)
        directory = self.play(tmp_path, [ada, bob])
        assert Journal(directory.path).records()[-1].metric > 0.9
        model, unseen = directory.path / "model.npz", tmp_path / "unseen.csv"
        self.node(tmp_path, "unseen", ["label", "age", "dose"], "cab", 3)
        document = json.loads(run("predict", model, unseen, "--json")[1])
        assert document["accuracy"] > 0.9
        assert set(document["predictions"]) == {"a", "b", "c"}

    def test_under_secure_sums_a_node_keeps_its_classes_to_itself(self, tmp_path: Path) -> None:
        node = self.node(tmp_path, "ada", ["age", "dose", "label"], "ab", 0)
        job = asdict(job_of(experiment_of(2), "0" * 32))
        assert node.answer("hello", {"job": job}, {})[0]["words"] == ["a", "b"]
        node.vault = Vault(tmp_path / "vault", "09" + "00" * 31)
        with pytest.raises(InputError, match=r"number the classes, or name all in a preparation"):
            node.answer("hello", {"job": job}, {})

    def test_other_columns_and_unknown_classes_are_refused(self, tmp_path: Path) -> None:
        ada = self.node(tmp_path, "ada", ["age", "dose", "label"], "ab", 0)
        bob = self.node(tmp_path, "bob", ["label", "dose", "age"], "ab", 1)
        self.node(tmp_path, "test", ["dose", "label", "age"], "ax", 2)
        with pytest.raises(InputError, match="labels are a, x, and the federation's classes are a"):
            self.play(tmp_path, [ada, bob])
        path = tmp_path / "bob.csv"
        path.write_text(path.read_text().replace("dose", "rate", 1))
        bob = Node("bob", lambda: read_shard(path), tmp_path / "bob again")
        with pytest.raises(InputError, match=r"2 inputs \(age, (dose|rate)\), .* unlike most"):
            self.play(tmp_path, [ada, bob], "again")


def test_greetings_are_events(tmp_path: Path) -> None:
    experiment = experiment_of(2, rounds=1)
    directory = RunDirectory(tmp_path / "run")
    federate(transport_of(experiment, tmp_path / "nodes"), experiment, directory, lambda _: None)
    greetings = [event for event in directory.events() if event["event"] == "greeting"]
    assert sorted(event["node"] for event in greetings) == [FIRST_NODE, FIRST_NODE + 1]
    assert all(event["version"] and event["epsilon_left"] is None for event in greetings)


def test_nodes_and_status(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    from codedfedl.federate.deploy.registry import RegisteredKey, Registry
    from codedfedl.federate.flower.superlink import RUN, Superlink
    from tests.engine import serving

    experiment = experiment_of(2, rounds=1)
    directory = RunDirectory(tmp_path / "run")
    federate(transport_of(experiment, tmp_path / "nodes"), experiment, directory, lambda _: None)
    home = serving(tmp_path)
    registry = Registry(home / "nodes.json")
    for name, number in (("node-000", FIRST_NODE), ("node-001", FIRST_NODE + 1), ("ada", 7)):
        registry.add(RegisteredKey(name, number, f"key of {name}"))
    registry.revoke(registry.find("ada"))
    (home / RUN).write_text(json.dumps({"run": 5, "out": str(directory.path)}))
    since = "2026-01-02T03:04:05Z"
    monkeypatch.setattr(Superlink, "nodes", lambda _: {FIRST_NODE: since, FIRST_NODE + 1: None})
    code, out, _ = run("federate", "nodes", "--federation", tmp_path, "--json")
    first, second = json.loads(out)["nodes"]
    assert code == 0
    assert (first["name"], first["connected"], first["since"]) == ("node-000", True, since)
    assert (second["name"], second["connected"], second["since"]) == ("node-001", False, None)
    assert all(node["version"] and node["last_answer"] for node in (first, second))
    assert {"epsilon_left"} < first.keys()
    code, out, _ = run("federate", "status", "--federation", tmp_path, "--json")
    status = json.loads(out)
    assert (status["running"], status["connected"], status["nodes"]) == (True, 1, 2)
    assert (status["run"]["number"], status["run"]["state"]) == (5, "done")
    (home / "serve.json").unlink()
    out = run("federate", "status", "--federation", tmp_path)[1]
    assert "the server does not run; 0 of 2 nodes connected" in out


def test_a_model_that_is_no_better_than_chance_is_named(tmp_path: Path) -> None:
    """By the test points alone, so that a private run says so, too."""
    experiment = experiment_of(2, rounds=1)
    directory = RunDirectory(tmp_path / "run")
    federate(transport_of(experiment, tmp_path / "nodes"), experiment, directory, lambda _: None)
    record = Journal(directory.path).records()[-1]
    assert no_better_than_chance([record], 0.1) == ""
    assert no_better_than_chance([replace(record, metric=float("nan"))], 0.1) == ""
    assert no_better_than_chance([record], None) == ""
    sentence = no_better_than_chance([replace(record, metric=0.1)], 0.1)
    assert "no better than chance (0.1000 on the test points" in sentence


def test_a_log_has_a_line_for_each_record(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        log_lines("ada", "json")("two\nlines \x1b[31m")
        (line,) = capsys.readouterr().err.splitlines()
        facts = json.loads(line)
        assert (facts["source"], facts["level"], facts["text"]) == (
            *("ada", "INFO"),
            "two\nlines \x1b[31m",
        )
        log_lines("ada", "text")("two\nlines \x1b[31m")
        (line,) = capsys.readouterr().err.splitlines()
        assert "INFO ada: two" in line
        assert "\x1b" not in line
    finally:
        root.handlers[:], root.level = handlers, level


class TestPrograms:
    def test_lines_keep_their_level_and_lose_their_colours(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        pytest.importorskip("flwr")
        from codedfedl.federate.flower.programs import Program

        lines = ["\x1b[92mINFO \x1b[0m: hello", "\x1b[91mERROR\x1b[0m : Exit Code: 305", "why", ""]
        script = f"print({chr(10).join(lines)!r})"
        with caplog.at_level(logging.DEBUG):
            program = Program("their-program", [sys.executable, "-c", script], tmp_path)
            program.process.wait(60)
            assert program.ended() == 0
        assert list(program.said) == ["hello", "Exit Code: 305", "why"]
        logged = [(each.levelname, each.getMessage()) for each in caplog.records]
        assert logged == [("DEBUG", "hello"), ("ERROR", "Exit Code: 305"), ("ERROR", "why")]

    def test_a_node_says_why_it_is_not_connected(self) -> None:
        pytest.importorskip("flwr")
        from codedfedl.federate.flower.answering import why_refused

        why = why_refused("server:1", "ada", signature=False, revoked=False)
        assert "server:1 does not know the key of ada" in why
        assert "codedfedl federate register ada.pub" in why
        why = why_refused("server:1", "ada", signature=False, revoked=True)
        assert "its operator has revoked it" in why
        why = why_refused("server:1", "ada", signature=True, revoked=False)
        assert "set this machine's clock" in why
