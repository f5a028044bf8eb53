"""An experiment from its configuration to a filled run directory."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from codedfedl.arrays import to_device
from codedfedl.core.protocol import Task
from codedfedl.data import Dataset
from codedfedl.errors import InputError
from codedfedl.fleet.devices import Fleet
from codedfedl.learning.features import Encoder, FeatureMap, fingerprint, same_map
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import Checkpoint, RunDirectory
from codedfedl.runs.grid import cells
from codedfedl.runs.status import StatusFile
from codedfedl.simulation.engine import Progress, Simulation
from codedfedl.simulation.models import check_model, endings, write_models
from codedfedl.simulation.privacy import write_privacy
from codedfedl.simulation.problem import Problem, embedded
from codedfedl.simulation.records import restore, snapshot, stories, write_units
from codedfedl.simulation.units import Unit, datasets, deal, entries_of, fleets, units

__all__ = ["Watch", "prepare", "simulate"]

_SECONDS_BETWEEN_CHECKPOINTS = 5.0
_FORMAT = 5  # of checkpoints

Watch = Callable[[str, Progress | None], None]


def simulate(
    experiment: Experiment,
    directory: RunDirectory,
    *,
    data: str | None = None,
    device: str = "cpu",
    resume: bool = False,
    model: str | None = None,
    watch: Watch = lambda _what, _progress: None,
) -> None:
    """Run an experiment, once everything that it needs is known to be right.

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
    """
    directory.check(experiment, resume=resume)
    checkpoint = directory.checkpoint() or {"format": np.array(_FORMAT)}
    if int(checkpoint.get("format", 1)) != _FORMAT:
        raise InputError(
            f"{directory.path} holds a run of another version of codedfedl: choose another --out"
        )
    to_device(np.zeros(1), device)
    settings = cells(experiment)
    check_model(model, settings)
    loaded = datasets(settings, data)
    every = list(units(settings, experiment.seeds, loaded, fleets(settings)))
    for unit in every:
        if unit.seed == experiment.seeds[0]:  # plan without computing: what cannot work is refused
            for entry in entries_of(unit, deal(unit)):
                entry.check()
    checkpoint |= _encoders(checkpoint, every)
    directory.open(experiment, resume=resume)
    write_privacy(directory, every)
    with directory.status.tracked() as status:
        problem, tell = None, _telling(watch, status)
        for place, unit in enumerate(every):
            if f"{place}/done" in checkpoint:
                continue
            tell(f"seed {unit.seed}: features and parity", None)
            parts = deal(unit)
            if problem is None or unit.fresh:
                problem = embedded(unit.dataset, parts, unit.features, device)
            simulation = Simulation(problem, entries_of(unit, parts), unit.seed)
            restore(simulation, checkpoint, place)
            _play(simulation, unit, place, directory, checkpoint, tell)
        write_units(directory, every, checkpoint)
        write_models(directory, every, checkpoint, model)


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


def _play(
    simulation: Simulation,
    unit: Unit,
    place: int,
    directory: RunDirectory,
    checkpoint: Checkpoint,
    tell: Watch,
) -> None:
    """Play the rounds of a unit; its results are then in the checkpoint, here and on the disk."""
    saved = time.monotonic()
    for progress in simulation.run():
        tell(f"seed {simulation.seed}", progress)
        if time.monotonic() - saved > _SECONDS_BETWEEN_CHECKPOINTS:
            directory.save(checkpoint | snapshot(simulation, place))
            saved = time.monotonic()
    checkpoint |= snapshot(simulation, place) | {f"{place}/done": np.array(True)}
    checkpoint |= stories(simulation, unit, place) | endings(simulation, place)
    directory.save(checkpoint)


def _telling(watch: Watch, status: StatusFile) -> Watch:
    """Return a watcher that also writes the status: not after every round, where they are quick."""

    def tell(doing: str, progress: Progress | None) -> None:
        watch(doing, progress)
        if progress is None:
            status.running(doing)
        elif status.due or progress.round == progress.rounds:
            records = [s.records[-1] for s in progress.settings if s.records]
            metric = float(records[-1].metric) if records else None
            status.running(doing, round_=progress.round, rounds=progress.rounds, metric=metric)

    return tell


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
