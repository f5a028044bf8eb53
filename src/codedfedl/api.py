"""An experiment in Python: what `codedfedl simulate` does, without files unless they are wanted."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from warnings import warn

from codedfedl.experiments import named_experiment
from codedfedl.report.html import render_report
from codedfedl.report.results import Outcome, outcomes
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import check
from codedfedl.runs.grid import cells
from codedfedl.simulation.experiment import simulate as play
from codedfedl.simulation.progress import Progress, Watch
from codedfedl.tracking import Broadcast, Tracker


def read_experiment(name: str | Path, *, trust: bool = False) -> Experiment:
    """Read an experiment from a TOML file, or return a built-in one by its name.

    With `trust`, the ``config.toml`` of a run may name Python modules, which are imported.
    """
    return named_experiment(name, trust=trust)


def simulate(
    experiment: Experiment | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    data: str | None = None,
    device: str = "cpu",
    resume: bool = False,
    trackers: Sequence[Tracker] = (),
    jobs: int = 1,
    dask: str | None = None,
    threads: int | None = None,
) -> list[Outcome]:
    """Run an experiment on the virtual clock, and return the result of every setting.

    Parameters
    ----------
    experiment
        An `Experiment`, its tables as a mapping, a built-in name, or a TOML file.
    out
        The run directory, as the command writes it; by default nothing is saved.
    data
        The folder of the data files; by default ``CODEDFEDL_DATA``.
    device
        ``cpu``; or ``cuda``, ``torch`` (PyTorch on the CPU) or ``cupy``.
    resume
        Continue the run in `out`.
    trackers
        They get every round and the report; see `codedfedl.tracking`.
    jobs
        Processes that share the seeds; a script that asks for several needs the usual
        ``if __name__ == "__main__":``.
    dask
        Address of a Dask scheduler whose workers share the seeds instead.
    threads
        Of the linear algebra of a seed, which its last digits depend on; by default all, divided by
        `jobs`, and one on a cluster.

    Examples
    --------
    >>> from codedfedl import simulate
    >>> results = simulate({"data": {"name": "digits"}, "fleet": {"clients": 10}})
    >>> [result.setting for result in results]
    ['coded-newton']
    """
    if isinstance(experiment, Mapping):
        experiment = check(dict(experiment), "the experiment")
    elif not isinstance(experiment, Experiment):
        experiment = read_experiment(experiment)
    with nullcontext(out) if out is not None else TemporaryDirectory() as folder:
        directory = RunDirectory(folder if out is not None else Path(folder) / "run")
        with tracked(experiment, directory, trackers) as watch:
            play(
                experiment,
                directory,
                data=data,
                device=device,
                resume=resume,
                watch=watch,
                jobs=jobs,
                dask=dask,
                threads=threads,
            )
            if trackers:
                directory.write_text("report.html", render_report(directory))
        return outcomes(directory)


@contextmanager
def tracked(
    experiment: Experiment,
    directory: RunDirectory,
    trackers: Iterable[Tracker],
    say: Callable[[str], object] = warn,
) -> Iterator[Watch]:
    """Give a watcher that tells trackers of every round, and end them with the run.

    Parameters
    ----------
    say
        Called with a message when a tracker fails; the run continues.
    """
    settings = {cell.label: cell.settings for cell in cells(experiment)}
    broadcast = Broadcast(trackers, directory.path.name, settings, say)

    def watch(_what: str, progress: Progress | None) -> None:
        if broadcast.trackers and progress is not None:
            for played in progress.played:
                broadcast.log(played.setting, played.seed, played.round, played.values)

    with broadcast.finished(directory.path / "report.html"):
        yield watch
