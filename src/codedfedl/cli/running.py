"""Runs on a virtual clock: read the experiment, run it with its progress shown, print it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from codedfedl.api import tracked
from codedfedl.cli.options import Workers
from codedfedl.cli.output import messages, print_json, results, with_resume_hint, wrote
from codedfedl.cli.watching import watched
from codedfedl.errors import InputError
from codedfedl.experiments import BUILT_IN, built_in
from codedfedl.io.names import nearest
from codedfedl.report.comparison import verdict
from codedfedl.report.html import render_report
from codedfedl.report.results import outcomes
from codedfedl.report.tables import outcome_rows, outcome_view
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import check_trusted, read_experiment
from codedfedl.runs.overrides import parse_overrides
from codedfedl.simulation.progress import Progress, Watch, silent
from codedfedl.simulation.replay import replay as replay_federation
from codedfedl.simulation.run import simulate
from codedfedl.simulation.side_by_side import Job, simulate_all
from codedfedl.tracking import open_tracker

__all__ = [
    "chosen_experiment",
    "named_experiment",
    "replay",
    "run_and_report",
    "run_experiment",
    "run_experiments",
    "set_options",
    "tracked_by",
]

_ALONE = Workers()


def chosen_experiment(name: str, overrides: list[str] | None, trust: bool = False) -> Experiment:
    """Read an experiment with the changes of --set, to be simulated."""
    chosen = named_experiment(name, parse_overrides(overrides or []), trust)
    return chosen.model_copy(update={"federation": None})


def named_experiment(name: str, changes: Mapping[str, Any], trust: bool = False) -> Experiment:
    """Read a TOML file, or a built-in experiment where there is no such file.

    The changes are those of --set; `trust` is as in `read_experiment`.
    """
    if not Path(name).is_file() and name in BUILT_IN:
        return built_in(name, changes, set_options(changes))
    if not Path(name).suffix:
        raise InputError(
            f"{name!r} is neither a TOML file nor a built-in experiment: {nearest(name, BUILT_IN)}"
        )
    return read_experiment(name, changes, set_options(changes), trust=trust)


def set_options(changes: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the keys of --set in error messages."""
    return {key: f"--set {key}" for key in changes}


def replay(run: Path, data: str | None, trust: bool, as_json: bool) -> None:
    """Recompute a federation's model from its recorded arrivals; exit with 1 if it differs."""
    directory = RunDirectory(run)
    check_trusted(directory.experiment(), run, trust=trust)
    found = replay_federation(directory, data)
    if as_json:
        print_json({"run": str(run), **asdict(found), "same": found.same})
    else:
        results.print(
            f"{found.rounds} rounds with {found.answers} answers and {found.missed} missed: the "
            f"model is {'the same' if found.same else 'DIFFERENT'}, {found.difference:.1e} apart"
        )
    if not found.same:
        raise typer.Exit(1)


def run_and_report(
    experiment: Experiment,
    out: Path,
    data: str | None,
    device: str,
    resume: bool,
    model: str | None,
    as_json: bool,
    workers: Workers = _ALONE,
    track: Sequence[str] = (),
) -> None:
    """Run an experiment, print its table and its verdict, and write its report."""
    directory = RunDirectory(out)
    with with_resume_hint(out, resume), tracked_by(track, experiment, directory) as also:
        run_experiment(experiment, directory, data, device, resume, model, workers, also)
        _finish(directory, as_json)


def run_experiment(
    experiment: Experiment,
    directory: RunDirectory,
    data: str | None,
    device: str,
    resume: bool,
    model: str | None = None,
    workers: Workers = _ALONE,
    also: Watch = silent,
) -> None:
    """Run an experiment, and show how far it is, here and to another watcher."""
    with watched() as show:

        def watch(what: str, progress: Progress | None) -> None:
            show(what, progress)
            also(what, progress)

        simulate(
            experiment,
            directory,
            data=data,
            device=device,
            resume=resume,
            model=model,
            watch=watch,
            **asdict(workers),
        )


def run_experiments(
    experiments: Mapping[str, Experiment], out: Path, data: str | None, device: str
) -> dict[str, RunDirectory]:
    """Run experiments, each in its folder of `out`, or continue them; show how far they are."""
    found = {name: RunDirectory(out / name) for name in experiments}
    jobs = [Job(experiment, found[name]) for name, experiment in experiments.items()]
    with with_resume_hint(out, resumes=True), watched() as watch:
        simulate_all(jobs, watch, data=data, device=device)
    return found


@contextmanager
def tracked_by(
    track: Sequence[str], experiment: Experiment, directory: RunDirectory
) -> Iterator[Watch]:
    """Open the trackers of --track, and give a watcher that tells them of every round."""
    trackers = [open_tracker(text, directory.path) for text in track]
    with tracked(experiment, directory, trackers, messages.print) as watch:
        yield watch


def _finish(directory: RunDirectory, as_json: bool) -> None:
    found = outcomes(directory)
    if as_json:
        print_json({"run": str(directory.path), "rows": outcome_rows(found)})
    else:
        results.print(outcome_view(found, results.width))
        results.print("\n" + "\n".join(verdict(found)), soft_wrap=True)
    wrote(directory.write_text("report.html", render_report(directory)))
