"""A stranger who has ca.crt, and another user of the machine, against real Flower processes."""

import base64
import datetime
import http.client
import os
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from codedfedl.data import load_dataset
from codedfedl.errors import InputError
from codedfedl.federate.deploy import guard
from codedfedl.federate.deploy.keys import make_node_key
from codedfedl.federate.deploy.local import (
    HOST,
    LocalFederation,
    local_keys,
    node_name,
    write_shards,
)
from codedfedl.federate.flower.programs import APP, free_port, own_user
from codedfedl.federate.flower.superlink import Superlink
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.journal import Journal
from codedfedl.simulation.replay import replay
from tests.loopback import experiment_of
from tests.stock import StockFederation
from tests.waiting import eventually

pytestmark = pytest.mark.engine

NOBODY = 65534
_EVIL = """
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from flwr.clientapp import ClientApp
Path({marker!r}).touch()
app = ClientApp()
"""


def evil_app(folder: Path, marker: Path) -> Path:
    """Return an app folder whose client code leaves a mark as soon as it is loaded."""
    folder.mkdir()
    text = (APP / "pyproject.toml").read_text("utf-8")
    changed = text.replace("codedfedl.federate.flower.apps:client", "evil:app")
    assert changed != text
    (folder / "pyproject.toml").write_text(changed, "utf-8")
    (folder / "evil.py").write_text(_EVIL.format(marker=str(marker)), "utf-8")
    return folder


class Scene:
    """A federation of three nodes whose runs deliver another client's code."""

    def __init__(
        self,
        folder: Path,
        *,
        clients: int = 3,
        tls: bool = True,
        kind: type[LocalFederation] = LocalFederation,
    ) -> None:
        self.folder, self.marker = folder, folder / "evil-was-here"
        scheme = {"name": "uncoded"}
        self.experiment = experiment_of(clients, 3, scheme, deadline=120.0, probes=1)
        self.directory = RunDirectory(folder / "run")
        self.directory.open(self.experiment, resume=False)
        shards = write_shards(self.experiment, load_dataset("digits"), folder / "data")
        keys = local_keys(folder / "keys", clients) if tls else None
        app = evil_app(folder / "app", self.marker)
        self.local = kind(folder / "local", shards, keys=keys, app=app)

    @property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))

    @property
    def authority(self) -> Path:
        assert self.local.keys is not None
        return self.local.keys.authority.resolve()

    def submit(self) -> int:
        return self.local.submit(self.directory.path / "config.toml", self.directory.path)

    def said(self) -> str:
        log = self.directory.log
        return log.read_text("utf-8") if log.is_file() else ""

    def online(self) -> int:
        return sum(since is not None for since in self.local.superlink.nodes().values())

    def inner_port(self) -> int:
        return int(self.local.superlink.address.partition(":")[2])

    def commands(self) -> dict[int, list[str]]:
        """Return the command lines of all processes of the federation."""
        found = {}
        for process in guard.marked(self.local.mark):
            try:
                text = Path(f"/proc/{process}/cmdline").read_bytes()
            except OSError:
                continue
            found[process] = text.decode().split("\0")
        return found


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(tmp_path_factory.mktemp("strangers"))
    with scene.local:
        eventually(lambda: scene.online() == 3, 180, "the nodes did not come")
        yield scene


def post(port: int, path: str, tls: ssl.SSLContext | None, **fields: str) -> int:
    """Send an empty message as anybody could, and return the status."""
    if tls is None:
        link: http.client.HTTPConnection = http.client.HTTPConnection(HOST, port, timeout=60)
    else:
        link = http.client.HTTPSConnection(HOST, port, timeout=60, context=tls)
    headers = {"content-type": "application/protobuf", **fields}
    link.request("POST", path, body=b"", headers=headers)
    status = link.getresponse().status
    link.close()
    return status


