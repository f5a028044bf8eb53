"""`codedfedl federate local`: a whole federation on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codedfedl.cli.following import ended_by_signals, followed
from codedfedl.cli.options import grouped
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
from codedfedl.data import Dataset, load_dataset
from codedfedl.errors import InputError
from codedfedl.experiments import built_in
from codedfedl.report.html import render_report
from codedfedl.report.reading import RunTables
from codedfedl.report.tables import rounds_view
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import changed
from codedfedl.runs.federation import federation_config, scheme_of
from codedfedl.runs.journal import Journal
from codedfedl.runs.overrides import parse_overrides
from codedfedl.schemes import make_scheme

if TYPE_CHECKING:
    from codedfedl.federate.flower.keys import Keys

__all__ = ["local_command", "local_experiment"]

_OPTIONS = {
    "data.name": "--dataset",
    "federation.clients": "--clients",
    "federation.deadline": "--deadline",
    "federation.rounds": "--rounds",
}


@dataclass(frozen=True)
class TrainingOptions:
    """What the nodes train, and for how long."""

    clients: Annotated[int, typer.Option(min=1, help="Nodes.")] = 3
    rounds: Annotated[int, typer.Option(min=1, help="Rounds.")] = 5
    deadline: Annotated[
        float | None,
        typer.Option(help="Seconds a round; planned from measurements if not given."),
    ] = None
    scheme: Annotated[str, typer.Option(help="A scheme, or module:Class.")] = "coded"
    redundancy: Annotated[
        float | None, typer.Option(help="Parity rows as a fraction of all points, for coded.")
    ] = None

    @property
    def changes(self) -> dict[str, Any]:
        """What these options change in an experiment, except for the scheme."""
        given = {"federation.rounds": self.rounds, "federation.clients": self.clients}
        deadline = {} if self.deadline is None else {"federation.deadline": self.deadline}
        return given | deadline

    @property
    def scheme_table(self) -> dict[str, Any]:
        """The scheme with its settings, once both are known to be right."""
        settings = {} if self.redundancy is None else {"redundancy": self.redundancy}
        with blaming("--scheme"):
            make_scheme(self.scheme, {})
        with blaming("--redundancy"):
            make_scheme(self.scheme, settings)
        return {"name": self.scheme, **settings}

    @property
    def modules(self) -> list[str]:
        """The user's own module whose work the nodes do, if the scheme has one."""
        module, colon, _ = self.scheme.partition(":")
        return [module] if colon else []


@dataclass(frozen=True)
class SecurityOptions:
    """Keys that the nodes must hold, and nodes that die."""

    tls: Annotated[bool, typer.Option("--tls", help="Certificates, and a key per node.")] = False
    keys: Annotated[
        Path | None, typer.Option(help="Use the certificates and keys of this folder; means --tls.")
    ] = None
    kill: Annotated[
        int, typer.Option(min=0, help="Kill so many nodes on the way, one after each round.")
    ] = 0

    def check(self, training: TrainingOptions) -> None:
        """Refuse to kill so many nodes that nothing is left to see."""
        if self.kill >= training.clients:
            raise InputError(
                f"--kill {self.kill} would leave none of {training.clients} nodes: kill fewer"
            )
        if self.kill >= max(training.rounds, 2):
            raise InputError(
                f"--kill {self.kill} needs more than {training.rounds} rounds: one dies after each"
            )

    def check_keys(self, names: list[str]) -> None:
        """Refuse a folder of keys that lacks one."""
        from codedfedl.federate.flower.keys import Keys

        if self.keys is not None:
            Keys(self.keys).check("127.0.0.1", names)

    def held(self, folder: Path, clients: int) -> "Keys | None":
        """Return the keys of --keys, or with --tls new ones in a folder."""
        from codedfedl.federate.flower.keys import Keys
        from codedfedl.federate.flower.local import local_keys

        if self.keys is not None:
            return Keys(self.keys)
        return local_keys(folder, clients) if self.tls else None


@grouped
def local_command(
    training: TrainingOptions,
    security: SecurityOptions,
    *,
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
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    from codedfedl.federate.failures import nobody_arrived
    from codedfedl.federate.flower.local import LocalFederation, check_port
    from codedfedl.federate.shards import node_name, write_shards

    security.check(training)
    if port is not None:
        check_port(port)
    folder = out.resolve() / "local"
    places = {
        "federation.test": str(folder / "data" / "test.npz"),
        "fleet.name": str(out.resolve() / "fleet.csv"),
    }
    given = {"data.name": dataset} | training.changes | places
    experiment = local_experiment(training.scheme_table, given, parse_overrides(overrides or []))
    loaded = load_dataset(dataset, data, label=experiment.data.label)
    experiment = _with_points(experiment.with_image(loaded.image), loaded)
    names = [node_name(j) for j in range(training.clients)]
    security.check_keys(names)
    directory = RunDirectory(out)
    directory.open(experiment, resume=resume)
    directory.announce("starting")  # an earlier end of this run is not that of this one
    shards = write_shards(experiment, loaded, folder / "data")
    keys, works = security.held(folder / "keys", training.clients), training.modules
    with (
        with_resume_hint(out, resume),
        directory.failures_noted(),
        ended_by_signals(),
        LocalFederation(folder, shards, keys=keys, port=port, works=works) as running,
    ):
        killed = followed(running, directory, security.kill)
    _finish(directory, as_json, [names[j] for j in killed])
    if nobody := nobody_arrived(Journal(directory.path).records()):
        messages.print(f"error: {nobody}", soft_wrap=True)
        raise typer.Exit(1)


def _with_points(experiment: Experiment, dataset: Dataset) -> Experiment:
    """State how many points each node has: whoever deals them knows."""
    from codedfedl.federate.shards import node_name

    assert experiment.federation is not None
    shards = experiment.deal(dataset.labels, experiment.federation.clients, experiment.seeds[0])
    points = {node_name(j): len(rows) for j, rows in enumerate(shards)}
    federation = experiment.federation.model_copy(update={"points": points})
    return experiment.model_copy(update={"federation": federation})


def local_experiment(
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
