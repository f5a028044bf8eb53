"""Accuracies without scoring every point: those of all predictions, always."""

import numpy as np
import pytest

from codedfedl.learning.training import accuracy
from codedfedl.simulation.evaluate import stacked_predictions
from codedfedl.simulation.scoring import Scores

POINTS, Q, C = 4_000, 60, 5


def _points(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    features = rng.standard_normal((POINTS, Q)).astype(np.float32)
    features *= rng.uniform(0.1, 3.0, (POINTS, 1)).astype(np.float32)
    return features, rng.integers(0, C, POINTS)


def _naive(features: np.ndarray, classes: np.ndarray, model: np.ndarray) -> float:
    predictions = stacked_predictions(features.astype(np.float64), [model.astype(np.float64)])
    return float(accuracy(predictions, classes)[0])


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_accuracy_of_all_predictions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    features, classes = _points(rng)
    scores = Scores(features, classes)
    models = {name: rng.standard_normal((Q, C)).astype(np.float32) for name in "abc"}
    paces = {"a": 1e-4, "b": 1e-3, "c": 0.0}
    for round_ in range(60):
        for name, model in models.items():
            pace = 1.0 if name == "b" and round_ == 30 else paces[name]
            models[name] = model + pace * rng.standard_normal((Q, C)).astype(np.float32)
        found = scores.accuracies(models)
        assert found == [_naive(features, classes, model) for model in models.values()]
    assert scores.full < 60  # of 180


def test_one_that_leaps_does_not_disturb_the_others() -> None:
    rng = np.random.default_rng(0)
    features, classes = _points(rng)
    scores = Scores(features, classes)
    still = rng.standard_normal((Q, C)).astype(np.float32)
    for _ in range(20):
        leap = rng.standard_normal((Q, C)).astype(np.float32)
        found = scores.accuracies({"still": still, "leap": leap})
        assert found == [_naive(features, classes, model) for model in (still, leap)]
    assert scores.full == 21


def test_settings_may_come_and_go() -> None:
    rng = np.random.default_rng(0)
    features, classes = _points(rng)
    scores = Scores(features, classes)
    first, second = (rng.standard_normal((Q, C)).astype(np.float32) for _ in range(2))
    for models in ({"a": first}, {"a": first, "b": second}, {"b": second}, {"b": first}):
        found = scores.accuracies(models)
        assert found == [_naive(features, classes, model) for model in models.values()]


def test_a_tie_is_decided_alike_whenever_it_is_met() -> None:
    """Two columns that differ by less than a float32 product is off."""
    rng = np.random.default_rng(0)
    features, classes = _points(rng)
    model = rng.standard_normal((Q, C)).astype(np.float32)
    model[:, 1] = model[:, 0] * np.float32(1 + 2**-23)
    scores = Scores(features, classes)
    fresh, near = (scores.accuracies({"a": model})[0] for _ in range(2))
    assert fresh == near == _naive(features, classes, model)
    assert scores.full <= 2


def test_a_model_that_diverged_has_an_accuracy_too() -> None:
    rng = np.random.default_rng(0)
    features, classes = _points(rng)
    model = np.full((Q, C), np.nan, dtype=np.float32)
    with np.errstate(invalid="ignore"):
        for _ in range(3):
            found = Scores(features, classes).accuracies({"a": model})
            assert found == [_naive(features, classes, model)]
