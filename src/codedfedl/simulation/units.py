"""What is simulated in one go: the settings of a seed that share their data and features."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from codedfedl.arrays import FloatArray
from codedfedl.core.disclosure import only_private
from codedfedl.core.protocol import Task
from codedfedl.data import Dataset, mini_batches
from codedfedl.data.partitions import places_of
from codedfedl.errors import InputError
from codedfedl.fleet.built_in import BUILT_IN, built_in_devices, check_fleet_name, own_delays
from codedfedl.fleet.delays import DelayModel
from codedfedl.fleet.devices import Devices, Fleet, read_clients
from codedfedl.fleet.measured import is_measured, read_measured
from codedfedl.learning.features import Encoder, FeatureMap, fingerprint, same_map, typical_sigma
from codedfedl.learning.learner import Learner
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import Checkpoint
from codedfedl.runs.grid import Cell, cells
from codedfedl.runs.sections import DataConfig, FleetConfig, SchemeConfig
from codedfedl.schemes import make_scheme, scheme_class, scheme_for
from codedfedl.simulation.client_data import Parts, Problem, embedded, task_of
from codedfedl.simulation.engine import Contender
from codedfedl.simulation.quadratics import ridge_for_new_clients

SETTINGS_AT_ONCE = 16  # Each may keep Gram matrices.

Clients = Devices | DelayModel
"""What a fleet file says of its clients; their points come from the data."""


@dataclass(frozen=True)
class SeedUnit:
    """What is simulated in one go: a seed, and the settings that share data and a feature map.

    One that is not `fresh` reuses what the unit before it has embedded.

    Attributes
    ----------
    fleets
        The clients of every fleet file, by its name.
    part, parts
        Which unit of its seed it is, from 1 on, and of how many.
    """

    seed: int
    features: FeatureMap
    dataset: Dataset
    cells: tuple[Cell, ...]
    fleets: Mapping[str, Clients] = field(default_factory=dict)
    fresh: bool = True
    part: int = 1
    parts: int = 1

    @property
    def title(self) -> str:
        """What people call it."""
        part = f", part {self.part} of {self.parts}" if self.parts > 1 else ""
        return f"seed {self.seed}{part}"

    def deal(self) -> Parts:
        """Say which client has which points in which mini-batch."""
        experiment = self.cells[0].experiment
        clients = _count(experiment, self.dataset, self.fleets)
        shards = experiment.deal(self.dataset, clients, self.seed)
        return mini_batches(shards, experiment.data.batches)

    def problem(self, device: str = "cpu", *, streamed: bool | None = None) -> Problem:
        """Embed the points of all clients; see `client_data.embedded`."""
        return embedded(self.dataset, self.deal(), self.features, device, streamed=streamed)

    def learner(self, cell: Cell) -> Learner:
        """Return what a setting trains."""
        return cell.experiment.model.learner(
            self.features.size(self.dataset.inputs.shape[1]),
            self.dataset.label_columns,
            classes=self.dataset.is_classification,
            image=self.dataset.image,
        )

    def ridge(self, cell: Cell) -> float:
        """Return a setting's λ: where clients are held out, the best for clients left out."""
        experiment = cell.experiment
        private = any(only_private(scheme_class(c.config.name).info.disclosure) for c in self.cells)
        if private or not experiment.for_new_clients:
            return experiment.ridge(len(self.dataset.inputs))
        return self._ridge_for_new_clients

    @cached_property
    def _ridge_for_new_clients(self) -> float:
        return ridge_for_new_clients(self.dataset, self.features)

    def contenders(self) -> list[Contender]:
        """Give every setting its task and its fleets; equal ones share their random delays."""
        tasks: dict[str, Task] = {}
        made: dict[tuple[str, int, float | None], tuple[Task, DelayModel, DelayModel]] = {}
        parts, contenders = self.deal(), []
        for cell in self.cells:
            experiment, training, config = cell.experiment, cell.experiment.training, cell.config
            key = experiment.model_dump_json(include={"fleet", "training", "model"})
            if key not in tasks:
                tasks[key] = task_of(
                    self.dataset,
                    parts,
                    self.features,
                    epochs=training.epochs,
                    schedule=experiment.schedule(self.features, self.dataset.inputs),
                    ridge=self.ridge(cell),
                    learner=self.learner(cell),
                )
            most = int(tasks[key].held.max())
            scheme = scheme_for(config.name, config.settings, most, secure=bool(config.secure))
            entry = (key, scheme.message_bits, scheme.server_step)
            if entry not in made:
                task = scheme.own_task(tasks[key])
                made[entry] = (task, *_planned_and_actual(experiment.fleet, self, task))
            contender = Contender(
                cell.label,
                scheme,
                *made[entry],
                followed=training.objective,
                hours=training.hours,
                patience=training.patience,
            )
            contenders.append(contender)
        return contenders


