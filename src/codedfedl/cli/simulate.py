"""`codedfedl simulate`, `demo` and `report`: runs on a virtual clock."""

from pathlib import Path
from typing import Annotated

import typer

from codedfedl.cli.options import (
    Data,
    Device,
    Json,
    Overrides,
    Resume,
    Track,
    Trust,
    Workers,
    grouped,
    known_experiments,
)
from codedfedl.errors import InputError

__all__ = ["demo_command", "report_command", "simulate_command"]


@grouped
def simulate_command(
    workers: Workers,
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="A TOML file that describes the run, or the name of a built-in experiment.",
            show_default=False,
            autocompletion=known_experiments,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The run directory.")] = Path("runs/run"),
    replay: Annotated[
        Path | None,
        typer.Option(help="Recompute the model of this federation from its recorded arrivals."),
    ] = None,
    overrides: Overrides = None,
    data: Data = None,
    device: Device = "cpu",
    resume: Resume = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="The scheme or setting whose model is kept as model.npz; by default the one with "
            "the lowest training objective.",
            show_default=False,
        ),
    ] = None,
    track: Track = None,
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
    """
    from codedfedl.cli import running

    if replay is not None:
        running.replay(replay, data, trust, as_json)
        return
    if experiment is None:
        raise InputError(
            "name an experiment: a TOML file, a built-in's name such as 'demo', or --replay with "
            "a federation's run"
        )
    chosen = running.chosen_experiment(experiment, overrides, trust)
    running.run_and_report(chosen, out, data, device, resume, model, as_json, workers, track or [])


def demo_command(
    out: Annotated[Path, typer.Option(help="The run directory.")] = Path("demo/run"),
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Run all schemes on embedded data and ten unequal clients, and write a report."""
    from codedfedl.cli import running

    chosen = running.chosen_experiment("demo", None)
    running.run_and_report(chosen, out, None, "cpu", resume, None, as_json)


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="A run directory, or several to compare.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page; by default report.html in the run directory, or comparison.html here "
            "for several.",
            show_default=False,
        ),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Save a run's main figure (.png, .svg or .pdf).")
    ] = None,
    track: Track = None,
    as_json: Json = False,
) -> None:
    """Write the report of a run again, or one report that compares several runs.

    Runs on the same data with the same target are compared directly; others are shown side by
    side. With --track, their rounds and reports are also sent to a tracker, such as those of a
    federation.
    """
    from codedfedl.cli.reporting import write_report

    write_report(runs, out, figure, as_json, track or [])
