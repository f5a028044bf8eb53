import numpy as np
import pytest
import scipy.linalg

from codedfedl import InputError
from codedfedl.learning.codes import Code
from codedfedl.learning.sketch import MAX_CURVATURE_RATIO, Sketch, damping


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


def _left_out(x: np.ndarray, y: np.ndarray, rows: range, ridge: float) -> float:
    """Leave row after row out, and sum the squared errors there."""
    total = 0.0
    for row in rows:
        others = Sketch.of(np.delete(x, row, 0), np.delete(y, row, 0))
        total += float(((y[row] - x[row] @ others.ridge_regression(ridge)) ** 2).sum())
    return total


def test_leave_one_out_equals_leaving_one_out() -> None:
    x, y = _data(30, 8)
    truth = _left_out(x, y, range(30), 0.7)
    assert Sketch.of(x, y).leave_one_out(0.7) == pytest.approx(truth)


def test_smallest_objective_corrects_each_row_by_its_leverage() -> None:
    x, y = _data(30, 8)
    leverages = np.einsum("ij,ji->i", x, np.linalg.solve(x.T @ x + 0.7 * np.eye(8), x.T))
    sketch = Sketch.of(x, y)
    model = sketch.ridge_regression(0.7)
    errors = (((y - x @ model) ** 2).sum(1) / (1 - leverages)).sum()
    assert sketch.smallest_objective(0.7) == pytest.approx((errors + 0.7 * (model**2).sum()) / 2)
    assert sketch.effective_dimension(0.7) == pytest.approx(leverages.sum())


def test_solve_is_ridge_regression() -> None:
    x, y = _data(30, 8)
    expected = np.linalg.solve(x.T @ x + 0.3 * np.eye(8), x.T @ y)
    np.testing.assert_allclose(Sketch.of(x, y).ridge_regression(0.3), expected)


def test_best_ridge_predicts_the_loss_on_all_points() -> None:
    """The leave-one-out loss of the start is its loss on all points, up to chance.

    Over 200 other seeds the ratio was 1.03 ± 0.08, between 0.78 and 1.24: ±0.5 is six deviations,
    a false-alarm probability below 1e-6.
    """
    for seed in range(3):
        x, y = _data(4000, 60, seed)
        sketch = _parity(x, y, 200, seed)
        ridge = sketch.best_ridge(1e-9)
        loss = float(((x @ sketch.ridge_regression(ridge) - y) ** 2).sum())
        assert sketch.leave_one_out(ridge) == pytest.approx(loss, rel=0.5)


def test_smallest_objective_estimates_that_of_all_points() -> None:
    """With three rows a feature; the seeds are fixed.

    Over 100 other seeds the ratio to the truth was 1.01 ± 0.07, and the error of the start's excess
    0.02 ± 0.06: 0.35 is more than four deviations, a false-alarm probability below 1e-3.
    """
    for seed in range(3):
        x, y = _data(4000, 60, seed)
        sketch, ridge = _parity(x, y, 180, seed), 0.1
        best = Sketch.of(x, y).ridge_regression(ridge)
        true = float(((x @ best - y) ** 2).sum() + ridge * (best**2).sum()) / 2
        assert sketch.smallest_objective(ridge) == pytest.approx(true, rel=0.35)
        start = sketch.best_ridge(ridge)
        model = sketch.ridge_regression(start)
        value = float(((x @ model - y) ** 2).sum() + ridge * (model**2).sum()) / 2
        assert sketch.excess(start, ridge) == pytest.approx(value / true - 1, abs=0.35)


def _curvature_ratio(true: np.ndarray, assumed: np.ndarray, ridge: float, damped: float) -> float:
    """λ_max((H̃ + damped)⁻¹(H + ridge)) of two sets of rows, by a dense decomposition."""
    eye = np.eye(true.shape[1])
    pair = (true.T @ true + ridge * eye, assumed.T @ assumed + damped * eye)
    return float(scipy.linalg.eigvalsh(*pair)[-1])


@pytest.mark.parametrize("features", [3, 60])
@pytest.mark.parametrize("ridge", [1e-3, 0.5])
def test_damping_is_the_smallest_that_makes_a_fresh_sketch_stable(
    features: int, ridge: float
) -> None:
    """Up to the grid, whose steps are 10%, and the eigenvalue, known to 1%."""
    sketch = _parity(*_data(2000, features), 150)
    found = damping(sketch, ridge, np.random.default_rng(1))
    (fresh,) = Code("sparse", 8).mix(
        (sketch.features,), np.ones(150), 150, np.random.default_rng(1)
    )

    def corrected(damped: float) -> float:
        return float(damped / (1 + (sketch.effective_dimension(damped) / 150) ** 0.5) ** 2)

    grid = ridge * 1.01 ** np.arange(2000)
    ratios = [_curvature_ratio(sketch.features, fresh, ridge, damped) for damped in grid]
    smallest = grid[np.argmax(np.array(ratios) <= MAX_CURVATURE_RATIO)]
    assert 0.98 * corrected(smallest) <= found <= 1.12 * max(ridge, corrected(smallest))


