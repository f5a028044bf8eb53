"""A node: a SuperNode on loopback, and a worker in this process that answers for it.

The SuperNode talks to the server; the worker has the data. The two share a secret in a folder of
the node that only their user can read, and end together.
"""

import secrets
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from codedfedl.federate.deploy.keys import check_server, write_secret
from codedfedl.federate.flower.apps import node_from
from codedfedl.federate.flower.programs import HOST, Program, alone_in, engine, free_port
from codedfedl.federate.flower.worker import TaskClient, answer_tasks
from codedfedl.federate.node.config import Access, NodeConfig
from codedfedl.federate.transport import Answerer, Say
from codedfedl.io.files import make_folder

AGAIN_SECONDS = 10.0
"""Seconds until a SuperNode that ended is started again."""

CONNECTED = "SuperNode ID"
"""How a SuperNode begins to say that the server accepted it."""

LEFT = "SuperNode terminated gracefully."
"""What it says at last once the server has answered that it knows the key no longer."""

UNKNOWN = "[code: 2004]"
"""The error of a server that does not know a key, or counts it as connected."""


def supernode_options(access: Access) -> list[str]:
    """Return what a SuperNode is started with, besides its port; plaintext without keys."""
    if access.ca is None:
        return ["--superlink", access.superlink, "--insecure"]
    options = ["--superlink", access.superlink, "--root-certificates", str(access.ca.resolve())]
    if access.key is not None:
        options += ["--auth-supernode-private-key", str(access.key.resolve())]
    return options


def run_node(access: Access, config: NodeConfig, say: Say) -> NoReturn:
    """Answer the server until this process is ended."""
    node = node_from(config)
    node.ready()  # what is wrong with its data or encoder is said here, and not to the server
    run_answerer(access, config.name, node, node.cache, say)


def run_answerer(access: Access, name: str, node: Answerer, home: Path, say: Say) -> NoReturn:
    """Let a node or a helper answer the server until this process is ended.

    A SuperNode that ended is started again: the server may know the key later, or forget a
    connection that was cut.

    Parameters
    ----------
    home
        A folder of its own, for the SuperNode's folder; what a killed one left there is removed.
    """
    folder, revoked = home / "supernode", False
    make_folder(folder, private=True)
    with alone_in(folder, f"{name} is already running with {home}: end it first"):
        while True:
            if access.ca is not None:
                check_server(access.superlink, access.ca)
            _clear(folder)
            try:
                program, connected = _run(access, name, node, folder, say)
            finally:
                _clear(folder)
            revoked = LEFT in program.said if connected else revoked
            why = reason_of_end(
                program.said, access.superlink, name, connected=connected, revoked=revoked
            )
            say(f"{why}; trying again in {AGAIN_SECONDS:g} s")
            time.sleep(AGAIN_SECONDS)


def _clear(folder: Path) -> None:
    (folder / "secret").unlink(missing_ok=True)
    shutil.rmtree(folder / "flower", ignore_errors=True)


def _run(access: Access, name: str, node: Answerer, folder: Path, say: Say) -> tuple[Program, bool]:
    """Answer until the SuperNode ends; return it, and whether the server accepted it."""
    port, secret, path = free_port(), secrets.token_bytes(32).hex().encode(), folder / "secret"
    write_secret(path, secret)
    options = ["--isolation", "process", "--superexec-auth-secret-file", str(path)]
    options += supernode_options(access)
    connected = False
    with engine("flower-supernode", options, folder / "flower", port) as program:
        say(f"{name} is up")

        def is_running() -> bool:
            nonlocal connected
            if not connected and any(line.startswith(CONNECTED) for line in program.said):
                connected = True
                say(f"{name} is connected to {access.superlink}")
            return program.ended() is None

        answer_tasks(TaskClient(f"{HOST}:{port}", secret), lambda: node, is_running)
        return program, connected


def reason_of_end(
    said: Sequence[str], server: str, name: str, *, connected: bool, revoked: bool
) -> str:
    """Say why a SuperNode ended, as far as its last lines tell."""
    if revoked:
        return (
            f"{server} accepts the key of {name} no longer: its operator has revoked it; a new one "
            "is made with codedfedl federate key"
        )
    if UNKNOWN in " ".join(said):
        return (
            f"{server} does not know the key of {name}: its operator admits it with codedfedl "
            f"federate register {name}.pub; or it was revoked; or the server still counts an "
            f"earlier {name}, which was killed, as connected: for a minute at most"
        )
    why = said[-1] if said else "without a word"
    clock = (
        ""
        if connected
        else ("; the clock of this machine may be 5 s ahead of the server's and 5 minutes behind")
    )
    return f"the SuperNode of {name} ended ({why}){clock}"
