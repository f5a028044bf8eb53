"""A node: a SuperNode on loopback, and a worker in this process that answers for it.

The SuperNode talks to the server; the worker has the data. The two share a secret in a folder of
the node that only their user can read, and end together.
"""

import logging
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from codedfedl.errors import InputError
from codedfedl.federate.deploy.keys import check_server, write_secret
from codedfedl.federate.flower.apps import node_from
from codedfedl.federate.flower.programs import (
    HOST,
    alone_in,
    end,
    environment,
    free_port,
    own_user,
)
from codedfedl.federate.flower.worker import Desk, answer_tasks
from codedfedl.federate.node_config import NodeConfig
from codedfedl.federate.transport import Answerer
from codedfedl.io.connections import listens
from codedfedl.io.files import make_folder

__all__ = ["NodeSettings", "run_answerer", "run_node"]

START_SECONDS = 60.0
"""Seconds that a SuperNode may take to listen."""


@dataclass(frozen=True)
class NodeSettings:
    """What a node is started with.

    Attributes
    ----------
    superlink
        Where the server's gate listens, as host:port.
    authority, key
        The authority's certificate and the node's private key; plaintext without them.
    config
        The node's own; a helper has only a name.
    """

    superlink: str
    config: NodeConfig
    authority: Path | None = None
    key: Path | None = None

    @property
    def name(self) -> str:
        """What the server calls the node."""
        return self.config.name

    def command(self, port: int) -> list[str]:
        """Return how the SuperNode is started."""
        command = [*own_user("flower-supernode"), "--superlink", self.superlink]
        command += ["--host", HOST, "--port", str(port)]
        if self.authority is None:
            return [*command, "--insecure"]
        command += ["--root-certificates", str(self.authority.resolve())]
        if self.key is not None:
            command += ["--auth-supernode-private-key", str(self.key.resolve())]
        return command


def run_node(settings: NodeSettings, say: Callable[[str], None]) -> int:
    """Answer the server until the SuperNode ends; return how it ended."""
    node = node_from(settings.config)
    node.ready()  # what is wrong with its data or encoder is said here, and not to the server
    return run_answerer(settings, node, node.cache, say)


def run_answerer(
    settings: NodeSettings, node: Answerer, home: Path, say: Callable[[str], None]
) -> int:
    """Let a node or a helper answer the server until its SuperNode ends; return how it ended.

    Parameters
    ----------
    home
        A folder of its own, for the SuperNode's folder; what a killed one left there is removed.
    """
    if settings.authority is not None:
        check_server(settings.superlink, settings.authority)
    folder = home / "supernode"
    make_folder(folder, private=True)
    with alone_in(folder, f"{settings.name} is already running with {home}: end it first"):
        try:
            _clear(folder)
            return _run(settings, node, folder, say)
        finally:
            _clear(folder)


def _clear(folder: Path) -> None:
    (folder / "secret").unlink(missing_ok=True)
    shutil.rmtree(folder / "flower", ignore_errors=True)


def _run(settings: NodeSettings, node: Answerer, folder: Path, say: Callable[[str], None]) -> int:
    port, secret, path = free_port(), secrets.token_bytes(32).hex().encode(), folder / "secret"
    write_secret(path, secret)
    command = settings.command(port)
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(path)]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, env=environment(folder / "flower"), umask=0o077
    )
    try:
        _wait_until_it_listens(process, port)
        say(f"{settings.name} is up")
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every poll
        desk = Desk(f"{HOST}:{port}", secret)
        answer_tasks(desk, lambda: node, lambda: process.poll() is None)
        say(
            f"the SuperNode ended with code {process.wait()}: see its last lines above; if there "
            "is no reason, the server refuses this key or this machine's clock, which may be 5 s "
            "ahead of the server's and 5 minutes behind at most"
        )
        return process.returncode or 1  # it also ends with 0 when it is refused
    finally:
        end(process)


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait for this user's own SuperNode: another user might take the port before it."""
    until = time.monotonic() + START_SECONDS
    while not listens(port):
        if process.poll() is not None:
            raise InputError(f"the SuperNode ended with code {process.returncode}: see its log")
        if time.monotonic() > until:
            raise InputError(
                f"the SuperNode does not listen on port {port} after {START_SECONDS:g} s"
            )
        time.sleep(0.1)
