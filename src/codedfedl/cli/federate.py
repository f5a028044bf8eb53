"""`codedfedl federate`: real clients, on Flower; here the commands of the server's operator."""

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codedfedl.cli.federate_local import local_command
from codedfedl.cli.federate_node import helper_command, ledger_command, node_command
from codedfedl.cli.options import Authority, Port, Serve, Track, add_commands
from codedfedl.cli.output import say, wrote
from codedfedl.errors import InputError

if TYPE_CHECKING:
    from codedfedl.federate.flower.superlink import Superlink


SERVER_HOME = Path.home() / ".local" / "share" / "codedfedl" / "server"

Home = Annotated[Path, typer.Option(help="The server's folder, as given to federate serve.")]


@dataclass(frozen=True)
class ServerOptions:
    """Which server.

    Attributes
    ----------
    superlink
        A SuperLink of your own, as host:port, instead of --home.
    """

    home: Home = SERVER_HOME
    superlink: str | None = None
    authority: Authority = None

    def link(self) -> "Superlink":
        """Return the SuperLink: the server's in a folder, or one by address."""
        from codedfedl.federate.flower.programs import check_engine
        from codedfedl.federate.flower.superlink import Superlink, running

        check_engine()
        if self.superlink is None:
            return running(self.home.resolve())
        if self.authority is not None and not self.authority.is_file():
            raise InputError(
                f"--ca {self.authority} does not exist: give the authority's certificate"
            )
        folder = "".join(c if c.isalnum() else "-" for c in self.superlink)
        cache = Path.home() / ".cache" / "codedfedl" / "flower" / folder
        return Superlink(self.superlink, cache, self.authority and self.authority.resolve())


def keys_command(folder: Path, *, host: list[str], nodes: str = "", days: float = 365.0) -> None:
    """Make an authority, the server's certificate and, if asked, keys for nodes.

    Give each node ca.crt, and the server ca.crt, server.pem and server.key. Keep ca.key off both. A
    node makes its own key with `codedfedl federate key`; with --nodes the keys are made here, and
    each node's .key must be copied to it.

    Parameters
    ----------
    folder
        Folder for certificates and keys.
    host
        The server's name or address; may be repeated.
    nodes
        Nodes' names, separated by commas; better, let nodes make their own keys.
    days
        Validity of the certificates, in days.
    """
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    from codedfedl.federate.deploy.keys import make_keys

    if not 0 < days < math.inf:
        raise InputError(f"--days is {days:g}: must be above 0")
    names = [name.strip() for name in nodes.split(",")] if nodes else []
    if len(set(names)) < len(names):
        raise InputError(f"--nodes {nodes!r} has a name twice: give every node its own")
    make_keys(folder, host, names, days=days)
    wrote(folder)


def serve_command(
    *,
    keys: Path | None = None,
    host: str = "0.0.0.0",
    port: Port = 8000,
    home: Home = SERVER_HOME,
    database: Path | None = None,
    insecure: bool = False,
) -> None:
    """Serve nodes: a SuperLink on loopback, and a gate that admits only nodes.

    Only this user on this machine can start runs and register keys. Serves until interrupted.

    Parameters
    ----------
    keys
        The folder with ca.crt, server.pem and server.key.
    host
        The address that nodes connect to.
    port
        Its port.
    database
        The SuperLink's database; by default in --home.
    insecure
        No certificates and no keys; on loopback only.
    """
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    from codedfedl.federate.deploy.keys import Keys
    from codedfedl.federate.flower.superlink import ServerSettings, serve

    if (keys is None) != insecure:
        raise InputError("give --keys with the server's certificates, or --insecure on loopback")
    held = None if keys is None else Keys(keys)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every poll
    raise typer.Exit(serve(ServerSettings(home.resolve(), host, port, held, database), say))


def register_command(
    keys: list[Path], *, name: str | None = None, role: str | None = None, server: ServerOptions
) -> None:
    """Admit nodes by their public keys; each name and role then belongs to its key.

    Parameters
    ----------
    keys
        The nodes' public keys, such as ada.pub.
    name
        The node's name; by default the file's. Only with one key.
    role
        node or helper; by default node, or what the key is registered for.
    """
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    from codedfedl.federate.deploy.keys import check_name
    from codedfedl.federate.deploy.registry import ROLES

    if name is not None and len(keys) > 1:
        raise InputError(
            f"--name {name} is for one key, not for {len(keys)}: register them one at a time"
        )
    for key in keys:
        check_name(name or key.stem)
        if not key.is_file():
            raise InputError(f"{key} does not exist: make it with codedfedl federate key")
    if role is not None and role not in ROLES:
        raise InputError(f"--role is {role!r}: must be {' or '.join(ROLES)}")
    link = server.link()
    for key in keys:
        node = name or key.stem
        if link.register(key, node, role):
            say(f"registered {node}" + ("" if role is None else f" as a {role}"))
        else:
            say(f"{node} is already registered")


