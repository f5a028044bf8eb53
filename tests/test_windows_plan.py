"""The plan of windows: its variance, its choice, and the noise that it follows."""

import numpy as np
import pytest

from codedfedl import Fleet, InputError
from codedfedl.planning.windows import (
    ADAPTIVE_POWER,
    NoiseScale,
    plan_windows,
    rehearse,
    variance,
)

RATES, HELD = np.array([20.0, 5.0, 1.0, 0.2]), np.array([50, 50, 50, 50])
FLEET = Fleet(points=HELD, rate=RATES, alpha=2.0, packet_time=1.0, erasure=0.1)
COUNTS = np.array([[50, 0], [25, 25], [0, 50], [0, 50.0]])


def test_a_rehearsal_is_rounds_in_plain_loops() -> None:
    (played,) = rehearse(FLEET, HELD, [(4.0, 7.0)], least=2, oldest=3)
    chances = FLEET.draw(240, np.random.default_rng(0))
    answers, points, aged = np.zeros(4), np.zeros(4), 0.0
    for j in range(4):
        idle_from = 0.0
        for k in range(240):
            if idle_from > 7.0 * k:
                continue
            chance = chances[k]
            slowness = 1 + chance.draws["slowness"][j] / 2.0
            done = min(int(4.0 * RATES[j] / slowness), 50)
            load = max(done, 2)
            seconds = (
                max(4.0, load / RATES[j] * slowness) if done < 50 else 50 * slowness / RATES[j]
            )
            seconds += chance.draws["down"][j] + chance.draws["up"][j]
            late = int(np.ceil(seconds / 7.0)) - 1
            idle_from = 7.0 * (k + late + 1)
            if late <= 3:
                answers[j] += 1
                points[j] += load
                aged += load * late
    np.testing.assert_allclose(played.answers, answers / 240)
    np.testing.assert_allclose(played.points, points / 240)
    assert played.age == pytest.approx(aged / points.sum())


def test_who_drops_its_work_counts_in_time_or_never() -> None:
    (keeps,), (drops,) = (
        rehearse(FLEET, HELD, [(4.0, 7.0)], oldest=9, keeps=keeps) for keeps in (True, False)
    )
    assert drops.answers[3] < keeps.answers[3]
    assert (drops.answers <= 1).all()


def test_variance_is_that_of_weighted_points() -> None:
    """Monte Carlo: noise of variance 1 a point, 20,000 rounds; false alarms below 1e-6."""
    (played,) = rehearse(FLEET, HELD, [(4.0, 7.0)])
    arriving = (COUNTS / 50).T @ played.points
    weights = COUNTS.sum(0) / arriving
    luck = np.random.default_rng(0)
    drawn = luck.poisson(arriving, (20_000, 2))
    sums = (luck.standard_normal((20_000, 2)) * np.sqrt(drawn) * weights).sum(1) / 200
    assert variance(played, COUNTS, np.inf) == pytest.approx((sums.var(), 1.0), rel=0.07)


def test_what_a_cap_cuts_off_slows_down() -> None:
    (played,) = rehearse(FLEET, HELD, [(4.0, 7.0)], oldest=5)
    by_client = np.diag(HELD.astype(float))
    average = 200 / played.points.sum()
    weights = np.minimum(50 / played.points, average)
    counted = weights * played.points / 50
    expected = (weights**2 * played.points).sum() / 200**2, (1 / counted).mean()
    assert variance(played, by_client, 1.0) == pytest.approx(expected)
    assert variance(played, by_client, np.inf)[1] == pytest.approx(1.0)


@pytest.mark.parametrize("noise", [0.1, 10.0, 1e4])
def test_no_window_of_a_fine_grid_is_much_better(noise: float) -> None:
    chosen = plan_windows(FLEET, HELD, COUNTS, noise_scale=noise)
    fine = [(w, w + d) for w in np.geomspace(0.02, 200, 25) for d in np.linspace(2, 12, 11)]
    others = []
    for played in rehearse(FLEET, HELD, fine):
        spread, slowdown = variance(played, COUNTS, np.inf)
        others.append(played.deadline * slowdown * (1 + noise * spread) ** ADAPTIVE_POWER)
    assert chosen.cost < 1.1 * min(others)


def test_noise_and_least_make_windows_longer() -> None:
    quiet, noisy = (
        plan_windows(FLEET, HELD, COUNTS, noise_scale=noise, power=1.0) for noise in (1.0, 1e4)
    )
    assert noisy.window > quiet.window
    ten = plan_windows(FLEET, HELD, COUNTS, noise_scale=100.0, least=10)
    assert ten.rehearsal.points[0] >= 10 * ten.rehearsal.answers[0]


def test_noise_is_measured_from_sums_alone() -> None:
    """Gradients of length 1 with noise 400·V: B = 400 within a third; false alarms below 1e-4."""
    luck, known = np.random.default_rng(0), NoiseScale()
    direction = luck.standard_normal(2000)
    direction /= np.linalg.norm(direction)
    for k in range(80):
        spread = np.sqrt(400 * (0.05 if k % 2 else 0.02) / 2000)
        gradient = direction + spread * luck.standard_normal(2000)
        known = known.updated(gradient, 0.05 if k % 2 else 0.02)
        if k < 8:
            assert known.value(7.0) == 7.0
    assert known.value(1e9) == pytest.approx(400, rel=0.33)
    assert known.value(1.0) == 4.0


def test_a_fleet_that_never_answers_is_refused() -> None:
    never = Fleet(points=HELD, rate=1, alpha=2, packet_time=1, erasure=0.1, availability=0.0)
    with pytest.raises(InputError, match="no client of the fleet ever answers"):
        plan_windows(never, HELD, COUNTS, noise_scale=1.0)
