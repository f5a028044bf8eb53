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
from typing import Self

import numpy as np
import tomli_w

from codedfedl.data import Dataset
from codedfedl.errors import InputError
from codedfedl.federate.deploy import guard
from codedfedl.federate.deploy.keys import Keys, make_keys
from codedfedl.federate.deploy.registry import NODE
from codedfedl.federate.deploy.start import FEDERATION
from codedfedl.federate.flower.programs import APP, environment, free_port
from codedfedl.federate.flower.superlink import Superlink, running
from codedfedl.federate.job import HELPER
from codedfedl.federate.node.config import Access, NodeConfig
from codedfedl.io.files import make_folder
from codedfedl.runs.config import Experiment


def write_shards(experiment: Experiment, dataset: Dataset, folder: Path) -> list[Path]:
    """Deal a data set to the clients, and write each its own file, and the test points another."""
    assert experiment.federation is not None
    clients, seed = experiment.federation.clients, experiment.seeds[0]
    shards = experiment.deal(dataset, clients, seed)
    if len(shards) != clients:
        raise InputError(
            f"--clients is {clients}, and data.client names {len(shards)} clients with training "
            f"points: give --clients {len(shards)}"
        )
    paths = []
    for j, rows in enumerate(shards):
        make_folder(folder)
        paths.append(folder / f"{node_name(j)}.npz")
        np.savez(paths[-1], inputs=dataset.inputs[rows], labels=dataset.labels[rows])
    if dataset.origin.preparation is not None and experiment.data.preparation is not None:
        dataset.origin.preparation.write(Path(experiment.data.preparation))
    np.savez(folder / "test.npz", inputs=dataset.test_inputs, labels=dataset.test_labels)
    return paths


def node_name(j: int) -> str:
    """Return the name of client j, in the order of the clients."""
    return f"node-{j:03d}"


HOST = "127.0.0.1"

SUPERLINK = "superlink"
"""The name of the server among the processes."""

# Seconds that a SuperLink may take to listen.
START_SECONDS = 60.0

