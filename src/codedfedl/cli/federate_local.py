"""`codedfedl federate local`: a whole federation on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codedfedl.cli.options import Count, Data, Json, Overrides, Resume, SchemeName, Serve
from codedfedl.cli.output import blaming, exit_on_signals, json_number, say, show, with_resume_hint
from codedfedl.errors import InputError
from codedfedl.federate.node.config import NodeConfig

if TYPE_CHECKING:
    from codedfedl.core.protocol import Scheme
    from codedfedl.data import Dataset
    from codedfedl.federate.deploy.keys import Keys
    from codedfedl.runs.config import Experiment
    from codedfedl.runs.directory import RunDirectory


PATIENCE_SECONDS = 120.0
"""How long a federation on this machine pauses for nodes, which nobody starts again."""


@dataclass(frozen=True)
class TrainingOptions:
    """What the nodes train.

    Attributes
    ----------
    clients
        Nodes.
    rounds
        Rounds.
    deadline
        Seconds per round; by default planned from measurements.
    scheme
        A scheme, or module:Class.
    redundancy
        Parity rows as a fraction of all points, for coded.
    epsilon
        The privacy budget of the run, for private.
    secure
        Let the server see only sums of answers, without noise.
    model
        Train a network instead of a linear model: cnn, mlp, logistic, or module:function.
    """

    clients: Count = 3
    rounds: Count = 5
    deadline: float | None = None
    scheme: SchemeName = "coded"
    redundancy: float | None = None
    epsilon: float | None = None
    secure: bool = False
    model: str | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """What these options change in an experiment, except for the scheme."""
        changes = {"federation.rounds": self.rounds, "federation.clients": self.clients}
        deadline = {} if self.deadline is None else {"federation.deadline": self.deadline}
        if self.model is None:
            return changes | deadline
        network = {"model.kind": "torch", "model.module": self.model}
        features = {"features.kind": "identity", "training.step": "auto"}
        return changes | deadline | network | features

    @property
    def scheme_table(self) -> dict[str, Any]:
        """The scheme with its settings, once both are known to be right."""
        from codedfedl.schemes import make_scheme

        given = {"redundancy": self.redundancy, "epsilon": self.epsilon}
        settings = {name: value for name, value in given.items() if value is not None}
        with blaming("--scheme"):
            make_scheme(self.scheme, {})
        for name, value in settings.items():
            with blaming(f"--{name}"):
                make_scheme(self.scheme, {name: value})
        return {"name": self.scheme, **settings, **({"secure": True} if self.secure else {})}

    def node(
        self, scheme: "Scheme", encoder: str | None, module: str = "", *, text: bool
    ) -> NodeConfig:
        """Return what all nodes are configured with, so that they allow what the scheme needs.

        Sums without noise have no ε: asking for them here allows any.
        """
        from codedfedl.core.disclosure import Disclosure, needs_helper, only_private
        from codedfedl.federate.secure.vault import EPSILON_CAP

        named = [name.partition(":") for name in (self.scheme, module)]
        works = ",".join(dict.fromkeys(first for first, colon, _ in named if colon))
        config = NodeConfig(
            "node",
            text="inputs" if text else None,
            encoder=encoder,
            works=works or None,
            networks=bool(module),
        )
        if not needs_helper(scheme.disclosure):
            return config
        private = only_private(scheme.disclosure)
        cap = max(EPSILON_CAP, self.epsilon or 0.0) if private else inf
        parity = {Disclosure.MIXED, Disclosure.SUMS} <= scheme.disclosure
        return replace(config, epsilon_cap=cap, parity=parity)


@dataclass(frozen=True)
class SecurityOptions:
    """Keys of the nodes, and faults.

    Attributes
    ----------
    tls
        Use certificates, and a key per node.
    keys
        Use the certificates and keys in this folder; implies --tls.
    kill
        Kill this many nodes, one after each round.
    """

    tls: bool = False
    keys: Path | None = None
    kill: Annotated[int, typer.Option(min=0)] = 0

    def check(self, training: TrainingOptions) -> None:
        """Refuse to kill more nodes than the nodes and rounds allow."""
        if self.kill >= training.clients:
            raise InputError(
                f"--kill {self.kill} would leave none of {training.clients} nodes: kill fewer"
            )
        if self.kill >= max(training.rounds, 2):
            raise InputError(
                f"--kill {self.kill} needs more than {training.rounds} rounds: one dies after each"
            )

    def changes(self, training: TrainingOptions) -> dict[str, Any]:
        """Return what killed nodes change in an experiment: the run continues without them."""
        from codedfedl.runs.federation_sections import DEFAULT_QUORUM

        left = training.clients - self.kill
        quorum = {"federation.quorum": left} if self.kill and left < DEFAULT_QUORUM else {}
        return {"federation.patience": PATIENCE_SECONDS, **quorum}

    def held(self, folder: Path, clients: int, *, helper: bool) -> "Keys | None":
        """Return the keys of --keys, or with --tls new ones in a folder."""
        from codedfedl.federate.deploy.keys import Keys
        from codedfedl.federate.deploy.local import local_keys

        if self.keys is not None:
            return Keys(self.keys)
        return local_keys(folder, clients, helper=helper) if self.tls else None


def local_command(
    *,
    training: TrainingOptions,
    security: SecurityOptions,
    dataset: str = "digits",
    overrides: Overrides = (),
    port: int | None = None,
    out: Path = Path("runs/federation"),
    data: Data = None,
    resume: Resume = False,
    serve: Serve = None,
    as_json: Json = False,
) -> None:
    """Run a whole federation on this machine: a SuperLink, nodes, and sockets on loopback.

    Every node has its own data file, cache and key. All processes are ended, whatever happens. The
    run directory is like that of a simulation, with logs in local/logs. Every round is shown as it
    happens; with --serve, a page in the browser shows it too, and becomes the report.

    Examples: `codedfedl federate local --clients 4 --rounds 5 --tls --kill 1 --serve 8080`,
    `codedfedl federate local --scheme coded-newton --rounds 3`,
    `codedfedl federate local --scheme private --epsilon 3 --rounds 8 --tls`,
    `codedfedl federate local --scheme uncoded --secure --tls`.

    Parameters
    ----------
    dataset
        A data set's name or file.
    overrides
        Override a key, such as data.batches=2.
    port
        Port of the SuperLink; by default a free one.
    out
        The run directory.
    """
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    from codedfedl.cli.following import served, write_report
    from codedfedl.report.outcome_tables import round_rows
    from codedfedl.report.reading import RunTables
    from codedfedl.runs.directory import RunDirectory
    from codedfedl.runs.documents import parse_overrides

    directory = RunDirectory(out)
    folder = out.resolve() / "local" / "data"
    changes = {
        "data.name": dataset,
        **training.changes,
        **security.changes(training),
        "federation.test": str(folder / "test.npz"),
        "fleet.name": str(out.resolve() / "fleet.csv"),
    }
    with served(directory, serve):
        security.check(training)
        experiment = local_experiment(training.scheme_table, changes, parse_overrides(overrides))
        killed = _train(experiment, training, security, port, directory, data, resume)
    document = local_results(directory, killed)
    show(as_json, document, round_rows(RunTables(directory).rounds))
    for sentence in document["advice"]:
        say(f"advice: {sentence}")
    write_report(directory)


def _train(
    experiment: "Experiment",
    training: TrainingOptions,
    security: SecurityOptions,
    port: int | None,
    directory: "RunDirectory",
    data: str | None,
    resume: bool,
) -> dict[str, int]:
    """Run the federation; return which nodes were killed, and after which round."""
    from codedfedl.cli.following import LOCAL, follow_local
    from codedfedl.core.disclosure import only_private
    from codedfedl.federate.deploy.keys import Keys
    from codedfedl.federate.deploy.local import (
        LocalFederation,
        check_port,
        local_names,
        write_shards,
    )
    from codedfedl.runs.federation import scheme_of
    from codedfedl.simulation.units import refuse_own_scale

    if port is not None:
        check_port(port)
    loaded = experiment.data.load(data)
    folder = directory.path.resolve() / LOCAL
    experiment = _with_points(experiment.with_image(loaded.image), loaded)
    if loaded.origin.preparation is not None:
        how = {"preparation": str(folder / "data" / "preparation.json")}
        prepared = experiment.data.model_copy(update=how)
        experiment = experiment.model_copy(update={"data": prepared})
    scheme = scheme_of(experiment)
    if only_private(scheme.disclosure):
        refuse_own_scale(loaded, scheme.info.name)
    is_text = experiment.data.text is not None
    module = experiment.model.module if experiment.model.kind == "torch" else ""
    node = training.node(scheme, experiment.features.encoder, module, text=is_text)
    has_helper = node.epsilon_cap is not None
    names = local_names(training.clients, helper=has_helper)
    if security.keys is not None:
        Keys(security.keys).check("127.0.0.1", names)
    with with_resume_hint(directory.path, resume), directory.commanded(experiment, resume=resume):
        shards = write_shards(experiment, loaded, folder / "data")
        keys = security.held(folder / "keys", training.clients, helper=has_helper)
        with (
            directory.failures_noted(),
            exit_on_signals(),
            LocalFederation(folder, shards, keys=keys, port=port, node=node) as running,
        ):
            killed = follow_local(running, directory, security.kill)
    return {names[j]: after for j, after in killed.items()}


def _with_points(experiment: "Experiment", dataset: "Dataset") -> "Experiment":
    """State how many points each node has: they are assigned here, so they are known."""
    from codedfedl.federate.deploy.local import node_name

    assert experiment.federation is not None
    shards = experiment.deal(dataset, experiment.federation.clients, experiment.seeds[0])
    points = {node_name(j): len(rows) for j, rows in enumerate(shards)}
    federation = experiment.federation.model_copy(update={"points": points})
    return experiment.model_copy(update={"federation": federation})


def local_experiment(
    scheme: Mapping[str, Any], changes: Mapping[str, Any], overrides: Mapping[str, Any]
) -> "Experiment":
    """Return the demo's experiment with one scheme, as a federation.

    Parameters
    ----------
    changes, overrides
        Values from dedicated options, and from --set, which are applied last.
    """
    from codedfedl.experiments import built_in, set_options
    from codedfedl.runs.documents import changed
    from codedfedl.runs.federation import federation_config, scheme_of

    base = built_in("demo").model_dump(exclude_none=True)
    base |= {"title": f"{scheme['name']} on real clients", "seeds": [0]}
    base |= {"federation": {"clients": 1}, "schemes": [dict(scheme)]}
    options = {
        "data.name": "--dataset",
        "federation.clients": "--clients",
        "federation.deadline": "--deadline",
        "federation.rounds": "--rounds",
        **set_options(overrides),
    }
    experiment = changed(base, {**changes, **overrides}, "federate local", options)
    experiment = experiment.with_whole_paths()  # processes start in other folders
    federation_config(experiment)
    scheme_of(experiment)
    return experiment


def local_results(directory: "RunDirectory", killed: Mapping[str, int]) -> dict[str, Any]:
    """Return the document that `federate local --json` prints.

    Parameters
    ----------
    killed
        Nodes that were killed on purpose, and after which round.
    """
    from codedfedl.core.record import PARTS
    from codedfedl.report.outcome_tables import plain_rows
    from codedfedl.report.reading import RunTables
    from codedfedl.runs.advice import advice
    from codedfedl.runs.watching import look

    tables, privacy = RunTables(directory), directory.privacy()
    rounds = tables.rounds
    final = json_number(float(rounds["metric"][-1]))
    classes = str(rounds["metric_name"][0]) == "accuracy"
    names = ("round", "deadline_s", "seconds", *PARTS)
    return {
        "run": str(directory.path),
        "scheme": str(rounds["scheme"][0]),
        "rounds": plain_rows({name: rounds[name][rounds["round"] > 0] for name in names}),
        "accuracy": final if classes else None,
        "r_squared": None if classes else final,
        "killed": list(killed),
        "advice": advice(look(directory).conduct, killed, "--deadline"),
        "refusals": plain_rows(tables.refusals),
        **({"privacy": privacy} if privacy else {}),
    }
