import numpy as np
import pytest
from hypothesis import given, settings
from scipy.integrate import quad
from scipy.stats import norm

from codedfedl import Fleet, InputError, MeasuredDelays, expected_maximum, paper_fleet
from codedfedl.arrays import FloatArray
from codedfedl.fleet.round_time import asymmetric_cdf, asymmetric_parts
from codedfedl.planning import theorem
from tests import naive
from tests.strategies import fleets, times


def mixed_fleet(symmetric: bool) -> Fleet:
    rng = np.random.default_rng(5)
    n = 40
    return Fleet(
        points=rng.integers(1, 1000, n),
        rate=10 ** rng.uniform(-1, 2, n),
        alpha=10 ** rng.uniform(-1, 1, n),
        packet_time=10 ** rng.uniform(-1, 1.5, n),
        erasure=rng.choice([0, 0.1, 0.5, 0.9], n),
        packet_time_up=None if symmetric else 10 ** rng.uniform(-1, 1.5, n),
        erasure_up=None if symmetric else rng.choice([0, 0.2, 0.9], n),
        overhead=rng.uniform(0, 5, n),
        availability=rng.uniform(0.5, 1, n),
    )


@pytest.mark.parametrize("symmetric", [True, False])
def test_cdf_against_samples(symmetric: bool) -> None:
    """120 comparisons at 1e-6 false alarms together: a bound of 5.9 standard deviations each."""
    fleet = mixed_fleet(symmetric)
    model = fleet
    rng = np.random.default_rng(6)
    rounds, loads = 100_000, np.ceil(fleet.points * rng.uniform(0.2, 1, len(fleet)))
    samples = model.sample(loads, rounds, rng)
    threshold = norm.isf(1e-6 / 120 / 2)
    for quantile in (0.1, 0.4, 0.8):
        t = np.quantile(np.where(np.isinf(samples), 1e9, samples), quantile, axis=0)
        t = np.where(t == 1e9, 100.0, t) * 1.01
        expected = model.cdf(loads, t)
        spread = np.sqrt(np.maximum(expected * (1 - expected), 1 / rounds) / rounds)
        assert (np.abs((samples <= t).mean(0) - expected) <= threshold * spread + 1e-9).all()


def test_mean_against_samples() -> None:
    """Five standard deviations of each of 40 means: false alarm below 3e-5."""
    fleet = mixed_fleet(symmetric=False)
    there = Fleet(
        **{name: getattr(fleet, name) for name in ("points", "rate", "alpha", "packet_time")},
        erasure=fleet.erasure,
        packet_time_up=fleet.packet_time_up,
        erasure_up=fleet.erasure_up,
        overhead=fleet.overhead,
    )
    samples = there.sample(there.points, 50_000, np.random.default_rng(7))
    error = samples.mean(0) - there.mean(there.points)
    assert (np.abs(error) < 5 * samples.std(0) / np.sqrt(50_000)).all()


@given(fleet=fleets(max_points=100), t=times())
def test_load_times_cdf_is_the_theorem(fleet: Fleet, t: float) -> None:
    loads = np.ceil(fleet.points / 2)
    found = loads * fleet.cdf(loads, t)
    clients = zip(theorem.clients_of(fleet), loads, strict=True)
    expected = [theorem.expected_return(client, t, load) for client, load in clients]
    # a cdf is good to 1e-12; a load multiplies that, and so does a large α the exponent's rounding
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-10)


@given(fleet=fleets(), t=times())
def test_asymmetric_sum_reduces_to_the_symmetric_one(fleet: Fleet, t: float) -> None:
    compute, time = fleet.points / fleet.rate, t - fleet.overhead
    found = fleet.availability * asymmetric_cdf(fleet, time, compute)
    np.testing.assert_allclose(found, fleet.cdf(fleet.points, t), atol=1e-9)


def test_asymmetric_link_by_convolution() -> None:
    """Both links' attempts enumerated, one term at a time."""
    fleet = Fleet(
        points=[100],
        rate=5,
        alpha=1.5,
        packet_time=2.0,
        erasure=0.3,
        packet_time_up=3.7,
        erasure_up=0.6,
    )
    t, x = 70.0, 20.0
    total = 0.0
    for down in range(1, 60):
        for up in range(1, 150):
            spare = t - x - 2.0 * down - 3.7 * up
            if spare > 0:
                chance = 0.7 * 0.3 ** (down - 1) * 0.4 * 0.6 ** (up - 1)
                total += chance * -np.expm1(-1.5 * spare / x)
    assert fleet.cdf(100, t)[0] == pytest.approx(total, abs=1e-14)