# Seconds between asking a process to end and making it.
END_SECONDS = 5.0

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
    node
        What all nodes have in common, besides their names, data and folders. With an
        `epsilon_cap`, there is a helper too, and the nodes answer only in secure sums. Its modules
        and its encoder may lie in the current folder.

    Attributes
    ----------
    processes
        What runs, by name; who ended by itself is among them, who was killed is not.
    mark
        What all processes have in their environment.
    """

    def __init__(
        self,
        folder: Path,
        shards: Sequence[Path],
        *,
        keys: Keys | None = None,
        port: int | None = None,
        app: Path = APP,
        node: NodeConfig = NodeConfig("node"),  # noqa: B008
    ) -> None:
        self.folder, self.shards, self.keys, self.app = folder.resolve(), shards, keys, app
        self.port, self.node, self.mark = port or free_port(HOST), node, secrets.token_hex(8)
        self.home, self.helper_home = self.folder / "flower", self.folder / HELPER
        self.names = local_names(len(shards), helper=node.epsilon_cap is not None)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._superlink: Superlink | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        make_folder(self.folder / "logs")
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, self.mark],
            stdin=subprocess.PIPE,
            start_new_session=True,  # signals from the terminal do not reach it
        )
        try:
            self.start(SUPERLINK)
            if self.keys is not None:
                for name in self.names:
                    role = HELPER if name == HELPER else NODE
                    self.superlink.register(self.keys.node(name)[1], name, role)
            for name in reversed(self.names):  # the nodes pin the helper's key: it is first
                self.start(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything that was started."""
        for name in self.processes:
            self._send_group(name, signal.SIGCONT)
            self._send_group(name, signal.SIGTERM)
        until = time.monotonic() + END_SECONDS
        for name, process in list(self.processes.items()):
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            self.send(name, signal.SIGKILL)  # the group outlives its leader
        guard.end_marked(self.mark)  # what the engine has put into other groups
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None

    def start(self, name: str) -> None:
        """Start the SuperLink, the helper or a node, or start it again."""
        if name == HELPER:
            from codedfedl.privacy.masks import own_key

            own_key(self.helper_home / "masks.key")  # nodes read it when they start
        if name != SUPERLINK:
            self.run(name, self.command(name))
            return
        check_port(self.port)
        (self.home / "serve.json").unlink(missing_ok=True)  # of one that was killed
        server = {"home": str(self.home), "host": HOST, "port": self.port}
        server["database"] = str(self.folder / "superlink.db")
        if self.keys is not None:
            server["keys"] = str(self.keys.folder.resolve())
        (self.folder / FEDERATION).write_text(tomli_w.dumps({"server": server}), "utf-8")
        self.run(name, self.command(name))
        until = time.monotonic() + START_SECONDS
        while self.processes[name].poll() is None and time.monotonic() < until:
            if (self.home / "serve.json").is_file():
                self._superlink = running(self.home)
                return
            time.sleep(0.1)
        raise InputError(f"the SuperLink did not start: see {self.log(name)}")

    def command(self, name: str) -> list[str]:
        """Return how the SuperLink, the helper or a node is started."""
        if name == SUPERLINK:
            return [*_FEDERATE, "serve", str(self.folder / FEDERATION)]
        if name == HELPER:
            command = [*_FEDERATE, HELPER, "--name", name, "--home", str(self.helper_home)]
        else:
            command = [*_FEDERATE, NODE, *self.node_config(name).options]
        return [*command, *self.access(name).options]

    def node_config(self, name: str) -> NodeConfig:
        """Return what a node decides: it has its own data and cache, and with a helper a vault."""
        data = self.shards[self.names.index(name)].resolve()
        config = replace(self.node, name=name, data=data, cache=self.cache(name))
        if HELPER not in self.names:
            return config
        pinned = self.helper_home / "masks.pub"
        return replace(config, helper=pinned, vault=self.folder / "vaults" / name)

    def access(self, name: str) -> Access:
        """Return how a node or the helper reaches the server."""
        if self.keys is None:
            return Access(self.address)
        return Access(
            self.address, self.keys.authority.resolve(), self.keys.node(name)[0].resolve()
        )

    @property
    def superlink(self) -> Superlink:
        """The running SuperLink."""
        assert self._superlink is not None
        return self._superlink

    @property
    def address(self) -> str:
        """The address that nodes connect to."""
        return f"{HOST}:{self.port}"

    def cache(self, name: str) -> Path:
        """Return the cache folder of a node."""
        return self.folder / "caches" / name

    def log(self, name: str) -> Path:
        """Return the log of the SuperLink, of the helper or of a node."""
        return self.folder / "logs" / f"{name}.log"

    def revive(self) -> None:
        """Start nodes again that ended by themselves: the engine refuses a key that it has seen."""
        for name in self.names:
            if name in self.processes and self.processes[name].poll() is not None:
                self._forget(name)
                self.start(name)

    def send(self, name: str, number: signal.Signals) -> None:
        """Stop, continue or kill a process, with all its child processes."""
        if name in self.processes:
            self._send_group(name, number)
            if number == signal.SIGKILL:
                self._forget(name)

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

    def run(self, name: str, command: Sequence[str]) -> None:
        """Start a program that ends with the federation; its output goes to a log of this name."""
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(self.home)
                | {guard.MARK: self.mark, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
                | self._search_path(),
                start_new_session=True,
            )
        self.processes[name] = process
        self._tell_guard(process.pid)

    def _search_path(self) -> dict[str, str]:
        """Let the processes import modules of the current folder, where they must."""
        here = [str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
        has_modules = self.node.works or self.node.encoder is not None
        return {"PYTHONPATH": os.pathsep.join(filter(None, here))} if has_modules else {}

    def _send_group(self, name: str, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.processes[name].pid, number)

    def _forget(self, name: str) -> None:
        """Forget a process, since its id may be reused soon."""
        process = self.processes.pop(name)
        process.wait()
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
