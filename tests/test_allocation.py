import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from codedfedl import (
    Fleet,
    InputError,
    MeasuredDelays,
    best_loads,
    expected_return,
    minimum_deadline,
    paper_fleet,
)
from codedfedl.planning import theorem
from codedfedl.planning.allocation import DEADLINE_TOLERANCE, Bisection
from tests import naive
from tests.strategies import fleets, times


@given(fleet=fleets(always_there=False, max_points=1000), t=times())
def test_bisection_finds_the_same_returns_as_the_pieces(fleet: Fleet, t: float) -> None:
    model = fleet
    pieces, general = best_loads(model, t), Bisection(model, fleet.points).best_loads(t)
    np.testing.assert_allclose(
        general.loads * general.return_probabilities,
        pieces.loads * pieces.return_probabilities,
        rtol=1e-9,
        atol=1e-12,
    )


@settings(max_examples=40)
@given(fleet=fleets(max_clients=3, max_points=30), share=st.floats(0.05, 0.95))
def test_deadline_against_exhaustive_search(fleet: Fleet, share: float) -> None:
    target = share * fleet.total_points
    found = minimum_deadline(fleet, target)
    expected = theorem.minimum_waiting_time(theorem.clients_of(fleet), target)
    assert found.t == pytest.approx(expected, rel=1e-6)
    assert found.expected_return >= target


def test_continuous_deadline_against_scipy() -> None:
    fleet = paper_fleet().take(np.arange(0, 30, 3))
    target = 0.85 * fleet.total_points
    found = minimum_deadline(fleet, target, whole=False)
    assert found.t == pytest.approx(naive.deadline_by_scipy(fleet, target), rel=1e-6)


@given(fleet=fleets(), share=st.floats(0.05, 0.95))
def test_no_shorter_deadline_would_do(fleet: Fleet, share: float) -> None:
    target = share * fleet.total_points
    model = fleet
    found = minimum_deadline(model, target)
    assert best_loads(model, found.t * (1 - 1e-6)).expected_return < target


@given(fleet=fleets(min_points=100, max_points=1000, max_alpha=10), share=st.floats(0.7, 0.99))
def test_whole_loads_cost_little_where_clients_have_many_points(fleet: Fleet, share: float) -> None:
    """Rounding a load ℓ loses at most (1 + v)/(8ℓ²) of its return, with v ≈ α + log α.

    With a nearly deterministic processor it can cost more: 0.3% for one client, α = 100, ℓ = 50.
    """
    model, target = fleet, share * fleet.total_points
    whole, continuous = (minimum_deadline(model, target, whole=w).t for w in (True, False))
    assert continuous * (1 - 3 * DEADLINE_TOLERANCE) <= whole <= continuous * 1.001


@given(fleet=fleets(), t=times(), later=st.floats(1.0, 10.0))
def test_return_rises_with_the_waiting_time(fleet: Fleet, t: float, later: float) -> None:
    model = fleet
    sooner, after = best_loads(model, t), best_loads(model, t * later)
    assert after.expected_return >= sooner.expected_return * (1 - 1e-12)


@given(fleet=fleets(), t=times())
def test_slope_is_the_derivative(fleet: Fleet, t: float) -> None:
    """With the loads held: by the envelope theorem their change does not count."""
    found = best_loads(fleet, t)
    step = 1e-6 * t
    ahead, behind = (expected_return(fleet, found.loads, t + s).sum() for s in (step, -step))
    rises = (ahead - behind) / (2 * step)
    kinked = np.abs((t - fleet.overhead - found.loads / fleet.rate) / t).min() < 1e-5
    assume(not kinked and fleet.alpha.max() < 1e3)
    assert found.slope == pytest.approx(rises, rel=1e-3, abs=1e-6 * fleet.total_points / t)


def test_who_is_not_asked_has_no_slope() -> None:
    """A hair after the first moment at which the slow client could answer, but does not yet."""
    fleet = Fleet(points=[1, 1], rate=[1, 10], alpha=[0.1, 1], packet_time=0, erasure=0)
    found = best_loads(fleet, 1.0000000000000004)
    assert found.loads.tolist() == [0, 1]
    assert found.slope == pytest.approx(10 * np.exp(-9), rel=1e-6)