@settings(max_examples=200)
@given(fleet=fleets(max_clients=1, max_erasure=0.99, own_uplink=True), t=times())
def test_asymmetric_cdf_against_every_pair_of_attempts(fleet: Fleet, t: float) -> None:
    """Lossless links and links that lose 99 of 100, links that take no time, α from 1e-6 to 1e6."""
    time, compute = t - fleet.overhead, fleet.points / fleet.rate
    found = asymmetric_cdf(fleet, time, compute)[0]
    expected = naive.asymmetric_cdf(fleet, fleet.points[0], t)
    # a large α multiplies the rounding of the time that is left
    assert found == pytest.approx(expected, rel=1e-7, abs=1e-12)


@given(fleet=fleets(own_uplink=True, max_erasure=0.9), t=times())
def test_asymmetric_sums_are_the_slopes_in_time_and_load(fleet: Fleet, t: float) -> None:
    """dP/dt = (α/x)·late and, with F = x·P, F'(x) = P − (α/x)·moment, both times their argument."""
    time, x, step = t - fleet.overhead, fleet.points / fleet.rate, 1e-6
    parts = asymmetric_parts(fleet, time, x)
    later, sooner = (asymmetric_parts(fleet, time + s * t, x) for s in (step, -step))
    more, less = (asymmetric_parts(fleet, time, x * (1 + s)) for s in (step, -step))
    in_time = (later.answered - sooner.answered) / (2 * step)
    in_load = (more.answered * (1 + step) - less.answered * (1 - step)) / (2 * step)
    # No attempt comes or goes in between, and the exponent is not all rounding.
    smooth = (later.sent == sooner.sent) & (more.sent == less.sent) & (fleet.alpha * t / x < 1e3)
    by_sums = parts.answered - fleet.alpha / x * parts.moment
    np.testing.assert_allclose(
        (fleet.alpha / x * parts.late * t)[smooth], in_time[smooth], 1e-3, 1e-6
    )
    np.testing.assert_allclose(by_sums[smooth], in_load[smooth], 1e-3, 1e-6)


def test_cdf_broadcasts_and_is_monotone() -> None:
    model = paper_fleet()
    by_time = model.cdf(200, np.linspace(0, 5000, 300)[:, None])
    assert by_time.shape == (300, 30)
    assert (np.diff(by_time, axis=0) >= -1e-14).all()
    by_load = model.cdf(np.arange(0, 401)[:, None], 1000.0)
    assert (np.diff(by_load, axis=0) <= 1e-14).all()


def test_no_load_leaves_the_link() -> None:
    fleet = Fleet(points=[10], rate=1, alpha=1, packet_time=1, erasure=0.5)
    assert fleet.cdf(0, 3.5)[0] == pytest.approx(0.25 + 0.25)


def test_expected_maximum_against_samples() -> None:
    """Five standard deviations of the mean of 50,000 maxima: false alarm 6e-7."""
    fleet = paper_fleet()
    model = fleet
    longest = model.sample(fleet.points, 50_000, np.random.default_rng(8)).max(1)
    error = expected_maximum(model, fleet.points) - longest.mean()
    assert abs(error) < 5 * longest.std() / np.sqrt(50_000)


def test_waiting_for_somebody_who_may_not_come_never_ends() -> None:
    fleet = Fleet(points=[10], rate=1, alpha=1, packet_time=1, erasure=0, availability=0.9)
    assert expected_maximum(fleet, fleet.points) == np.inf


def test_expected_maximum_against_scipys_quadrature() -> None:
    fleet = paper_fleet()
    delays = fleet

    def late(t: float) -> float:
        return 1 - float(np.prod(delays.cdf(fleet.points, t)))

    whole, _ = quad(late, 0, 40_000, epsrel=1e-9, limit=400)
    assert expected_maximum(delays, fleet.points) == pytest.approx(whole, rel=1e-6)


def test_expected_maximum_of_known_cases() -> None:
    """A lossless link and next to no computation; an asymmetric link; measured delays."""
    sure = Fleet(points=[1], rate=1e6, alpha=2, packet_time=1, erasure=0)
    assert expected_maximum(sure, [1]) == pytest.approx(2.0000015, rel=1e-6)
    both_ways = Fleet(
        points=[1],
        rate=1e6,
        alpha=2,
        packet_time=0.7,
        erasure=0.5,
        packet_time_up=0.9,
        erasure_up=0.33,
    )
    assert expected_maximum(both_ways, [1]) == pytest.approx(2.7433, rel=2e-3)
    assert expected_maximum(MeasuredDelays([[1.0]], [[5.0]]), [10]) == pytest.approx(15, rel=1e-3)
    assert expected_maximum(MeasuredDelays([[0.0]], [[0.0]]), [10]) < 1e-100


