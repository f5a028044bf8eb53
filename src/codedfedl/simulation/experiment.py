"""Experiments on a virtual clock: from a configuration to a filled run directory."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from os import cpu_count

import numpy as np

from codedfedl.core.record import metric_name
from codedfedl.errors import InputError
from codedfedl.io.files import memory
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import Checkpoint, RunDirectory
from codedfedl.runs.grid import cells
from codedfedl.runs.status import StatusFile
from codedfedl.runs.tables import write_tables
from codedfedl.simulation.checkpoint import (
    part_of,
    restore,
    result_arrays,
    snapshot,
    stored_records,
)
from codedfedl.simulation.client_data import Problem
from codedfedl.simulation.engine import Simulation
from codedfedl.simulation.outputs import check_model, finished, tables, write_models, write_privacy
from codedfedl.simulation.pool import (
    Order,
    Pool,
    Worker,
    limited,
    on_dask,
    on_processes,
    usable_threads,
)
from codedfedl.simulation.progress import Progress, ProgressReporter, Watch, end_of, no_progress
from codedfedl.simulation.units import SeedUnit, datasets, encoders, fleets_of, units

CHECKPOINT_FORMAT = 6
SECONDS_BETWEEN_SAVES = 2.0  # Of the whole checkpoint to the disk.
SECONDS_BETWEEN_CHECKPOINTS = 5.0  # Of a unit that is being played.
PROCESS_BYTES = 4 * 2**30  # Memory that every process should have.


def simulate(
    experiment: Experiment,
    directory: RunDirectory,
    *,
    data: str | None = None,
    device: str = "cpu",
    resume: bool = False,
    model: str | None = None,
    watch: Watch = no_progress,
    jobs: int = 1,
    dask: str | None = None,
    threads: int | None = None,
) -> None:
    """Check everything that an experiment needs, then run it.

    Parameters
    ----------
    data
        The folder of the data files.
    device
        ``cpu``; or ``cuda``, ``torch`` (PyTorch on the CPU) or ``cupy``.
    resume
        Continue from the directory's checkpoint.
    model
        The scheme, or setting, whose model is kept as ``model.npz``: see `write_models`.
    watch
        Called with what is being done, and after every round.
    jobs
        Processes of this machine that share the units.
    dask
        Address of a Dask scheduler whose workers share the units instead.
    threads
        Of the linear algebra of a unit. Results are the same bits wherever units run with as many
        threads. By default those of the run that is resumed; else what there are, divided by
        `jobs`, and one on a cluster.
    """
    _check_workers(jobs, dask, threads)
    directory.check(experiment, resume=resume)
    checkpoint = directory.checkpoint() or {"format": np.array(CHECKPOINT_FORMAT)}
    if int(checkpoint.get("format", 1)) != CHECKPOINT_FORMAT:
        raise InputError(
            f"{directory.path} holds a run of another version of codedfedl: choose another --out"
        )
    threads = _threads(directory, threads, jobs, dask)
    with limited(threads, device):
        settings = cells(experiment)
        check_model(model, settings)
        fleets = fleets_of(settings)  # before the data, which may take long to read
        every = list(units(settings, experiment.seeds, datasets(settings, data), fleets))
        for unit in every:
            if unit.seed == experiment.seeds[0]:  # plan without computing: to refuse what fails
                for contender in unit.contenders():
                    contender.check()
        checkpoint |= encoders(checkpoint, every)
        order = Order(partial(_play_in_worker, every, device), device, threads)
        workers: AbstractContextManager[Pool | None] = nullcontext()
        if dask is not None:
            workers = on_dask(order, dask)
        elif jobs > 1:
            remedy = f"continue with --resume and fewer than {jobs} --jobs"
            workers = on_processes(order, jobs, remedy)
        with (
            workers as pool,
            directory.opened(experiment, resume=resume, threads=threads) as status,
        ):
            accounts = write_privacy(directory, every)
            _play_all(every, device, _DirectorySink(directory, checkpoint, watch, status), pool)
            ended = finished(every, checkpoint)
            write_tables(directory, tables(ended))
            write_models(directory, ended, accounts, model)


def _check_workers(jobs: int, dask: str | None, threads: int | None) -> None:
    """Refuse numbers of workers that make no sense."""
    for name, value in (("--jobs", jobs), ("--threads", threads)):
        if value is not None and value < 1:
            raise InputError(f"{name} is {value}: must be at least 1")
    if dask is not None and jobs > 1:
        raise InputError("--jobs is for this machine and --dask for a cluster: leave one out")


def _threads(
    directory: RunDirectory, wanted: int | None, jobs: int, dask: str | None
) -> int | None:
    """Return the threads of each unit: those of the run that is resumed; another number is refused.

    By default all, divided among the units. None where the library of the linear algebra, such as
    Apple's, does not let its threads be set.
    """
    begun: int | None = directory.environment().get("threads") if directory.is_run else None
    if begun is not None and wanted not in (None, begun):
        raise InputError(
            f"--threads is {wanted}, but {directory.path} was begun with {begun}, and another "
            "number gives other last digits: leave --threads out, or choose another --out"
        )
    usable = usable_threads()
    if begun or wanted or usable is None or (dask is None and jobs == 1):
        return begun or wanted or usable
    return 1 if dask is not None else max(1, min(usable, cpu_count() or 1) // jobs)


class _DirectorySink:
    """The watcher, the status and the checkpoint of a run directory."""

    def __init__(
        self, directory: RunDirectory, checkpoint: Checkpoint, watch: Watch, status: StatusFile
    ) -> None:
        self.directory, self.checkpoint = directory, checkpoint
        self.watch, self.status = watch, status
        self._saved = 0.0

    def report(self, what: str, progress: Progress | None) -> None:
        """Tell the watcher, and write the status: not after every round, where they are quick."""
        self.watch(what, progress)
        if progress is None:
            self.status.running(what)
        elif self.status.due or progress.round == progress.rounds:
            last = progress.played[-1].record if progress.played else None
            metric = None if last is None else float(last.metric)
            self.status.running(what, round_=progress.round, rounds=progress.rounds, metric=metric)

    def keep(self, arrays: Checkpoint, *, at_once: bool = True) -> None:
        """Write it to the disk with all that was kept before, at once or before long."""
        self.checkpoint |= arrays
        if at_once or time.monotonic() - self._saved > SECONDS_BETWEEN_SAVES:
            self.directory.save(self.checkpoint)
            self._saved = time.monotonic()


def is_done(checkpoint: Checkpoint, number: int) -> bool:
    """Whether a unit is finished."""
    return f"{number}/done" in checkpoint


def _play_all(
    every: Sequence[SeedUnit], device: str, sink: _DirectorySink, pool: Pool | None
) -> None:
    """Play every unit that is not finished, here or on workers."""
    left = []
    for number, unit in enumerate(every):
        if is_done(sink.checkpoint, number):
            records = stored_records(sink.checkpoint, len(unit.cells), number)
            played = _reporter(unit).played(records)
            rounds = max((p.round for p in played), default=0)
            sink.watch(end_of(unit.title), Progress(rounds, rounds, played))
        else:
            left.append(number)
    if pool is None:
        problem: Problem | None = None
        for k, number in enumerate(left):
            unit = every[number]
            follows = k > 0 and left[k - 1] == number - 1  # workers leave gaps
            known = problem if follows and not unit.fresh else None
            problem = _play(unit, number, sink.checkpoint, device, sink, known)
        return
    for message in pool.results({k: part_of(sink.checkpoint, f"{k}/") for k in left}):
        for what, progress in message.reports:
            sink.report(what, progress)
        if message.arrays:  # every worker sends arrays every few seconds
            sink.keep(message.arrays, at_once=is_done(message.arrays, message.item))


def _play_in_worker(
    every: Sequence[SeedUnit], device: str, number: int, checkpoint: Checkpoint, worker: Worker
) -> None:
    known = {f"{number}/{key}": value for key, value in checkpoint.items()}
    _play(every[number], number, known, device, worker)


def _reporter(unit: SeedUnit) -> ProgressReporter:
    labels = [cell.label for cell in unit.cells]
    return ProgressReporter(labels, unit.seed, metric_name(unit.dataset.is_classification))


def _play(
    unit: SeedUnit,
    number: int,
    checkpoint: Checkpoint,
    device: str,
    sink: Worker | _DirectorySink,
    problem: Problem | None = None,
) -> Problem:
    """Play the rounds of a unit, from its beginning or its checkpoint, and keep its results.

    Parameters
    ----------
    number
        Of the unit among all of its run.
    problem
        What the unit trains on, if it is embedded already.

    Returns
    -------
    Problem
        For a unit with the same data and features.
    """
    sink.report(f"{unit.title}: features and parity", None)
    problem = problem or unit.problem(device)
    simulation = Simulation(problem, unit.contenders(), unit.seed)
    restore(simulation, checkpoint, number)
    reporter, saved = _reporter(unit), time.monotonic()

    def progress() -> Progress:
        played = reporter.played([setting.records for setting in simulation.settings])
        return Progress(simulation.round, simulation.rounds, played)

    for _ in simulation.run():
        sink.report(unit.title, progress())
        if time.monotonic() - saved > SECONDS_BETWEEN_CHECKPOINTS:
            sink.keep(snapshot(simulation, number))
            saved = time.monotonic()
    if (last := progress()).played:  # of settings without rounds
        sink.report(unit.title, last)
    arrays = snapshot(simulation, number) | result_arrays(simulation, unit.cells, number)
    sink.report(end_of(unit.title), None)
    sink.keep(arrays | {f"{number}/done": np.array(True)})
    return problem


def simulate_all(
    experiments: Sequence[tuple[Experiment, RunDirectory]],
    watch: Watch,
    *,
    data: str | None,
    device: str,
) -> None:
    """Run experiments, or continue them: at the same time where there are cores and memory.

    Small products gain little from a second core, and whole experiments gain all of it. A finished
    experiment is not run again.

    Parameters
    ----------
    watch
        Is told of all of them; what it is told begins with the name of the experiment's folder.
    """
    cores = usable_threads() or 1
    at_once = min(len(experiments), cores, max(1, int(memory() // PROCESS_BYTES)))
    if device != "cpu" or at_once <= 1:
        for experiment, directory in experiments:
            _run(experiment, directory, data, device, watch)
        return
    order = Order(partial(_run_in_worker, experiments, data, device), device, cores // at_once)
    with on_processes(order, at_once, "run the same command again to continue") as pool:
        for message in pool.results({number: {} for number in range(len(experiments))}):
            for what, progress in message.reports:
                watch(what, progress)


def _run(
    experiment: Experiment, directory: RunDirectory, data: str | None, device: str, watch: Watch
) -> None:
    def named(what: str, progress: Progress | None) -> None:
        watch(f"{directory.path.name}, {what}", progress)

    simulate(experiment, directory, data=data, device=device, resume=True, watch=named)


def _run_in_worker(
    experiments: Sequence[tuple[Experiment, RunDirectory]],
    data: str | None,
    device: str,
    number: int,
    _checkpoint: Checkpoint,
    worker: Worker,
) -> None:
    _run(*experiments[number], data, device, worker.report)
