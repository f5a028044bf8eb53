"""`codedfedl federate local`: a whole federation on this machine."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codedfedl.cli.output import (
    blaming,
    json_number,
    messages,
    print_json,
    results,
    with_resume_hint,
    wrote,
)
from codedfedl.cli.simulate import Data, Json, Resume, set_options
from codedfedl.data import load_dataset
from codedfedl.errors import InputError
from codedfedl.experiments import built_in
from codedfedl.report.html import render_report
from codedfedl.report.reading import RunTables
from codedfedl.report.tables import rounds_view
from codedfedl.runs.config import Experiment, changed
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.federation import federation_config, scheme_of
from codedfedl.runs.journal import Journal
from codedfedl.runs.overrides import parse_overrides
from codedfedl.schemes import make_scheme

if TYPE_CHECKING:
    from codedfedl.federate.flower.local import LocalFederation

__all__ = ["local_command"]

_OPTIONS = {
    "data.name": "--dataset",
    "federation.clients": "--clients",
    "federation.deadline": "--deadline",
    "federation.rounds": "--rounds",
}
_LOOK = 0.5  # seconds
_ASK_ENGINE = 5.0  # seconds
_FAILURES = 3


def local_command(
    clients: Annotated[int, typer.Option(min=1, help="Nodes.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds.")] = 5,
    deadline: Annotated[
        float | None,
        typer.Option(help="Seconds a round; planned from measurements if not given."),
    ] = None,
    scheme: Annotated[str, typer.Option(help="A scheme, or module:Class.")] = "coded",
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
    given = {"data.name": dataset, "federation.rounds": rounds, "federation.clients": clients}
    if deadline is not None:
        given["federation.deadline"] = deadline
    places = {
        "federation.test": str(folder / "data" / "test.npz"),
        "fleet.name": str(out.resolve() / "fleet.csv"),
    }
    table = _scheme_table(scheme, redundancy)
    experiment = _experiment(table, given | places, parse_overrides(overrides or []))
    loaded = load_dataset(dataset, data, label=experiment.data.label)
    experiment = experiment.with_image(loaded.image)
    if keys is not None:
        Keys(keys).check("127.0.0.1", [node_name(j) for j in range(clients)])
    directory = RunDirectory(out)
    directory.open(experiment, resume=resume)
    directory.announce("starting")  # an earlier end of this run is not that of this one
    works = [name for name, colon, _ in [scheme.partition(":")] if colon]
    shards = write_shards(experiment, loaded, folder / "data")
    held = Keys(keys) if keys else local_keys(folder / "keys", clients) if tls else None
    with (
        with_resume_hint(out, resume),
        directory.failures_noted(),
        _ended_by_signals(),
        LocalFederation(folder, shards, keys=held, port=port, works=works) as running,
    ):
        killed = _follow(running, directory, kill)
    _finish(directory, as_json, [node_name(j) for j in killed])


def _scheme_table(scheme: str, redundancy: float | None) -> dict[str, Any]:
    """Return the scheme of --scheme and --redundancy, once both are known to be right."""
    with blaming("--scheme"):
        make_scheme(scheme, {})
    settings = {} if redundancy is None else {"redundancy": redundancy}
    with blaming("--redundancy"):
        make_scheme(scheme, settings)
    return {"name": scheme, **settings}


def _experiment(
    scheme: Mapping[str, Any], given: Mapping[str, Any], overrides: Mapping[str, Any]
) -> Experiment:
    """Return the demo's experiment with one scheme, as a federation.

    Parameters
    ----------
    given, overrides
        Changes by options of their own, and by --set, which come last.
    """
    base = built_in("demo").model_dump(exclude_none=True)
    base |= {"title": f"{scheme['name']} on real clients", "seeds": [0]}
    base |= {"federation": {"clients": 1}, "schemes": [dict(scheme)]}
    options = _OPTIONS | set_options(overrides)
    experiment = changed(base, {**given, **overrides}, "federate local", options)
    federation_config(experiment)
    scheme_of(experiment)
    return experiment


def _follow(running: "LocalFederation", directory: RunDirectory, kill: int) -> list[int]:
    """Wait for the end of a federation; kill nodes after its first rounds, and return which."""
    journal = Journal(directory.path)
    run = running.submit(directory.path / "config.toml", directory.path)
    ended = _engine_check(running, run)
    killed: list[int] = []
    with _shown() as show:
        while True:
            time.sleep(_LOOK)
            if len(killed) < min(kill, journal.rounds()):
                last = len(running.nodes) - 1 - len(killed)
                running.signal_node(last, signal.SIGKILL)
                killed.append(last)
            status = directory.status.read()
            if status is not None:
                show(status.doing)
                if status.state == "failed":
                    raise InputError(str(status.error))
                if status.state == "done":  # what the engine says of it may differ
                    return killed
                if status.state == "stopped":  # by `federate stop`
                    raise KeyboardInterrupt
            if ended():
                return killed


def _engine_check(running: "LocalFederation", run: int) -> Callable[[], bool]:
    """Return a function that says now and then whether the engine thinks that a run is over."""
    asked, failures = time.monotonic(), 0

    def ended() -> bool:
        nonlocal asked, failures
        if time.monotonic() - asked <= _ASK_ENGINE:
            return False
        asked = time.monotonic()
        running.revive()
        try:
            over = running.finished(run)
        except InputError:
            failures += 1
            if failures == _FAILURES:  # a single one may be a hiccup of the engine
                raise
            return False
        failures = 0
        return over

    return ended


@contextmanager
def _shown() -> Iterator[Callable[[str], None]]:
    if not messages.is_terminal:
        yield lambda _sentence: None
        return
    with messages.status("starting") as line:
        yield line.update


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
    tables = RunTables(directory)
    rounds = tables.rounds
    if as_json:
        final = json_number(float(rounds["metric"][-1]))
        classes = str(rounds["metric_name"][0]) == "accuracy"
        names = ("round", "deadline_s", "seconds", "arrived", "late", "dropped", "refused")
        print_json(
            {
                "run": str(directory.path),
                "scheme": str(rounds["scheme"][0]),
                "rounds": _rows({name: rounds[name][rounds["round"] > 0] for name in names}),
                "accuracy": final if classes else None,
                "r_squared": None if classes else final,
                "killed": killed,
                "refusals": _rows(tables.refusals),
            }
        )
    else:
        results.print(rounds_view(rounds))
    wrote(directory.write_text("report.html", render_report(directory)))


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a table as plain rows, for JSON."""
    values = [column.tolist() for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]
