"""Features that are computed when they are needed give what features in memory give."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numpy.testing import assert_allclose

from codedfedl import Experiment
from codedfedl.data import Dataset
from codedfedl.data.dataset import Rows
from codedfedl.learning.features import FeatureMap, Identity, RandomFourier, Structured
from codedfedl.runs.grid import cells
from codedfedl.simulation import client_data
from codedfedl.simulation.client_data import Batch, Streamed
from codedfedl.simulation.engine import Simulation
from codedfedl.simulation.units import SeedUnit

CLIENTS, POINTS = 6, 150


def _data() -> Dataset:
    rng = np.random.default_rng(5)
    inputs = rng.random((POINTS + 20, 7), dtype=np.float32)
    labels = (inputs @ rng.standard_normal((7, 3))).argmax(1)
    return Dataset("made", inputs[:POINTS], labels[:POINTS], inputs[POINTS:], labels[POINTS:], 3)


def _played(scheme: dict[str, object], *, stream: bool) -> Simulation:
    experiment = Experiment.model_validate(
        {
            "data": {"name": "digits", "partition": "dirichlet", "batches": 2},
            "fleet": {"clients": CLIENTS},
            "training": {"epochs": 3, "ridge": 1e-3, "step": 1.0},
            "schemes": [scheme],
        }
    )
    data, features = _data(), Structured(n_components=16, sigma=2.0)
    unit = SeedUnit(0, features, data, tuple(cells(experiment)))
    problem = unit.problem(streamed=stream)
    assert isinstance(problem.batches[0].features, Streamed) == stream
    simulation = Simulation(problem, unit.contenders(), 0)
    for _ in simulation.run():
        pass
    return simulation


@pytest.mark.parametrize(
    "scheme",
    [
        {"name": "uncoded"},
        {"name": "greedy", "drop": 0.4},
        {"name": "fedavg"},
        {"name": "coded", "redundancy": 0.3},
        {"name": "coded", "redundancy": 0.3, "code": "sparse"},
        {"name": "one-shot"},
        {"name": "sketch-solve", "mixing": 3},
        {"name": "coded-newton", "mixing": 3, "rounds": 4},
        {"name": "balanced"},
        {"name": "fedbuff"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*mixing")
@pytest.mark.parametrize("at_once", [1, 40])
def test_every_scheme_ends_with_the_same_model(
    scheme: dict[str, object], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_data, "STREAMED_POINTS", at_once)
    kept, made = (_played(scheme, stream=stream).settings[0] for stream in (False, True))
    assert [one.seconds for one in made.records] == [one.seconds for one in kept.records]
    # Sums of float32 in another order: 2⁻²⁴ for each of some hundred additions.
    scale = float(np.abs(kept.state.model).max())
    assert_allclose(made.state.model, kept.state.model, rtol=0, atol=2e-5 * scale)


@pytest.mark.parametrize("features", [Identity(), RandomFourier(20), Structured(20)])
def test_rows_are_those_of_all_features(features: FeatureMap) -> None:
    inputs = np.random.default_rng(0).random((30, 5), dtype=np.float32)
    points = np.random.default_rng(1).permutation(30)
    every = features.transform(inputs[points])
    lazy = Streamed(features, inputs, points)
    assert lazy.shape == every.shape
    for rows in (slice(3, 6), slice(4, 5), slice(9, 11), slice(5, 10), slice(0, 0), slice(None)):
        assert_allclose(lazy[rows], every[rows], atol=1e-6)
    assert_allclose(lazy[np.array([7, 2])], every[[7, 2]], atol=1e-6)


def test_points_that_are_made_when_needed_are_not_copied() -> None:
    class Zeros(Rows):
        shape = (4, 2)

        def __getitem__(self, rows: Any) -> npt.NDArray[np.float32]:
            return np.zeros((len(np.arange(4)[rows]), 2), np.float32)

    rows: Any = Zeros()
    labels = np.array([0, 1, 0, 1])
    data = Dataset("zeros", rows, labels, np.zeros((1, 2)), labels[:1], classes=2)
    assert data.inputs is rows


@pytest.mark.parametrize("at_once", [1, 5, 9, 100])
def test_groups_hold_every_client_once(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_data, "STREAMED_POINTS", at_once)
    inputs, offsets = np.zeros((12, 2), np.float32), np.array([0, 4, 4, 9, 12])
    lazy: Any = Streamed(Identity(), inputs, np.arange(12))
    groups = list(Batch(lazy, np.zeros((12, 1)), offsets).groups())
    assert [j for group in groups for j in range(group.start, group.stop)] == [0, 1, 2, 3]
    points = [int(offsets[group.stop] - offsets[group.start]) for group in groups]
    single = [group.stop - group.start == 1 for group in groups]
    assert all(few <= at_once or alone for few, alone in zip(points, single, strict=True))
