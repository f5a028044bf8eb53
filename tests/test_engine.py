"""The real engine: processes of a SuperLink and of nodes, sockets, TLS, signals.

What takes more than two minutes is marked `long`; `make test-engine` runs it too.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

from codedfedl.cli import app
from codedfedl.core.record import ARRIVED, PARTS, Record
from codedfedl.errors import InputError
from codedfedl.federate.deploy.keys import make_keys
from codedfedl.federate.deploy.local import (
    HOST,
    SUPERLINK,
    LocalFederation,
    node_name,
)
from codedfedl.federate.flower.programs import APP
from codedfedl.runs.config import Experiment
from codedfedl.simulation.replay import replay
from tests.engine import BIN, MARK, Running, failed, federate_local, flowers_of, serving
from tests.loopback import experiment_of
from tests.stock import StockFederation
from tests.waiting import eventually, interruptible

pytestmark = pytest.mark.engine

WITHIN = 0.25  # seconds of the deadline


@pytest.fixture(autouse=True)
def _marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every process that a test starts carry the test's folder in its environment."""
    monkeypatch.setenv(MARK, str(tmp_path))


def on_time(record: Record) -> bool:
    return abs(record.seconds - record.deadline) <= WITHIN


def check_rounds(found: dict[str, Any], out: Path) -> None:
    rounds = found["rounds"]
    assert [row["round"] for row in rounds] == [1, 2, 3]
    assert all(sum(row[part] for part in PARTS) == 3 for row in rounds)
    assert all(row["seconds"] <= row["deadline_s"] + WITHIN for row in rounds)
    assert all(row["deadline_s"] == 12 for row in rounds)
    assert "<svg" in (out / "report.html").read_text("utf-8")
    eventually(lambda: not flowers_of(out.parent), 10, "processes were left")
    again = CliRunner().invoke(app, ["simulate", "--replay", str(out), "--json"])
    assert json.loads(again.stdout)["same"] is True


def test_a_short_federation_with_tls_and_one_kill(tmp_path: Path) -> None:
    """A killed node costs one deadline a round and no more."""
    done = federate_local(tmp_path / "run", "--scheme", "coded-newton", "--kill", "1")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    check_rounds(found, tmp_path / "run")
    last = found["rounds"][-1]
    assert found["killed"] == ["node-002"]
    assert last["dropped"] == 1
    assert last["arrived"] >= 1
    assert abs(last["seconds"] - 12) <= WITHIN  # it waited for the one that was killed
    assert found["accuracy"] > 0.9


@pytest.mark.long
def test_a_scheme_of_ones_own_with_work_of_its_own(tmp_path: Path) -> None:
    """`examples/buffered.py`, asynchronous, on real nodes that were told of its module."""
    scheme = ("--scheme", "examples.buffered:Buffered", "--set", "data.partition=iid")
    done = federate_local(tmp_path / "run", *scheme, "--rounds", "5")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["scheme"] == "buffered"
    assert len(found["rounds"]) == 5
    assert found["accuracy"] > 0.5  # of ten classes
    replay = ["simulate", "--replay", str(tmp_path / "run"), "--json"]
    with pytest.raises(InputError, match="add --trust"):  # it names somebody's code
        CliRunner().invoke(app, replay, catch_exceptions=False)
    again = CliRunner().invoke(app, [*replay, "--trust"])
    assert json.loads(again.stdout)["same"] is True


@pytest.mark.long
def test_a_run_that_failed_is_resumed(tmp_path: Path) -> None:
    early = federate_local(
        tmp_path / "run", "--scheme", "uncoded", "--set", "federation.ready_timeout=0.1"
    )
    assert early.returncode == 2
    assert "of 3 nodes are ready after 0.1 s: start the others" in early.stderr
    done = federate_local(tmp_path / "run", "--scheme", "uncoded", "--resume")
    assert done.returncode == 0, done.stderr
    check_rounds(json.loads(done.stdout), tmp_path / "run")


