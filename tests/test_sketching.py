import numpy as np
import pytest

from codedfedl import InputError
from codedfedl.learning.codes import Code
from codedfedl.learning.sketching import Sketch, curvature_ratio, damping


def _data(
    points: int, features: int, seed: int = 0, noise: float = 0.5
) -> tuple[np.ndarray, np.ndarray]:
    """Points whose covariance has eigenvalues that fall like 1/k, and noisy linear labels."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((points, features)) / np.sqrt(np.arange(1, features + 1))
    truth = rng.standard_normal((features, 3))
    return x, x @ truth + noise * rng.standard_normal((points, 3))


def _parity(x: np.ndarray, y: np.ndarray, rows: int, seed: int = 0) -> Sketch:
    code = Code("dealt")
    return Sketch.of(*code.mix((x, y), np.ones(len(x)), rows, np.random.default_rng(seed)))


def test_leave_one_out_equals_leaving_one_out() -> None:
    x, y = _data(30, 8)
    sketch = Sketch.of(x, y)
    naive = 0.0
    for row in range(30):
        others = Sketch.of(np.delete(x, row, 0), np.delete(y, row, 0))
        naive += float(((y[row] - x[row] @ others.solve(0.7)) ** 2).sum())
    assert sketch.leave_one_out(0.7) == pytest.approx(naive)


def test_solve_is_ridge_regression() -> None:
    x, y = _data(30, 8)
    expected = np.linalg.solve(x.T @ x + 0.3 * np.eye(8), x.T @ y)
    np.testing.assert_allclose(Sketch.of(x, y).solve(0.3), expected)


def test_best_ridge_predicts_the_loss_on_all_points() -> None:
    """The leave-one-out loss of the start is its loss on all points, up to chance.

    Over 200 other seeds the ratio was 1.03 ± 0.08, between 0.78 and 1.24: ±0.5 is six deviations,
    a false-alarm probability below 1e-6.
    """
    for seed in range(3):
        x, y = _data(4000, 60, seed)
        sketch = _parity(x, y, 200, seed)
        ridge = sketch.best_ridge(1e-9)
        loss = float(((x @ sketch.solve(ridge) - y) ** 2).sum())
        assert sketch.leave_one_out(ridge) == pytest.approx(loss, rel=0.5)


def test_smallest_objective_estimates_that_of_all_points() -> None:
    """With three rows a feature; the seeds are fixed.

    Over 100 other seeds the ratio to the truth was 1.01 ± 0.07, and the error of the start's excess
    0.02 ± 0.06: 0.35 is more than four deviations, a false-alarm probability below 1e-3.
    """
    for seed in range(3):
        x, y = _data(4000, 60, seed)
        sketch, ridge = _parity(x, y, 180, seed), 0.1
        best = Sketch.of(x, y).solve(ridge)
        true = float(((x @ best - y) ** 2).sum() + ridge * (best**2).sum()) / 2
        assert sketch.smallest_objective(ridge) == pytest.approx(true, rel=0.35)
        start = sketch.best_ridge(ridge)
        model = sketch.solve(start)
        value = float(((x @ model - y) ** 2).sum() + ridge * (model**2).sum()) / 2
        assert sketch.excess(start, ridge) == pytest.approx(value / true - 1, abs=0.35)


def test_curvature_ratio_is_the_largest_generalised_eigenvalue() -> None:
    x, y = _data(50, 10)
    true, assumed = Sketch.of(x, y), _parity(x, y, 15)
    product = np.linalg.solve(
        assumed.features.T @ assumed.features + 0.4 * np.eye(10), x.T @ x + 0.1 * np.eye(10)
    )
    exact = np.linalg.eigvals(product).real.max()
    assert curvature_ratio(true, assumed, 0.1, 0.4) == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("rows", [100, 160, 400])  # for 80 features
def test_damping_bounds_the_true_curvature_where_parity_alone_does_not(rows: int) -> None:
    """Steps need a ratio below 2; the seeds are fixed."""
    for seed in range(4):
        x, y = _data(4000, 80, seed)
        sketch, ridge = _parity(x, y, rows, seed), 1e-3
        found = damping(sketch, ridge, np.random.default_rng(seed))
        true = Sketch.of(x, y)
        assert curvature_ratio(true, sketch, ridge, ridge) > 2
        assert curvature_ratio(true, sketch, ridge, found) < 2
        assert (
            curvature_ratio(true, sketch, ridge, found / 5) > 1.5
        )  # and not by being far too safe


def test_effective_dimension_counts_directions() -> None:
    sketch = Sketch.of(np.diag([3.0, 1.0, 1e-9]), np.zeros((3, 1)))
    assert sketch.effective_dimension(1e-6) == pytest.approx(2.0, abs=1e-5)


def test_bad_parity_is_refused() -> None:
    with pytest.raises(InputError, match=r"features of shape \(3, 2\) and targets of shape \(4, 1"):
        Sketch.of(np.ones((3, 2)), np.ones((4, 1)))
    with pytest.raises(InputError, match="at least one row"):
        Sketch.of(np.ones((0, 2)), np.ones((0, 1)))
    with pytest.raises(InputError, match="NaN or infinity"):
        Sketch.of(np.full((3, 2), np.nan), np.ones((3, 1)))
    with pytest.raises(InputError, match="singular: 1 rows for 2 features"):
        Sketch.of(np.ones((1, 2)), np.ones((1, 1))).solve(0.0)
