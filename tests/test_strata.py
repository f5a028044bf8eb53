"""Weights by class: they minimise the error of a random model, and no point counts less than 1."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codedfedl.core.protocol import Reply, Task
from codedfedl.core.record import SETUP
from codedfedl.fleet.devices import Workload
from codedfedl.learning.codes import Code
from codedfedl.learning.least_squares import ParityRows
from codedfedl.learning.optimisers import Schedule
from codedfedl.planning.strata import (
    count_strata,
    represented_points,
    shift_within,
    strata_of,
    trusted_points,
)
from codedfedl.schemes.by_class import ByClass

SEEDS = st.integers(0, 2**32 - 1)


def fleet(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return how many points of each class every client holds, and how many it has embedded."""
    counts = np.floor(rng.gamma(0.5, 40, (int(rng.integers(2, 9)), int(rng.integers(2, 5)))))
    points = rng.integers(0, counts.sum(1).astype(int) + 1)
    return counts, points


@given(seed=SEEDS, shift=st.sampled_from([0.0, 0.01, 1.0, 1e4]))
def test_no_other_weights_err_less(seed: int, shift: float) -> None:
    """Against the error as it is written, of weights that are a little different."""
    rng = np.random.default_rng(seed)
    counts, points = fleet(rng)
    seen = counts * (points / np.maximum(counts.sum(1), 1))[:, None]

    def error(weights: np.ndarray) -> float:
        noise = points @ (weights - 1) ** 2
        client = ((weights[:, None] * seen - counts) ** 2)[points > 0].sum()
        return float(noise + shift * client + ((weights @ seen - counts.sum(0)) ** 2).sum())

    heard = points > 0
    found = represented_points(counts, points, shift)
    assert (found[~heard] == 0).all()
    assert (found >= points - 1e-9).all()
    best = np.divide(found, points, out=np.ones(len(points)), where=heard)
    for _ in range(5):
        other = np.maximum(best + 0.1 * rng.standard_normal(len(best)), 1.0)
        if (best > 1 + 1e-9)[heard].all():  # else the bound holds some of them
            assert error(best) <= error(other) * (1 + 1e-9)


def test_pure_clients_share_their_class() -> None:
    """With many points of each class, every one of them weighs N/n, whoever holds it."""
    counts = np.array([[6000, 0], [6000, 0], [0, 3000]])
    points = np.array([3000, 60, 300])
    weights = represented_points(counts, points) / points
    np.testing.assert_allclose(weights, [12000 / 3060, 12000 / 3060, 10], rtol=1e-2)


@given(seed=SEEDS)
def test_with_much_shift_each_client_stands_for_its_own_points(seed: int) -> None:
    counts, points = fleet(np.random.default_rng(seed))
    expected = np.where(points > 0, counts.sum(1), 0)
    np.testing.assert_allclose(represented_points(counts, points, 1e9), expected, rtol=1e-5)


