"""Progress of a simulation: a bar on a terminal, and elsewhere a line for every stage."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from codedfedl.cli.output import messages
from codedfedl.simulation import progress as told
from codedfedl.simulation.progress import Watch

__all__ = ["watched"]

_FIRST = "reading data"
_STEP = 5  # rounds until a bar moves


@contextmanager
def watched() -> Iterator[Watch]:
    """Show simulated hours, accuracy and stragglers; if piped, each stage and its time."""
    with _bar() if messages.is_terminal else _lines() as watch:
        yield watch


@dataclass
class _Stage:
    """What is being done on a unit of a run, and since when."""

    what: str
    began: float = field(default_factory=time.monotonic)
    rounds: str = ""

    def end(self) -> None:
        seconds = time.monotonic() - self.began
        messages.print(f"{self.what}: {self.rounds}{seconds:.1f} s", soft_wrap=True)


@contextmanager
def _lines() -> Iterator[Watch]:
    """Print a line when a stage ends: what was done, and how many seconds it took."""
    stages = {_FIRST: _Stage(_FIRST)}

    def watch(what: str, progress: told.Progress | None) -> None:
        if first := stages.pop(_FIRST, None):
            first.end()
        unit = told.unit_of(what)
        if unit in stages and stages[unit].what != what:
            stages.pop(unit).end()
        if told.is_end(what):
            return
        stage = stages.setdefault(unit, _Stage(what))
        if progress is not None:
            stage.rounds = f"{progress.round} rounds in "

    yield watch
    for stage in stages.values():
        stage.end()


@contextmanager
def _bar() -> Iterator[Watch]:
    """Show a bar for every unit that is being worked on."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=messages, transient=True) as bar:
        lines: dict[str, TaskID] = {_FIRST: bar.add_task(_FIRST, total=None)}
        shown: dict[str, int] = {}

        def watch(what: str, progress: told.Progress | None) -> None:
            unit = told.unit_of(what)
            for ended in (_FIRST, *([unit] if told.is_end(what) else [])):
                if ended in lines:
                    bar.remove_task(lines.pop(ended))
            if told.is_end(what):
                return
            if unit not in lines:
                lines[unit] = bar.add_task(what, total=None)
            if progress is None:
                bar.update(lines[unit], description=what, total=None)
            elif progress.round >= shown.get(unit, 0) + _STEP or progress.round == progress.rounds:
                shown[unit] = progress.round
                text = f"{what} · {_latest(progress)}"
                bar.update(
                    lines[unit],
                    description=text,
                    completed=progress.round,
                    total=progress.rounds,
                )

        yield watch


def _latest(progress: told.Progress) -> str:
    """Describe the last scheme that runs in rounds: hours, accuracy, stragglers."""
    playing = [one for one in progress.played if one.round > 1]
    if not playing:
        return ""
    last = playing[-1]
    late = np.flatnonzero(~last.record.arrived)
    missing = f"missing {', '.join(map(str, late[:6]))}" if len(late) else "all there"
    metric = float(last.record.metric)
    return f"{last.setting}: {last.training_hours:,.1f} h, {metric:.4f}, {missing}"
