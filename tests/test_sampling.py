"""Every delay model can be sampled: draws against the cdf, and the random stream itself."""

from typing import Any

import numpy as np
import pytest

from codedfedl import DelayModel, Fleet, MeasuredDelays, MixedDelays, paper_fleet
from codedfedl.arrays import FloatArray, IntArray

CLIENTS = 6
LOADS = np.array([1.0, 5, 40, 0, 60, 100])


def formula(symmetric: bool = True) -> Fleet:
    return Fleet(
        points=[1, 5, 40, 50, 60, 100],
        rate=[1, 2, 3, 4, 5, 6],
        alpha=[0.3, 1, 2, 4, 8, 1e9],
        packet_time=[0.5, 1, 2, 3, 0, 0.1],
        erasure=[0, 0.1, 0.5, 0.9, 0.3, 0.2],
        packet_time_up=None if symmetric else [1, 1.5, 1, 1, 1, 0.7],
        erasure_up=None if symmetric else [0.5, 0.3, 0, 0.8, 0.1, 0.2],
        overhead=[0, 1, 0, 0, 2, 0],
        availability=[1, 0.9, 1, 0.5, 1, 0.8],
    )


def measured() -> MeasuredDelays:
    """Every client has another number of measurements; some have replies that never came."""
    rng = np.random.default_rng(1)
    counts = range(1, CLIENTS + 1)
    per_point = [rng.uniform(0.1, 2, n) for n in counts]
    fixed = [np.where(rng.random(n) < 0.3, np.inf, rng.uniform(0, 9, n)) for n in counts]
    per_point[4][2] = np.inf
    assert any(np.isinf(f).any() for f in fixed)
    return MeasuredDelays(per_point, fixed)


def mixed() -> MixedDelays:
    return MixedDelays(formula(), measured(), np.array([True, False] * 3))


