"""Accuracies without scoring every point: those of all predictions, always."""

import numpy as np
import pytest

from codedfedl.learning.metrics import accuracy
from codedfedl.simulation.evaluation import Scores, stacked_predictions

POINTS, Q, C = 4_000, 60, 5
ROUNDS = 60


def _points(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    features = rng.standard_normal((POINTS, Q)).astype(np.float32)
    features *= rng.uniform(0.1, 3.0, (POINTS, 1)).astype(np.float32)
    return features, rng.integers(0, C, POINTS)


def _naive(features: np.ndarray, classes: np.ndarray, model: np.ndarray) -> float:
    predictions = stacked_predictions(features.astype(np.float64), [model.astype(np.float64)])
    return float(accuracy(predictions, classes)[0])


def _path(
    rng: np.random.Generator, rounds: int, pace: float, wobble: float, leap: int = -1
) -> list[np.ndarray]:
    """Models that move along a line, wobble around it, and may leap."""
    first, step, far = rng.standard_normal((3, Q, C))
    line = (first + pace * t * step + 3 * far * (t > leap) for t in range(rounds))
    wobbles = wobble * rng.standard_normal((rounds, Q, C))
    return [(model + w).astype(np.float32) for model, w in zip(line, wobbles, strict=True)]


def _in_spans(
    scores: Scores, models: dict[str, list[np.ndarray]], span: int
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {key: [] for key in models}
    for start in range(0, ROUNDS, span):
        some = {key: own[start : start + span] for key, own in models.items()}
        for key, own in scores.accuracies(some).items():
            found[key] += own
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("span", [1, 2, 7, 20, ROUNDS])
def test_it_is_the_accuracy_of_all_predictions(seed: int, span: int) -> None:
    rng = np.random.default_rng(seed)
    features, classes = _points(rng)
    models = {
        "still": _path(rng, ROUNDS, 0.0, 0.0),
        "straight": _path(rng, ROUNDS, 1e-2, 0.0),
        "wobbles": _path(rng, ROUNDS, 1e-3, 1e-2),
        "leaps": _path(rng, ROUNDS, 1e-3, 1e-4, leap=30),
        "wild": _path(rng, ROUNDS, 0.0, 1.0),
    }
    scores = Scores(features, classes)
    found = _in_spans(scores, models, span)
    for key, own in models.items():
        assert found[key] == [_naive(features, classes, model) for model in own], key


def test_a_path_that_is_almost_straight_needs_few_predictions() -> None:
    rng = np.random.default_rng(0)
    features, classes = _points(rng)
    scores = Scores(features, classes)
    _in_spans(scores, {"a": _path(rng, ROUNDS, 1e-3, 1e-4)}, 20)
    assert scores.products < 0.2 * ROUNDS


def test_a_wild_path_needs_hardly_more_predictions_than_there_are() -> None:
    rng = np.random.default_rng(0)
    features, classes = _points(rng)
    scores = Scores(features, classes)
    _in_spans(scores, {"a": _path(rng, ROUNDS, 0.0, 1.0)}, 20)
    assert 0.9 * ROUNDS < scores.products < 1.1 * ROUNDS


def test_settings_may_come_and_go() -> None:
    rng = np.random.default_rng(0)
    features, classes = _points(rng)
    scores = Scores(features, classes)
    first, second = (rng.standard_normal((Q, C)).astype(np.float32) for _ in range(2))
    for models in (
        {"a": [first]},
        {"a": [first, second], "b": [second]},
        {"b": [second, second, first]},
        {"b": [first], "c": [second, first]},
    ):
        found = scores.accuracies(models)
        for key, own in models.items():
            assert found[key] == [_naive(features, classes, model) for model in own]


def test_a_tie_is_decided_alike_whenever_it_is_met() -> None:
    """Two columns that differ by less than a float32 product is off."""
    rng = np.random.default_rng(0)
    features, classes = _points(rng)
    model = rng.standard_normal((Q, C)).astype(np.float32)
    model[:, 1] = model[:, 0] * np.float32(1 + 2**-23)
    one, three = Scores(features, classes), Scores(features, classes)
    found = [one.accuracies({"a": [model]})["a"][0] for _ in range(3)]
    assert found == three.accuracies({"a": [model] * 3})["a"]
    assert set(found) == {_naive(features, classes, model)}


def test_a_model_that_diverged_has_an_accuracy_too() -> None:
    rng = np.random.default_rng(0)
    features, classes = _points(rng)
    healthy = rng.standard_normal((Q, C)).astype(np.float32)
    huge = np.full((Q, C), np.inf, dtype=np.float32)
    models = [healthy, huge, np.full((Q, C), np.nan, dtype=np.float32), healthy, healthy]
    with np.errstate(invalid="ignore"):
        found = Scores(features, classes).accuracies({"a": models})["a"]
        assert found == [_naive(features, classes, model) for model in models]


def test_ties_among_very_many_classes() -> None:
    """257 columns that are alike: more than eight bits can count."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((50, 4)).astype(np.float32)
    classes = np.zeros(50, dtype=np.int64)
    classes[25:] = 256
    model = np.repeat(rng.standard_normal((4, 1)), 257, axis=1).astype(np.float32)
    assert Scores(features, classes).accuracies({"a": [model]})["a"] == [0.5]