def datasets(settings: Sequence[Cell], folder: str | None) -> dict[DataConfig, Dataset]:
    """Load what the settings train on."""
    dealt = {"partition", "concentration", "batches"}  # after loading
    every = dict.fromkeys(cell.experiment.data for cell in settings)
    files = {data: data.model_dump_json(exclude=dealt) for data in every}
    loaded = {file: data.load(folder) for data, file in files.items()}
    for dataset in loaded.values():
        dataset.check_classes()
    return {data: loaded[file] for data, file in files.items()}


def fleets_of(settings: Sequence[Cell]) -> dict[str, Clients]:
    """Read every fleet file of the settings, once."""
    names = dict.fromkeys(cell.experiment.fleet.name for cell in settings)
    return {name: _read(name) for name in names if name not in BUILT_IN}


def _read(name: str) -> Clients:
    if (delays := own_delays(name)) is not None:
        return delays
    check_fleet_name(name)
    if not is_measured(name):
        return read_clients(name)
    measured = read_measured(name)
    silent = measured.client[measured.availability == 0]
    if len(silent):
        raise InputError(
            f"{name}: no reply of client {silent[0]} was ever measured, so the time of "
            "its set-up is unknown: measure it again, or leave it out"
        )
    return measured


def units(
    settings: Sequence[Cell],
    seeds: Sequence[int],
    loaded: Mapping[DataConfig, Dataset],
    fleets: Mapping[str, Clients] | None = None,
) -> Iterator[SeedUnit]:
    """Group the settings by what lies on the device: data, their partition, features."""
    fleets = fleets_of(settings) if fleets is None else fleets
    asking = {cell.experiment.data for cell in settings if cell.experiment.features.sigma == "auto"}
    sigmas = {d: typical_sigma(loaded[d].inputs) for d in asking if not loaded[d].is_text}
    for seed in seeds:
        groups: dict[tuple[DataConfig, int, FeatureMap], list[Cell]] = {}
        for cell in settings:
            experiment, data = cell.experiment, cell.experiment.data
            scheme = make_scheme(cell.config.name, cell.config.settings)
            features = scheme.info.features
            if features is not None and cell.config.features is not None:
                name = cell.config.name
                raise InputError(f"scheme {name!r} sets its own features: remove features")
            if only_private(scheme.disclosure):
                _refuse_side_doors(experiment, cell.config, loaded[data])
            if features is None:
                sized = experiment.with_sigma(sigmas.get(data, np.nan))
                points = len(loaded[data].labels)
                features = sized.feature_map(seed, cell.config, loaded[data].image, points)
            if loaded[data].is_text and not isinstance(features, Encoder):
                raise InputError(
                    f"data.text is {data.text!r}, and scheme {cell.config.name!r} trains on raw "
                    "numbers: leave that scheme out"
                )
            clients = _count(experiment, loaded[data], fleets)
            groups.setdefault((data, clients, features), []).append(cell)
        split = [
            (data, features, first, tuple(members[first : first + SETTINGS_AT_ONCE]))
            for (data, _, features), members in groups.items()
            for first in range(0, len(members), SETTINGS_AT_ONCE)
        ]
        for part, (data, features, first, members) in enumerate(split, start=1):
            yield SeedUnit(
                seed, features, loaded[data], members, fleets, first == 0, part, len(split)
            )


def _count(experiment: Experiment, dataset: Dataset, fleets: Mapping[str, Clients]) -> int:
    if dataset.clients is not None or experiment.fleet.name in BUILT_IN:
        return experiment.clients(dataset)
    return len(fleets[experiment.fleet.name].client)