def test_nobody_waits_for_a_client_without_points() -> None:
    fleet = Fleet(points=[10, 0], rate=1, alpha=1, packet_time=1, erasure=0, availability=[1, 0.5])
    assert expected_maximum(fleet, fleet.points) == pytest.approx(22, rel=1e-4)


class TestMeasured:
    def model(self) -> MeasuredDelays:
        return MeasuredDelays([[1.0, 2.0, 3.0], [0.5, np.inf]], [[0.0, 0.0, 5.0], [1, 1]])

    def test_cdf_counts_the_measurements_that_would_have_met_t(self) -> None:
        np.testing.assert_allclose(self.model().cdf([10, 20], 20.0), [2 / 3, 1 / 2])
        np.testing.assert_allclose(self.model().cdf([0, 0], 1.0), [2 / 3, 1.0])

    def test_samples_are_measurements(self) -> None:
        samples = self.model().sample([10, 20], 200, np.random.default_rng(0))
        assert set(samples[:, 0]) == {10.0, 20.0, 35.0}
        assert set(samples[:, 1]) == {11.0, np.inf}

    def test_approaches_the_model_that_was_measured(self) -> None:
        """Dvoretzky-Kiefer-Wolfowitz at 30 clients and 1e-6: 4,000 samples are within 0.047."""
        fleet = paper_fleet()
        rng = np.random.default_rng(1)
        per_point: list[FloatArray] = []
        fixed: list[FloatArray] = []
        link = fleet.sample(0, 4000, rng)
        for j in range(30):
            slow = 1 + rng.standard_exponential(4000) / fleet.alpha[j]
            per_point.append(slow / fleet.rate[j])
            fixed.append(link[:, j])
        measured = MeasuredDelays(per_point, fixed)
        bound = np.sqrt(np.log(2 * 30 / 1e-6) / (2 * 4000))
        for t in (50.0, 500.0, 2000.0):
            apart = measured.cdf(fleet.points, t) - fleet.cdf(fleet.points, t)
            assert np.abs(apart).max() < bound

    @pytest.mark.parametrize(
        ("per_point", "fixed", "message"),
        [
            ([[1.0]], [[1.0]], "per_point has 1 rows for 2 clients"),
            ([[1.0], []], [[1.0], []], "per_point of client 1 is empty"),
            ([[1.0], [-2.0]], [[1.0], [1.0]], "per_point of client 1 holds -2"),
            ([[1.0], [np.nan]], [[1.0], [1.0]], "per_point of client 1 holds nan"),
            ([[1.0], [1.0, 2.0]], [[1.0], [1.0]], "differ in length"),
        ],
    )
    def test_bad_measurements(
        self, per_point: list[list[float]], fixed: list[list[float]], message: str
    ) -> None:
        with pytest.raises(InputError, match=message):
            MeasuredDelays(per_point, fixed, client=[0, 1])


@pytest.mark.parametrize("erasure", [0.9, 0.99, 0.9999])
def test_long_sums_equal_those_attempt_by_attempt(erasure: float) -> None:
    """Times from the first attempt to long after the last that counts, links alike and unlike."""
    rng = np.random.default_rng(11)
    n = 300
    fleet = Fleet(
        points=rng.integers(1, 1000, n),
        rate=10 ** rng.uniform(-1, 1, n),
        alpha=10 ** rng.uniform(-1, 1, n),
        packet_time=10 ** rng.uniform(-2, 2, n),
        erasure=erasure,
        packet_time_up=10 ** rng.uniform(-2, 2, n),
        erasure_up=rng.uniform(0.5, erasure, n),
    )
    time, compute = 10 ** rng.uniform(1, 5, n), fleet.points / fleet.rate
    found = asymmetric_parts(fleet, time, compute)
    expected = asymmetric_parts(fleet, time, compute, few_attempts=np.inf)
    seconds = [np.ones(n)] * 3 + [time]
    for ours, theirs, scale in zip(found, expected, seconds, strict=True):
        np.testing.assert_allclose(ours / scale, theirs / scale, atol=1e-12)
    assert any((ours != theirs).any() for ours, theirs in zip(found, expected, strict=True))
