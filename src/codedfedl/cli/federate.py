"""`codedfedl federate`: real clients, on Flower; here the commands of the server's operator."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codedfedl.cli.federate_local import local_command
from codedfedl.cli.federate_node import helper_command, ledger_command, node_command
from codedfedl.cli.federate_split import split_command
from codedfedl.cli.options import Json, Log, Port, Serve, Track, add_commands
from codedfedl.cli.output import log_lines, say, show, wrote
from codedfedl.errors import InputError

if TYPE_CHECKING:
    from codedfedl.federate.flower.superlink import ServerSettings, Superlink
    from codedfedl.runs.config import Experiment


@dataclass(frozen=True)
class ServerOptions:
    """Which server.

    Attributes
    ----------
    federation : FILE
        The server's federation.toml, or its folder.
    """

    federation: Path = Path()

    @property
    def file(self) -> Path:
        """The file with the server's settings."""
        from codedfedl.federate.deploy.start import FEDERATION

        return self.federation / FEDERATION if self.federation.is_dir() else self.federation

    def experiment(self) -> "Experiment":
        """Return what the file says, with full paths."""
        from codedfedl.runs.documents import read_experiment

        return read_experiment(self.file, trust=True).with_whole_paths(self.file.parent)

    @property
    def settings(self) -> "ServerSettings":
        """The settings of the server."""
        from codedfedl.federate.deploy.keys import Keys
        from codedfedl.federate.flower.programs import check_engine
        from codedfedl.federate.flower.superlink import ServerSettings

        check_engine()
        if (table := self.experiment().server) is None:
            raise InputError(
                f"{self.file} has no [server] table: codedfedl federate init writes one"
            )
        keys = None if table.keys is None else Keys(Path(table.keys))
        data = None if table.database is None else Path(table.database)
        return ServerSettings(Path(table.home), table.host, table.port, keys, data)

    def link(self) -> "Superlink":
        """Return the server's SuperLink; one that was just started is waited for."""
        from codedfedl.federate.flower.superlink import running

        return running(self.settings.home, say)


def init_command(
    folder: Path,
    *,
    host: list[str],
    nodes: str = "",
    port: Port = 8000,
    days: float = 365.0,
) -> None:
    """Write all files that a federation begins with, or renew its certificates.

    federation.toml and keys/ are the server's. Each folder in nodes/ is for a node or the helper,
    which makes its own key in it. ca.key signs certificates: keep it off the server and all nodes.

    Parameters
    ----------
    folder
        The server's folder.
    host
        The server's name or address, as nodes reach it; may be repeated.
    nodes
        Names of the nodes, separated by commas; helper is the helper of secure sums.
    port
        The port that nodes connect to.
    days
        Validity of the certificates, in days.
    """
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    from codedfedl.federate.deploy.start import FEDERATION, begin

    if not 0 < days < math.inf:
        raise InputError(f"--days is {days:g}: must be above 0")
    names = [name.strip() for name in nodes.split(",")] if nodes else []
    if len(set(names)) < len(names):
        raise InputError(f"--nodes {nodes!r} has a name twice: give every node its own")
    given = begin(folder, host, names, port, days)
    wrote(folder / FEDERATION)
    say(f"give each node its folder: {', '.join(map(str, given))}")
    say(f"keep {folder / 'keys' / 'ca.key'} off this machine: it signs new certificates")


def serve_command(federation: Path = Path(), *, log: Log = "text") -> None:
    """Serve nodes: a SuperLink on loopback, and a gate that admits only nodes.

    Only this user on this machine can start runs and register keys. Serves until interrupted.

    Parameters
    ----------
    federation
        The server's federation.toml, or its folder.
    """
    settings = ServerOptions(federation).settings
    from codedfedl.federate.flower.superlink import serve

    raise typer.Exit(serve(settings, log_lines("gate", log)))


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
    federation: Path = Path(), *, out: Path | None = None, follow: bool = False, serve: Serve = None
) -> None:
    """Train on the nodes of a running server, or continue.

    Run it on the server's machine, as the user that `federate serve` runs as. With --follow or
    --serve it stays until the run ends, and interrupting it does not end the run. Without,
    `codedfedl federate status` and `follow` show the progress, and `codedfedl report` writes the
    report.

    Parameters
    ----------
    federation
        The server's federation.toml, or its folder; or a run's config.toml.
    out
        The run directory, instead of server.out.
    follow
        Show every round, and write the report at the end.
    """
    server = ServerOptions(federation)
    experiment = server.experiment()
    from codedfedl.cli.following import how_to_follow, run_and_follow, submit
    from codedfedl.federate.server.session import Evaluation
    from codedfedl.runs.federation import scheme_of

    scheme_of(experiment)
    Evaluation(experiment)  # reads the test points: what is wrong is said here
    named = "run" if experiment.server is None else experiment.server.out
    directory = Path(out or named).resolve()
    link = server.link()
    if follow or serve is not None:
        run_and_follow(link, experiment, directory, serve)
        return
    number = submit(link, experiment, directory)
    say(f"run {number} started; follow it with {how_to_follow(directory)}")


def status_command(*, server: ServerOptions, as_json: Json = False) -> None:
    """Show whether the server runs, who is connected, and what the last run is doing."""
    from codedfedl.cli.federate_status import server_status

    document = server_status(server.settings.home)
    run = document["run"]
    what = f"run {run['number']} in {run['out']}: {run['text']}" if run else "no run yet"
    here = "runs" if document["running"] else "does not run"
    sentence = f"the server {here}; {document['connected']} of {document['nodes']} nodes connected"
    show(as_json, document, sentence, what)


def nodes_command(*, server: ServerOptions, as_json: Json = False) -> None:
    """Show all nodes: who is connected, since when, and when each answered last."""
    from codedfedl.cli.federate_status import nodes_of

    nodes = nodes_of(server.settings.home)
    show(as_json, {"nodes": nodes}, nodes or "no nodes yet: codedfedl federate register")


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
        "Try it": {"local": local_command, "split": split_command},
        "The server's operator": {
            "init": init_command,
            "serve": serve_command,
            "register": register_command,
            "revoke": revoke_command,
            "run": run_command,
            "status": status_command,
            "nodes": nodes_command,
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
