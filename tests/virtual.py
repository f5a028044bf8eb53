"""A small experiment on the virtual clock, and its settings once they have been played."""

from collections.abc import Mapping, Sequence
from typing import Any

from codedfedl.core.protocol import Scheme
from codedfedl.data import load_dataset
from codedfedl.learning.features import RandomFourier
from codedfedl.runs.config import Experiment
from codedfedl.simulation.engine import Entry, Setting, Simulation, entries
from codedfedl.simulation.units import prepare

__all__ = ["experiment_of", "play", "simulation_of"]


def experiment_of(schemes: Sequence[dict[str, Any]], **changes: Any) -> Experiment:
    """Return an experiment on digits with six clients; `changes` replace whole tables."""
    tables: dict[str, Any] = {
        "data": {"name": "digits", "batches": 2},
        "fleet": {"clients": 6},
        "features": {"n_components": 40, "sigma": 2.0},
        "training": {"epochs": 3, "step": 2.0, "ridge": 9e-6, "target": 0.5},
        "schemes": list(schemes),
    }
    return Experiment.model_validate(tables | changes)


def simulation_of(
    schemes: Mapping[str, Scheme], seed: int = 0, *, fast: bool = True, **changes: Any
) -> Simulation:
    """Return a simulation of schemes, by their labels, that share a task and a fleet."""
    experiment = experiment_of([{"name": "uncoded"}], **changes)
    features = RandomFourier(experiment.features.n_components, 2.0, seed)
    problem, task, fleet = prepare(experiment, load_dataset("digits"), seed, features, "cpu")
    made: list[Entry] = entries(task, fleet, schemes)
    return Simulation(problem, made, seed, fast=fast)


def play(simulation: Simulation) -> dict[str, Setting]:
    """Play all rounds, and return the settings by their labels."""
    for _ in simulation.run():
        pass
    return {setting.label: setting for setting in simulation.settings}