def _planned_and_actual(
    config: FleetConfig, unit: SeedUnit, task: Task
) -> tuple[DelayModel, DelayModel]:
    """Return the delays that the plans assume, and the actual ones."""
    if config.name in BUILT_IN:
        ladders = config.model_dump(include={"k1", "k2", "alpha", "erasure"})
        count = len(task.points[0])
        drawn = built_in_devices(config.name, count, **ladders, seed=unit.seed)
        named = unit.dataset.clients
        clients: Clients = drawn if named is None else replace(drawn, client=named)
    else:
        clients = unit.fleets[config.name]
        if unit.dataset.clients is not None:
            clients = clients.take(places_of(unit.dataset.clients, clients.client))
    delays = clients.parameters(task.workload) if isinstance(clients, Devices) else clients
    if delays.parameters is not None:
        delays = Fleet.of(delays.parameters, task.points[0])
    if config.slower == 1:
        return delays, delays
    actual = delays.slowed(slowdown(delays.mean(task.points[0]), config))
    return (actual if config.foreseen else delays), actual


def slowdown(seconds: FloatArray, config: FleetConfig) -> FloatArray:
    """Return how many times as long each client takes; the slowest are those of most seconds."""
    factor = np.ones(len(seconds))
    count = round(config.slower_share * len(seconds))
    factor[np.argsort(seconds, kind="stable")[len(seconds) - count :]] = config.slower
    return factor


def encoders(checkpoint: Checkpoint, every: Sequence[SeedUnit]) -> Checkpoint:
    """Return the fingerprints of all encoders, which must be those that the run began with."""
    fingerprints: Checkpoint = {}
    for number, unit in enumerate(every):
        if isinstance(unit.features, Encoder):
            name = f"{number}/encoder"
            fingerprints[name] = fingerprint(unit.features, unit.dataset.inputs.shape[1])
            if not same_map(checkpoint.get(name, fingerprints[name]), fingerprints[name]):
                raise InputError(
                    f"{unit.features.source!r} is not the encoder that this run began with: "
                    "restore it, or choose another --out"
                )
    return fingerprints


def _refuse_side_doors(experiment: Experiment, scheme: SchemeConfig, dataset: Dataset) -> None:
    """Refuse a private setting that depends on the data by more than its sums."""
    drawn = (scheme.features or experiment.features.kind) != "encoder"
    if drawn and experiment.features.sigma == "auto":
        raise InputError(
            "features.sigma is 'auto', which is computed from the data outside the privacy "
            f"budget: give a number where the scheme is {scheme.name!r}, such as the paper's 5.0"
        )
    if experiment.training.objective:
        raise InputError(
            "training.objective is true, which records the objective on the training points "
            f"outside the privacy budget: leave it out where the scheme is {scheme.name!r}"
        )
    if not dataset.is_classification:
        raise InputError(
            f"data.name is {experiment.data.name!r}, whose labels are numbers: a simulation "
            "centres them by their exact mean, outside the privacy budget; choose labels that are "
            f"classes where the scheme is {scheme.name!r}, or a federation, which does not centre"
        )
    refuse_own_scale(dataset, scheme.name)


def refuse_own_scale(dataset: Dataset, scheme: str) -> None:
    """Refuse inputs that were scaled by the range of the training values."""
    if dataset.origin.own_scale:
        raise InputError(
            f"the inputs of {dataset.name} are not in [0, 1], and would be scaled by their own "
            f"range outside the privacy budget, where the scheme is {scheme!r}: give public bounds "
            "of the values in data.low and data.high, a number or one for each input column"
        )


def prepare(
    experiment: Experiment, dataset: Dataset, seed: int, features: FeatureMap, device: str
) -> tuple[Problem, Task, Fleet]:
    """Deal the data of an experiment to the clients, embed them, and build the fleet."""
    settings = cells(experiment)
    unit = SeedUnit(seed, features, dataset, tuple(settings), fleets_of(settings))
    first = unit.contenders()[0]
    if not isinstance(first.fleet, Fleet):
        raise InputError("prepare builds a Fleet: measured delays are played by simulate")
    return unit.problem(device), first.task, first.fleet