def test_sampling_a_large_fleet_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    n = 20_000
    fleet = Fleet(
        points=rng.integers(1, 300, n),
        rate=10 ** rng.uniform(-1, 1, n),
        alpha=10 ** rng.uniform(-1, 1, n),
        packet_time=10 ** rng.uniform(-1, 1, n),
        erasure=rng.uniform(0, 0.3, n),
    )
    model, target = fleet, 0.9 * fleet.total_points
    found = minimum_deadline(model, target)
    assert found.expected_return >= target
    assert best_loads(model, found.t * (1 - 1e-6)).expected_return < target


class TestNearlyDeterministicProcessor:
    """α → ∞: T = ℓ̃/μ + Nτ, and the best load of k transmissions ends just before t − kτ."""

    @given(
        fleet=fleets(max_clients=3, max_points=40),
        log_alpha=st.floats(12, 308),
        t=times(),
        whole=st.booleans(),
    )
    def test_best_loads_against_the_limit(
        self, fleet: Fleet, log_alpha: float, t: float, whole: bool
    ) -> None:
        """Whole loads by brute force over the Theorem, a hair before and a hair after t."""
        fixed = dataclasses.replace(fleet, alpha=np.full(len(fleet), 10**log_alpha))
        found = best_loads(fixed, t, whole=whole)
        returned = found.loads * found.return_probabilities
        clients = theorem.clients_of(fixed)
        before, after = (
            np.array([theorem.expected_return(c, s, theorem.best_load(c, s)) for c in clients])
            for s in (t * (1 - 1e-9), t * (1 + 1e-9))
        )
        assert (returned >= before * (1 - 1e-9)).all()
        if whole:
            assert (returned <= after * (1 + 1e-9)).all()

    @pytest.mark.parametrize("alpha", [1e15, 1e16, 1e17, 1e18, 1e30, 1e150, 1e300])
    def test_plan_no_longer_depends_on_alpha(self, alpha: float) -> None:
        """One transmission each way: all 400 points of both need 6 s and 200 s."""
        fleet = Fleet(points=[400, 400], rate=[2, 20], alpha=alpha, packet_time=3, erasure=0)
        found = minimum_deadline(fleet, 799)
        assert found.loads.tolist() == [399, 400]
        assert found.t == pytest.approx(399 / 2 + 6, rel=1e-6)
        assert best_loads(fleet, 16.0).loads.tolist() == [19, 199]
        continuous = best_loads(fleet, 16.0, whole=False)
        np.testing.assert_allclose(continuous.loads, [20, 200], rtol=1e-12)
        np.testing.assert_allclose(continuous.return_probabilities, 1, rtol=1e-12)

    @pytest.mark.parametrize("alpha", [1e16, 1e300])
    def test_asymmetric_links(self, alpha: float) -> None:
        fleet = Fleet(
            points=[400], rate=2, alpha=alpha, packet_time=1, erasure=0, packet_time_up=2.5
        )
        assert best_loads(fleet, 20.0).loads.tolist() == [32]
        assert minimum_deadline(fleet, 300).t == pytest.approx(153.5, rel=1e-6)


@settings(max_examples=200)
@given(
    fleet=fleets(own_uplink=True, max_erasure=0.99, always_there=False, max_alpha=1e17), t=times()
)
def test_asymmetric_loads_against_every_load(fleet: Fleet, t: float) -> None:
    """Lossless links and links that lose 99 of 100, links that take no time, any α."""
    model = fleet
    loads = np.arange(1, fleet.points.max() + 1)[:, None]
    returned = expected_return(model, loads, t) * (loads <= fleet.points)
    found = best_loads(model, t)
    np.testing.assert_allclose(
        found.loads * found.return_probabilities, returned.max(0), rtol=2e-9, atol=1e-12
    )
    assert found.slope >= 0


@settings(max_examples=40)
@given(fleet=fleets(own_uplink=True, max_clients=3), share=st.floats(0.05, 0.95))
def test_asymmetric_deadline_is_the_smallest(fleet: Fleet, share: float) -> None:
    model, target = fleet, share * fleet.total_points
    found = minimum_deadline(model, target)
    assert found.expected_return >= target
    assert best_loads(model, found.t * (1 - 1e-6)).expected_return < target


