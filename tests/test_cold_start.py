import numpy as np
import pytest

from codedfedl import InputError, paper_fleet
from codedfedl.fleet.costs import BlockSetup
from codedfedl.fleet.devices import Fleet, Workload
from codedfedl.planning.cold_start import best_cold_start, plan_cold_start
from codedfedl.planning.strata import sampling_excess

PAPER = paper_fleet()
HELD = np.full(30, 2000)
SETUP = BlockSetup(Workload(), 32720, 1, 10)


def test_sampling_costs_what_ridge_on_a_sample_costs() -> None:
    """Least squares on n of m points, drawn at random: q(1/n − 1/m) in excess, relatively.

    Over 100 other seeds the mean of 40 trials was 1.07 ± 0.04 times the formula, whose next term is
    of that size: 0.85 to 1.3 is five deviations, a false-alarm probability below 1e-6.
    """
    rng = np.random.default_rng(0)
    m, q, n = 3000, 30, 600
    x, noise = rng.standard_normal((m, q)), rng.standard_normal(m)
    best = ((x @ np.linalg.lstsq(x, noise, rcond=None)[0] - noise) ** 2).sum()
    excesses = []
    for _ in range(40):
        rows = rng.choice(m, n, replace=False)
        fitted = np.linalg.lstsq(x[rows], noise[rows], rcond=None)[0]
        excesses.append(((x @ fitted - noise) ** 2).sum() / best - 1)
    formula = sampling_excess(np.array([float(m)]), np.array([n]), q)
    assert formula == pytest.approx(q * (1 / n - 1 / m))
    assert 0.85 < np.mean(excesses) / formula < 1.3


def test_a_client_costs_at_most_its_share() -> None:
    held = np.array([1000.0, 10.0])
    assert sampling_excess(held, np.array([1000, 0]), 500) == pytest.approx(10 / 1010)
    assert sampling_excess(held, np.array([1000, 1]), 10**6) == pytest.approx(10 / 1010)
    assert sampling_excess(held, np.array([1000, 10]), 500) == 0


def test_a_longer_set_up_has_no_worse_start() -> None:
    """Where more rows cost no time, there are more: else the start after 400 s is worse than 350 s.

    With label counts both meet the wanted excess without a round, with four or six rows a point.
    """
    ways = BlockSetup(Workload(), 32720, 1, 12, bits=16).ways()
    counts = np.zeros((30, 10))
    counts[np.arange(30), np.arange(30) // 3] = 2000
    starts = [
        best_cold_start(PAPER, HELD, ways, 0.2, setup_deadline=seconds, counts=counts)[0].excess
        for seconds in (300.0, 350.0, 400.0, 430.0, 470.0, 500.0, 600.0)
    ]
    assert starts == sorted(starts, reverse=True)


def test_points_by_the_deadline_are_the_most_that_fit() -> None:
    speed = SETUP.seconds_per_point(PAPER)
    points = SETUP.points_by(900.0, PAPER, HELD, speed)
    assert (points % 1 == 0).all()
    assert points.max() == 2000
    assert 0 < points.min() < 200
    partial = points < 2000
    more = (points + 1) * speed + SETUP.packets(points + 1) * PAPER.packet_time_up
    assert (points * speed <= 900).all()
    # One point more would not fit, sending with some losses included.
    assert (more + 3 * PAPER.packet_time_up > 900)[partial].mean() > 0.5
    later = SETUP.points_by(1800.0, PAPER, HELD, speed)
    assert (later >= points).all()
    assert (SETUP.points_by(np.inf, PAPER, HELD, speed) == 2000).all()
    assert (SETUP.points_by(1e-3, PAPER, HELD, speed) == 0).all()


def test_parity_is_nearly_always_in_time() -> None:
    """2% or fewer are late; in 9,000 uploads 2.8% are five deviations more, below 1e-6."""
    speed = SETUP.seconds_per_point(PAPER)
    points = SETUP.points_by(400.0, PAPER, HELD, speed)
    rng = np.random.default_rng(0)
    left = 400.0 - points * speed
    late = [PAPER.upload(SETUP.packets(points), rng) > left for _ in range(300)]
    assert np.mean(late) < 0.028


def test_the_paper_fleet_is_ready_within_the_hour() -> None:
    plan = plan_cold_start(PAPER, HELD, SETUP, 0.2)
    assert plan.excess <= 0.2
    assert plan.seconds == pytest.approx(plan.setup_deadline + plan.rounds * plan.round_deadline)
    assert 600 < plan.seconds < 3600
    assert plan.points.min() >= 10


def test_no_other_set_up_or_deadline_is_faster() -> None:
    plan = plan_cold_start(PAPER, HELD, SETUP, 0.2)
    for setup in (0.7, 0.9, 1.1, 1.4):
        for deadline in (0.5, 0.8, 1.3, 2.0):
            other = plan_cold_start(
                PAPER,
                HELD,
                SETUP,
                0.2,
                setup_deadline=setup * plan.setup_deadline,
                deadline=deadline * plan.round_deadline,
            )
            assert plan.seconds <= 1.06 * other.seconds  # 5% are given away for fewer rounds


def test_parity_decides_how_many_rounds_there_are() -> None:
    plan = plan_cold_start(PAPER, HELD, SETUP, 0.2)
    theta = 0.45
    good, bad = (plan.after_start(excess, theta, 0, 500) for excess in (0.25, 0.8))
    assert 0 < good.rounds < bad.rounds
    assert max(good.excess, bad.excess) <= 0.2
    fewer = plan.after_start(0.8, theta, 0, bad.rounds - 1)
    assert fewer.excess > 0.2  # one round less is one too few
    assert plan.after_start(0.15, theta, 0, 500).rounds == 0
    fixed = plan.after_start(0.8, theta, 3, 3)
    assert (fixed.rounds, fixed.seconds) == (3, plan.setup_deadline + 3 * plan.round_deadline)


def test_a_better_model_takes_longer() -> None:
    seconds = [plan_cold_start(PAPER, HELD, SETUP, excess).seconds for excess in (0.4, 0.2, 0.05)]
    assert seconds == sorted(seconds)
    assert seconds[2] > 2 * seconds[0]


def test_one_hopeless_client_does_not_hold_up_the_others() -> None:
    rate = PAPER.rate.copy()
    rate[np.argmin(rate)] /= 1e6
    columns = {name: getattr(PAPER, name) for name in ("alpha", "packet_time", "erasure")}
    slower = Fleet(points=PAPER.points, rate=rate, **columns)
    normal = plan_cold_start(PAPER, HELD, SETUP, 0.2).seconds
    assert plan_cold_start(slower, HELD, SETUP, 0.2).seconds < 1.5 * normal


def test_infeasible_plans_are_refused() -> None:
    with pytest.raises(InputError, match="the first needs some"):
        plan_cold_start(PAPER, HELD, SETUP, 0.2, setup_deadline=1.0)
    with pytest.raises(InputError, match=r"an excess of 0\.\d+ is expected.*0\.01 is wanted"):
        plan_cold_start(PAPER, HELD, SETUP, 0.01, setup_deadline=600.0)
    with pytest.raises(InputError, match="every client has fewer points"):
        plan_cold_start(PAPER, np.full(30, 9), SETUP, 0.2)