@pytest.mark.parametrize("rows", [100, 160, 400])  # for 80 features
def test_damping_bounds_the_true_curvature_where_parity_alone_does_not(rows: int) -> None:
    """Steps need a ratio below 2; the seeds are fixed."""
    for seed in range(4):
        x, y = _data(4000, 80, seed)
        sketch, ridge = _parity(x, y, rows, seed), 1e-3
        found = damping(sketch, ridge, np.random.default_rng(seed))
        x = x @ sketch.basis
        assert _curvature_ratio(x, sketch.features, ridge, ridge) > 2
        assert _curvature_ratio(x, sketch.features, ridge, found) < 2
        # and not by being far too safe
        assert _curvature_ratio(x, sketch.features, ridge, found / 5) > 1.5


def test_effective_dimension_counts_directions() -> None:
    sketch = Sketch.of(np.diag([3.0, 1.0, 1e-9]), np.zeros((3, 1)))
    assert sketch.effective_dimension(1e-6) == pytest.approx(2.0, abs=1e-5)


@pytest.mark.parametrize("decomposed", [5, 30])  # rows, for 8 features
def test_late_rows_give_what_a_new_decomposition_gives(decomposed: int) -> None:
    """Two updates, one after the other.

    Both ways round by 1e-16 times the condition number, which is at most ‖X̃‖²/ridge = 1e4 here;
    where five rows leave three eigenvalues at 0 the update cancels another 1e4.
    """
    x, y = _data(40, 8)
    first = Sketch.of(x[:decomposed], y[:decomposed])
    late = first.with_rows(x[decomposed:35], y[decomposed:35]).with_rows(x[35:], y[35:])
    anew, ridge = Sketch.of(x, y), 1e-2
    assert (late.rows, late.late_rows, anew.late_rows) == (40, 40 - decomposed, 0)

    def same(found: float | np.ndarray, expected: float | np.ndarray) -> None:
        np.testing.assert_allclose(found, expected, rtol=1e-7)

    same(late.ridge_regression(ridge), anew.ridge_regression(ridge))
    vector = x[:3].T
    for method in ("solve", "apply_hessian", "matvec"):
        scale = (1.7, ridge) if method == "solve" else ()
        results = []
        for sketch in (late, anew):
            result = getattr(sketch, method)(sketch.to_basis(vector), *scale)
            results.append(result if method == "matvec" else sketch.from_basis(result))
        same(*results)
    same(late.from_basis(late.rmatvec(y)), x.T @ y)
    same(late.effective_dimension(ridge), anew.effective_dimension(ridge))
    same(late.leave_one_out(ridge), anew.leave_one_out(ridge))
    same(late.smallest_objective(ridge), anew.smallest_objective(ridge))
    same(late.excess(0.3, ridge), anew.excess(0.3, ridge))


def test_ridges_on_late_rows_have_each_its_own_update() -> None:
    x, y = _data(40, 8)
    late, anew = Sketch.of(x[:30], y[:30]).with_rows(x[30:], y[30:]), Sketch.of(x, y)
    for ridge in np.geomspace(0.01, 10, 9).tolist():
        expected = anew.ridge_regression(ridge)
        np.testing.assert_allclose(late.ridge_regression(ridge), expected, rtol=1e-9)
    ridge = late.best_ridge(1e-9)
    assert late.leave_one_out(ridge) == pytest.approx(anew.leave_one_out(ridge))


@pytest.mark.extras
def test_pytorch_gives_the_same_numbers() -> None:
    """In float64 on the processor; the tolerance is rounding times a condition number of 1e4."""
    torch = pytest.importorskip("torch")
    x, y = (array.astype(np.float32) for array in _data(60, 8))
    found = []
    for to in (np.asarray, torch.asarray):
        sketch = Sketch.of(to(x[:50]), to(y[:50])).with_rows(to(x[50:]), to(y[50:]))
        ridge = sketch.best_ridge(1e-9)
        rng = np.random.default_rng(0)
        numbers = [ridge, sketch.excess(ridge, 1e-2), sketch.effective_dimension(1e-2)]
        numbers.append(damping(sketch, 1e-2, rng))
        found.append(np.concatenate([sketch.ridge_regression(ridge).ravel(), numbers]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9)


def test_bad_parity_is_refused() -> None:
    with pytest.raises(InputError, match=r"features of shape \(3, 2\) and targets of shape \(4, 1"):
        Sketch.of(np.ones((3, 2)), np.ones((4, 1)))
    with pytest.raises(InputError, match="at least one row"):
        Sketch.of(np.ones((0, 2)), np.ones((0, 1)))
    with pytest.raises(InputError, match="NaN or infinity"):
        Sketch.of(np.full((3, 2), np.nan), np.ones((3, 1)))
    with pytest.raises(InputError, match="singular: 1 rows for 2 features"):
        Sketch.of(np.ones((1, 2)), np.ones((1, 1))).ridge_regression(0.0)
