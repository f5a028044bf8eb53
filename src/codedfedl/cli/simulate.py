"""`codedfedl simulate` and `demo`: runs on a virtual clock."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codedfedl.cli.options import Json, Overrides, Resume, RunOptions, Trust, known_experiments
from codedfedl.cli.output import results, show, wrote
from codedfedl.errors import InputError
from codedfedl.io.names import count_of

if TYPE_CHECKING:
    from codedfedl.report.results import Outcome


def simulate_command(
    experiment: Annotated[str | None, typer.Argument(autocompletion=known_experiments)] = None,
    *,
    run: RunOptions,
    out: Path = Path("runs/run"),
    replay: Path | None = None,
    overrides: Overrides = (),
    model: str | None = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Run an experiment on a virtual clock: schemes, seeds, a fleet and data, from a TOML file.

    The run directory contains config.toml, environment.json, rounds.parquet, clients.parquet,
    settings.parquet, status.json, checkpoint.npz, report.html and model.npz, for `codedfedl
    predict`; the models of all other settings and seeds are in its folder models. Continue an
    interrupted run with --resume: the results are bit for bit those of an uninterrupted run. With
    --jobs or --dask, seeds run at the same time, with the same results.

    With --replay RUN, recompute a federation's model from the arrivals of each round; exit code 1
    means that the two models differ.

    Parameters
    ----------
    experiment
        A TOML file that describes the run, or the name of a built-in experiment.
    out
        The run directory.
    replay
        Recompute the model of this federation from its recorded arrivals.
    model
        The scheme or setting whose model is kept as model.npz; by default the one with the lowest
        training objective.
    """
    if replay is not None:
        _replay(replay, run.data, trust, as_json)
        return
    if experiment is None:
        raise InputError(
            "name an experiment: a TOML file, a built-in's name such as 'demo', or --replay with "
            "a federation's run"
        )
    from codedfedl.cli.running import chosen_experiment, run_experiment

    chosen = chosen_experiment(experiment, overrides, trust)
    _show(run_experiment(chosen, out, run, model), out, as_json)


def demo_command(
    *, out: Path = Path("demo/run"), resume: Resume = False, as_json: Json = False
) -> None:
    """Run all schemes on embedded data and ten unequal clients, and write a report.

    Parameters
    ----------
    out
        The run directory.
    """
    from codedfedl.cli.running import chosen_experiment, run_experiment

    run = RunOptions(resume=resume)
    _show(run_experiment(chosen_experiment("demo"), out, run), out, as_json)


def _show(outcomes: "list[Outcome]", out: Path, as_json: bool) -> None:
    from codedfedl.report.comparison import verdict
    from codedfedl.report.outcome_tables import outcome_rows, outcome_views

    document = {"run": str(out), "rows": outcome_rows(outcomes)}
    sentences = "\n" + "\n".join(verdict(outcomes))
    show(as_json, document, *outcome_views(outcomes, results.width), sentences)
    wrote(out / "report.html")


def _replay(run: Path, data: str | None, trust: bool, as_json: bool) -> None:
    """Recompute a federation's model from its recorded arrivals; exit with 1 if it differs."""
    from codedfedl.runs.directory import RunDirectory
    from codedfedl.runs.documents import check_trusted
    from codedfedl.simulation.replay import replay

    directory = RunDirectory(run)
    check_trusted(directory.experiment(), run, trust=trust)
    again = replay(directory, data)
    sentence = (
        f"{count_of(again.rounds, 'round')} with {count_of(again.answers, 'answer')} and "
        f"{again.missed} missed: the model is {'the same' if again.same else 'DIFFERENT'}, "
        f"{again.difference:.1e} apart"
    )
    show(as_json, {"run": str(run), **asdict(again), "same": again.same}, sentence)
    if not again.same:
        raise typer.Exit(1)
