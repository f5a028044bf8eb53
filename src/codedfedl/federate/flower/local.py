"""A whole federation on one machine: a real server, real nodes, real sockets.

Everything ends with the process that started it, even if that is killed without cleaning up: a
guard (`guard.py`) holds the other end of a pipe.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from codedfedl.errors import InputError
from codedfedl.federate.flower import guard
from codedfedl.federate.flower.keys import Keys, make_keys
from codedfedl.federate.flower.programs import APP, Superlink, environment, free_port
from codedfedl.federate.flower.registry import NODE
from codedfedl.federate.flower.superlink import running
from codedfedl.federate.flower.supernode import NodeSettings
from codedfedl.federate.job import HELPER
from codedfedl.federate.node.config import NodeConfig
from codedfedl.federate.shards import node_name
from codedfedl.io.files import make_folder

__all__ = ["LocalFederation", "check_port", "local_keys", "local_names"]

HOST = "127.0.0.1"

_START = 60.0  # seconds that a SuperLink may take
_PATIENCE = 5.0  # seconds between asking a process to end and making it
_POLL = "0.2"  # seconds between two looks of a SuperExec for work
_FEDERATE = [sys.executable, "-m", "codedfedl", "federate"]


def check_port(port: int) -> None:
    """Refuse a port that somebody listens on."""
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            raise InputError(
                f"port {port} is in use: end the process that listens there, or choose another "
                "--port"
            )


class LocalFederation:
    """The processes of a federation; a context manager that ends them all.

    Parameters
    ----------
    folder
        For data bases, logs, keys and caches.
    shards
        A data file for each node.
    keys
        Certificates and node keys; without them everything is plaintext.
    port
        Port that nodes connect to; a free one by default.
    app
        The Flower app folder that runs are begun with.
    stock
        Whether nodes are Flower's own, which run the code of `app`, for tests of malicious nodes.
    node
        What all nodes have in common, besides their names, data and folders. With an
        `epsilon_cap`, there is a helper too, and the nodes answer only in secure sums. Its modules
        and its encoder may lie in the current folder.
    """

    def __init__(
        self,
        folder: Path,
        shards: Sequence[Path],
        *,
        keys: Keys | None = None,
        port: int | None = None,
        app: Path = APP,
        stock: bool = False,
        node: NodeConfig = NodeConfig("node"),  # noqa: B008
    ) -> None:
        self.folder, self.shards, self.keys, self.app = folder.resolve(), shards, keys, app
        self.port, self.stock, self.node = port or free_port(HOST), stock, node
        self.home, self.has_helper = self.folder / "flower", node.epsilon_cap is not None
        self.helper: subprocess.Popen[bytes] | None = None
        self._superlink: Superlink | None = None
        self.link: subprocess.Popen[bytes] | None = None
        self.nodes: list[subprocess.Popen[bytes] | None] = [None] * len(shards)
        self._started: list[subprocess.Popen[bytes]] = []
        self.mark = secrets.token_hex(8)
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        make_folder(self.folder / "logs")
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, self.mark],
            stdin=subprocess.PIPE,
            start_new_session=True,  # signals from the terminal do not reach it
        )
        try:
            self.start_link()
            if self.keys is not None:
                for name in local_names(len(self.shards), helper=self.has_helper):
                    role = HELPER if name == HELPER else NODE
                    self.superlink.register(self.keys.node(name)[1], name, role)
            if self.has_helper:
                self.start_helper()
            for j in range(len(self.shards)):
                self.start_node(j)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything that was started."""
        running, self._started = self._started, []
        for process in running:
            _signal(process, signal.SIGCONT)
            _signal(process, signal.SIGTERM)
        until = time.monotonic() + _PATIENCE
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            _signal(process, signal.SIGKILL)  # the group outlives its leader
            process.wait()
            self._tell_guard(-process.pid)
        guard.end_marked(self.mark)  # what the engine has put into other groups
        self.nodes, self.link, self.helper = [None] * len(self.nodes), None, None
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None

    def start_link(self) -> None:
        """Start the server, with its data base, and wait until it listens."""
        check_port(self.port)
        (self.home / "serve.json").unlink(missing_ok=True)  # of one that was killed
        command = [*_FEDERATE, "serve", "--home", str(self.home)]
        command += ["--host", HOST, "--port", str(self.port)]
        command += ["--database", str(self.folder / "superlink.db")]
        if self.keys is None:
            command += ["--insecure"]
        else:
            command += ["--keys", str(self.keys.folder.resolve())]
        self.link = self.start_program("superlink", command)
        until = time.monotonic() + _START
        while self.link.poll() is None and time.monotonic() < until:
            if (self.home / "serve.json").is_file():
                self._superlink = running(self.home)
                return
            time.sleep(0.1)
        raise InputError(f"the SuperLink did not start: see {self.log('superlink')}")

    @property
    def superlink(self) -> Superlink:
        """The running SuperLink."""
        assert self._superlink is not None
        return self._superlink

    def start_node(self, j: int) -> None:
        """Start a node, or start it again, with its own data, key and cache."""
        name, data = node_name(j), self.shards[j].resolve()
        config = replace(self.node, name=name, data=data, cache=self.cache(j))
        if self.has_helper:
            pinned = self.helper_home / "masks.pub"
            config = replace(config, helper=pinned, vault=self.vault(j))
        settings = NodeSettings(self.address, config, *self._credentials(name))
        if self.stock:
            command = [*settings.command(free_port(HOST)), "--node-config", settings.stock_config()]
        else:
            command = self._command("node", config)
        self.nodes[j] = self.start_program(name, command)

    def start_helper(self) -> None:
        """Start the helper, or start it again, with its own key and home."""
        from codedfedl.privacy.keys import own_key

        own_key(self.helper_home / "masks.key")  # nodes pin it, so it is made before they start
        command = [*self._command("helper", NodeConfig(HELPER)), "--home", str(self.helper_home)]
        self.helper = self.start_program(HELPER, command)

    def _command(self, role: str, config: NodeConfig) -> list[str]:
        """Return how a node or a helper is started."""
        command = [*_FEDERATE, role, "--superlink", self.address, *config.options]
        authority, key = self._credentials(config.name)
        return command if key is None else [*command, "--ca", str(authority), "--key", str(key)]

    def _credentials(self, name: str) -> tuple[Path | None, Path | None]:
        if self.keys is None:
            return None, None
        return self.keys.authority.resolve(), self.keys.node(name)[0].resolve()

    @property
    def address(self) -> str:
        """The address that nodes connect to."""
        return f"{HOST}:{self.port}"

    @property
    def helper_home(self) -> Path:
        """The helper's folder."""
        return self.folder / HELPER

    def revive(self) -> None:
        """Start nodes again that ended by themselves: the engine refuses a key that it has seen."""
        for j, process in enumerate(self.nodes):
            if process is not None and process.poll() is not None:
                self._ended(process)
                self.start_node(j)
        if self.helper is not None and self.helper.poll() is not None:
            self._ended(self.helper)
            self.start_helper()

    def vault(self, j: int) -> Path:
        """Return the folder with a node's ledger and its key for masks."""
        return self.folder / "vaults" / node_name(j)

    def cache(self, j: int) -> Path:
        """Return the cache folder of a node."""
        return self.folder / "caches" / node_name(j)

    def log(self, name: str) -> Path:
        """Return the log of the SuperLink or of a node."""
        return self.folder / "logs" / f"{name}.log"

    def signal_node(self, j: int, number: signal.Signals) -> None:
        """Stop, continue or kill a node, with all its child processes."""
        process = self.nodes[j]
        if process is not None:
            _signal(process, number)
            if number == signal.SIGKILL:
                self._ended(process)
                self.nodes[j] = None

    def kill_helper(self) -> None:
        """Kill the helper."""
        if self.helper is not None:
            _signal(self.helper, signal.SIGKILL)
            self._ended(self.helper)
            self.helper = None

    def kill_link(self) -> None:
        """Kill the SuperLink, and with it the server of every run."""
        if self.link is not None:
            _signal(self.link, signal.SIGKILL)
            self._ended(self.link)
            self.link = None

    def submit(self, experiment: Path, out: Path) -> int:
        """Begin or resume a federation, and return the number of its run."""
        return self.superlink.submit(experiment.resolve(), out.resolve(), app=self.app)

    def finished(self, run: int) -> bool:
        """Say whether a run is over and did its work; an error tells why it failed."""
        status, details = self.superlink.status(run)
        if not status.startswith("finished"):
            return False
        if status != "finished:completed":
            raise InputError(f"the federation failed ({details or status})")
        return True

    def start_program(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a program that ends with the federation; its output goes to a log of this name."""
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(self.home)
                | {guard.MARK: self.mark, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": _POLL}
                | dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
                | self._search_path(),
                start_new_session=True,
            )
        self._started.append(process)
        self._tell_guard(process.pid)
        return process

    def _search_path(self) -> dict[str, str]:
        """Let the processes import modules of the current folder, where they must."""
        here = [str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
        has_modules = self.node.works or self.node.encoder is not None
        return {"PYTHONPATH": os.pathsep.join(filter(None, here))} if has_modules else {}

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        """Forget a process, since its id may be reused soon."""
        process.wait()
        self._started.remove(process)
        self._tell_guard(-process.pid)

    def _tell_guard(self, group: int) -> None:
        assert self._guard is not None
        assert self._guard.stdin is not None
        self._guard.stdin.write(f"{group}\n".encode())
        self._guard.stdin.flush()


def local_names(clients: int, *, helper: bool) -> list[str]:
    """Return the names of all nodes, and of the helper where there is one."""
    return [*(node_name(j) for j in range(clients)), *([HELPER] if helper else [])]


def local_keys(folder: Path, clients: int, *, helper: bool = False) -> Keys:
    """Make certificates for loopback and a key for every node, and for the helper."""
    return make_keys(folder, [HOST], local_names(clients, helper=helper))


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
