"""A node: a SuperNode on loopback, and a worker in this process that answers for it.

The SuperNode talks to the server; the worker has the data. The two share a secret in a folder of
the node that only their user can read, and end together.
"""

import logging
import secrets
import shutil
from pathlib import Path

from codedfedl.federate.deploy.keys import check_server, write_secret
from codedfedl.federate.flower.apps import node_from
from codedfedl.federate.flower.programs import HOST, alone_in, engine, free_port
from codedfedl.federate.flower.worker import TaskClient, answer_tasks
from codedfedl.federate.node.config import Access, NodeConfig
from codedfedl.federate.transport import Answerer, Say
from codedfedl.io.files import make_folder


def supernode_options(access: Access) -> list[str]:
    """Return what a SuperNode is started with, besides its port; plaintext without keys."""
    if access.ca is None:
        return ["--superlink", access.superlink, "--insecure"]
    options = ["--superlink", access.superlink, "--root-certificates", str(access.ca.resolve())]
    if access.key is not None:
        options += ["--auth-supernode-private-key", str(access.key.resolve())]
    return options


def run_node(access: Access, config: NodeConfig, say: Say) -> int:
    """Answer the server until the SuperNode ends; return how it ended."""
    node = node_from(config)
    node.ready()  # what is wrong with its data or encoder is said here, and not to the server
    return run_answerer(access, config.name, node, node.cache, say)


def run_answerer(access: Access, name: str, node: Answerer, home: Path, say: Say) -> int:
    """Let a node or a helper answer the server until its SuperNode ends; return how it ended.

    Parameters
    ----------
    home
        A folder of its own, for the SuperNode's folder; what a killed one left there is removed.
    """
    if access.ca is not None:
        check_server(access.superlink, access.ca)
    folder = home / "supernode"
    make_folder(folder, private=True)
    with alone_in(folder, f"{name} is already running with {home}: end it first"):
        try:
            _clear(folder)
            return _run(access, name, node, folder, say)
        finally:
            _clear(folder)


def _clear(folder: Path) -> None:
    (folder / "secret").unlink(missing_ok=True)
    shutil.rmtree(folder / "flower", ignore_errors=True)


def _run(access: Access, name: str, node: Answerer, folder: Path, say: Say) -> int:
    port, secret, path = free_port(), secrets.token_bytes(32).hex().encode(), folder / "secret"
    write_secret(path, secret)
    options = ["--isolation", "process", "--superexec-auth-secret-file", str(path)]
    options += supernode_options(access)
    with engine("flower-supernode", options, folder / "flower", port) as process:
        say(f"{name} is up")
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every poll
        tasks = TaskClient(f"{HOST}:{port}", secret)
        answer_tasks(tasks, lambda: node, lambda: process.poll() is None)
        say(
            f"the SuperNode ended with code {process.wait()}: see its last lines above; if there "
            "is no reason, the server refuses this key or this machine's clock, which may be 5 s "
            "ahead of the server's and 5 minutes behind at most"
        )
        return process.returncode or 1  # it also ends with 0 when it is refused
