"""Parity and gradients: the sums are right, and so are their expectation and variance."""

import numpy as np
import pytest
from scipy.stats import norm

from codedfedl import Fleet, plan
from codedfedl.arrays import FloatArray
from codedfedl.learning.least_squares import ParityRows, Quadratic, encode, gradient, point_weights
from codedfedl.learning.metrics import accuracy, r_squared, telling_excess
from codedfedl.learning.optimisers import Schedule, step
from codedfedl.random import stream


def problem(m: int, q: int = 6, c: int = 2) -> tuple[FloatArray, FloatArray, FloatArray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((m, q)), rng.standard_normal((m, c)), rng.standard_normal((q, c))


class TestParity:
    def test_composite_equals_the_centralised_product(self) -> None:
        x, y, _ = problem(3000)
        shards = np.split(np.arange(3000), [700, 1500])
        weights = [point_weights(len(s), 100 * j, 0.3) for j, s in enumerate(shards)]
        rows = 500  # 2^20 / 500 points at a time: the codes come in slices
        parts = [
            encode(x[s], y[s], w, rows, stream(1, "code", j))
            for j, (s, w) in enumerate(zip(shards, weights, strict=True))
        ]
        found = ParityRows(sum(p.features for p in parts), sum(p.targets for p in parts))
        whole = []
        for j, shard in enumerate(shards):
            code = stream(1, "code", j)
            slices = [
                code.standard_normal((rows, min(2097, len(shard) - k)), dtype=np.float32)
                for k in range(0, len(shard), 2097)
            ]
            whole.append(np.concatenate(slices, axis=1) / np.sqrt(rows))
        g, w = np.concatenate(whole, axis=1), np.concatenate(weights)
        np.testing.assert_allclose(found.features, g @ (w[:, None] * x), atol=2e-5)
        np.testing.assert_allclose(found.targets, g @ (w[:, None] * y), atol=2e-5)

    def test_weights_of_the_paper(self) -> None:
        assert point_weights(5, 2, 0.75).tolist() == [0.5, 0.5, 1, 1, 1]
        assert point_weights(3, 0, 0.0).tolist() == [1, 1, 1]

    def test_clients_codes_are_independent_streams(self) -> None:
        one, same, other = (stream(0, "code", 0, j).standard_normal(1000) for j in (1, 1, 2))
        assert (one == same).all()
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(1000)  # false alarm 6e-7


class TestGradients:
    def test_quadratic_and_direct_sum_agree_with_differences(self) -> None:
        x, y, beta = problem(5000)

        def loss(model: FloatArray) -> float:
            return 0.5 * float(((x @ model - y) ** 2).sum())

        direction = np.random.default_rng(1).standard_normal(beta.shape)
        slope = (loss(beta + 1e-5 * direction) - loss(beta - 1e-5 * direction)) / 2e-5
        assert (gradient(x, y, beta) * direction).sum() == pytest.approx(slope, rel=1e-6)
        np.testing.assert_allclose(Quadratic.of(x, y).gradient(beta), gradient(x, y, beta))

    def test_quadratics_add_and_subtract_points(self) -> None:
        x, y, beta = problem(100)
        both = Quadratic.of(x[:60], y[:60]) + Quadratic.of(x[60:], y[60:])
        np.testing.assert_allclose(both.gradient(beta), gradient(x, y, beta))
        rest = Quadratic.of(x, y) - Quadratic.of(x[:60], y[:60])
        np.testing.assert_allclose(rest.gradient(beta), gradient(x[60:], y[60:], beta))

    def test_minimum_is_ridge_regression(self) -> None:
        x, y, _ = problem(100)
        found = Quadratic.of(x, y).minimum(3.0)
        np.testing.assert_allclose(gradient(x, y, found) + 3.0 * found, 0, atol=1e-9)


class Rounds:
    """Monte-Carlo over delays and re-drawn codes of the combined gradient g_M."""

    def __init__(self, power: float, rounds: int = 20_000) -> None:
        rng = np.random.default_rng(4)
        n, held, q, c = 3, 8, 3, 2
        self.x, self.y = rng.standard_normal((n * held, q)), rng.standard_normal((n * held, c))
        self.beta = rng.standard_normal((q, c))
        fleet = Fleet(
            points=[held] * n, rate=[1.0, 4.0, 2.0], alpha=2, packet_time=1, erasure=[0.1, 0.4, 0.2]
        )
        chosen = plan(fleet, 0.25)
        self.rows = chosen.parity_rows
        weights = [
            point_weights(held, int(load), p)
            for load, p in zip(chosen.loads, chosen.return_probabilities, strict=True)
        ]
        self.weights = np.concatenate(weights)
        seconds = fleet.sample(chosen.loads, rounds, rng)
        arrived = (seconds <= chosen.deadline) & (chosen.loads > 0)
        residual = self.x @ self.beta - self.y
        per_client = np.zeros((n, q * c))
        for j, load in enumerate(chosen.loads):
            rows = slice(j * held, j * held + int(load))
            per_client[j] = (self.x[rows].T @ residual[rows]).ravel()
        uncoded = arrived @ per_client
        used = self.weights**power  # power 1 is right; anything else must be caught
        coded = np.empty((rounds, q * c))
        for k in range(rounds):
            g = rng.standard_normal((self.rows, n * held)) / np.sqrt(self.rows)
            parity = ParityRows(g @ (used[:, None] * self.x), g @ (used[:, None] * self.y))
            coded[k] = gradient(parity.features, parity.targets, self.beta).ravel()
        self.coded, self.combined = coded, coded + uncoded
        self.full = (self.x.T @ residual).ravel()

    def worst_deviation(self) -> float:
        """Largest deviation of the mean from the full gradient, in standard errors."""
        error = self.combined.mean(0) - self.full
        return float(np.abs(error / (self.combined.std(0) / np.sqrt(len(self.combined)))).max())


def test_combined_gradient_is_unbiased() -> None:
    """Six entries at 1e-6 together: 5.1 standard errors each."""
    assert Rounds(power=1).worst_deviation() < norm.isf(1e-6 / 6 / 2)


@pytest.mark.parametrize("power", [0.5, 2.0])
def test_the_same_test_catches_wrong_weights(power: float) -> None:
    """With √w or w² in place of w, so that w or w⁴ stands where w² should."""
    assert Rounds(power).worst_deviation() > 10


def test_variance_of_the_coded_gradient() -> None:
    """Per label column with residual r: (‖WX‖²_F ‖Wr‖² + ‖XᵀW²r‖²)/u, summed over entries.

    The relative error of a variance from 20,000 rounds is about √(κ/20000) ≈ 2%; 12% is six of it.
    """
    found = Rounds(power=1)
    w = found.weights[:, None]
    residual = found.x @ found.beta - found.y
    for column in range(2):
        r = residual[:, [column]]
        spread = ((w * found.x) ** 2).sum() * ((w * r) ** 2).sum()
        spread += ((found.x.T @ (w**2 * r)) ** 2).sum()
        entries = found.coded.reshape(-1, 3, 2)[:, :, column]
        assert entries.var(0).sum() == pytest.approx(spread / found.rows, rel=0.12)


class TestTraining:
    def test_schedule_of_the_paper(self) -> None:
        sizes = [Schedule().at(epoch) for epoch in (0, 39, 40, 64, 65, 99)]
        assert sizes == pytest.approx([6, 6, 4.8, 4.8, 3.84, 3.84])

    def test_step(self) -> None:
        model, slope = np.ones((2, 1)), np.full((2, 1), 3.0)
        np.testing.assert_allclose(step(model, 2 * slope, 2, 0.5, 0.1), [[-0.55], [-0.55]])

    def test_metrics(self) -> None:
        predictions = np.array([[0.9, 0.1], [0.2, 0.3], [0.6, 0.4]])
        both = np.stack([predictions, -predictions], axis=1)
        assert accuracy(both, np.array([0, 1, 1])) == pytest.approx([2 / 3, 1 / 3])
        targets = np.array([[0.0], [1.0], [2.0]])
        both = np.stack([targets, np.ones((3, 1))], axis=1)
        assert r_squared(both, targets).tolist() == [1, 0]


def test_an_excess_is_smaller_where_little_can_be_explained() -> None:
    assert telling_excess(0.2, np.inf) == 0.2
    assert telling_excess(0.2, 10.0) == 0.2
    assert telling_excess(0.2, 1.0) == pytest.approx(0.02)
    assert telling_excess(0.2, 0.0) == pytest.approx(2e-4)  # nothing to learn, nothing asked
