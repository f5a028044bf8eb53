"""The learner of the paper against a twin in plain loops."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codedfedl import InputError
from codedfedl.arrays import FloatArray
from codedfedl.learning.learner import LeastSquares, batch_rows


class Points:
    """A few points, weights and a model in float64."""

    def __init__(self, seed: int, k: int = 7, q: int = 4, c: int = 3) -> None:
        rng = np.random.default_rng(seed)
        self.learner = LeastSquares(q, c)
        self.features, self.targets = rng.standard_normal((k, q)), rng.standard_normal((k, c))
        self.weights, self.model = rng.random(k), rng.standard_normal((q, c))


def slow_loss(points: Points, model: FloatArray, i: int) -> float:
    """½‖xβ − y‖² of one point, a number at a time."""
    total = 0.0
    for column in range(points.targets.shape[1]):
        score = sum(x * b for x, b in zip(points.features[i], model[:, column], strict=True))
        total += (score - points.targets[i, column]) ** 2 / 2
    return total


def slope(function: Callable[[FloatArray], float], model: FloatArray) -> FloatArray:
    """The derivative by central differences, which are exact for a quadratic."""
    found = np.zeros_like(model)
    for place in np.ndindex(*model.shape):
        ahead, behind = model.copy(), model.copy()
        ahead[place] += 0.5
        behind[place] -= 0.5
        found[place] = function(ahead) - function(behind)
    return found


@given(st.integers(0, 2**32 - 1))
def test_gradient_is_the_weighted_sum_of_the_slopes_of_points(seed: int) -> None:
    points = Points(seed)
    every = [
        slope(lambda model, i=i: slow_loss(points, model, i), points.model)  # type: ignore[misc]
        for i in range(7)
    ]
    learner, data = points.learner, (points.features, points.targets)
    np.testing.assert_allclose(learner.gradient(points.model, *data), sum(every), atol=1e-9)
    weighted = sum(w * part for w, part in zip(points.weights, every, strict=True))
    np.testing.assert_allclose(
        learner.gradient(points.model, *data, points.weights), weighted, atol=1e-9
    )
    loss = sum(slow_loss(points, points.model, i) for i in range(7))
    assert learner.loss(points.model, *data) == pytest.approx(loss)


def test_weighted_rows_are_summed_over_all_parts() -> None:
    """More rows than are multiplied at once."""
    rng = np.random.default_rng(1)
    features, targets = rng.standard_normal((9000, 2)), rng.standard_normal((9000, 1))
    weights, model = rng.random(9000), rng.standard_normal((2, 1))
    expected = (features * weights[:, None]).T @ (features @ model - targets)
    total = LeastSquares(2, 1).gradient(model, features, targets, weights)
    np.testing.assert_allclose(total, expected, rtol=1e-10)


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.sampled_from([0.0, 0.3]))
def test_local_steps_are_a_plain_loop(seed: int, batch: int, proximal: float) -> None:
    points = Points(seed)
    model, position = points.model, 0
    for _ in range(5):
        rows = [(position + k) % 7 for k in range(min(batch, 7))]
        position += len(rows)
        x, y = points.features[rows], points.targets[rows]
        mean = x.T @ (x @ model - y) / len(rows)
        pull = proximal * (model - points.model)
        model = model - 0.1 * (mean + 0.01 * model + pull)
    made = points.learner.steps(
        points.model,
        points.features,
        points.targets,
        count=5,
        step_size=0.1,
        ridge=0.01,
        batch=batch,
        proximal=proximal,
    )
    np.testing.assert_allclose(made, model, atol=1e-9)


@given(st.integers(1, 20), st.integers(0, 12), st.integers(1, 25), st.booleans())
def test_a_pass_takes_every_point_once(points: int, count: int, batch: int, shuffled: bool) -> None:
    rng = np.random.default_rng(0) if shuffled else None
    rows = [np.arange(points)[part] for part in batch_rows(points, count, batch, rng)]
    assert [len(part) for part in rows] == [min(batch, points)] * count
    taken = np.concatenate([*rows, np.empty(0, np.int64)])
    for start in range(0, len(taken) - points + 1, points):
        assert sorted(taken[start : start + points]) == list(range(points))


def test_shape_cost_and_start() -> None:
    learner = LeastSquares(2000, 10)
    assert (learner.shape, learner.parameters, learner.quadratic) == ((2000, 10), 20000, True)
    assert learner.point_macs == 2 * 2000 * 10
    start = learner.start(np.random.default_rng(0))
    assert start.dtype == np.float32
    assert not start.any()
    np.testing.assert_array_equal(
        LeastSquares(2, 1).scores(np.array([[1.0], [2.0]]), np.array([[3.0, 4.0]])), [[11.0]]
    )


def test_what_makes_no_learner_is_refused() -> None:
    with pytest.raises(InputError, match="labels is 0: a model needs at least 1"):
        LeastSquares(5, 0)
    with pytest.raises(InputError, match="batch is 0: a local step needs at least 1 point"):
        batch_rows(5, 1, 0)
