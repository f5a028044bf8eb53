import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from scipy.stats import norm

from codedfedl import Fleet, InputError, MeasuredDelays
from codedfedl.arrays import FloatArray, IntArray
from codedfedl.fleet.delays import Chances, DelayModel
from codedfedl.fleet.measured import MixedDelays
from tests.strategies import fleets, times


def test_points_done_have_the_exact_distribution() -> None:
    """60 shares of 20,000 draws at 1e-6 false alarms together."""
    rng = np.random.default_rng(1)
    rate, alpha = np.array([0.3, 2.0, 40.0]), np.array([0.5, 2.0, 5.0])
    fleet = Fleet(points=9, rate=rate, alpha=alpha, packet_time=1, erasure=0)
    drawn = fleet.points_within(7.0, fleet.draw(20_000, rng))
    counts = np.arange(1, 21)[:, None] * np.maximum(1, np.floor(7 * rate / 20))
    expected = -np.expm1(-alpha * np.maximum(7 * rate / counts - 1, 0))  # P(E ≤ 7μ/k − 1)
    shares = (drawn >= counts[:, None]).mean(1)
    spread = np.sqrt(np.maximum(expected * (1 - expected), 1e-9) / 20_000)
    assert (np.abs(shares - expected) <= norm.isf(1e-6 / 60 / 2) * spread + 1e-9).all()


@given(fleet=fleets(), window=times())
def test_a_window_holds_the_most_points_whose_computation_fits(fleet: Fleet, window: float) -> None:
    chance = fleet.draw(3, np.random.default_rng(0))
    done = fleet.points_within(window, chance)
    slow = 1 + chance.draws["slowness"] / fleet.alpha
    assert (done / fleet.rate * slow <= window * (1 + 1e-12)).all()
    assert ((done + 1) / fleet.rate * slow >= window * (1 - 1e-12)).all()


def test_measured_and_mixed_clients_have_windows_too() -> None:
    fleet = Fleet(points=[9, 9], rate=[2, 4], alpha=2, packet_time=1, erasure=0.1)
    measured = MeasuredDelays([[0.5, 2.0], [0.0, np.inf]], [[1.0, 1.0], [1.0, np.inf]])
    chance = measured.draw(50, np.random.default_rng(2))
    table = np.array([[10, 2], [2**53, 0]])
    expected = table[np.arange(2), chance.draws["measurement"]]
    np.testing.assert_array_equal(measured.points_within(5.0, chance), expected)

    mixed = MixedDelays(fleet, measured, np.array([True, False]))
    both = mixed.draw(50, np.random.default_rng(3))
    columns = mixed.points_within(5.0, both)
    np.testing.assert_array_equal(
        columns[:, 0], fleet.points_within(5.0, both.draws["formula"])[:, 0]
    )
    np.testing.assert_array_equal(
        columns[:, 1], measured.points_within(5.0, both.draws["measured"])[:, 1]
    )

    slower = mixed.slowed([2.0, 0.5])
    np.testing.assert_array_equal(slower.points_within([10.0, 2.5], both), columns)


def test_a_model_without_windows_says_so() -> None:
    class Instant(DelayModel):
        client = np.arange(1)

        def cdf(self, loads: npt.ArrayLike, t: npt.ArrayLike) -> FloatArray:
            return np.ones(1)

        def take(self, clients: IntArray | slice) -> "Instant":
            return self

    with pytest.raises(InputError, match="Instant has no points_within, which windows need"):
        Instant().points_within(1.0, Chances({}))