def mischievous(tmp_path: Path) -> Path:
    """Return a Flower app folder with the clients of `mischief.py`."""
    folder = tmp_path / "app"
    folder.mkdir()
    text = (APP / "pyproject.toml").read_text("utf-8")
    text = text.replace("codedfedl.federate.flower.apps:client", "mischief:app")
    (folder / "pyproject.toml").write_text(text, "utf-8")
    shutil.copy(Path(__file__).parent / "mischief.py", folder)
    return folder


@pytest.mark.long
def test_rogues_and_long_uploads_do_not_stop_a_round(tmp_path: Path) -> None:
    """Whatever a client sends, the round goes on without it, and ends in time.

    In its seventh round node-001 begins to answer in time, but uploads 400 MB until long after the
    deadline; that answer counts nowhere.
    """
    experiment = experiment_of(3, 8, deadline=11.0, probes=1, setup_timeout=60.0)
    running = Running(tmp_path, experiment, app=mischievous(tmp_path), kind=StockFederation)
    with running.local:
        running.submit()
        running.wait_until_done(240)
    setup = next(running.journal.exchanges()).record
    assert [(j, why.partition(" ")[0]) for j, why in setup.refusals] == [(2, "features0")]
    played = running.played()
    reasons = [why for record in played for j, why in record.refusals if j == 1]
    expected = [
        "gradient is not finite",
        "gradient has shape (63, 10), not (64, 10)",
        "gradient holds float64, not float32",
        "times its expected error from",
        "answers round 3, not 4",
        "points, not",
        "malformed message",  # where all of it has come before the deadline
    ]
    assert len(expected) - 1 <= len(reasons) <= len(expected)
    assert all(part in why for part, why in zip(expected, reasons, strict=False))
    assert all(record.outcome[0] == ARRIVED for record in played)
    uploading = played[6]
    assert uploading.outcome[1] != ARRIVED
    assert on_time(uploading)
    assert replay(running.directory).same


@pytest.mark.long
def test_intruders_stay_outside(tmp_path: Path) -> None:
    """An unknown key, no key, plaintext and another authority: none becomes a node."""
    experiment = experiment_of(1)
    running = Running(tmp_path, experiment, tls=True)
    local = running.local
    with local:
        assert local.keys is not None
        ca = str(local.keys.authority)
        stranger = make_keys(tmp_path / "stranger", [HOST], ["eve"])
        other, eve = str(stranger.authority), str(stranger.node("eve")[0])
        own = str(local.keys.node(node_name(0))[0])
        attempts = {
            "unknown key": ["--root-certificates", ca, "--auth-supernode-private-key", eve],
            "no key": ["--root-certificates", ca],
            "plaintext": ["--insecure"],
            "another authority": [
                "--root-certificates", other, "--auth-supernode-private-key", own,
            ],
        }  # fmt: skip
        for name, options in attempts.items():
            local.run(name.replace(" ", "-"), _supernode(local, options))
        node = eventually(lambda: _online(local), 60, "the honest node did not come")
        time.sleep(15)
        assert _online(local) == node
        assert len(node) == 1
    said = {name: local.log(name.replace(" ", "-")).read_text() for name in attempts}
    assert "SuperNode ID" not in "".join(said.values())
    assert "CERTIFICATE_VERIFY_FAILED" in said["another authority"]


def _supernode(local: LocalFederation, options: list[str]) -> list[str]:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port = listener.getsockname()[1]
    command = [str(BIN / "flower-supernode"), "--superlink", f"{HOST}:{local.port}"]
    return [*command, "--host", HOST, "--port", str(port), "--max-wait-time", "20", *options]


def _online(local: LocalFederation) -> list[int]:
    return [node for node, since in local.superlink.nodes().items() if since is not None]


def _all_of(programs: Sequence[str], found: dict[int, str]) -> dict[int, str]:
    """Return the processes once every program is among them."""
    there = all(any(name in command for command in found.values()) for name in programs)
    return found if there else {}


