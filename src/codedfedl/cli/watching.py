"""Progress of a simulation: a bar on a terminal, and elsewhere a line for every stage."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from codedfedl.cli.output import messages
from codedfedl.simulation import engine
from codedfedl.simulation.run import Watch

__all__ = ["watched"]

_FIRST = "reading data"


@contextmanager
def watched() -> Iterator[Watch]:
    """Show simulated hours, accuracy and who is late; piped, each stage and its time."""
    with _bar() if messages.is_terminal else _lines() as watch:
        yield watch


@contextmanager
def _lines() -> Iterator[Watch]:
    """Print a line when a stage ends: what was done, and how many seconds it took."""
    stage, began, rounds = _FIRST, time.monotonic(), ""

    def end() -> None:
        messages.print(f"{stage}: {rounds}{time.monotonic() - began:.1f} s", soft_wrap=True)

    def watch(what: str, progress: engine.Progress | None) -> None:
        nonlocal stage, began, rounds
        if what != stage:
            end()
            stage, began, rounds = what, time.monotonic(), ""
        if progress is not None:
            rounds = f"{progress.round} rounds in "

    yield watch
    end()


@contextmanager
def _bar() -> Iterator[Watch]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=messages, transient=True) as bar:
        line = bar.add_task(_FIRST, total=None)

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
