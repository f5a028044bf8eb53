"""Keys, the registry of names, whose connection it is, stopping, and answers that are too large."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import MutableMapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from codedfedl.errors import InputError
from codedfedl.federate.deploy.keys import make_keys, make_node_key
from codedfedl.federate.deploy.registry import RegisteredKey, Registry, fingerprint_of
from codedfedl.federate.flower import programs
from codedfedl.federate.flower.programs import OwnUser
from codedfedl.federate.flower.superlink import ServerSettings, Superlink, running
from codedfedl.federate.flower.wire import MalformedError, pack, unpack
from codedfedl.federate.node.config import Access
from codedfedl.federate.server.session import federate
from codedfedl.io.connections import listens
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.journal import Journal
from tests.conftest import Run
from tests.engine import serving
from tests.loopback import experiment_of, transport_of


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


class TestKeys:
    def test_a_folder_that_is_there_keeps_its_mode(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o755)
        make_keys(tmp_path, ["example.org"], ["ada"])
        assert mode(tmp_path) == 0o755
        for name in ("ca.key", "server.key", "ada.key"):
            assert mode(tmp_path / name) == 0o600

    def test_a_new_folder_is_its_owners(self, tmp_path: Path) -> None:
        make_keys(tmp_path / "deep/keys", ["example.org"], [])
        assert mode(tmp_path / "deep/keys") == 0o700

    def test_a_secret_that_others_could_read_is_closed(self, tmp_path: Path) -> None:
        (tmp_path / "server.key").write_text("old")
        (tmp_path / "server.key").chmod(0o644)
        make_keys(tmp_path, ["example.org"], [])
        assert mode(tmp_path / "server.key") == 0o600

    def test_a_node_makes_its_own(self, tmp_path: Path, run: Run) -> None:
        code, _, err = run("federate", "key", "ada", "--folder", tmp_path)
        assert code == 0
        assert "ada.pub to the operator" in err
        assert sorted(path.name for path in tmp_path.iterdir()) == ["ada.key", "ada.pub"]
        before = fingerprint_of(tmp_path / "ada.pub")
        (tmp_path / "ada.pub").unlink()
        make_node_key(tmp_path, "ada")  # the key stays, and its public part comes back
        assert fingerprint_of(tmp_path / "ada.pub") == before

    def test_keys_without_nodes(self, tmp_path: Path, run: Run) -> None:
        assert run("federate", "init", tmp_path, "--host", "example.org")[0] == 0
        names = {path.name for path in (tmp_path / "keys").iterdir()}
        assert names == {"ca.crt", "ca.key", "server.pem", "server.key"}

    def test_what_is_no_public_key(self, tmp_path: Path) -> None:
        path = tmp_path / "ada.pub"
        for text in ("", "ecdsa-sha2-nistp384 ***", "ssh-rsa AAAA"):
            path.write_text(text)
            with pytest.raises(InputError, match="ada.pub is"):
                fingerprint_of(path)


class TestRegistry:
    def test_names_are_bound_once(self, tmp_path: Path) -> None:
        registry = Registry(tmp_path / "home/nodes.json")
        assert registry.check_new("ada", "k1") is None
        registry.add(RegisteredKey("ada", 2**63 + 1, "k1"))
        assert mode(registry.path) == 0o600
        assert registry.check_new("ada", "k1") is not None  # as before
        with pytest.raises(InputError, match="this key is registered as ada, not bob"):
            registry.check_new("bob", "k1")
        with pytest.raises(InputError, match="ada is registered with another key"):
            registry.check_new("ada", "k2")
        assert [(entry.node, entry.name) for entry in registry.entries()] == [(2**63 + 1, "ada")]

    def test_a_revoked_key_is_over_and_its_name_free(self, tmp_path: Path) -> None:
        registry = Registry(tmp_path / "nodes.json")
        registry.add(RegisteredKey("ada", 1, "k1"))
        registry.revoke(registry.find("ada"))
        with pytest.raises(InputError, match="the key of ada was revoked"):
            registry.check_new("ada", "k1")
        assert registry.check_new("ada", "k2") is None
        with pytest.raises(InputError, match="ada is not registered: there are no nodes yet"):
            registry.find("ada")

    def test_registering_twice_says_so(self, tmp_path: Path, run: Run) -> None:
        """The second time the SuperLink is not even asked: there is none at this address."""
        _, public = make_node_key(tmp_path, "ada")
        registry = Registry(serving(tmp_path) / "nodes.json")
        registry.add(RegisteredKey("ada", 1, fingerprint_of(public)))
        code, _, err = run("federate", "register", public, "--federation", tmp_path)
        assert (code, err.strip()) == (0, "ada is already registered")

    def test_commands_at_once_take_turns(self, tmp_path: Path) -> None:
        """A key that the SuperLink admits and the file forgets would be nobody's."""
        registry, together = Registry(tmp_path / "nodes.json"), threading.Barrier(8)

        def register(k: int) -> None:
            together.wait()
            for j in range(5):
                registry.add(RegisteredKey(f"node-{k}-{j}", 5 * k + j, f"key {k} {j}"))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(register, range(8)))
        assert sorted(entry.node for entry in registry.entries()) == list(range(40))

    def test_it_begins_without_keys_and_is_never_emptied(self, tmp_path: Path) -> None:
        registry = Registry(tmp_path / "nodes.json")
        registry.begin()
        assert (registry.path.is_file(), registry.entries()) == (True, [])
        registry.add(RegisteredKey("ada", 1, "k1"))
        registry.begin()
        assert registry.find("ada").node == 1

    def test_a_run_that_begins_before_its_nodes_are_registered_binds_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A server with keys has a registry from its start, and gives it to every run."""
        commands: list[str] = []
        link = Superlink("127.0.0.1:1", tmp_path, None)

        def flwr(command: list[str], **_: Any) -> Any:
            commands.append(" ".join(command))
            return SimpleNamespace(stdout='{"success": true, "run-id": 1}')

        monkeypatch.setattr(subprocess, "run", flwr)
        link.submit(tmp_path / "a.toml", tmp_path / "run")
        link.registry.begin()
        link.submit(tmp_path / "a.toml", tmp_path / "run")
        wanted = f'registry="{tmp_path / "nodes.json"}"'
        assert [wanted in command for command in commands] == [False, True]

    def test_a_broken_file_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "nodes.json").write_text('[{"name": 1}]')
        with pytest.raises(InputError, match="cannot read"):
            Registry(tmp_path / "nodes.json").entries()


class TestStop:
    def test_a_run_stops_after_its_round_and_continues(self, tmp_path: Path, run: Run) -> None:
        experiment = experiment_of(3, 4)
        transport = transport_of(experiment, tmp_path / "nodes")
        directory = RunDirectory(tmp_path / "run")

        def say(sentence: str) -> None:
            if sentence.startswith("round 2 of 4"):
                code, _, err = run("federate", "stop", directory.path)
                assert code == 0, err
            said.append(sentence)

        said: list[str] = []
        federate(transport, experiment, directory, say)
        assert said[-1].startswith("stopped: ")
        assert Journal(directory.path).rounds() == 2
        assert not transport.kinds("goodbye"), "the nodes keep what they have"
        parity = len(transport.kinds("parity"))
        federate(transport, experiment, directory, said.append)
        assert said[-1].startswith("done: ")
        assert Journal(directory.path).rounds() == 4
        assert len(transport.kinds("parity")) == parity
        assert transport.kinds("goodbye")

    def test_nothing_to_stop(self, tmp_path: Path, run: Run) -> None:
        assert "is not a run directory" in run("federate", "stop", tmp_path)[2]
        directory = RunDirectory(tmp_path / "run")
        directory.open(experiment_of(), resume=False)
        assert "there is nothing to stop" in run("federate", "stop", directory.path)[2]
        assert "give a run directory, or --run" in run("federate", "stop")[2]


def table(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "tcp"
    path.write_text("\n".join(["  sl  local_address rem_address", *rows]), "ascii")
    return path


def row(local: int, remote: int, user: int, state: str = "01") -> str:
    ends = f"0100007F:{local:04X} 0100007F:{remote:04X}"
    return f"0: {ends} {state} 00000000:00000000 00:00000000 00000000 {user} 0 999"


class TestOwnUser:
    CLIENT, SERVER = ("127.0.0.1", 50_000), ("127.0.0.1", 8000)

    @pytest.mark.parametrize(
        ("rows", "passes"),
        [
            ([row(50_000, 8000, 1000)], True),
            ([row(50_000, 8000, 0)], True),
            ([row(50_000, 8000, 1001)], False),
            ([row(50_001, 8000, 1000)], False),
            ([row(50_000, 8001, 1000)], False),
            ([row(8000, 50_000, 1000)], False),  # the server's own end of a stranger's connection
            ([row(50_000, 8000, 0, "06")], False),  # closed already: nobody's
            ([row(50_000, 8000, 0, "04")], False),
            ([], False),
        ],
    )
    def test_whose_connection_it_is(self, rows: list[str], passes: bool, tmp_path: Path) -> None:
        guard = OwnUser(None, user=1000, table=table(tmp_path, *rows))  # type: ignore[arg-type]
        assert guard.passes(self.CLIENT, self.SERVER) is passes

    def test_one_that_passed_is_known_by_its_object_not_by_its_address(
        self, tmp_path: Path
    ) -> None:
        """A port may be another user's by the next connection."""
        guard = OwnUser(None, user=1000, table=table(tmp_path, row(50_000, 8000, 1000)))  # type: ignore[arg-type]
        first, second = ("127.0.0.1", 50_000), ("127.0.0.1", int("50000"))
        assert guard.passes(first, self.SERVER)
        table(tmp_path, row(50_000, 8000, 1001))
        assert guard.passes(first, self.SERVER)
        assert not guard.passes(second, self.SERVER)

    def test_what_has_no_address_on_loopback(self, tmp_path: Path) -> None:
        guard = OwnUser(None, table=table(tmp_path))  # type: ignore[arg-type]
        assert not guard.passes(("10.0.0.1", 50_000), self.SERVER)
        assert not guard.passes(None, self.SERVER)

    @pytest.mark.parametrize(
        ("path", "status"),
        [("/v1/control/start-run", 403), ("/v1/runtime/acquire-task", 403), ("/v1/fleet/x", 200)],
    )
    def test_another_user_gets_the_nodes_api_alone(
        self, path: str, status: int, tmp_path: Path
    ) -> None:
        async def app(_scope: Any, _receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200})

        sent: list[MutableMapping[str, Any]] = []

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        async def receive() -> MutableMapping[str, Any]:
            return {}

        others = table(tmp_path, row(50_000, 8000, 1001))
        scope = {"type": "http", "path": path, "client": self.CLIENT, "server": self.SERVER}
        asyncio.run(OwnUser(app, user=1000, table=others)(scope, receive, send))
        assert sent[0]["status"] == status

    def test_a_forwarded_address_counts_for_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Else another user names an address of his choice, in a header."""
        import uvicorn

        found: list[uvicorn.Config] = []
        script = SimpleNamespace(load=lambda: lambda: found.append(uvicorn.Config("a:b")))
        monkeypatch.setattr(metadata, "entry_points", lambda **_: [script])
        monkeypatch.setattr(programs, "end_with", lambda _: None)
        monkeypatch.setattr(sys, "argv", ["own_user", "flower-superlink"])
        monkeypatch.setattr(uvicorn.Config, "__init__", uvicorn.Config.__init__)  # put back
        programs.main()
        assert not found[0].proxy_headers
        assert not found[0].access_log, "a stranger could fill the log"
        assert isinstance(found[0].app, OwnUser)

    def test_who_listens(self, tmp_path: Path) -> None:
        mine, other = row(8000, 0, os.getuid(), "0A"), row(8001, 0, os.getuid() + 1, "0A")
        assert listens(8000, table(tmp_path, mine, other))
        assert not listens(8001, table(tmp_path, mine, other))
        assert not listens(8002, table(tmp_path, mine, other))


class TestBombs:
    FACTS = ConfigRecord({"json": "{}"})

    def test_an_array_under_many_names(self) -> None:
        array = Array(np.zeros(10_000, np.float32))
        record = ArrayRecord({str(k): array for k in range(100)})
        content = RecordDict({"facts": self.FACTS, "arrays": record})
        with pytest.raises(MalformedError, match="4,012,800 bytes, 100,000 at most"):
            unpack(content, 100_000)
        assert len(unpack(content)[1]) == 100

    def test_a_shape_that_is_larger_than_its_bytes(self) -> None:
        array = Array(np.zeros(10, np.float32))
        header = array.data.replace(b"(10,), }      ", b"(10000000000,)")
        header = header.replace(b"(10000000000,)", b"(9999999,), } ")
        assert header != array.data
        array.data = header
        content = RecordDict({"facts": self.FACTS, "arrays": ArrayRecord({"x": array})})
        with pytest.raises(MalformedError, match="the size of an array does not match its shape"):
            unpack(content)

    def test_honest_answers_of_every_form(self) -> None:
        arrays = {
            "empty": np.zeros((0, 3), np.float32),
            "scalar": np.array(1.0),
            "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        }
        back = unpack(pack({"a": 1}, arrays), 10_000)[1]
        assert all(np.array_equal(back[name], array) for name, array in arrays.items())

    def test_facts_have_a_size(self) -> None:
        record = ConfigRecord({"json": json.dumps({"x": "y" * 2**22})})
        with pytest.raises(MalformedError, match="at most"):
            unpack(RecordDict({"facts": record, "arrays": ArrayRecord()}))


class TestStarting:
    def test_plaintext_stays_on_this_machine(self, tmp_path: Path) -> None:
        for host in ("0.0.0.0", "10.0.0.1", "example.org"):
            with pytest.raises(InputError, match=f"server.host is {host}, and without server.keys"):
                ServerSettings(tmp_path, host, 8000, None).check()
        for host in ("127.0.0.1", "localhost", "::1"):
            ServerSettings(tmp_path, host, 8000, None).check()

    def test_a_node_without_keys_stays_on_this_machine(self, tmp_path: Path) -> None:
        private, public = make_node_key(tmp_path, "ada")
        Access("127.0.0.1:8000").check()
        with pytest.raises(InputError, match="is another machine: give --ca and --key"):
            Access("example.org:8000").check()
        with pytest.raises(InputError, match="give both --ca and --key"):
            Access("example.org:8000", None, private).check()
        private.chmod(0o640)
        with pytest.raises(InputError, match="ada.key can be read by others"):
            Access("example.org:8000", public, private).check()

    def test_no_server_in_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no server runs in"):
            running(tmp_path)

    def test_no_secret_stands_on_a_command_line(self, tmp_path: Path) -> None:
        settings = ServerSettings(tmp_path, "127.0.0.1", 8000, None)
        assert str(settings.secret) in settings.options