MODELS: dict[str, DelayModel] = {
    "formula": formula(),
    "asymmetric": formula(symmetric=False),
    "measured": measured(),
    "mixed": mixed(),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> DelayModel:
    return MODELS[request.param]


def test_samples_follow_the_cdf(model: DelayModel) -> None:
    """Dvoretzky-Kiefer-Wolfowitz: all times of all clients at once, false alarm 1e-6 in all."""
    rounds = 40_000
    seconds = model.seconds(LOADS, model.draw(rounds, np.random.default_rng(2)))
    assert seconds.shape == (rounds, CLIENTS)
    bound = np.sqrt(np.log(2 * CLIENTS * len(MODELS) / 1e-6) / (2 * rounds))
    finite = seconds[np.isfinite(seconds)]
    grid = np.append(np.quantile(finite, np.linspace(0, 1, 300), method="lower"), 1e9)
    grid = np.unique(grid * (1 + 1e-12))[:, None]  # the cdf has steps, and a sum its rounding
    observed = np.array([(seconds <= t).mean(0) for t in grid])
    assert np.abs(observed - model.cdf(LOADS, grid)).max() < bound


def test_a_round_is_a_row(model: DelayModel) -> None:
    chance = model.draw(5, np.random.default_rng(3))
    together = model.seconds(LOADS, chance)
    one_by_one = [model.seconds(LOADS, chance[r]) for r in range(5)]
    np.testing.assert_array_equal(together, one_by_one)
    assert one_by_one[0].shape == (CLIENTS,)


def test_the_same_chances_serve_any_loads(model: DelayModel) -> None:
    """More points never arrive sooner, and a client absent at one load is absent at all above 0."""
    chance = model.draw(2000, np.random.default_rng(4))
    less, more = (model.seconds(loads, chance) for loads in (0.5 * (LOADS + 1), LOADS + 1))
    assert (less <= more).all()
    np.testing.assert_array_equal(np.isinf(less), np.isinf(more))
    assert np.isinf(less).any()


@pytest.mark.parametrize("model", [formula(), measured(), mixed()])
def test_sample_is_draw_and_seconds(model: Any) -> None:
    sampled = model.sample(LOADS, 10, np.random.default_rng(5))
    drawn = model.seconds(LOADS, model.draw(10, np.random.default_rng(5)))
    np.testing.assert_array_equal(sampled, drawn)


def test_a_measured_chance_is_the_index_of_a_measurement() -> None:
    model = MeasuredDelays([[1.0, 2.0], [3.0]], [[0.5, np.inf], [0.0]])
    chance = model.draw(50, np.random.default_rng(6))
    measurement = chance.draws["measurement"]
    assert set(measurement[:, 0]) == {0, 1}
    assert set(measurement[:, 1]) == {0}
    seconds = model.seconds([10, 7], chance)
    np.testing.assert_array_equal(seconds[:, 0], np.array([10.5, np.inf])[measurement[:, 0]])
    assert (seconds[:, 1] == 21).all()


def test_a_mixed_fleet_shares_the_chances_of_its_parts() -> None:
    model = mixed()
    chance = model.draw(20, np.random.default_rng(7))
    seconds = model.seconds(LOADS, chance)
    parts = (
        model.formula.seconds(LOADS, chance.draws["formula"]),
        model.measured.seconds(LOADS, chance.draws["measured"]),
    )
    np.testing.assert_array_equal(seconds[:, ::2], parts[0][:, ::2])
    np.testing.assert_array_equal(seconds[:, 1::2], parts[1][:, 1::2])


class TestRandomStream:
    """Recorded runs rest on these numbers: a seed gives the same delays in every version."""

    def test_of_rounds(self) -> None:
        model = paper_fleet()
        seconds = model.seconds(100, model.draw(3, np.random.default_rng(0)))
        expected = [
            [19.153706402856752, 40.076079555060225, 167.3065568332511],
            [14.085841928417679, 35.88986194074989, 203.90667689044744],
            [13.78411978241276, 32.46366252024287, 199.205391514822],
        ]
        assert seconds[:, :3].tolist() == expected

    def test_of_bulk_work(self) -> None:
        """The draws in their order: one exponential, then one negative binomial number each."""
        fleet = paper_fleet()
        points, packets = np.arange(30.0), np.arange(30) % 4
        compute, upload = fleet.bulk(points, packets, np.random.default_rng(0))
        rng = np.random.default_rng(0)
        slowness = rng.standard_exponential(30)
        losses = rng.negative_binomial(np.maximum(packets, 1), 0.9)
        np.testing.assert_array_equal(compute, points / fleet.rate * (1 + slowness / 2))
        sent = np.where(packets > 0, packets + losses, 0)
        np.testing.assert_array_equal(upload, sent * fleet.packet_time)


class TestBulk:
    def draws(self, model: DelayModel, points: FloatArray, packets: IntArray) -> FloatArray:
        rng = np.random.default_rng(8)
        return np.array([model.bulk(points, packets, rng) for _ in range(4000)])

    def test_mean_of_the_formula(self) -> None:
        """Five standard deviations of 12 means: false alarm below 1e-5."""
        model = fleet = formula(symmetric=False)
        drawn = self.draws(model, 10 * LOADS, np.arange(6))
        means = [
            10 * LOADS / fleet.rate * (1 + 1 / fleet.alpha),
            np.arange(6) * fleet.packet_time_up / (1 - fleet.erasure_up),
        ]
        error = np.abs(drawn.mean(0) - means)
        assert (error <= 5 * drawn.std(0) / np.sqrt(4000) + 1e-9).all()

    def test_measurements_with_a_reply_come_again(self) -> None:
        model = MeasuredDelays(
            [[1.0, 2.0, np.inf], [3.0]], [[0.5, 0.25, 7.0], [np.inf]], ["a", "b"]
        )
        drawn = self.draws(model, np.array([100.0, 100.0]), np.array([4, 4]))
        assert {tuple(pair) for pair in drawn[:, :, 0]} == {(100.0, 2.0), (200.0, 1.0)}
        assert (drawn[:, 0, 1] == 300).all()
        assert np.isinf(drawn[:, 1, 1]).all()  # who never replied takes for ever

    def test_no_work_takes_no_time(self, model: DelayModel) -> None:
        nothing = np.zeros(CLIENTS)
        compute, upload = model.bulk(nothing, nothing, np.random.default_rng(9))
        assert compute.tolist() == upload.tolist() == [0.0] * CLIENTS

    def test_mixed_takes_each_client_from_its_own_model(self) -> None:
        model, packets = mixed(), np.full(CLIENTS, 2)
        rng = np.random.default_rng(10)
        expected = [part.bulk(LOADS, packets, rng) for part in (model.formula, model.measured)]
        found = model.bulk(LOADS, packets, np.random.default_rng(10))
        for kind in (0, 1):
            np.testing.assert_array_equal(found[kind][::2], expected[0][kind][::2])
            np.testing.assert_array_equal(found[kind][1::2], expected[1][kind][1::2])
