"""A federation on this machine: its experiment, its processes, its results."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from codedfedl.cli.following import (
    LOCAL,
    check_somebody_arrived,
    ended_by_signals,
    followed,
    served,
)
from codedfedl.cli.local import SecurityOptions, TrainingOptions
from codedfedl.cli.output import json_number, messages, print_json, results, with_resume_hint, wrote
from codedfedl.cli.running import set_options
from codedfedl.core.disclosure import only_private
from codedfedl.core.record import PARTS
from codedfedl.data import Dataset
from codedfedl.experiments import built_in
from codedfedl.report.html import render_report
from codedfedl.report.reading import RunTables
from codedfedl.report.tables import rounds_view
from codedfedl.runs.advice import advice
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import changed
from codedfedl.runs.federation import federation_config, scheme_of
from codedfedl.runs.overrides import parse_overrides
from codedfedl.runs.watching import look
from codedfedl.simulation.side_doors import refuse_own_scale

__all__ = ["federate_here", "local_experiment", "local_results"]

_OPTIONS = {
    "data.name": "--dataset",
    "federation.clients": "--clients",
    "federation.deadline": "--deadline",
    "federation.rounds": "--rounds",
}


def federate_here(
    training: TrainingOptions,
    security: SecurityOptions,
    dataset: str,
    overrides: list[str] | None,
    port: int | None,
    out: Path,
    data: str | None,
    resume: bool,
    serve: int | None,
    as_json: bool,
) -> None:
    """Start a SuperLink and its nodes, train, print the rounds and write the report."""
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    directory = RunDirectory(out)
    with served(directory, serve):
        killed = _trained(training, security, dataset, overrides, port, directory, data, resume)
    _finish(directory, as_json, killed)
    check_somebody_arrived(directory)


def _trained(
    training: TrainingOptions,
    security: SecurityOptions,
    dataset: str,
    overrides: list[str] | None,
    port: int | None,
    directory: RunDirectory,
    data: str | None,
    resume: bool,
) -> dict[str, int]:
    """Run the federation; return which nodes were killed, and after which round."""
    from codedfedl.federate.flower.local import LocalFederation, check_port, local_names
    from codedfedl.federate.shards import write_shards

    security.check(training)
    if port is not None:
        check_port(port)
    out = directory.path
    folder = out.resolve() / LOCAL
    places = {
        "federation.test": str(folder / "data" / "test.npz"),
        "fleet.name": str(out.resolve() / "fleet.csv"),
    }
    given = {"data.name": dataset} | training.changes | places
    experiment = local_experiment(training.scheme_table, given, parse_overrides(overrides or []))
    how = experiment.data
    loaded = how.load(data)
    experiment = _with_points(experiment.with_image(loaded.image), loaded)
    scheme = scheme_of(experiment)
    if only_private(scheme.info.disclosure):
        refuse_own_scale(loaded, scheme.info.name)
    node = training.node(scheme, experiment.features.encoder, text=how.text is not None)
    has_helper = node.epsilon_cap is not None
    names = local_names(training.clients, helper=has_helper)
    security.check_keys(names)
    with with_resume_hint(out, resume), directory.commanded(experiment, resume=resume):
        shards = write_shards(experiment, loaded, folder / "data")
        keys = security.held(folder / "keys", training.clients, helper=has_helper)
        with (
            directory.failures_noted(),
            ended_by_signals(),
            LocalFederation(folder, shards, keys=keys, port=port, node=node) as running,
        ):
            killed = followed(running, directory, security.kill)
    return {names[j]: after for j, after in killed.items()}


def _with_points(experiment: Experiment, dataset: Dataset) -> Experiment:
    """State how many points each node has: they are assigned here, so they are known."""
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
        Changes from dedicated options, and from --set, which are applied last.
    """
    base = built_in("demo").model_dump(exclude_none=True)
    base |= {"title": f"{scheme['name']} on real clients", "seeds": [0]}
    base |= {"federation": {"clients": 1}, "schemes": [dict(scheme)]}
    options = _OPTIONS | set_options(overrides)
    experiment = changed(base, {**given, **overrides}, "federate local", options)
    experiment = experiment.with_whole_paths()  # processes start in other folders
    federation_config(experiment)
    scheme_of(experiment)
    return experiment


def _finish(directory: RunDirectory, as_json: bool, killed: Mapping[str, int]) -> None:
    document = local_results(directory, killed)
    if as_json:
        print_json(document)
    else:
        results.print(rounds_view(RunTables(directory).rounds))
    for sentence in document["advice"]:
        messages.print(f"advice: {sentence}", soft_wrap=True)
    wrote(directory.write_text("report.html", render_report(directory)))


def local_results(directory: RunDirectory, killed: Mapping[str, int]) -> dict[str, Any]:
    """Return the document that `federate local --json` prints.

    Parameters
    ----------
    killed
        Nodes that were killed on purpose, and after which round.
    """
    tables, privacy = RunTables(directory), directory.privacy()
    rounds = tables.rounds
    final = json_number(float(rounds["metric"][-1]))
    classes = str(rounds["metric_name"][0]) == "accuracy"
    names = ("round", "deadline_s", "seconds", *PARTS)
    return {
        "run": str(directory.path),
        "scheme": str(rounds["scheme"][0]),
        "rounds": _rows({name: rounds[name][rounds["round"] > 0] for name in names}),
        "accuracy": final if classes else None,
        "r_squared": None if classes else final,
        "killed": list(killed),
        "advice": advice(look(directory).conduct, killed, "--deadline"),
        "refusals": _rows(tables.refusals),
        **({"privacy": privacy} if privacy else {}),
    }


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a table as plain rows, for JSON."""
    values = [column.tolist() for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]
