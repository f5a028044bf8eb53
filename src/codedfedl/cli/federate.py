"""`codedfedl federate`: the same schemes on real clients, on Flower."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codedfedl.cli.local import local_command
from codedfedl.cli.output import messages, wrote
from codedfedl.errors import InputError
from codedfedl.runs.config import read_experiment
from codedfedl.runs.federation import scheme_of

if TYPE_CHECKING:
    from codedfedl.federate.flower.engine import Superlink

__all__ = ["federate"]

federate = typer.Typer(no_args_is_help=True, help="Train on real clients, on Flower.")

federate.command("local")(local_command)

Address = Annotated[str, typer.Option("--superlink", help="Where it listens, as host:port.")]
Authority = Annotated[
    Path | None, typer.Option("--ca", help="The authority's ca.crt; plaintext if not given.")
]


@federate.command("run")
def run_command(
    experiment: Annotated[
        Path, typer.Argument(help="A TOML file with a federation table, on the server.")
    ],
    superlink: Address,
    authority: Authority = None,
    out: Annotated[Path, typer.Option(help="The run directory, on the server.")] = Path("runs/fed"),
) -> None:
    """Begin a federation on a running SuperLink, or continue the one in --out.

    Run it on the SuperLink's machine. What the server does is in status.json and server.log in the
    run directory; when its state is done, `codedfedl report` writes the report.
    """
    scheme_of(read_experiment(experiment))
    number = _superlink(superlink, authority).submit(experiment.resolve(), out.resolve())
    messages.print(f"run {number} began; follow it in {out / 'server.log'}", soft_wrap=True)


@federate.command("register")
def register_command(
    keys: Annotated[list[Path], typer.Argument(help="The nodes' public keys, such as ada.pub.")],
    superlink: Address,
    authority: Authority = None,
) -> None:
    """Let nodes in, by their public keys."""
    for key in keys:
        if not key.is_file():
            raise InputError(f"{key} is not there: make it with codedfedl federate keys")
    link = _superlink(superlink, authority)
    for key in keys:
        link.register(key)
        messages.print(f"registered {key.stem}")


def _superlink(address: str, authority: Path | None) -> "Superlink":
    from codedfedl.federate.flower.engine import Superlink, check_engine

    check_engine()
    if authority is not None and not authority.is_file():
        raise InputError(f"--ca {authority} is not there: give the authority's certificate")
    place = "".join(c if c.isalnum() else "-" for c in address)
    home = Path.home() / ".cache" / "codedfedl" / "flower" / place
    return Superlink(address, home, None if authority is None else authority.resolve())


@federate.command("keys")
def keys_command(
    folder: Annotated[Path, typer.Argument(help="Where certificates and keys go.")],
    host: Annotated[list[str], typer.Option(help="The server's name or address; may be repeated.")],
    nodes: Annotated[str, typer.Option(help="The nodes' names, separated by commas.")],
    days: Annotated[float, typer.Option(help="How long the certificates hold.")] = 365.0,
) -> None:
    """Make an authority, the server's certificate, and a key for every node.

    Give each node ca.crt and its own .key, the server ca.crt, server.pem, server.key and all .pub.
    Keep ca.key off both.
    """
    from codedfedl.federate.flower.engine import check_engine

    check_engine()
    from codedfedl.federate.flower.keys import make_keys

    if not 0 < days < math.inf:
        raise InputError(f"--days is {days:g}: must be above 0")
    named = [name.strip() for name in nodes.split(",")]
    if len(set(named)) < len(named):
        raise InputError(f"--nodes {nodes!r} has a name twice: give every node its own")
    make_keys(folder, host, named, days=days)
    wrote(folder)


@federate.command("app")
def app_command() -> None:
    """Print the folder of the Flower app, for `flwr run $(codedfedl federate app)`."""
    from codedfedl.federate.flower.engine import APP

    typer.echo(APP)
