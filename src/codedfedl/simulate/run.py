"""An experiment from its configuration to a filled run directory."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from codedfedl.arrays import Array, beside, to_device, to_host
from codedfedl.calibration import paper_devices
from codedfedl.data import Dataset, load_dataset, mini_batches
from codedfedl.delays import FleetDelays
from codedfedl.errors import InputError
from codedfedl.features import FeatureMap
from codedfedl.fleet import Fleet, IntArray, Workload, read_fleet
from codedfedl.runs.config import Experiment, FleetConfig, SchemeConfig
from codedfedl.runs.directory import Checkpoint, RunDirectory
from codedfedl.schemes import Scheme
from codedfedl.schemes.base import Task
from codedfedl.simulate.engine import FACTS, Problem, Progress, Simulation
from codedfedl.simulate.evaluate import Batch
from codedfedl.tables import repeated
from codedfedl.training import Schedule

__all__ = ["Watch", "prepare", "simulate"]

_SECONDS_BETWEEN_CHECKPOINTS = 5.0
_FORMAT = 2  # of checkpoints

Watch = Callable[[str, Progress | None], None]


@dataclass(frozen=True)
class _Unit:
    """What is simulated in one go: a seed, and the schemes that share a feature map."""

    seed: int
    features: FeatureMap
    schemes: dict[str, Scheme]


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
    units = list(_units(experiment))
    dataset = load_dataset(experiment.data.name, data, label=experiment.data.label)
    _check(experiment, dataset, [unit for unit in units if unit.seed == units[0].seed])
    directory.open(experiment, resume=resume)
    checkpoint = directory.checkpoint() or {"format": np.array(_FORMAT)}
    if int(checkpoint.get("format", 1)) != _FORMAT:
        raise InputError(
            f"{directory.path} holds a run of another version of codedfedl: choose another --out"
        )
    for place, unit in enumerate(units):
        if f"{place}/done" in checkpoint:
            continue
        watch(f"seed {unit.seed}: features and parity", None)
        simulation = _prepared(experiment, dataset, unit, device)
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
    metric = "accuracy" if dataset.is_classification else "R²"
    _write_tables(directory, experiment, metric, units, checkpoint)


def _check(experiment: Experiment, dataset: Dataset, units: Sequence[_Unit]) -> None:
    """Plan without computing anything, so that what cannot work is refused first."""
    for unit in units:
        task, fleet, _ = _deal(experiment, dataset, unit.seed, unit.features)
        for scheme in unit.schemes.values():
            scheme.start(task, fleet, None)


def prepare(
    experiment: Experiment, dataset: Dataset, seed: int, features: FeatureMap, device: str
) -> tuple[Problem, Fleet]:
    """Deal the data to the clients, embed them, and build the fleet."""
    task, fleet, parts = _deal(experiment, dataset, seed, features)

    def embedded(inputs: np.ndarray) -> Array:
        return features.transform(to_device(inputs, device))

    batches = []
    for part, held in zip(parts, task.points, strict=True):
        rows = np.concatenate(part)
        targets = to_device(dataset.targets[rows], device)
        offsets = np.concatenate([[0], np.cumsum(held)])
        batches.append(Batch(embedded(dataset.inputs[rows]), targets, offsets))
    classes = to_device(dataset.test_labels, device) if dataset.is_classification else None
    test_targets = to_device(dataset.test_targets, device)
    problem = Problem(task, batches, embedded(dataset.test_inputs), test_targets, classes)
    return problem, fleet


def _deal(
    experiment: Experiment, dataset: Dataset, seed: int, features: FeatureMap
) -> tuple[Task, Fleet, list[list[IntArray]]]:
    """Say which client has which points in which mini-batch."""
    size = features.size(dataset.inputs.shape[1])
    workload = Workload(size, dataset.label_columns)
    fleet = _fleet(experiment, workload, seed)
    shards = experiment.deal(dataset.labels, len(fleet), seed)
    parts = mini_batches(shards, experiment.data.batches)
    training = experiment.training
    points = np.array([[len(indices) for indices in batch] for batch in parts])
    task = Task(
        workload=workload,
        feature_macs=features.macs(dataset.inputs.shape[1]),
        points=points,
        epochs=training.epochs,
        schedule=Schedule(training.step, training.decay, tuple(training.decay_epochs)),
        ridge=training.ridge,
    )
    return task, replace(fleet, points=points[0]), parts


def _units(experiment: Experiment) -> Iterator[_Unit]:
    for seed in experiment.seeds:
        groups: dict[FeatureMap, dict[str, Scheme]] = {}
        built = experiment.build_schemes()
        for one in experiment.schemes:
            chosen = experiment.feature_map(seed, one)
            scheme = built[one.label]
            if one.features is not None and hasattr(scheme, "features"):
                raise InputError(f"scheme {one.name!r} has features of its own: leave features out")
            groups.setdefault(getattr(scheme, "features", chosen), {})[one.label] = scheme
        for features, schemes in groups.items():
            yield _Unit(seed, features, schemes)


def _fleet(experiment: Experiment, workload: Workload, seed: int) -> Fleet:
    config = experiment.fleet
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


def _prepared(experiment: Experiment, dataset: Dataset, unit: _Unit, device: str) -> Simulation:
    problem, fleet = prepare(experiment, dataset, unit.seed, unit.features, device)
    actual = _slowed(fleet, experiment.fleet)
    return Simulation(problem, fleet, unit.schemes, unit.seed, actual=actual)


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
            for name in ("model", "seconds", "deadlines", "arrived", "excess", "metric")
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


def _write_tables(
    directory: RunDirectory,
    experiment: Experiment,
    metric: str,
    units: Sequence[_Unit],
    stored: Checkpoint,
) -> None:
    configs = {config.label: config for config in experiment.schemes}
    rounds: list[dict[str, Any]] = []
    clients: list[dict[str, Any]] = []
    settings: list[dict[str, Any]] = []
    for place, unit in enumerate(units):
        for s, label in enumerate(unit.schemes):
            common = {
                "setting": label,
                "scheme": configs[label].name,
                "redundancy": float(configs[label].settings.get("redundancy", np.nan)),
                "as_in_paper": _as_in_paper(experiment, configs[label]),
                "seed": unit.seed,
            }
            prefix = f"{place}/{s}/"
            mine = {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}
            rounds.append(repeated(common | {"metric_name": metric}, _round_columns(mine)))
            clients.append(repeated(common, _columns(mine, "story/")))
            settings.append(repeated(common, _columns(mine, "fact/")))
    directory.write("rounds.parquet", _stacked(rounds))
    directory.write("clients.parquet", _stacked(clients))
    directory.write("settings.parquet", _stacked(settings))


def _as_in_paper(experiment: Experiment, config: SchemeConfig) -> bool:
    """Whether a setting has the paper's own features and code."""
    kind = config.features or experiment.features.kind
    return kind == "fourier" and config.settings.get("code", "gaussian") == "gaussian"


def _round_columns(stored: Checkpoint) -> dict[str, Any]:
    training = np.cumsum(stored["seconds"]) / 3600
    return {
        "round": np.arange(len(training)) + (0 if stored["seconds"][0] == 0 else 1),
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