@given(seed=SEEDS, shift=st.sampled_from([0.0, 1.0]))
def test_all_points_weigh_one(seed: int, shift: float) -> None:
    counts, _ = fleet(np.random.default_rng(seed))
    everything = counts.sum(1)
    found = represented_points(counts, everything.astype(int), shift)
    np.testing.assert_allclose(found, everything, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_shift_is_estimated_without_bias(shift: float) -> None:
    """The mean of 40 estimates is off by four of its standard errors in one of 10,000 tests."""
    rng, (n, c, q) = np.random.default_rng(0), (8, 3, 40)
    estimates = []
    for _ in range(40):
        seen = rng.integers(2, 12, (n, c)).astype(float)
        classes, own = rng.standard_normal((c, q)), shift**0.5 * rng.standard_normal((n, c, q))
        chance = rng.standard_normal((n, c, q))
        sums = seen[..., None] * (classes + own) + seen[..., None] ** 0.5 * chance
        # Σ‖x‖² of a cell of k points is k‖mean‖² and k − 1 squared deviations.
        cells = ((sums**2).sum(2) / seen).sum()
        squares = cells + rng.chisquare((seen - 1).sum() * q)
        estimates.append(shift_within(sums, seen, float(squares)))
    error = np.std(estimates) / 40**0.5
    assert abs(np.mean(estimates) - shift) < 4 * error + 0.003  # those below 0 count as 0


def test_strata_of_a_regression_are_signs_and_sizes() -> None:
    values = np.array([[0.3], [0.9], [-0.3], [5.0], [0.0], [-1e30], [np.nan]])
    found = strata_of(values)
    assert found[0] == found[1]
    assert len({found[0], found[2], found[3]}) == 3
    assert count_strata(values).sum() == len(values)
    np.testing.assert_array_equal(count_strata(np.eye(3)[[0, 2, 2]]), [1, 0, 2])


def test_a_client_that_does_not_count_stands_for_itself() -> None:
    task = Task(Workload(4, 2), 1, np.array([[40, 20, 40]]), 1, Schedule(), 1e-3)
    said = {0: [30.0, 10.0], 1: [1.0, np.nan]}
    replies = [Reply(j, SETUP, 1, {"counts": np.array(said[j])}) for j in said]
    by_class = ByClass.of(replies, task)
    np.testing.assert_array_equal(by_class.counts.sum(1), task.held)
    assert (by_class.counts[1:, :2] == 0).all()
    assert by_class.weights(np.array([4, 2, 40]))[2] == pytest.approx(1)
    # Nobody else has points of their classes: what others embed makes no difference to them.
    alone, fewer = (by_class.weights(np.array([k, 2, 20])) for k in (4, 0))
    np.testing.assert_allclose(alone[1:], fewer[1:])


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_parity_shows_how_far_clients_differ(shift: float) -> None:
    """Within 0.15 of ρ, on average over 20 draws of the points and their code."""
    rng, (n, c, q, held) = np.random.default_rng(1), (12, 3, 30, 200)
    task = Task(Workload(q, c), 1, np.full((1, n), held), 1, Schedule(), 1e-3)
    labels = np.eye(c)[np.arange(held) % c]
    counts = ByClass(np.tile(labels.sum(0), (n, 1)))
    found = []
    for _ in range(20):
        means, parity = 0.5 * rng.standard_normal((c, q)), {}
        for client in range(n):
            own = means + shift**0.5 * rng.standard_normal((c, q))
            points = labels @ own + rng.standard_normal((held, q))
            rows = Code("dealt", 1).mix((points, labels), np.ones(held), held // 10, rng)
            parity[client] = (ParityRows(*rows), held)
        found.append(counts.after_parity(parity, task).shift)
    assert abs(np.mean(found) - shift) < 0.15


@given(
    seed=st.integers(0, 10**6),
    clients=st.integers(1, 15),
    shift=st.sampled_from([0.0, 0.05, 2.0]),
)
def test_claimed_counts_raise_no_weight_beyond_the_limit(
    seed: int, clients: int, shift: float
) -> None:
    """Two embed everything, others a little; what the two say of their classes is anything."""
    rng = np.random.default_rng(seed)
    held = rng.integers(10, 200, clients)
    points = np.maximum(held // 20, 1)
    points[:2] = held[:2]
    task = Task(Workload(5, 4), 10, held[None, :], 3, Schedule(), 1e-2)
    claims = rng.dirichlet(np.full(4, 0.3), clients) * held[:, None]
    claims[:2] *= 10.0 ** rng.integers(-2, 30)
    replies = [Reply(j, SETUP, 0, {"counts": row}) for j, row in enumerate(claims)]
    by_class = replace(ByClass.of(replies, task, federated=True), shift=shift)
    counted, most = by_class.represented(points), trusted_points(held)
    assert (counted <= most * (1 + 1e-9)).all()
    assert (counted >= points).all()
    largest = np.sort(most)[::-1][: max(clients // 5, 1)].sum()
    alone = np.sort(held)[::-1][: max(clients // 5, 1)].sum()
    assert largest <= max(alone, held.sum() / 3) * (1 + 1e-9)


def test_those_below_the_limit_make_up_for_those_at_it() -> None:
    """Ten alike, of whom two embed everything: together they count for a third, not for 0.7."""
    held, points = np.full(10, 100), np.full(10, 10)
    points[:2] = 100
    counts = np.full((10, 1), 100.0)
    free = represented_points(counts, points)
    bound = represented_points(counts, points, most=trusted_points(held))
    assert free[:2].sum() > 0.7 * free.sum()
    assert bound[:2].sum() == pytest.approx(1000 / 3)
    assert bound.sum() == pytest.approx(1000, rel=0.02)