def revoke_command(who: str, *, server: ServerOptions) -> None:
    """Revoke a node's key: it is refused, and cannot be registered again.

    Parameters
    ----------
    who
        A node's name, or the file of its public key.
    """
    from codedfedl.federate.deploy.registry import fingerprint_of

    node = fingerprint_of(Path(who)) if Path(who).is_file() else who
    say(f"revoked {server.link().revoke(node)}")


def run_command(
    experiment: Path,
    *,
    server: ServerOptions,
    out: Path = Path("runs/fed"),
    follow: bool = False,
    serve: Serve = None,
) -> None:
    """Start a federation on a running server, or continue the one in --out.

    Run it on the server's machine, as the user that `federate serve` runs as. With --follow or
    --serve it stays until the run ends, and interrupting it does not end the run. Without,
    status.json and server.log in the run directory show the progress, `codedfedl federate follow`
    shows it as it happens, and `codedfedl report` writes the report.

    Parameters
    ----------
    experiment
        A TOML file with a federation table, on the server.
    out
        The run directory, on the server.
    follow
        Show every round, and write the report at the end.
    """
    from codedfedl.runs.documents import read_experiment
    from codedfedl.runs.federation import scheme_of

    scheme_of(read_experiment(experiment))
    link = server.link()
    from codedfedl.cli.following import how_to_follow, run_and_follow, submit

    if follow or serve is not None:
        run_and_follow(link, experiment.resolve(), out.resolve(), serve)
        return
    number = submit(link, experiment.resolve(), out.resolve())
    say(f"run {number} started; follow it with {how_to_follow(out)}")


def follow_command(run: Path, *, serve: Serve = None, track: Track = ()) -> None:
    """Show a run in progress, every round as it happens, until it ends.

    It only reads: interrupting it does not end the run. With --track, every round is sent to a
    tracker too.

    Parameters
    ----------
    run
        The run directory, on the server.
    """
    from codedfedl.cli.following import follow_run

    follow_run(run.resolve(), serve, track)


def stop_command(
    run: Path | None = None,
    *,
    number: Annotated[int | None, typer.Option("--run")] = None,
    server: ServerOptions,
) -> None:
    """End a run after its current round, or at once by its number.

    Finished rounds stay, and the nodes keep their caches: `federate run` with the same --out
    continues it.

    Parameters
    ----------
    run
        The run directory.
    number
        Instead: the number of the run, which ends at once.
    """
    if (run is None) == (number is None):
        raise InputError("give a run directory, or --run with a number")
    if run is not None:
        from codedfedl.runs.directory import RunDirectory

        RunDirectory(run).stop()
        say(f"{run} ends after its current round; see {run / 'server.log'}")
    else:
        assert number is not None
        server.link().stop(number)
        say(f"run {number} is stopped")


def app_command() -> None:
    """Print the folder of the Flower app, for `flwr run $(codedfedl federate app)`."""
    from codedfedl.federate.flower.programs import APP

    typer.echo(APP)


def key_command(name: str, *, folder: Path = Path()) -> None:
    """Make a node's key pair, on the node; only the .pub goes to the operator.

    Parameters
    ----------
    name
        The node's name.
    folder
        Folder for the key pair.
    """
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    from codedfedl.federate.deploy.keys import make_node_key

    private, public = make_node_key(folder, name)
    say(f"{private} stays here; give {public} to the operator")


federate_app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Train on real clients, on Flower."
)
add_commands(
    federate_app,
    {
        "Try it": {"local": local_command},
        "The server's operator": {
            "keys": keys_command,
            "serve": serve_command,
            "register": register_command,
            "revoke": revoke_command,
            "run": run_command,
            "follow": follow_command,
            "stop": stop_command,
            "app": app_command,
        },
        "Owners of nodes and helpers": {
            "key": key_command,
            "node": node_command,
            "helper": helper_command,
            "ledger": ledger_command,
        },
    },
)