def signed(folder: Path) -> dict[str, str]:
    """Return the fields by which a node with a key of its own making proves that it has it."""
    private, _ = make_node_key(folder, "eve")
    key = serialization.load_ssh_private_key(private.read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    now = datetime.datetime.now(datetime.UTC).isoformat()
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore import constant

    return {
        constant.FLEET_HTTP_PUBLIC_KEY_HEADER: base64.b64encode(public).decode(),
        TIMESTAMP_HEADER: now,
        constant.FLEET_HTTP_SIGNATURE_HEADER: base64.b64encode(
            key.sign(now.encode(), ec.ECDSA(hashes.SHA256()))
        ).decode(),
    }


def test_a_stranger_with_the_certificate_commands_nothing(scene: Scene, tmp_path: Path) -> None:
    """List, register, run and stop, by Flower's own program through the gate."""
    stranger = Superlink(f"{HOST}:{scene.local.port}", tmp_path / "home", scene.authority)
    _, public = make_node_key(tmp_path, "eve")
    attempts: list[Callable[[], object]] = [
        stranger.nodes,
        lambda: stranger.register(public, "eve"),
        lambda: stranger.submit(tmp_path / "x.toml", tmp_path / "run", app=scene.local.app),
        lambda: stranger.stop(1),
    ]
    for attempt in attempts:
        with pytest.raises(InputError, match="404"):
            attempt()


def test_a_stranger_takes_no_task_and_no_object(scene: Scene, tmp_path: Path) -> None:
    port, eve = scene.local.port, signed(tmp_path)
    for path in ("acquire-task", "pull-object", "pull-task-input", "get-nodes", "responses"):
        assert post(port, f"/v1/runtime/{path}", scene.tls) == 404
    for path in ("docs", "openapi.json", "health", "v1/control/list-nodes"):
        assert post(port, f"/{path}", scene.tls) == 404
    for path in ("pull-object", "pull-messages", "push-messages", "get-fab", "get-run"):
        assert post(port, f"/v1/fleet/{path}", scene.tls) == 401
        assert post(port, f"/v1/fleet/{path}", scene.tls, **eve) == 401


def test_a_strangers_node_does_not_get_in(scene: Scene, tmp_path: Path) -> None:
    """An unknown key, and none: the engine lets a node without a key register itself elsewhere."""
    eve, _ = make_node_key(tmp_path, "eve")
    base = [*own_user("flower-supernode"), "--superlink", f"{HOST}:{scene.local.port}"]
    base += ["--root-certificates", str(scene.authority), "--max-wait-time", "20", "--host", HOST]
    tries = {"unknown": ["--auth-supernode-private-key", str(eve)], "none": []}
    for name, more in tries.items():
        scene.local.run(name, [*base, "--port", str(free_port()), *more])
    logs = [scene.local.log(name) for name in tries]
    ended = lambda: all("Exit Code" in log.read_text() for log in logs)  # noqa: E731
    eventually(ended, 120, "they were not refused")
    assert not any("SuperNode ID" in log.read_text() for log in logs)
    assert scene.online() == 3


def test_names_are_bound_and_said_twice(scene: Scene, tmp_path: Path) -> None:
    keys = scene.local.keys
    assert keys is not None
    assert not scene.local.superlink.register(keys.node(node_name(0))[1], node_name(0))
    with pytest.raises(InputError, match="this key is registered as node-000, not eve"):
        scene.local.superlink.register(keys.node(node_name(0))[1], "eve")
    with pytest.raises(InputError, match="node-000 is registered with another key"):
        scene.local.superlink.register(make_node_key(tmp_path, "eve")[1], node_name(0))


def test_it_trains_stops_and_continues_and_runs_no_delivered_code(scene: Scene) -> None:
    """Through the gate, by the installed client, while the run delivers another one."""
    journal = Journal(scene.directory.path)
    scene.submit()
    eventually(lambda: journal.rounds() >= 1, 240, "no round was played")
    _check_command_lines(scene)
    scene.directory.stop()
    eventually(lambda: "stopped: " in scene.said(), 120, "it did not stop")
    played = journal.rounds()
    if played < 3:  # it may have been in the last round already
        eventually(lambda: not _serves(scene), 60, "the server app did not end")
        scene.submit()
    eventually(lambda: " done: " in scene.said(), 240, "it did not end")
    exchanges = list(journal.exchanges())
    assert [e.record.round for e in exchanges][-3:] == [0, 1, 2]
    assert all(len(e.record.arrived) == 3 for e in exchanges)
    assert exchanges[-1].record.metric > 0.8
    assert replay(scene.directory).same
    assert not scene.marker.exists(), "the delivered client was loaded"


def _serves(scene: Scene) -> bool:
    return any("flwr-serverapp" in " ".join(words) for words in scene.commands().values())


def _check_command_lines(scene: Scene) -> None:
    """No secret and no token stands where every user of the machine can read it."""
    commands = scene.commands().values()
    lines = [" ".join(words) for words in commands]
    assert any("flwr-serverapp" in line for line in lines)
    options = ("--superexec-auth-secret-file", "--token-file")
    files = {
        Path(word) for words in commands for option, word in pairwise(words) if option in options
    }
    assert len(files) == 2  # the server's secret, and the server app's token
    for path in files:
        assert path.stat().st_mode & 0o077 == 0
        secret = path.read_text()
        assert len(secret) >= 32
        assert not any(secret in line for line in lines)
    assert not any(re.search(r"--token[ =]", line) for line in lines)


def test_what_other_users_can_read(scene: Scene) -> None:
    """The home and the keys are closed, and so is the data base, wherever it lies."""
    home = scene.local.home
    assert home.stat().st_mode & 0o077 == 0
    closed = [home / "secret", home / "nodes.json", home / "serve.json"]
    closed += [*scene.local.folder.glob("superlink.db*"), *(scene.folder / "keys").glob("*.key")]
    assert len(closed) >= 8
    for path in closed:
        assert path.stat().st_mode & 0o077 == 0, path


@contextmanager
def somebody_else() -> Iterator[None]:
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.getuid() != 0, reason="needs the superuser")
def test_another_user_of_the_machine_is_refused(scene: Scene) -> None:
    inner, tls = scene.inner_port(), scene.tls
    assert post(inner, "/v1/control/list-runs", tls) == 200, "its own user passes"
    commands = ("control/list-runs", "control/start-run", "control/register-node")
    tasks = ("runtime/acquire-task", "runtime/pull-object")
    with somebody_else():
        for path in commands + tasks:
            assert post(inner, f"/v1/{path}", tls) == 403, path


