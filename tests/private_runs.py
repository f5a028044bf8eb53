"""Experiments with the private scheme, small enough for a test."""

from typing import Any

import numpy as np

from codedfedl.runs.config import Experiment
from codedfedl.runs.grid import cells
from codedfedl.simulation.checkpoint import restore, snapshot
from codedfedl.simulation.engine import Setting, Simulation
from codedfedl.simulation.units import datasets, units


def experiment(*schemes: dict[str, Any], **changes: Any) -> Experiment:
    document: dict[str, Any] = {
        "data": {"name": "digits"},
        "fleet": {"clients": 10},
        "features": {"kind": "patches", "n_components": 200, "sigma": 2.0},
        "training": {"epochs": 60, "ridge": 1e-6},
        "schemes": list(schemes) or [{"name": "private"}],
    }
    return Experiment.model_validate(document | changes)


def simulation(one: Experiment) -> Simulation:
    found = cells(one)
    loaded = datasets(found, None)
    (unit,) = units(found, one.seeds, loaded)
    return Simulation(unit.problem(), unit.contenders(), unit.seed)


def played(one: Experiment) -> list[Setting]:
    run = simulation(one)
    for _ in run.run():
        pass
    return run.settings


def check_resumes_exactly(one: Experiment) -> None:
    """Stop a run after three rounds, and compare its continuation with an uninterrupted one."""
    (whole,) = played(one)
    half, again = simulation(one), simulation(one)
    steps = half.run()
    for _ in range(3):
        next(steps)
    (new,) = again.settings
    restore(again, snapshot(half, 0), 0)
    for _ in again.run():
        pass
    np.testing.assert_array_equal(new.state.model, whole.state.model)
