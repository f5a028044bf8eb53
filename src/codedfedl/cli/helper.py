"""`codedfedl federate helper`: the party that adds up masks, and holds no data."""

from pathlib import Path
from typing import Annotated

import typer

from codedfedl.cli.serve import Authority, check_access, leave_on_signals, say
from codedfedl.errors import InputError

__all__ = ["helper_command"]

_HOME = Path.home() / ".local" / "share" / "codedfedl" / "helper"


def helper_command(
    superlink: Annotated[str, typer.Option(help="The server's gate, as host:port.")],
    name: Annotated[str, typer.Option(help="The name that the operator registered.")] = "helper",
    authority: Authority = None,
    key: Annotated[Path | None, typer.Option(help="Its private key for the gate.")] = None,
    home: Annotated[
        Path, typer.Option(help="Its folder, to be kept: its key for masks, and its answers.")
    ] = _HOME,
    clients: Annotated[
        Path | None,
        typer.Option(help="A folder with the masks.pub of every client, as NAME.pub."),
    ] = None,
) -> None:
    """Help federations to sum in secret: tell the server the sum of masks, less noise.

    Run it on a machine of its own, by somebody who does not work together with the server's
    operator. The first start makes masks.key and masks.pub in --home; give masks.pub to every
    client, by a way that the server cannot change.
    """
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    from codedfedl.federate.flower.keys import check_name
    from codedfedl.federate.flower.supernode import NodeSettings, run_answerer
    from codedfedl.federate.helper import HelperNode

    check_name(name)
    check_access(superlink, authority, key)
    if clients is not None and not clients.is_dir():
        raise InputError(f"--clients {clients} is not a folder: put every NAME.pub into one")
    node = HelperNode(name, home.resolve(), clients)
    say(f"clients pin {home / 'masks.pub'}")
    leave_on_signals()
    settings = NodeSettings(superlink, {"name": name}, authority, key)
    raise typer.Exit(run_answerer(settings, node, say))