def test_all_processes_are_told_to_stay_at_home(tmp_path: Path) -> None:
    """No telemetry, no update check, no installation: in the environment of every process."""
    running = Running(tmp_path, experiment_of(1))
    with running.local:
        programs = ("federate serve", "flower-superlink", "federate node")
        started = eventually(lambda: _all_of(programs, flowers_of(tmp_path)), 60, "not all started")
        for pid, command in started.items():
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"FLWR_TELEMETRY_ENABLED=0" in environ
            assert b"FLWR_DISABLE_UPDATE_CHECK=1" in environ
            assert b"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1" in environ
            assert "--allow-runtime-dependency-installation" not in command
    eventually(lambda: not flowers_of(tmp_path), 10, "processes were left")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_everything_ends_with_who_started_it(number: signal.Signals, tmp_path: Path) -> None:
    """Also the server app, which the engine puts into a group of its own, and a kill -9."""
    command = [str(BIN / "codedfedl"), "federate", "local", "--clients", "1"]
    command += ["--out", str(tmp_path / "run")]

    def serving() -> bool:
        return any("flwr-serverapp" in command for command in flowers_of(tmp_path).values())

    with interruptible():
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
    with process:
        eventually(serving, 60, "it did not start")
        process.send_signal(number)
        process.wait(30)
        eventually(lambda: not flowers_of(tmp_path), 15, "processes were left")
    assert process.returncode != 0


