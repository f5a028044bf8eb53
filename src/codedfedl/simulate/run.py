"""An experiment from its configuration to a filled run directory."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import beside, to_device, to_host
from codedfedl.calibration import paper_devices
from codedfedl.data import Dataset, load_dataset, mini_batches
from codedfedl.delays import FleetDelays
from codedfedl.errors import InputError
from codedfedl.features import FeatureMap, RandomFourier
from codedfedl.fleet import Fleet, Workload, read_fleet
from codedfedl.runs.config import DataConfig, Experiment, FleetConfig, SchemeConfig
from codedfedl.runs.directory import Checkpoint, RunDirectory
from codedfedl.runs.grid import Cell, cells
from codedfedl.schemes import make_scheme
from codedfedl.schemes.base import Task
from codedfedl.simulate.engine import FACTS, Entry, Progress, Simulation, first_round
from codedfedl.simulate.problem import Parts, Problem, embedded, task_of
from codedfedl.tables import repeated
from codedfedl.training import Schedule

__all__ = ["Watch", "prepare", "simulate"]

_SECONDS_BETWEEN_CHECKPOINTS = 5.0
_SETTINGS_AT_ONCE = 16  # each may hold some Gram matrices
_FORMAT = 4  # of checkpoints

Watch = Callable[[str, Progress | None], None]


@dataclass(frozen=True)
class _Unit:
    """What is simulated in one go: a seed, and the settings that share data and a feature map.

    One that is not `fresh` goes on with what the unit before it has embedded.
    """

    seed: int
    features: FeatureMap
    dataset: Dataset
    cells: tuple[Cell, ...]
    fresh: bool = True


def simulate(
    experiment: Experiment,
    directory: RunDirectory,
    *,
    data: str | None = None,
    device: str = "cpu",
    resume: bool = False,
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
        Go on from the directory's checkpoint.
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
    found = cells(experiment)
    units = list(_units(found, experiment.seeds, _datasets(found, data)))
    for unit in units:
        if unit.seed == experiment.seeds[0]:  # plan without computing: what cannot work is refused
            for entry in _entries(unit, _deal(unit)):
                entry.scheme.start(entry.task, entry.fleet, None)
    directory.open(experiment, resume=resume)
    problem = None
    for place, unit in enumerate(units):
        if f"{place}/done" in checkpoint:
            continue
        watch(f"seed {unit.seed}: features and parity", None)
        parts = _deal(unit)
        if problem is None or unit.fresh:
            problem = embedded(unit.dataset, parts, unit.features, device)
        simulation = Simulation(problem, _entries(unit, parts), unit.seed)
        _restore(simulation, checkpoint, place)
        saved = time.monotonic()
        for progress in simulation.run():
            watch(f"seed {unit.seed}", progress)
            if time.monotonic() - saved > _SECONDS_BETWEEN_CHECKPOINTS:
                directory.save(checkpoint | _snapshot(simulation, place))
                saved = time.monotonic()
        checkpoint |= _snapshot(simulation, place) | {f"{place}/done": np.array(True)}
        checkpoint |= _stories(simulation, place)
        directory.save(checkpoint)
    _write_tables(directory, units, checkpoint)


def prepare(
    experiment: Experiment, dataset: Dataset, seed: int, features: FeatureMap, device: str
) -> tuple[Problem, Task, Fleet]:
    """Deal the data of an experiment to the clients, embed them, and build the fleet."""
    unit = _Unit(seed, features, dataset, tuple(cells(experiment)))
    parts = _deal(unit)
    first = _entries(unit, parts)[0]
    return embedded(dataset, parts, features, device), first.task, first.fleet


def _datasets(found: Sequence[Cell], folder: str | None) -> dict[DataConfig, Dataset]:
    """Load what the settings train on."""
    chosen = dict.fromkeys(
        (cell.experiment.data.name, cell.experiment.data.label) for cell in found
    )
    loaded = {one: load_dataset(one[0], folder, label=one[1]) for one in chosen}
    every = dict.fromkeys(cell.experiment.data for cell in found)
    return {data: loaded[data.name, data.label] for data in every}


def _units(
    found: Sequence[Cell], seeds: Sequence[int], datasets: Mapping[DataConfig, Dataset]
) -> Iterator[_Unit]:
    """Group the settings by what lies on the device: data, their partition, features."""
    for seed in seeds:
        groups: dict[tuple[DataConfig, int, FeatureMap], list[Cell]] = {}
        for cell in found:
            one, data = cell.experiment, cell.experiment.data
            scheme = make_scheme(cell.scheme.name, cell.scheme.settings)
            features = getattr(scheme, "features", None)
            if features is not None and cell.scheme.features is not None:
                name = cell.scheme.name
                raise InputError(f"scheme {name!r} has features of its own: leave features out")
            if features is None:
                sized = one.with_sigma(datasets[data].inputs)
                features = sized.feature_map(seed, cell.scheme)
            groups.setdefault((data, _clients(one.fleet), features), []).append(cell)
        for (data, _, features), members in groups.items():
            for first in range(0, len(members), _SETTINGS_AT_ONCE):
                some = tuple(members[first : first + _SETTINGS_AT_ONCE])
                yield _Unit(seed, features, datasets[data], some, fresh=first == 0)


def _deal(unit: _Unit) -> Parts:
    """Say which client has which points in which mini-batch."""
    one = unit.cells[0].experiment
    shards = one.deal(unit.dataset.labels, _clients(one.fleet), unit.seed)
    return mini_batches(shards, one.data.batches)


def _entries(unit: _Unit, parts: Parts) -> list[Entry]:
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
                schedule=Schedule(training.step, training.decay, tuple(training.decay_epochs)),
                ridge=training.ridge,
            )
            fleet = replace(_fleet(one.fleet, task.workload, unit.seed), points=task.points[0])
            made[key] = (task, fleet, _slowed(fleet, one.fleet))
        scheme = make_scheme(cell.scheme.name, cell.scheme.settings)
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


def _snapshot(simulation: Simulation, place: int) -> Checkpoint:
    """Return everything that a resumed simulation needs and cannot compute again."""
    arrays: Checkpoint = {f"{place}/round": np.array(simulation.round)}
    for s, setting in enumerate(simulation.settings):
        arrays |= {
            f"{place}/{s}/model": to_host(setting.state.model),
            f"{place}/{s}/seconds": np.array(setting.seconds),
            f"{place}/{s}/deadlines": np.array(setting.deadlines),
            f"{place}/{s}/arrived": np.array(setting.arrived),
            f"{place}/{s}/when": np.array(setting.when).reshape(-1, setting.state.task.clients),
            f"{place}/{s}/excess": np.array(setting.excess),
            f"{place}/{s}/metric": np.array([float(value) for value in setting.metric]),
        }
    return arrays


def _restore(simulation: Simulation, checkpoint: Checkpoint, place: int) -> None:
    if f"{place}/round" not in checkpoint:
        return
    simulation.round = int(checkpoint[f"{place}/round"])
    for s, setting in enumerate(simulation.settings):
        stored = {
            name: checkpoint[f"{place}/{s}/{name}"]
            for name in ("model", "seconds", "deadlines", "arrived", "when", "excess", "metric")
        }
        played = len(stored["seconds"])
        if setting.crew is not None:  # its clients remember more than a model
            simulation.replay(setting, played - len(setting.seconds))
        else:
            model = beside(stored["model"], setting.state.model)
            setting.state = replace(setting.state, model=model, round=played)
        setting.seconds = stored["seconds"].tolist()
        setting.deadlines = stored["deadlines"].tolist()
        setting.arrived = list(stored["arrived"])
        setting.when = list(stored["when"])
        setting.excess = stored["excess"].tolist()
        setting.metric = stored["metric"].tolist()


def _stories(simulation: Simulation, place: int) -> Checkpoint:
    return (
        {
            f"{place}/{s}/story/{name}": values
            for s, setting in enumerate(simulation.settings)
            for name, values in simulation.client_story(setting).items()
        }
        | {
            f"{place}/{s}/setup_seconds": np.array(setting.setup.seconds)
            for s, setting in enumerate(simulation.settings)
        }
        | {
            f"{place}/{s}/fact/{name}": np.array([setting.facts.get(name, np.nan)])
            for s, setting in enumerate(simulation.settings)
            for name in FACTS
        }
    )


def _write_tables(directory: RunDirectory, units: Sequence[_Unit], stored: Checkpoint) -> None:
    tables: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("rounds", "clients", "settings", "timeline")
    }
    for place, unit in enumerate(units):
        metric = "accuracy" if unit.dataset.is_classification else "R²"
        for s, cell in enumerate(unit.cells):
            common = {
                "setting": cell.label,
                "group": cell.group,
                "scheme": cell.scheme.name,
                "redundancy": float(cell.scheme.settings.get("redundancy", np.nan)),
                "as_in_paper": _as_in_paper(unit.features, cell.scheme),
                "seed": unit.seed,
            }
            prefix = f"{place}/{s}/"
            mine = {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}
            story, facts = _columns(mine, "story/"), _columns(mine, "fact/")
            facts["sigma"] = np.array([getattr(unit.features, "sigma", np.nan)])
            tables["rounds"].append(
                repeated(common | {"metric_name": metric}, _round_columns(mine))
            )
            tables["clients"].append(repeated(common, story))
            tables["settings"].append(repeated(common, facts))
            if unit.seed == units[0].seed:
                times = _timeline_columns(mine, story["client"])
                tables["timeline"].append(repeated(common, times))
    for name, parts in tables.items():
        directory.write(f"{name}.parquet", _stacked(parts))


def _timeline_columns(stored: Checkpoint, clients: npt.NDArray[Any]) -> dict[str, Any]:
    """Return when each client's answer came in the first rounds, one row per client and round."""
    when = stored["when"]
    first = 1 - first_round(stored["seconds"])
    shown = slice(first, first + len(when))
    return {
        "round": np.repeat(np.arange(len(when)) + 1, len(clients)),
        "client": np.tile(clients, len(when)),
        "round_seconds": np.repeat(stored["seconds"][shown], len(clients)),
        "deadline_s": np.repeat(stored["deadlines"][shown], len(clients)),
        "seconds": when.ravel(),
        "arrived": stored["arrived"][shown].ravel(),
    }


def _as_in_paper(features: FeatureMap, scheme: SchemeConfig) -> bool:
    """Whether a setting has the paper's own features and code."""
    gaussian = scheme.settings.get("code", "gaussian") == "gaussian"
    return isinstance(features, RandomFourier) and gaussian


def _round_columns(stored: Checkpoint) -> dict[str, Any]:
    training = np.cumsum(stored["seconds"]) / 3600
    return {
        "round": np.arange(len(training)) + first_round(stored["seconds"]),
        "deadline_s": stored["deadlines"],
        "seconds": stored["seconds"],
        "training_hours": training,
        "total_hours": training + float(stored["setup_seconds"]) / 3600,
        "arrived": stored["arrived"].sum(1),
        "excess": stored["excess"],
        "metric": stored["metric"],
    }


def _columns(stored: Checkpoint, prefix: str) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}


def _stacked(tables: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
