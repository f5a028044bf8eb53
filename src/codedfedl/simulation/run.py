"""An experiment from its configuration to a filled run directory."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from codedfedl.core.protocol import Task
from codedfedl.data import Dataset
from codedfedl.errors import InputError
from codedfedl.fleet.devices import Fleet
from codedfedl.learning.features import Encoder, FeatureMap, fingerprint, same_map
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import Checkpoint, RunDirectory
from codedfedl.runs.grid import cells
from codedfedl.runs.observing import StatusFile
from codedfedl.simulation.models import check_model, write_models
from codedfedl.simulation.playing import is_done, play, played_before
from codedfedl.simulation.privacy import write_privacy
from codedfedl.simulation.problem import Problem, embedded
from codedfedl.simulation.progress import Progress, Watch, end_of, silent
from codedfedl.simulation.records import write_units
from codedfedl.simulation.threads import limited
from codedfedl.simulation.units import Unit, datasets, deal, entries_of, fleets, units
from codedfedl.simulation.workers import (
    Order,
    Workers,
    check_workers,
    on_processes,
    played,
    threads_of,
)

__all__ = ["prepare", "simulate"]

_FORMAT = 6  # of checkpoints
_SECONDS_BETWEEN_SAVES = 2.0


def simulate(
    experiment: Experiment,
    directory: RunDirectory,
    *,
    data: str | None = None,
    device: str = "cpu",
    resume: bool = False,
    model: str | None = None,
    watch: Watch = silent,
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
    check_workers(jobs, dask, threads)
    directory.check(experiment, resume=resume)
    checkpoint = directory.checkpoint() or {"format": np.array(_FORMAT)}
    if int(checkpoint.get("format", 1)) != _FORMAT:
        raise InputError(
            f"{directory.path} holds a run of another version of codedfedl: choose another --out"
        )
    threads = _threads(directory, threads) or threads_of(jobs, dask)
    with limited(threads, device):
        settings = cells(experiment)
        check_model(model, settings)
        loaded = datasets(settings, data)
        every = list(units(settings, experiment.seeds, loaded, fleets(settings)))
        for unit in every:
            if unit.seed == experiment.seeds[0]:  # plan without computing: to refuse what fails
                for entry in entries_of(unit, deal(unit)):
                    entry.check()
        checkpoint |= _encoders(checkpoint, every)
        order = Order(every, device, threads)
        with (
            _workers(order, jobs, dask) as workers,
            directory.opened(experiment, resume=resume, threads=threads) as status,
        ):
            write_privacy(directory, every)
            sink = _Directory(directory, checkpoint, watch, status)
            _play_all(order, sink, workers)
            write_units(directory, every, checkpoint)
            write_models(directory, every, checkpoint, model)


def _threads(directory: RunDirectory, wanted: int | None) -> int | None:
    """Return the threads of the run in a directory; refuse others, which give other bits."""
    if not directory.is_run:
        return wanted
    begun: int | None = directory.environment().get("threads")
    if begun is not None and wanted not in (None, begun):
        raise InputError(
            f"--threads is {wanted}, but {directory.path} was begun with {begun}, and another "
            "number gives other last digits: leave --threads out, or choose another --out"
        )
    return begun or wanted


def _encoders(checkpoint: Checkpoint, every: Sequence[Unit]) -> Checkpoint:
    """Return the fingerprints of all encoders, which must be those that the run began with."""
    found: Checkpoint = {}
    for place, unit in enumerate(every):
        if isinstance(unit.features, Encoder):
            name = f"{place}/encoder"
            found[name] = fingerprint(unit.features, unit.dataset.inputs.shape[1])
            if not same_map(checkpoint.get(name, found[name]), found[name]):
                raise InputError(
                    f"{unit.features.source!r} is not the encoder that this run began with: "
                    "restore it, or choose another --out"
                )
    return found


@contextmanager
def _workers(order: Order, jobs: int, dask: str | None) -> Iterator[Workers | None]:
    """Give the processes that play units; None: this one does."""
    if dask is not None:
        from codedfedl.simulation.cluster import on_cluster

        with on_cluster(order, dask) as workers:
            yield workers
    elif jobs > 1:
        with on_processes(order, jobs) as workers:
            yield workers
    else:
        yield None


class _Directory:
    """The sink of a run: watchers, the status and the checkpoint of its directory."""

    def __init__(
        self, directory: RunDirectory, checkpoint: Checkpoint, watch: Watch, status: StatusFile
    ) -> None:
        self.directory, self.checkpoint = directory, checkpoint
        self.watch, self.status = watch, status
        self._saved = 0.0

    def tell(self, what: str, progress: Progress | None) -> None:
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
        if at_once or time.monotonic() - self._saved > _SECONDS_BETWEEN_SAVES:
            self.directory.save(self.checkpoint)
            self._saved = time.monotonic()


def _play_all(order: Order, sink: _Directory, workers: Workers | None) -> None:
    """Play every unit that is not finished, here or on workers."""
    left = []
    for place, unit in enumerate(order.units):
        if is_done(sink.checkpoint, place):
            sink.watch(end_of(unit.title), played_before(unit, place, sink.checkpoint))
        else:
            left.append(place)
    if workers is None:
        _play_in_turn(order, left, sink)
        return
    for message in played(workers, left, sink.checkpoint):
        for what, progress in message.told:
            sink.tell(what, progress)
        if message.arrays:  # every worker sends some every few seconds
            sink.keep(message.arrays, at_once=is_done(message.arrays, message.place))


def _play_in_turn(order: Order, places: Sequence[int], sink: _Directory) -> None:
    problem: Problem | None = None
    last = -1
    for place in places:
        unit = order.units[place]
        known = problem if not unit.fresh and last == place - 1 else None  # workers leave gaps
        problem, last = play(unit, place, sink.checkpoint, order.device, sink, known), place


def prepare(
    experiment: Experiment, dataset: Dataset, seed: int, features: FeatureMap, device: str
) -> tuple[Problem, Task, Fleet]:
    """Deal the data of an experiment to the clients, embed them, and build the fleet."""
    found = cells(experiment)
    unit = Unit(seed, features, dataset, tuple(found), fleets(found))
    parts = deal(unit)
    first = entries_of(unit, parts)[0]
    if not isinstance(first.fleet, Fleet):
        raise InputError("prepare builds a Fleet: measured delays are played by simulate")
    return embedded(dataset, parts, features, device), first.task, first.fleet
