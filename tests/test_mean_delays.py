"""`tifl` and `fednova` on measured delays, and the tiers of different seeds."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet
import pytest

from codedfedl import InputError
from codedfedl.arrays import FloatArray
from codedfedl.core.protocol import Task
from codedfedl.fleet.delays import DelayModel
from codedfedl.fleet.devices import Workload
from codedfedl.fleet.measured import MeasuredDelays
from codedfedl.learning.optimisers import Schedule
from codedfedl.runs.directory import RunDirectory
from codedfedl.schemes.fednova import FedNova
from codedfedl.schemes.tifl import TiFL
from codedfedl.simulation.experiment import simulate
from tests.virtual import experiment_of, simulation_of

POINTS = np.full((1, 6), 40)
SPEEDS = np.array([3.0, 1.0, 2.0, 6.0, 5.0, 4.0])  # seconds per 100 points, on average
DELAYS = MeasuredDelays(
    [[0.005 * s, 0.015 * s] for s in SPEEDS.tolist()], [[0.1, 0.3]] * len(SPEEDS)
)


def task_of() -> Task:
    return Task(Workload(3, 1), 1, POINTS, 60, Schedule(), 0.0)


def test_tiers_go_by_the_mean_of_the_measurements() -> None:
    state = TiFL(tiers=3).start(task_of(), DELAYS, None)
    assert state.tiers.tolist() == [1, 0, 0, 2, 2, 1]


def test_steps_fill_the_mean_time_of_the_slowest() -> None:
    state = FedNova(most_steps=4).start(task_of(), DELAYS, None)
    steps, slowest = state.steps[0], DELAYS.mean(POINTS[0]).max()
    assert steps.tolist() == [2, 4, 3, 1, 1, 1]
    assert (DELAYS.mean(steps * POINTS[0]) <= slowest * (1 + 1e-6)).all()


def test_a_client_that_never_answered_is_not_waited_for() -> None:
    silent = MeasuredDelays([[0.01], [0.02], [np.inf]], [[0.1]] * 3)
    task = Task(Workload(3, 1), 1, np.full((1, 3), 40), 2, Schedule(), 0.0)
    state = FedNova(most_steps=9, deadline=5.0).start(task, silent, None)
    assert state.steps[0].tolist() == [2, 1, 1]


@dataclass(frozen=True)
class NoMean(DelayModel):
    """A distribution of delays that can be planned with, and nothing else."""

    client: npt.NDArray[Any]

    def cdf(self, loads: npt.ArrayLike, t: npt.ArrayLike) -> FloatArray:
        return np.ones_like(np.asarray(loads, dtype=np.float64) + np.asarray(t))

    def take(self, clients: Any) -> "NoMean":
        return NoMean(self.client[clients])


@pytest.mark.parametrize("scheme", [TiFL(), FedNova()])
def test_delays_without_a_mean_are_refused(scheme: TiFL | FedNova) -> None:
    with pytest.raises(InputError, match="NoMean has no mean, which mean delays need: define"):
        scheme.start(task_of(), NoMean(np.arange(6)), None)


def test_tiers_are_drawn_for_each_seed() -> None:
    """Of 60 draws from 3 tiers, all are the same for two seeds with probability 3⁻⁶⁰."""
    scheme, drawn = TiFL(tiers=3), []
    for seed in (0, 1):
        state = scheme.start(task_of(), DELAYS, None, rng=np.random.default_rng(seed))
        rows = []
        for round_ in range(60):
            ask = scheme.ask(_at(state, round_))
            assert ask is not None
            assert ask.loads is not None
            rows.append(int(state.tiers[ask.loads > 0][0]))
        drawn.append(rows)
        assert set(rows) == {0, 1, 2}  # one is missing with probability 3·(2/3)⁶⁰ < 1e-10
    assert drawn[0] != drawn[1]


def test_a_simulation_gives_its_schemes_a_stream_of_the_seed() -> None:
    states: list[Any] = [
        simulation_of({"tifl": TiFL()}, seed=s).settings[0].state for s in (5, 5, 6)
    ]
    first, same, other = (state.drawn.tolist() for state in states)
    assert first == same != other


def _at(state: Any, round_: int) -> Any:
    return replace(state, round=round_)


def test_a_run_on_a_file_of_measurements(tmp_path: Path) -> None:
    path = tmp_path / "measured.csv"
    replace(DELAYS, points=POINTS[0]).write(path)
    experiment = experiment_of(
        [{"name": "tifl", "tiers": 2}, {"name": "fednova", "step": 0.5}],
        fleet={"name": str(path)},
        seeds=[0, 1],
    )
    simulate(experiment, RunDirectory(tmp_path / "run"))
    table = pyarrow.parquet.read_table(tmp_path / "run" / "rounds.parquet").to_pydict()
    arrived = {
        (scheme, seed): [
            who
            for who, s, k in zip(table["arrived"], table["scheme"], table["seed"], strict=True)
            if (s, k) == (scheme, seed)
        ]
        for scheme in ("tifl", "fednova")
        for seed in (0, 1)
    }
    assert set(arrived["tifl", 0]) == set(arrived["tifl", 1]) == {3}
    assert set(arrived["fednova", 0]) == {6}
