"""`codedfedl federate`: the same schemes on real clients, on Flower."""

import math
from pathlib import Path
from typing import Annotated

import typer

from codedfedl.cli.helper import helper_command, ledger_command
from codedfedl.cli.local import local_command
from codedfedl.cli.options import Serve, Track
from codedfedl.cli.output import messages, wrote
from codedfedl.cli.serve import (
    SERVER_HOME,
    Authority,
    Home,
    LinkAddress,
    key_command,
    link_of,
    node_command,
    register_command,
    revoke_command,
    serve_command,
    stop_command,
)
from codedfedl.errors import InputError

__all__ = ["federate"]

federate = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Train on real clients, on Flower."
)
federate.command("local")(local_command)
federate.command("serve")(serve_command)
federate.command("node")(node_command)
federate.command("helper")(helper_command)
federate.command("ledger")(ledger_command)
federate.command("key")(key_command)
federate.command("register")(register_command)
federate.command("revoke")(revoke_command)
federate.command("stop")(stop_command)


@federate.command("run")
def run_command(
    experiment: Annotated[
        Path, typer.Argument(help="A TOML file with a federation table, on the server.")
    ],
    home: Home = SERVER_HOME,
    superlink: LinkAddress = None,
    authority: Authority = None,
    out: Annotated[Path, typer.Option(help="The run directory, on the server.")] = Path("runs/fed"),
    follow: Annotated[
        bool, typer.Option("--follow", help="Show every round, and write the report at the end.")
    ] = False,
    serve: Serve = None,
) -> None:
    """Start a federation on a running server, or continue the one in --out.

    Run it on the server's machine, as the user that `federate serve` runs as. With --follow or
    --serve it stays until the run ends, and interrupting it does not end the run. Without,
    status.json and server.log in the run directory show the progress, `codedfedl federate follow`
    shows it as it happens, and `codedfedl report` writes the report.
    """
    from codedfedl.runs.documents import read_experiment
    from codedfedl.runs.federation import scheme_of

    scheme_of(read_experiment(experiment))
    link = link_of(home, superlink, authority)
    from codedfedl.cli.operating import how_to_follow, run_and_follow, submit

    if follow or serve is not None:
        run_and_follow(link, experiment.resolve(), out.resolve(), serve)
        return
    number = submit(link, experiment.resolve(), out.resolve())
    messages.print(f"run {number} started; follow it with {how_to_follow(out)}", soft_wrap=True)


@federate.command("follow")
def follow_command(
    run: Annotated[Path, typer.Argument(help="The run directory, on the server.")],
    serve: Serve = None,
    track: Track = None,
) -> None:
    """Show a run in progress, every round as it happens, until it ends.

    It only reads: interrupting it does not end the run. With --track, every round is sent to a
    tracker too.
    """
    from codedfedl.cli.operating import follow_run

    follow_run(run.resolve(), serve, track or [])


@federate.command("keys")
def keys_command(
    folder: Annotated[Path, typer.Argument(help="Folder for certificates and keys.")],
    host: Annotated[list[str], typer.Option(help="The server's name or address; may be repeated.")],
    nodes: Annotated[
        str,
        typer.Option(
            help="Nodes' names, separated by commas; better, let nodes make their own keys."
        ),
    ] = "",
    days: Annotated[float, typer.Option(help="Validity of the certificates, in days.")] = 365.0,
) -> None:
    """Make an authority, the server's certificate and, if asked, keys for nodes.

    Give each node ca.crt, and the server ca.crt, server.pem and server.key. Keep ca.key off both. A
    node makes its own key with `codedfedl federate key`; with --nodes the keys are made here, and
    each node's .key must be copied to it.
    """
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    from codedfedl.federate.deploy.keys import make_keys

    if not 0 < days < math.inf:
        raise InputError(f"--days is {days:g}: must be above 0")
    named = [name.strip() for name in nodes.split(",")] if nodes else []
    if len(set(named)) < len(named):
        raise InputError(f"--nodes {nodes!r} has a name twice: give every node its own")
    make_keys(folder, host, named, days=days)
    wrote(folder)


@federate.command("app")
def app_command() -> None:
    """Print the folder of the Flower app, for `flwr run $(codedfedl federate app)`."""
    from codedfedl.federate.flower.programs import APP

    typer.echo(APP)
