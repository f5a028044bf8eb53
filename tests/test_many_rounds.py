"""Rounds that are played several at a time, against the same rounds one by one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codedfedl.core.waiting import (
    Everyone,
    EveryoneUntil,
    Fastest,
    Next,
    Until,
    Wait,
    arrivals,
    arrivals_of_rounds,
)
from codedfedl.data import load_dataset
from codedfedl.learning.features import RandomFourier
from codedfedl.runs.config import Experiment
from codedfedl.simulation import many_rounds
from codedfedl.simulation.engine import Setting, Simulation, entries
from codedfedl.simulation.many_rounds import ManyRounds
from codedfedl.simulation.run import prepare

STEADY: list[dict[str, Any]] = [
    {"name": "uncoded"},
    {"name": "greedy", "drop": 0.3},
    {"name": "coded", "redundancy": 0.1},
    {"name": "coded", "redundancy": 0.3, "code": "sparse"},
]
OTHERS: list[dict[str, Any]] = [
    {"name": "coded", "redundancy": 0.1, "optimiser": "nesterov"},
    {"name": "coded", "redundancy": 0.1, "replan": 4},
    {"name": "balanced"},
]


def experiment(schemes: list[dict[str, Any]]) -> Experiment:
    training = {"step": 2.0, "ridge": 1e-4, "decay": 0.5, "decay_epochs": [2, 7]}
    return Experiment.model_validate(
        {
            "data": {"name": "digits", "batches": 3},
            "fleet": {"clients": 6},
            "features": {"n_components": 40, "sigma": 2.0},
            "training": {**training, "epochs": 9, "target": 0.5},
            "schemes": schemes,
        }
    )


def played(config: Experiment, *, many: bool, availability: float = 1.0) -> list[Setting]:
    features = RandomFourier(40, 2.0, 0)
    problem, task, fleet = prepare(config, load_dataset("digits"), 0, features, "cpu")
    fleet = replace(fleet, availability=np.full(len(fleet), availability))
    run = Simulation(problem, entries(task, fleet, config.build_schemes()), 0)
    if many:
        run.many = ManyRounds(problem, run.evaluator)
    rounds = list(run.run())
    assert rounds[-1] == 27
    assert (len(rounds) < 27) == many
    return run.settings


def check_same(config: Experiment, availability: float = 1.0) -> None:
    found = (played(config, many=many, availability=availability) for many in (False, True))
    for one, other in zip(*found, strict=True):
        for a, b in zip(one.records, other.records, strict=True):
            assert (a.round, a.seconds, a.deadline) == (b.round, b.seconds, b.deadline)
            np.testing.assert_array_equal(a.outcome, b.outcome)
            np.testing.assert_array_equal(a.loads, b.loads)
            np.testing.assert_array_equal(a.arrival_times, b.arrival_times)
            assert float(a.metric) == pytest.approx(float(b.metric), abs=2e-3, nan_ok=True)
        model = np.asarray(one.state.model)
        np.testing.assert_allclose(
            other.state.model, model, rtol=0, atol=1e-5 * np.abs(model).max()
        )
        np.testing.assert_array_equal(one.timeline.processed, other.timeline.processed)
        assert one.timeline.now == other.timeline.now


@pytest.mark.parametrize("epochs", [1, 2, 100])
def test_the_same_rounds(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is prepared together; the last rounds may be no whole epochs of it."""
    monkeypatch.setattr(many_rounds, "_EPOCHS", epochs)
    check_same(experiment(STEADY))


def test_beside_schemes_that_go_round_by_round() -> None:
    check_same(experiment([*STEADY[2:], *OTHERS]))


def test_with_absent_clients_and_rounds_without_any() -> None:
    short = {"name": "coded", "redundancy": 0.5, "deadline": 2.0}
    config = experiment([short, {"name": "coded", "redundancy": 0.5}])
    (first, *_) = played(config, many=True, availability=0.6)
    assert any(not record.arrived.any() for record in first.rounds)
    assert any((record.outcome == 3).any() for record in first.rounds)  # dropped
    check_same(config, availability=0.6)


WAITS: list[Wait] = [
    *(Everyone(), Fastest(1), Fastest(3), Fastest(9), Next(2), Until(0.0), Until(1.0)),
    *(EveryoneUntil(1.0), EveryoneUntil(9.0)),
]


@given(st.data(), st.sampled_from(WAITS))
def test_arrivals_of_rounds(data: st.DataObject, wait: Wait) -> None:
    """Ties, and clients from whom nothing comes, are drawn too."""
    times = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, np.inf])
    shape = (data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5)))
    row = st.lists(times, min_size=shape[1], max_size=shape[1])
    seconds = np.array(data.draw(st.lists(row, min_size=shape[0], max_size=shape[0])))
    found, lengths = arrivals_of_rounds(wait, seconds)
    for k, each in enumerate(seconds):
        arrived, length = arrivals(wait, each, np.isfinite(each))
        np.testing.assert_array_equal(found[k], arrived)
        assert lengths[k] == length
