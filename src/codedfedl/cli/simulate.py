"""`codedfedl simulate`, `demo` and `report`: runs on a virtual clock."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from codedfedl.cli.output import (
    messages,
    print_json,
    progress,
    results,
    with_resume_hint,
    wrote,
)
from codedfedl.errors import InputError
from codedfedl.experiments import BUILT_IN, built_in
from codedfedl.io.files import FIGURE_SUFFIXES, check_destination, replacing
from codedfedl.io.names import nearest
from codedfedl.report.figures import save_figure
from codedfedl.report.html import main_figure, render_report
from codedfedl.report.results import outcomes
from codedfedl.report.rows import outcome_rows
from codedfedl.report.tables import outcome_view
from codedfedl.report.verdict import verdict
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import read_experiment
from codedfedl.runs.overrides import parse_overrides
from codedfedl.simulation import engine
from codedfedl.simulation.replay import replay as replay_federation
from codedfedl.simulation.run import Watch, simulate

__all__ = [
    "Data",
    "Device",
    "Json",
    "Overrides",
    "Resume",
    "demo_command",
    "known_experiments",
    "named_experiment",
    "report_command",
    "run_experiment",
    "set_options",
    "simulate_command",
]

Data = Annotated[
    str | None,
    typer.Option(help="Folder of the data files; CODEDFEDL_DATA if not given.", show_default=False),
]
Device = Annotated[str, typer.Option(help="cpu, or cuda, torch or cupy where installed.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a key, such as data.name=mnist.", metavar="KEY=VALUE"),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


def known_experiments(begun: str) -> list[str]:
    """Complete the name of a built-in experiment, or of a file, in a shell."""
    files = [str(path) for path in Path().glob(f"{begun}*") if path.suffix == ".toml"]
    return [name for name in BUILT_IN if name.startswith(begun)] + files


def simulate_command(
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
    as_json: Json = False,
) -> None:
    """Run an experiment on a virtual clock: schemes, seeds, a fleet and data, from a TOML file.

    The run directory holds config.toml, environment.json, rounds.parquet, clients.parquet,
    settings.parquet, status.json, checkpoint.npz, report.html and model.npz, which predicts; the
    models of all other settings and seeds are in its folder models. A run that was killed continues
    with --resume, and ends bit by bit as if it had not been.

    With --replay RUN, a federation's model is computed once more from who arrived in each round;
    exit code 1 says that it came out different.
    """
    if replay is not None:
        _replay(replay, data, as_json)
        return
    if experiment is None:
        raise InputError(
            "say which experiment: a TOML file, a built-in's name such as 'demo', or --replay with "
            "a federation's run"
        )
    directory = RunDirectory(out)
    chosen = named_experiment(experiment, parse_overrides(overrides or []))
    with with_resume_hint(out, resume):
        run_experiment(
            chosen.model_copy(update={"federation": None}), directory, data, device, resume, model
        )
        _finish(directory, as_json)


def named_experiment(name: str, changes: Mapping[str, Any]) -> Experiment:
    """Read a TOML file, or a built-in experiment where there is no such file.

    The changes are those of --set.
    """
    if not Path(name).is_file() and name in BUILT_IN:
        return built_in(name, changes, set_options(changes))
    if not Path(name).suffix:
        raise InputError(
            f"{name!r} is neither a TOML file nor a built-in experiment: {nearest(name, BUILT_IN)}"
        )
    return read_experiment(name, changes, set_options(changes))


def set_options(changes: Mapping[str, Any]) -> dict[str, str]:
    """Return how errors call the keys of --set."""
    return {key: f"--set {key}" for key in changes}


def _replay(run: Path, data: str | None, as_json: bool) -> None:
    found = replay_federation(RunDirectory(run), data)
    if as_json:
        print_json({"run": str(run), **asdict(found), "same": found.same})
    else:
        results.print(
            f"{found.rounds} rounds with {found.answers} answers and {found.missed} missed: the "
            f"model is {'the same' if found.same else 'ANOTHER'}, {found.difference:.1e} apart"
        )
    if not found.same:
        raise typer.Exit(1)


def demo_command(
    out: Annotated[Path, typer.Option(help="The run directory.")] = Path("demo/run"),
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Tell the whole story on embedded data: all schemes on ten unequal clients."""
    directory = RunDirectory(out)
    with with_resume_hint(out, resume):
        run_experiment(built_in("demo"), directory, None, "cpu", resume)
        _finish(directory, as_json)


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="A run directory, or several to compare.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page; report.html in the run directory, or comparison.html here for several.",
            show_default=False,
        ),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Save a run's main picture (.png, .svg or .pdf).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the page of a run anew, or one that compares several, and show the table.

    Runs with the same data and target race against one another; others are told side by side.
    """
    page = out or (runs[0] / "report.html" if len(runs) == 1 else Path("comparison.html"))
    directories = [RunDirectory(run) for run in runs]
    found = {str(run.path): outcomes(run) for run in directories}
    check_destination(page, (".html",))
    if figure is not None:
        if len(runs) > 1:
            raise InputError(f"--figure {figure} is of one run, and {len(runs)} are given")
        check_destination(figure, FIGURE_SUFFIXES)
    for directory in directories:
        _note_unfinished(directory)
    with progress("drawing"), replacing(page) as partial:
        partial.write_text(render_report(*directories), "utf-8")
    if as_json:
        told = [{"run": run, "rows": outcome_rows(rows)} for run, rows in found.items()]
        print_json(told[0] if len(told) == 1 else {"runs": told})
    else:
        for run, rows in found.items():
            if len(runs) > 1:
                results.print(Text(run, style="bold"))
            results.print(outcome_view(rows, results.width))
    wrote(page)
    if figure is not None:
        save_figure(main_figure(directories[0]), figure)
        wrote(figure)


def _note_unfinished(directory: RunDirectory) -> None:
    """Say what state a run is in whose tables are there, but not the latest."""
    status = directory.status.read()
    if status is not None and status.state != "done":
        messages.print(
            f"note: {directory.path} is {status}; the report shows what was finished before",
            soft_wrap=True,
        )


def run_experiment(
    experiment: Experiment,
    directory: RunDirectory,
    data: str | None,
    device: str,
    resume: bool,
    model: str | None = None,
) -> None:
    """Run with a progress bar."""
    with _shown() as watch:
        simulate(
            experiment,
            directory,
            data=data,
            device=device,
            resume=resume,
            model=model,
            watch=watch,
        )


def _finish(directory: RunDirectory, as_json: bool) -> None:
    found = outcomes(directory)
    if as_json:
        print_json({"run": str(directory.path), "rows": outcome_rows(found)})
    else:
        results.print(outcome_view(found, results.width))
        results.print("\n" + "\n".join(verdict(found)), soft_wrap=True)
    wrote(directory.write_text("report.html", render_report(directory)))


@contextmanager
def _shown() -> Iterator[Watch]:
    """Show simulated hours, accuracy and who is late, on a terminal only."""
    if not messages.is_terminal:
        yield lambda _what, _progress: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=messages, transient=True) as bar:
        line = bar.add_task("reading data", total=None)

        def watch(what: str, progress: engine.Progress | None) -> None:
            if progress is None:
                bar.update(line, description=what, total=None)
            elif progress.round % 5 == 0 or progress.round == progress.rounds:
                text = f"{what} · {_latest(progress)}"
                bar.update(line, description=text, completed=progress.round, total=progress.rounds)

        yield watch


def _latest(progress: engine.Progress) -> str:
    """Describe the last scheme that plays in rounds: hours, accuracy, who missed the deadline."""
    playing = [setting for setting in progress.settings if len(setting.rounds) > 1]
    if not playing:
        return ""
    setting = playing[-1]
    hours, last = sum(record.seconds for record in setting.rounds) / 3600, setting.rounds[-1]
    late = np.flatnonzero(~last.arrived)
    missing = f"missing {', '.join(map(str, late[:6]))}" if len(late) else "all there"
    return f"{setting.label}: {hours:,.1f} h, {float(last.metric):.4f}, {missing}"
