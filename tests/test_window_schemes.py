"""Schemes with windows against naive twins: their rules in plain loops over clients and points."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from codedfedl import Inbox, InputError
from codedfedl.core.protocol import Limits
from codedfedl.data import load_dataset
from codedfedl.learning.features import Identity
from codedfedl.random import stream
from codedfedl.schemes import make_scheme
from codedfedl.simulation.clock import Arrivals, Assignment
from codedfedl.simulation.engine import Setting, Simulation, entries
from codedfedl.simulation.units import prepare
from tests.virtual import small

RATES = np.array([90.0, 50.0, 20.0, 2.0, 0.9, 0.5])
RIDGE, STEP, DRAWS = 1e-3, 0.05, 1 << 22


class Log:
    """A run of one scheme on digits, least squares by plain steps, with every round's answers."""

    def __init__(self, name: str, **settings: Any) -> None:
        data = {"name": "digits", "batches": 1}
        training = {"epochs": 25, "step": STEP, "ridge": RIDGE}
        experiment = small(data=data, training=training, features={"kind": "identity"})
        self.problem, self.task, fleet = prepare(
            experiment, load_dataset("digits"), 0, Identity(), "cpu"
        )
        self.fleet = replace(fleet, rate=RATES)
        self.held = self.task.held.astype(float)
        self.rounds: list[tuple[Arrivals, Inbox]] = []
        scheme = make_scheme(name, {"optimiser": "sgd"} | settings)
        contenders = entries(self.task, self.fleet, {name: scheme})
        run = Simulation(self.problem, contenders, 0, self._listen)
        for _ in run.run():
            pass
        (self.setting,) = run.settings

    def _listen(self, setting: Setting, arrivals: Arrivals, inbox: Inbox) -> None:
        if arrivals.round >= 0:
            self.rounds.append((arrivals, inbox))

    def points(self, job: Assignment) -> tuple[np.ndarray, np.ndarray]:
        """The points that a client has drawn for a round: the next ones on a circle."""
        features, targets = self.problem.batches[0].client(job.client)
        start = stream(0, "code", DRAWS, job.client, job.round).integers(len(targets))
        rows = np.arange(start, start + job.load) % len(targets)
        return features[rows].astype(float), targets[rows].astype(float)

    def agrees(self, model: np.ndarray) -> None:
        np.testing.assert_allclose(self.setting.state.model, model, atol=2e-5)


def gradient(points: tuple[np.ndarray, np.ndarray], model: np.ndarray) -> np.ndarray:
    features, targets = points
    return np.asarray(features.T @ (features @ model - targets))


@pytest.mark.parametrize("weights", ["points", "client"])
def test_anytime_counts_who_is_done_in_time(weights: str) -> None:
    log = Log("anytime", window=0.5, weights=weights)
    model, late = np.zeros((64, 10)), 0
    for arrivals, _ in log.rounds:
        total, points = np.zeros_like(model), 0.0
        for job in arrivals.done:
            late += job.round < arrivals.round
            if job.round == arrivals.round:
                weight = job.load if weights == "points" else log.held[job.client]
                total += weight / job.load * gradient(log.points(job), model)
                points += weight
        if points:
            model = model - STEP * (total / points + RIDGE * model)
    log.agrees(model)
    assert late > 3


def test_anytime_refuses_what_it_cannot_do() -> None:
    with pytest.raises(InputError, match=r"anytime\.weights is 'class'"):
        make_scheme("anytime", {"weights": "class"})
    with pytest.raises(InputError, match=r"anytime\.window is 0"):
        make_scheme("anytime", {"window": 0.0})
    with pytest.raises(InputError, match="simulate it"):
        make_scheme("anytime", {}).check(limits=Limits(None, 1.0, 1, 1.0))
