"""Experiments on the virtual clock, as commands run them: with progress, trackers and a report."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from codedfedl.api import tracked
from codedfedl.cli.options import RunOptions
from codedfedl.cli.output import messages, say, with_resume_hint
from codedfedl.experiments import named_experiment
from codedfedl.io.names import count_of
from codedfedl.report.html import render_report
from codedfedl.report.results import Outcome, outcomes
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import parse_overrides
from codedfedl.simulation import progress as watched_progress
from codedfedl.simulation.experiment import simulate
from codedfedl.simulation.progress import Progress, Watch
from codedfedl.tracking import open_tracker

ROUNDS_BETWEEN_UPDATES = 5
"""Rounds after which a bar moves."""

_READING = "reading data"


def chosen_experiment(name: str, overrides: Sequence[str] = (), trust: bool = False) -> Experiment:
    """Read an experiment with the changes of --set, to be simulated."""
    chosen = named_experiment(name, parse_overrides(overrides), trust=trust)
    return chosen.model_copy(update={"federation": None})


def run_experiment(
    experiment: Experiment,
    out: Path,
    options: RunOptions,
    model: str | None = None,
    write_more: Callable[[list[Outcome]], None] = lambda _: None,
) -> list[Outcome]:
    """Run an experiment with its progress shown, write its report and return its results.

    Parameters
    ----------
    write_more
        Writes the command's own files, before trackers get the report.
    """
    directory, settings = RunDirectory(out), asdict(options)
    trackers = [open_tracker(text, out) for text in settings.pop("track")]
    with (
        with_resume_hint(out, options.resume),
        tracked(experiment, directory, trackers, messages.print) as track_progress,
    ):
        with watched() as show_progress:

            def watch(what: str, progress: Progress | None) -> None:
                show_progress(what, progress)
                track_progress(what, progress)

            simulate(experiment, directory, model=model, watch=watch, **settings)
        results = outcomes(directory)
        write_more(results)
        directory.write_text("report.html", render_report(directory))
    return results


@contextmanager
def watched() -> Iterator[Watch]:
    """Show simulated hours, accuracy and stragglers; if piped, each stage and its time."""
    with _bar() if messages.is_terminal else _lines() as watch:
        yield watch


@dataclass
class _Stage:
    """A stage of a unit of the run, and its start."""

    name: str
    began: float = field(default_factory=time.monotonic)
    rounds: str = ""

    def end(self) -> None:
        say(f"{self.name}: {self.rounds}{time.monotonic() - self.began:.1f} s")


@contextmanager
def _lines() -> Iterator[Watch]:
    """Print a line when a stage ends, with its seconds."""
    stages = {_READING: _Stage(_READING)}

    def watch(what: str, progress: Progress | None) -> None:
        if reading := stages.pop(_READING, None):
            reading.end()
        unit = watched_progress.unit_of(what)
        if unit in stages and stages[unit].name != what:
            stages.pop(unit).end()
        if watched_progress.is_end(what):
            return
        stage = stages.setdefault(unit, _Stage(what))
        if progress is not None:
            stage.rounds = f"{count_of(progress.round, 'round')} in "

    yield watch
    for stage in stages.values():
        stage.end()


@contextmanager
def _bar() -> Iterator[Watch]:
    """Show a bar for every unit that is being worked on."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Bar(*columns, console=messages, transient=True) as bar:
        lines: dict[str, TaskID] = {_READING: bar.add_task(_READING, total=None)}
        shown: dict[str, int] = {}

        def watch(what: str, progress: Progress | None) -> None:
            unit = watched_progress.unit_of(what)
            is_end = watched_progress.is_end(what)
            for ended in (_READING, unit) if is_end else (_READING,):
                if ended in lines:
                    bar.remove_task(lines.pop(ended))
            if is_end:
                return
            if unit not in lines:
                lines[unit] = bar.add_task(what, total=None)
            if progress is None:
                bar.update(lines[unit], description=what, total=None)
                return
            done, rounds = progress.round, progress.rounds
            if done >= shown.get(unit, 0) + ROUNDS_BETWEEN_UPDATES or done == rounds:
                shown[unit] = done
                text = f"{what} · {_latest(progress)}"
                bar.update(lines[unit], description=text, completed=done, total=rounds)

        yield watch


def _latest(progress: Progress) -> str:
    """Describe the last scheme that runs in rounds: hours, accuracy, stragglers."""
    playing = [played for played in progress.played if played.round > 1]
    if not playing:
        return ""
    last = playing[-1]
    late = np.flatnonzero(~last.record.arrived)
    missing = f"missing {', '.join(map(str, late[:6]))}" if len(late) else "all there"
    metric = float(last.record.metric)
    return f"{last.setting}: {last.training_hours:,.1f} h, {metric:.4f}, {missing}"