class TestAnyModel:
    def asymmetric(self) -> Fleet:
        rng = np.random.default_rng(2)
        n = 6
        return Fleet(
            points=rng.integers(5, 80, n),
            rate=10 ** rng.uniform(-1, 1, n),
            alpha=10 ** rng.uniform(-1, 1, n),
            packet_time=10 ** rng.uniform(-1, 1, n),
            erasure=rng.uniform(0, 0.9, n),
            packet_time_up=3.0,
            erasure_up=0.4,
        )

    def test_asymmetric_links_against_every_load(self) -> None:
        fleet = self.asymmetric()
        model = fleet
        for t in (5.0, 30.0, 200.0):
            loads = np.arange(fleet.points.max() + 1)[:, None]
            returned = expected_return(model, loads, t) * (loads <= fleet.points)
            found = best_loads(model, t)
            np.testing.assert_allclose(
                found.loads * found.return_probabilities, returned.max(0), rtol=1e-12
            )

    def test_a_fleet_of_both_kinds_is_solved_in_two_parts(self) -> None:
        one, other = self.asymmetric(), paper_fleet().take(np.arange(3))
        columns = ("points", "rate", "alpha", "packet_time", "erasure", "packet_time_up")
        both = Fleet(
            **{name: np.append(getattr(one, name), getattr(other, name)) for name in columns},
            erasure_up=np.append(one.erasure_up, other.erasure_up),
        )
        found = best_loads(both, 100.0)
        parts = [best_loads(part, 100.0).loads for part in (one, other)]
        np.testing.assert_array_equal(found.loads, np.concatenate(parts))
        deadline = minimum_deadline(both, 0.8 * both.total_points)
        assert deadline.expected_return >= 0.8 * both.total_points

    def test_measured_delays_against_every_load(self) -> None:
        rng = np.random.default_rng(3)
        points = np.array([7, 30, 100])
        per_point = [rng.uniform(0.1, 1, size) for size in (5, 12, 40)]
        fixed = [
            np.where(rng.random(len(p)) < 0.1, np.inf, rng.uniform(0, 9, len(p))) for p in per_point
        ]
        model = MeasuredDelays(per_point, fixed)
        for t in (5.0, 12.0, 40.0):
            loads = np.arange(101)[:, None]
            returned = np.where(loads <= points, loads * model.cdf(loads + 0 * points, t), 0)
            found = best_loads(model, t, points=points)
            np.testing.assert_allclose(
                found.loads * found.return_probabilities, returned.max(0), rtol=1e-12
            )

    def test_measured_deadline_is_the_smallest(self) -> None:
        rng = np.random.default_rng(4)
        model = MeasuredDelays(
            [rng.uniform(0.1, 1, 20) for _ in range(5)], [rng.uniform(0, 9, 20)] * 5
        )
        found = minimum_deadline(model, 150, points=40)
        assert found.expected_return >= 150
        assert best_loads(model, found.t * (1 - 1e-6), points=40).expected_return < 150


def test_a_flat_start_does_not_throw_the_search_away() -> None:
    """Where nobody but the slowest is missing, the slope is next to nothing."""
    fleet = Fleet(
        points=[13, 29], rate=[0.01, 75.6464595], alpha=[1, 4.2], packet_time=0, erasure=0
    )
    model = fleet
    found = minimum_deadline(model, 41)
    assert found.expected_return >= 41 > best_loads(model, found.t * (1 - 1e-6)).expected_return
    assert found.t < 1e5


def test_a_client_who_cannot_answer_is_not_asked() -> None:
    fleet = Fleet(
        points=[100, 5, 5],
        rate=[10, 1e-3, 10],
        alpha=2,
        packet_time=1,
        erasure=0.1,
        availability=[1, 1, 0],
    )
    found = minimum_deadline(fleet, 80)
    assert found.loads.tolist() == [100, 0, 0]
    assert found.return_probabilities[1:].tolist() == [0, 0]


def test_best_load_when_the_last_transmission_barely_fits() -> None:
    """The last term is then all of the sum, and differences of the others would cancel."""
    fleet = Fleet(
        points=[30], rate=316082451157.4, alpha=4.2136, packet_time=0.028157483168928, erasure=0.99
    )
    t = 3 * 0.028157483168928 * (1 + 2e-12)
    loads = np.arange(31.0)
    returned = expected_return(fleet, loads[:, None], t)[:, 0]
    found = best_loads(fleet, t)
    assert found.expected_return == pytest.approx(returned.max(), rel=1e-9)


def test_measured_delays_may_reach_their_limit() -> None:
    model = MeasuredDelays([[1.0, np.inf], [1, 2]], [[5.0, 1], [0, 0]])
    assert minimum_deadline(model, 15, points=10).t == pytest.approx(20)
    with pytest.raises(InputError, match="out of reach: 15 of 20 .*redundancy above 0.25,"):
        minimum_deadline(model, 15.5, points=10)
    with pytest.raises(InputError, match="must be above 0"):
        minimum_deadline(model, 0, points=10)
