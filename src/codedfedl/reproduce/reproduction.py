"""What every reproduction needs: where it runs, with which seeds, and how it shows its progress."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from codedfedl.data import load_dataset
from codedfedl.errors import InputError
from codedfedl.experiments import built_in
from codedfedl.report.html import render_report
from codedfedl.report.outcome_tables import outcome_views
from codedfedl.report.results import Outcome
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.simulation.experiment import simulate_all
from codedfedl.simulation.progress import Watch, no_progress

PAPER_DATASETS = ("mnist", "fashion-mnist")
"""The data sets of the paper."""


@contextmanager
def _unwatched() -> Iterator[Watch]:
    yield no_progress


@dataclass(frozen=True)
class Reproduction:
    """What to run, where, and how to show it.

    Attributes
    ----------
    out
        Folder for runs and pictures.
    seeds
        Number of seeds, from 0 on.
    alpha
        α of the paper's figure 1, which it does not give.
    fleet, dataset
        For `frontier` and `robustness`, the part that is run; by default everything.
    show, say
        Print a result, which may be rows, and a message; by default nothing is printed.
    width
        Columns of the terminal for results.
    watched
        Opens a display of progress.
    """

    out: Path
    seeds: int
    data: str | None = None
    device: str = "cpu"
    alpha: float = 20.0
    fleet: str | None = None
    dataset: str | None = None
    show: Callable[[RenderableType | list[dict[str, Any]]], object] = lambda _view: None
    say: Callable[[str], object] = lambda _sentence: None
    width: int = 180
    watched: Callable[[], AbstractContextManager[Watch]] = _unwatched

    def has(self, dataset: str, find: Callable[[], object] | None = None) -> bool:
        """Return whether a data set is available; say why if it is not.

        Parameters
        ----------
        find
            Raises `InputError` if it is not; `load_dataset` by default.
        """
        try:
            (find or partial(load_dataset, dataset, self.data))()
        except InputError as error:
            self.say(f"{dataset} is skipped: {error}")
            return False
        return True

    def run(self, experiments: Mapping[str, Experiment]) -> dict[str, RunDirectory]:
        """Run experiments, each in its folder, or continue them; a finished one is kept."""
        directories = {name: RunDirectory(self.out / name) for name in experiments}
        jobs = [(experiment, directories[name]) for name, experiment in experiments.items()]
        with self.watched() as watch:
            simulate_all(jobs, watch, data=self.data, device=self.device)
        return directories

    def built_in(self, name: str, changes: Mapping[str, Any] | None = None) -> Experiment:
        """Read one of the package's experiments, with the job's seeds."""
        return built_in(name, {"seeds": list(range(self.seeds)), **(changes or {})})

    def write_report(self, directory: RunDirectory) -> None:
        """Write the page of a run."""
        self.say(f"wrote {directory.write_text('report.html', render_report(directory))}")

    def save_pictures(self, figure: Any, name: str) -> list[str]:
        """Write a figure as SVG and PNG, and return their paths."""
        from codedfedl.report.figures import save_figure

        paths = [(self.out / name).with_suffix(suffix) for suffix in (".svg", ".png")]
        for path in paths:
            save_figure(figure, path)
            self.say(f"wrote {path}")
        return [str(path) for path in paths]

    def show_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Print the hours of every setting."""
        for view in outcome_views(outcomes, self.width):
            self.show(view)
