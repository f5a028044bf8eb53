"""A node, or a helper: it connects to the server, and answers until it is ended."""

import time
from pathlib import Path
from typing import NoReturn

from codedfedl.federate.flower.apps import node_from
from codedfedl.federate.flower.connection import Connection, KeyRefusedError
from codedfedl.federate.flower.programs import alone_in
from codedfedl.federate.node.config import Access, NodeConfig
from codedfedl.federate.transport import Answerer, Say
from codedfedl.io.files import make_folder

AGAIN_SECONDS = 2.0
"""Seconds until a node whose key was refused connects again."""


def run_node(access: Access, config: NodeConfig, say: Say) -> NoReturn:
    """Answer the server until this process is ended."""
    node = node_from(config)
    node.ready()  # what is wrong with its data or encoder is said here, and not to the server
    run_answerer(access, config.name, node, node.cache, say)


def run_answerer(access: Access, name: str, node: Answerer, home: Path, say: Say) -> NoReturn:
    """Let a node or a helper answer the server until this process is ended.

    A key that is refused is tried again: the server may know it later, or forget a connection that
    was cut.

    Parameters
    ----------
    home
        A folder of its own.
    """
    folder, revoked, said = home / "supernode", False, ""
    make_folder(folder, private=True)
    with alone_in(folder, f"{name} is already running with {home}: end it first"):
        say(f"{name} is up")
        while True:
            connection = Connection(access, say)
            try:
                with connection:
                    revoked, said = False, f"{name} is connected to {access.superlink}"
                    say(said)
                    connection.answer(node)
            except KeyRefusedError as error:
                revoked |= connection.is_accepted
                why = why_refused(
                    access.superlink, name, signature=error.signature, revoked=revoked
                )
            if why != said:
                say(f"{why}; trying again every {AGAIN_SECONDS:g} s")
            said = why
            time.sleep(AGAIN_SECONDS)


def why_refused(server: str, name: str, *, signature: bool, revoked: bool) -> str:
    """Say why a server refuses a node's key, or a signature by it, and what helps."""
    if revoked:
        return (
            f"{server} accepts the key of {name} no longer: its operator has revoked it; a new one "
            "is made with codedfedl federate key"
        )
    if signature:
        return (
            f"{server} refuses the signature of {name}: set this machine's clock, which may be 5 s "
            "ahead of the server's and 5 minutes behind"
        )
    return (
        f"{server} does not know the key of {name}: its operator admits it with codedfedl "
        f"federate register {name}.pub; or it was revoked; or the server still counts an "
        f"earlier {name}, which was killed, as connected: for a minute at most"
    )