def test_nothing_listens_on_a_node(scene: Scene) -> None:
    """So that other users of its machine reach nothing."""
    commands = scene.commands().items()
    nodes = [process for process, words in commands if "node" in words]
    server = [process for process, words in commands if "serve" in words]
    assert [len(nodes), len(server)] == [3, 1]
    assert not any(map(_listening, nodes))
    assert _listening(server[0]), "so that this test can fail"


def _listening(process: int) -> set[str]:
    """Return the sockets on which a process listens."""
    links = [str(link.readlink()) for link in Path(f"/proc/{process}/fd").iterdir()]
    rows = [line.split() for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]]
    return {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"} & set(links)


def test_tasks_need_the_secret(scene: Scene) -> None:
    """Even for a process of the same user: only who can read the file gets tasks."""
    assert post(scene.inner_port(), "/v1/runtime/acquire-task", scene.tls) == 401


def test_a_revoked_key_is_over(scene: Scene) -> None:
    keys, j = scene.local.keys, 2
    assert keys is not None
    assert scene.local.superlink.revoke(node_name(j)) == node_name(j)
    process = scene.local.processes[node_name(j)]
    log = scene.local.log(node_name(j))
    eventually(lambda: "has revoked it" in log.read_text(), 90, "the revoked node does not say so")
    assert process.poll() is None, "it may be admitted again, with another key"
    with pytest.raises(InputError, match="the key of node-002 was revoked"):
        scene.local.superlink.register(keys.node(node_name(j))[1], node_name(j))
    assert scene.online() == 2


def test_a_stock_node_loads_the_delivered_client(tmp_path: Path) -> None:
    """Flower's own nodes do, so that the test that ours do not can fail."""
    scene = Scene(tmp_path, clients=1, tls=False, kind=StockFederation)
    with scene.local:
        scene.submit()
        eventually(scene.marker.exists, 240, "the delivered client was not loaded")
