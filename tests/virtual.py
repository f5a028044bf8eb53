"""A small experiment on the virtual clock, and its settings once they have been played."""

from collections.abc import Mapping, Sequence
from typing import Any

from codedfedl.core.protocol import Scheme
from codedfedl.data import load_dataset
from codedfedl.learning.features import RandomFourier
from codedfedl.runs.config import Experiment
from codedfedl.simulation.engine import Contender, Setting, Simulation, entries
from codedfedl.simulation.units import prepare

__all__ = [
    "SMALL",
    "experiment_of",
    "final_of",
    "play",
    "played",
    "seconds_of",
    "setup_seconds_of",
    "simulation",
    "simulation_of",
    "small",
]


SMALL: dict[str, Any] = {
    "data": {"name": "digits", "batches": 2},
    "fleet": {"clients": 6},
    "features": {"kind": "fourier", "n_components": 60, "sigma": 2.0},
    "training": {"epochs": 4, "step": 2.0, "ridge": 9e-6, "target": 0.5},
    "schemes": [
        {"name": "uncoded"},
        {"name": "greedy", "drop": 0.2},
        {"name": "fedavg", "local_steps": 2, "step": 0.5},
        {"name": "coded", "redundancy": 0.1},
        {"name": "coded", "redundancy": 0.3},
        {"name": "coded", "redundancy": 0.1, "code": "sparse", "features": "structured"},
        {"name": "one-shot"},
        {"name": "sketch-solve"},
        {"name": "coded-newton", "rounds": 6, "features": "structured"},
    ],
}


def experiment_of(schemes: Sequence[dict[str, Any]], **changes: Any) -> Experiment:
    """Return an experiment on digits with six clients; `changes` replace whole tables."""
    tables: dict[str, Any] = {
        "data": {"name": "digits", "batches": 2},
        "fleet": {"clients": 6},
        "features": {"kind": "fourier", "n_components": 40, "sigma": 2.0},
        "training": {"epochs": 3, "step": 2.0, "ridge": 9e-6, "target": 0.5},
        "schemes": list(schemes),
    }
    return Experiment.model_validate(tables | changes)


def simulation_of(
    schemes: Mapping[str, Scheme], seed: int = 0, *, fast: bool = True, **changes: Any
) -> Simulation:
    """Return a simulation of schemes, by their labels, that share a task and a fleet."""
    experiment = experiment_of([{"name": "uncoded"}], **changes)
    features = RandomFourier(experiment.features.components(0), 2.0, seed)
    problem, task, fleet = prepare(experiment, load_dataset("digits"), seed, features, "cpu")
    made: list[Contender] = entries(task, fleet, schemes)
    return Simulation(problem, made, seed, fast=fast)


def play(simulation: Simulation) -> dict[str, Setting]:
    """Play all rounds, and return the settings by their labels."""
    for _ in simulation.run():
        pass
    return {setting.label: setting for setting in simulation.settings}


def small(**changes: Any) -> Experiment:
    return Experiment.model_validate(SMALL | changes)


def simulation(experiment: Experiment, seed: int = 0) -> Simulation:
    config = experiment.features
    features = RandomFourier(config.components(0), config.known_sigma, seed)
    problem, task, fleet = prepare(experiment, load_dataset("digits"), seed, features, "cpu")
    return Simulation(problem, entries(task, fleet, experiment.build_schemes()), seed)


def played(experiment: Experiment, seed: int = 0) -> dict[str, Setting]:
    run = simulation(experiment, seed)
    for _ in run.run():
        pass
    return {setting.label: setting for setting in run.settings}


def final_of(setting: Setting) -> float:
    return float(setting.records[-1].metric)


def seconds_of(setting: Setting) -> list[float]:
    return [record.seconds for record in setting.rounds]


def setup_seconds_of(setting: Setting) -> float:
    return sum(record.seconds for record in setting.records if record.is_setup)
