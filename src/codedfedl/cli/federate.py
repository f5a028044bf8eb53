"""`codedfedl federate`: the same schemes on real clients, on Flower."""

import math
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from codedfedl.cli.output import (
    json_number,
    messages,
    print_json,
    results,
    told_how_to_go_on,
    wrote,
)
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
from codedfedl.cli.simulate import Data, Json, Resume
from codedfedl.data import load_dataset
from codedfedl.errors import InputError
from codedfedl.experiments import built_in
from codedfedl.report.html import render_report
from codedfedl.report.results import read_columns
from codedfedl.report.tables import rounds_view
from codedfedl.runs.config import Experiment, apply_overrides, read_experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.federation import federation_config, scheme_of
from codedfedl.runs.journal import Journal

__all__ = ["federate"]

federate = typer.Typer(no_args_is_help=True, help="Train on real clients, on Flower.")
federate.command("serve")(serve_command)
federate.command("node")(node_command)
federate.command("key")(key_command)
federate.command("register")(register_command)
federate.command("revoke")(revoke_command)
federate.command("stop")(stop_command)

_LOOK = 0.5  # seconds
_ASK_STATUS = 5.0
_FAILURES = 3


@federate.command("local")
def local_command(
    clients: Annotated[int, typer.Option(min=1, help="Nodes.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds.")] = 5,
    deadline: Annotated[
        float | None,
        typer.Option(help="Seconds a round; planned from measurements if not given."),
    ] = None,
    scheme: Annotated[str, typer.Option(help="uncoded, coded or coded-newton.")] = "coded",
    redundancy: Annotated[
        float | None, typer.Option(help="Parity rows as a fraction of all points, for coded.")
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Certificates, and a key per node.")] = False,
    keys: Annotated[
        Path | None, typer.Option(help="Use the certificates and keys of this folder; means --tls.")
    ] = None,
    kill: Annotated[
        int, typer.Option(min=0, help="Kill so many nodes on the way, one after each round.")
    ] = 0,
    dataset: Annotated[str, typer.Option(help="A data set's name or file.")] = "digits",
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key, such as data.batches=2.", metavar="KEY=VALUE"),
    ] = None,
    port: Annotated[int | None, typer.Option(help="Of the SuperLink; free if not given.")] = None,
    out: Annotated[Path, typer.Option(help="The run directory.")] = Path("runs/federation"),
    data: Data = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Run a whole federation on this machine: a SuperLink, SuperNodes, and sockets on loopback.

    Every node has its own data file, cache and key. Whatever happens, all processes end. The run
    directory is that of a simulation, with logs in local/logs.

    Examples: `codedfedl federate local --clients 4 --rounds 5 --deadline 15 --tls --kill 1`,
    `codedfedl federate local --scheme coded-newton --rounds 3`.
    """
    from codedfedl.federate.flower.engine import check_engine

    check_engine()
    from codedfedl.federate.flower.keys import Keys
    from codedfedl.federate.flower.local import LocalFederation, check_port, local_keys
    from codedfedl.federate.shards import node_name, write_shards

    if kill >= clients:
        raise InputError(f"--kill {kill} would leave none of {clients} nodes: kill fewer")
    if kill >= max(rounds, 2):
        raise InputError(f"--kill {kill} needs more than {rounds} rounds: one dies after each")
    if port is not None:
        check_port(port)
    folder = out.resolve() / "local"
    changed = [f"data.name={dataset}", f"federation.rounds={rounds}"]
    changed += [f"federation.test={folder / 'data' / 'test.npz'}"]
    changed += [f"federation.clients={clients}", f"fleet.name={out.resolve() / 'fleet.csv'}"]
    changed += [] if deadline is None else [f"federation.deadline={deadline}"]
    settings: dict[str, Any] = {} if redundancy is None else {"redundancy": redundancy}
    experiment = _experiment(scheme, settings, [*changed, *(overrides or [])])
    loaded = load_dataset(dataset, data, label=experiment.data.label)
    if keys is not None:
        Keys(keys).check("127.0.0.1", [node_name(j) for j in range(clients)])
    directory = RunDirectory(out)
    directory.open(experiment, resume=resume)
    shards = write_shards(experiment, loaded, folder / "data")
    held = Keys(keys) if keys else local_keys(folder / "keys", clients) if tls else None
    with (
        told_how_to_go_on(out, resume),
        _ended_by_signals(),
        LocalFederation(folder, shards, keys=held, port=port) as running,
    ):
        killed = _follow(running, directory, kill)
    _finish(directory, as_json, [node_name(j) for j in killed])


@federate.command("run")
def run_command(
    experiment: Annotated[
        Path, typer.Argument(help="A TOML file with a federation table, on the server.")
    ],
    home: Home = SERVER_HOME,
    superlink: LinkAddress = None,
    authority: Authority = None,
    out: Annotated[Path, typer.Option(help="The run directory, on the server.")] = Path("runs/fed"),
) -> None:
    """Begin a federation on a running server, or go on with the one in --out.

    Run it on the server's machine, as the user that `federate serve` runs as. What the server does
    is in server.log in the run directory; when it says done, `codedfedl report` writes the report.
    """
    scheme_of(read_experiment(experiment))
    link = link_of(home, superlink, authority)
    number = link.submit(experiment.resolve(), out.resolve())
    messages.print(f"run {number} began; follow it in {out / 'server.log'}", soft_wrap=True)


@federate.command("keys")
def keys_command(
    folder: Annotated[Path, typer.Argument(help="Where certificates and keys go.")],
    host: Annotated[list[str], typer.Option(help="The server's name or address; may be repeated.")],
    nodes: Annotated[
        str, typer.Option(help="Nodes' names, separated by commas; best they make their own keys.")
    ] = "",
    days: Annotated[float, typer.Option(help="How long the certificates hold.")] = 365.0,
) -> None:
    """Make an authority, the server's certificate, and keys for nodes that have none.

    Give each node ca.crt, and the server ca.crt, server.pem and server.key. Keep ca.key off both. A
    node makes its own key with `codedfedl federate key`; with --nodes they are made here, and each
    node's .key must be brought to it.
    """
    from codedfedl.federate.flower.engine import check_engine

    check_engine()
    from codedfedl.federate.flower.keys import make_keys

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
    from codedfedl.federate.flower.engine import APP

    typer.echo(APP)


def _experiment(scheme: str, settings: dict[str, Any], overrides: list[str]) -> Experiment:
    """Return the demo's experiment with one scheme, as a federation."""
    base = built_in("demo").model_dump(exclude_none=True)
    base |= {"title": f"{scheme} on real clients", "seeds": [0], "federation": {"clients": 1}}
    base["schemes"] = [{"name": scheme, **settings}]
    experiment = apply_overrides(base, overrides, "--set")
    federation_config(experiment)
    scheme_of(experiment)
    return experiment


def _follow(running: Any, directory: RunDirectory, kill: int) -> list[int]:
    """Wait for the end of a federation; kill nodes after its first rounds."""
    journal = Journal(directory.path)
    before = directory.log.stat().st_size if directory.log.is_file() else 0
    run = running.submit(directory.path / "config.toml", directory.path)
    killed: list[int] = []
    asked, failures = time.monotonic(), 0
    with _shown() as show:
        while True:
            time.sleep(_LOOK)
            if len(killed) < min(kill, journal.rounds()):
                last = len(running.nodes) - 1 - len(killed)
                running.signal_node(last, signal.SIGKILL)
                killed.append(last)
            said = _said(directory, before)
            show(said[-1] if said else "")
            for sentence in said:
                if sentence.startswith("error: "):
                    raise InputError(sentence.removeprefix("error: "))
                if sentence.startswith("stopped: "):  # by `federate stop`
                    raise KeyboardInterrupt
                if sentence.startswith("done: "):  # what the engine says of it may differ
                    return killed
            if time.monotonic() - asked > _ASK_STATUS:
                asked = time.monotonic()
                running.revive()
                try:
                    if running.finished(run):
                        return killed
                    failures = 0
                except InputError:
                    failures += 1
                    if failures == _FAILURES:  # a single one may be a hiccup of the engine
                        raise


def _said(directory: RunDirectory, before: int) -> list[str]:
    """Return what the server said after so many bytes of its log, without the times."""
    if not directory.log.is_file():
        return []
    with directory.log.open(encoding="utf-8", errors="replace") as file:
        file.seek(before)
        return [line.rstrip("\n").partition(" ")[2].partition(" ")[2] for line in file]


@contextmanager
def _shown() -> Iterator[Any]:
    if not messages.is_terminal:
        yield lambda _sentence: None
        return
    with messages.status("starting") as status:
        yield lambda sentence: status.update(sentence or "starting")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, so that everything is ended."""

    def stop(number: int, _frame: Any) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _finish(directory: RunDirectory, as_json: bool, killed: list[str]) -> None:
    rounds = read_columns(directory.path / "rounds.parquet")
    if as_json:
        refusals = read_columns(directory.path / "refusals.parquet")
        final = json_number(float(rounds["metric"][-1]))
        classes = str(rounds["metric_name"][0]) == "accuracy"
        names = ("round", "deadline_s", "seconds", "arrived", "late", "dropped", "refused")
        print_json(
            {
                "run": str(directory.path),
                "scheme": str(rounds["scheme"][0]),
                "rounds": _rows({name: rounds[name] for name in names}),
                "accuracy": final if classes else None,
                "r_squared": None if classes else final,
                "killed": killed,
                "refusals": _rows(refusals),
            }
        )
    else:
        results.print(rounds_view(rounds))
    wrote(directory.write_text("report.html", render_report(directory)))


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a table as plain rows, for JSON."""
    values = [column.tolist() for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]
