"""A run of one scheme on digits that notes every answer: for naive twins in plain loops."""

from dataclasses import replace
from typing import Any

import numpy as np

from codedfedl import Inbox
from codedfedl.data import load_dataset
from codedfedl.learning.features import Identity
from codedfedl.random import stream
from codedfedl.schemes import make_scheme
from codedfedl.simulation.assignments import Arrivals, Assignment
from codedfedl.simulation.engine import Setting, Simulation, entries
from codedfedl.simulation.units import prepare
from tests.virtual import small

RATES = np.array([90.0, 50.0, 20.0, 2.0, 0.9, 0.5])
RIDGE, STEP, DRAWS = 1e-3, 0.05, 1 << 22


class Log:
    """A run of one scheme on digits, least squares by plain steps, with every round's answers."""

    def __init__(self, name: str, epochs: int = 25, **settings: Any) -> None:
        data = {"name": "digits", "batches": 1}
        training = {"epochs": epochs, "step": STEP, "ridge": RIDGE}
        experiment = small(data=data, training=training, features={"kind": "identity"})
        self.problem, self.task, fleet = prepare(
            experiment, load_dataset("digits"), 0, Identity(), "cpu"
        )
        self.fleet = replace(fleet, rate=RATES)
        self.held = self.task.held.astype(float)
        self.rounds: list[tuple[Arrivals, Inbox]] = []
        scheme = make_scheme(name, {"optimiser": "sgd"} | settings)
        self.task = scheme.own_task(self.task)
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

    @property
    def state(self) -> Any:
        return self.setting.state

    def agrees(self, model: np.ndarray) -> None:
        np.testing.assert_allclose(self.setting.state.model, model, atol=2e-5)


def gradient(points: tuple[np.ndarray, np.ndarray], model: np.ndarray) -> np.ndarray:
    features, targets = points
    return np.asarray(features.T @ (features @ model - targets))