def cli(*arguments: str) -> str:
    done = subprocess.run(
        [BIN / "codedfedl", *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_in_use(taken: int, tmp_path: Path) -> None:
    said = cli("federate", "local", "--port", str(taken), "--out", str(tmp_path / "run"))
    assert (
        f"port {taken} is in use: end the process that listens there, or choose another --port"
        in said
    )
    assert flowers_of(tmp_path) == {}


def test_an_expired_certificate(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", [HOST], [node_name(0)], days=-0.01)
    said = cli("federate", "local", "--clients", "1", "--keys", str(tmp_path / "keys"), "--out",
               str(tmp_path / "run"))  # fmt: skip
    assert "ca.crt expired on" in said
    assert not (tmp_path / "run").exists()


def test_certificates_are_for_the_server_and_for_itself(tmp_path: Path) -> None:
    """The SuperLink's executor calls it on loopback, whatever the nodes call it."""
    keys = make_keys(tmp_path / "keys", ["example.org"], ["ada"])
    for host in ("example.org", "127.0.0.1", "localhost"):
        keys.check(host, ["ada"])
    with pytest.raises(InputError, match="server.pem is not for example.com"):
        keys.check("example.com", ["ada"])
    with pytest.raises(InputError, match="bob.key does not exist"):
        keys.check("example.org", ["bob"])


def test_an_expired_authority_is_renewed(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", [HOST], ["ada"], days=-0.01)
    before = (tmp_path / "keys/ada.key").read_bytes()
    make_keys(tmp_path / "keys", [HOST], ["ada"]).check(HOST, ["ada"])
    assert (tmp_path / "keys/ada.key").read_bytes() == before
    (tmp_path / "keys/ca.key").unlink()
    with pytest.raises(InputError, match="has no ca.key beside it"):
        make_keys(tmp_path / "keys", [HOST], ["ada"])


@pytest.mark.parametrize("name", ["", "../ada", "ca", "server", "a b"])
def test_names_that_will_not_do(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is invalid"):
        make_keys(tmp_path / "keys", [HOST], [name])
    assert not (tmp_path / "keys").exists()


def test_an_unreachable_superlink(tmp_path: Path) -> None:
    serving(tmp_path, "127.0.0.1:9")
    document = experiment_of().model_dump(exclude_none=True) | {"server": {"home": "home"}}
    (tmp_path / "federation.toml").write_text(tomli_w.dumps(document))
    for _ in range(2):  # it can be tried again with the same run directory
        said = cli("federate", "run", str(tmp_path))
        assert "the SuperLink at 127.0.0.1:9 refuses the request" in said
    assert "see that codedfedl federate serve still runs" in said


@pytest.mark.long
def test_the_life_of_a_federation(tmp_path: Path) -> None:
    """One federation survives stopped and killed nodes, a killed server and a killed SuperLink.

    Rounds end in time throughout; a killed node comes back by its key and its cache, without new
    parity; no finished round is lost or repeated; and the replay agrees in the end.
    """
    experiment = experiment_of(3, 50, deadline=10.0, probes=1)
    running = Running(tmp_path, experiment, tls=True)
    local = running.local
    with local:
        run = running.submit()
        running.wait_for_round(1, 300)

        local.send(node_name(1), signal.SIGSTOP)
        for count in (3, 4):
            stopped = running.wait_for_round(count, 30)
            assert stopped.outcome[1] != ARRIVED
            assert on_time(stopped)
        local.send(node_name(1), signal.SIGCONT)
        back = running.wait_for_round(6, 60)
        assert back.outcome[1] == ARRIVED, "it worked through its backlog"

        parity = {path: path.stat().st_mtime_ns for path in (tmp_path / "run/parity").rglob("*")}
        local.send(node_name(2), signal.SIGKILL)
        killed = running.wait_for_round(8, 60)
        assert killed.outcome[2] != ARRIVED
        assert on_time(killed)
        again = _restart_until_it_answers(running, 2)
        assert again < 40, "the killed node did not come back"

        before = len(running.played())
        os.kill(running.server(), signal.SIGKILL)
        eventually(lambda: failed(local, run), 60, "the engine did not notice")
        run = running.submit()
        running.wait_for_round(before + 1, 90)

        before = len(running.played())
        local.send(SUPERLINK, signal.SIGKILL)
        local.start(SUPERLINK)
        run = running.submit()
        running.wait_for_round(before + 1, 300)
        running.wait_until_done(300)
    rounds = [record.round for record in running.played()]
    assert rounds == list(range(50))
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "run/parity").rglob("*")}
    assert after == parity
    assert replay(running.directory).same


def _restart_until_it_answers(running: Running, j: int) -> int:
    """Start a killed node again, as a supervisor would, until a round has its answer."""
    begun, until = len(running.played()), time.monotonic() + 150
    while time.monotonic() < until:
        process = running.local.processes.get(node_name(j))
        if process is None or process.poll() is not None:
            running.local.start(node_name(j))
        if any(record.outcome[j] == ARRIVED for record in running.played()[begun:]):
            return len(running.played())
        time.sleep(0.5)
    return 10**9


@pytest.mark.long
def test_parity_of_many_nodes_does_not_fill_the_servers_memory(tmp_path: Path) -> None:
    """Twelve nodes with 50 MB of parity each: the server needs no more than for a few of them.

    `benchmarks/federation.py` does it with thirty.
    """
    scheme = {"name": "coded", "redundancy": 0.99}
    document = experiment_of(12, 1, scheme, deadline=30.0, probes=1).model_dump()
    document["features"]["n_components"] = 8800
    experiment = Experiment.model_validate(document)
    running = Running(tmp_path, experiment)
    peak = 0.0
    with running.local:
        running.submit()
        eventually(running.journal.traces.is_file, 180, "nobody was measured")
        server = running.server()
        before = _resident(server)
        until = time.monotonic() + 300
        while not running.played() and time.monotonic() < until:
            peak = max(peak, _resident(server))
            time.sleep(0.05)
        running.wait_until_done(600)
    each = sum(path.stat().st_size for path in (tmp_path / "run/parity/0").iterdir()) / 2**20
    assert each > 47
    quadratic = 4 * 8800**2 / 2**20  # XᵀX of the sum, which the scheme keeps
    assert peak - before < 2 * quadratic + 6 * each


def _resident(pid: int) -> float:
    """Return the MB that a process holds for itself."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024
