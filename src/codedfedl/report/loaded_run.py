"""A run directory in a notebook: data frames, a summary and a picture."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from codedfedl.errors import InputError
from codedfedl.io.notebook import html_table
from codedfedl.models import Model, load_model
from codedfedl.report.figures import Picture
from codedfedl.report.html import main_figure, render_report
from codedfedl.report.reading import RunTables
from codedfedl.report.results import Outcome, median_of_all, outcomes_of, written
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory

FRAMES = ("pandas", "polars")
"""Packages of data frames, in the order in which they are looked for."""


@dataclass(frozen=True, eq=False)
class Run:
    """A run directory: what was run, its tables as data frames, its results and its model.

    Attributes
    ----------
    frames
        ``pandas`` or ``polars``.
    """

    path: Path
    frames: str

    @cached_property
    def _tables(self) -> RunTables:
        return RunTables(RunDirectory(self.path))

    @property
    def experiment(self) -> Experiment:
        """What was run."""
        return self._tables.experiment

    @cached_property
    def rounds(self) -> Any:
        """A row for each setting, seed and round."""
        return self._frame(self._tables.rounds)

    @cached_property
    def clients(self) -> Any:
        """A row for each setting, seed and client."""
        return self._frame(self._tables.clients)

    @cached_property
    def settings(self) -> Any:
        """A row for each setting and seed: what was planned and predicted."""
        return self._frame(self._tables.settings)

    @cached_property
    def timeline(self) -> Any:
        """A row for each client and one of the first rounds: when its answer came."""
        return self._frame(self._tables.timeline)

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """The result of every setting, as `codedfedl.simulate` returns it."""
        return outcomes_of(self._tables)

    @cached_property
    def results(self) -> Any:
        """A row for each setting and seed: rounds and hours to the target, and the final metric."""
        rows = []
        for o in self.outcomes:
            target = o.target if np.isfinite(o.target) else None
            rows += [row | {"redundancy": o.cell.redundancy, "target": target} for row in o.by_seed]
        return self._frame({name: [row[name] for row in rows] for name in rows[0]})

    @property
    def model(self) -> Model:
        """The model to predict with."""
        return load_model(self.path / "model.npz")

    def write_report(self) -> Path:
        """Write ``report.html``, as `codedfedl report` does, and return its path."""
        directory = RunDirectory(self.path)
        return directory.write_text("report.html", render_report(directory))

    def plot(self) -> Picture:
        """Draw the metric against time, the grid of a sweep, or the answers of a federation."""
        return Picture(main_figure(RunDirectory(self.path)))

    def _frame(self, columns: Mapping[str, Any]) -> Any:
        return import_module(self.frames).DataFrame(dict(columns))

    def _repr_html_(self) -> str:
        outcomes = self.outcomes
        columns: dict[str, Iterable[Any]] = {
            "setting": [o.setting for o in outcomes],
            "training h": [median_of_all(o.training_hours) for o in outcomes],
            "with set-up": [median_of_all(o.total_hours) for o in outcomes],
            "gain": [o.gain_total for o in outcomes],
            "final": [written(o.metric, float(np.median(o.final))) for o in outcomes],
        }
        goals = {written(o.metric, o.target) for o in outcomes if np.isfinite(o.target)}
        goal = f": hours to {outcomes[0].metric} {goals.pop()}" if len(goals) == 1 else ""
        title = self.experiment.title or self.path.name
        return html_table(columns, f"{title}{goal}", "Medians over seeds; – where one misses it.")


def load_run(path: str | Path, frames: str | None = None) -> Run:
    """Open a run directory: its tables are data frames, and a notebook shows its results.

    Parameters
    ----------
    frames
        ``pandas`` or ``polars``; by default whichever is installed, pandas first.

    Examples
    --------
    >>> run = load_run("runs/run")  # doctest: +SKIP
    >>> run.rounds.groupby("setting")["metric"].last()  # doctest: +SKIP
    """
    directory = RunDirectory(path)
    directory.experiment()  # refuses what is not a run directory
    return Run(directory.path, _package(frames))


def _package(wanted: str | None) -> str:
    if wanted is not None and wanted not in FRAMES:
        raise InputError(f"frames is {wanted!r}: must be {' or '.join(FRAMES)}")
    for name in FRAMES if wanted is None else (wanted,):
        try:
            import_module(name)
        except ImportError:
            continue
        return name
    missing = wanted or f"neither {' nor '.join(FRAMES)}"
    raise InputError(f"{missing} is installed: install one to read a run as data frames")
