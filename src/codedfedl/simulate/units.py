"""What is simulated in one go: the settings of a seed that share their data and features."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from codedfedl.core.protocol import Task
from codedfedl.data import Dataset, load_dataset, mini_batches
from codedfedl.errors import InputError
from codedfedl.fleet.delays import FleetDelays
from codedfedl.fleet.devices import Fleet, Workload, read_fleet
from codedfedl.fleet.paper import paper_devices
from codedfedl.learning.features import FeatureMap, typical_sigma
from codedfedl.runs.config import DataConfig, FleetConfig
from codedfedl.runs.grid import Cell
from codedfedl.schemes import make_scheme, scheme_for
from codedfedl.simulate.engine import Entry
from codedfedl.simulate.problem import Parts, task_of

__all__ = ["Unit", "datasets", "deal", "entries_of", "units"]

_SETTINGS_AT_ONCE = 16  # each may hold some Gram matrices


@dataclass(frozen=True)
class Unit:
    """What is simulated in one go: a seed, and the settings that share data and a feature map.

    One that is not `fresh` goes on with what the unit before it has embedded.
    """

    seed: int
    features: FeatureMap
    dataset: Dataset
    cells: tuple[Cell, ...]
    fresh: bool = True


def datasets(found: Sequence[Cell], folder: str | None) -> dict[DataConfig, Dataset]:
    """Load what the settings train on."""
    chosen = dict.fromkeys(
        (cell.experiment.data.name, cell.experiment.data.label) for cell in found
    )
    loaded = {one: load_dataset(one[0], folder, label=one[1]) for one in chosen}
    every = dict.fromkeys(cell.experiment.data for cell in found)
    return {data: loaded[data.name, data.label] for data in every}


def units(
    found: Sequence[Cell], seeds: Sequence[int], loaded: Mapping[DataConfig, Dataset]
) -> Iterator[Unit]:
    """Group the settings by what lies on the device: data, their partition, features."""
    asking = {cell.experiment.data for cell in found if cell.experiment.features.sigma == "auto"}
    sigmas = {data: typical_sigma(loaded[data].inputs) for data in asking}
    for seed in seeds:
        groups: dict[tuple[DataConfig, int, FeatureMap], list[Cell]] = {}
        for cell in found:
            one, data = cell.experiment, cell.experiment.data
            scheme = make_scheme(cell.scheme.name, cell.scheme.settings)
            features = scheme.features
            if features is not None and cell.scheme.features is not None:
                name = cell.scheme.name
                raise InputError(f"scheme {name!r} has features of its own: leave features out")
            if features is None:
                sized = one.with_sigma(sigmas.get(data, np.nan))
                features = sized.feature_map(seed, cell.scheme)
            groups.setdefault((data, _clients(one.fleet), features), []).append(cell)
        for (data, _, features), members in groups.items():
            for first in range(0, len(members), _SETTINGS_AT_ONCE):
                some = tuple(members[first : first + _SETTINGS_AT_ONCE])
                yield Unit(seed, features, loaded[data], some, fresh=first == 0)


def deal(unit: Unit) -> Parts:
    """Say which client has which points in which mini-batch."""
    one = unit.cells[0].experiment
    shards = one.deal(unit.dataset.labels, _clients(one.fleet), unit.seed)
    return mini_batches(shards, one.data.batches)


def entries_of(unit: Unit, parts: Parts) -> list[Entry]:
    """Give every setting its task and its fleets; whoever has the same meets the same luck."""
    made: dict[str, tuple[Task, Fleet, Fleet]] = {}
    found = []
    for cell in unit.cells:
        one, training = cell.experiment, cell.experiment.training
        key = one.model_dump_json(include={"fleet", "training"})
        if key not in made:
            task = task_of(
                unit.dataset,
                parts,
                unit.features,
                epochs=training.epochs,
                schedule=one.schedule(unit.features, unit.dataset.inputs),
                ridge=training.ridge,
            )
            fleet = replace(_fleet(one.fleet, task.workload, unit.seed), points=task.points[0])
            made[key] = (task, fleet, _slowed(fleet, one.fleet))
        most = int(made[key][0].held.max())
        scheme = scheme_for(cell.scheme.name, cell.scheme.settings, most)
        found.append(Entry(cell.label, scheme, *made[key]))
    return found


def _clients(config: FleetConfig) -> int:
    return config.clients if config.name == "paper" else len(read_fleet(config.name, points=1))


def _fleet(config: FleetConfig, workload: Workload, seed: int) -> Fleet:
    if config.name != "paper":
        return read_fleet(config.name, workload, points=1)
    devices = paper_devices(
        config.clients,
        k1=config.k1,
        k2=config.k2,
        alpha=config.alpha,
        erasure=config.erasure,
        seed=seed,
    )
    return devices.fleet(workload, 1)


def _slowed(fleet: Fleet, config: FleetConfig) -> Fleet:
    """Return the fleet as it is, where that is not what the plans assume."""
    factor = np.ones(len(fleet))
    count = round(config.slower_share * len(fleet))
    slowest = np.argsort(FleetDelays(fleet).mean(fleet.points), kind="stable")[len(fleet) - count :]
    factor[slowest] = config.slower
    slower = {name: getattr(fleet, name) * factor for name in ("packet_time", "packet_time_up")}
    return replace(fleet, rate=fleet.rate / factor, **slower)
