"""The private scheme: its plan, what a record can change, and what it tells."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from codedfedl.arrays import FloatArray
from codedfedl.core.clipped import ClippedGradient, ClippedMoments, clipped
from codedfedl.core.protocol import Ask, Inbox
from codedfedl.core.waiting import Everyone, arrivals
from codedfedl.core.work import ArrayClient, Work
from codedfedl.errors import InputError
from codedfedl.fleet.built_in import paper_fleet
from codedfedl.fleet.devices import Workload
from codedfedl.planning.private import plan_private
from codedfedl.planning.secure_rounds import RESIDUAL, eigenvalues, learning_errors
from codedfedl.privacy.accounting import Account, Release
from codedfedl.privacy.fixed_point import FixedPoint, Residues, noise_steps
from codedfedl.runs.directory import RunDirectory
from codedfedl.schemes import make_scheme
from codedfedl.schemes.private import Private, PrivateState
from codedfedl.simulation import engine
from codedfedl.simulation.assignments import Arrivals
from codedfedl.simulation.experiment import simulate
from tests.private_runs import check_resumes_exactly, experiment, played, simulation

Q, C = 12, 3
DIRECTION = np.eye(Q)[0]


def client_of(features: Any, labels: Any) -> ArrayClient:
    return ArrayClient(features, labels, 1, lambda *_: np.random.default_rng(0))


WORKS: list[Work] = [
    ClippedMoments(0.5, 3.0, 2.0**14),
    ClippedGradient(0.5, 3.0, 2.0**14, DIRECTION, 0.7, 0.4),
]


class TestSensitivity:
    """Replacing a record by nothing moves a sum by no more than the releases say."""

    @pytest.mark.parametrize("work", WORKS, ids=lambda work: work.kind)
    @given(seed=st.integers(0, 2**32), size=st.floats(1e-3, 1e4), place=st.integers(0, 7))
    def test_one_record(self, work: Work, seed: int, size: float, place: int) -> None:
        rng = np.random.default_rng(seed)
        features = (size * rng.standard_normal((8, Q))).astype(np.float32)
        labels = (size * rng.standard_normal((8, C))).astype(np.float32)
        model = rng.standard_normal((Q, C)).astype(np.float32)
        with_it = _decoded(work, features, labels, model)
        features[place], labels[place] = 0.0, 0.0
        without = _decoded(work, features, labels, model)
        numbers = FixedPoint(work.scale)  # type: ignore[attr-defined]
        count = with_it.size
        bound = numbers.distance(numbers.distance(work.cap, count), count)  # type: ignore[attr-defined]
        assert np.linalg.norm(with_it - without) <= bound

    def test_the_bound_is_not_loose(self) -> None:
        """One long record with the largest weight reaches it, but for rounding."""
        work = ClippedGradient(1.0, 3.0, 2.0**20, DIRECTION, 0.7, 0.4)
        features, labels = np.zeros((8, Q), np.float32), np.zeros((8, C), np.float32)
        features[0, 1], labels[0, 0] = 100.0, 100.0
        client = client_of(np.tile(features, (40, 1)), np.tile(labels, (40, 1)))
        answer = work.answer(client, 8, np.zeros((Q, C), np.float32))
        assert work.weight(320, 8) == 3.0  # 40 without the cap
        total = FixedPoint(work.scale).decode(answer.arrays["gradient"])
        assert np.linalg.norm(total) == pytest.approx(3.0, rel=1e-4)

    @given(st.integers(0, 2**32), st.floats(0.01, 100))
    def test_nothing_is_longer_than_it_is_clipped_to(self, seed: int, length: float) -> None:
        rows = np.random.default_rng(seed).standard_cauchy((20, 5))
        short = clipped(rows, length)
        lengths = np.linalg.norm(short, axis=1)
        assert (lengths <= length * (1 + 1e-12)).all()
        inside = np.linalg.norm(rows, axis=1) <= length
        np.testing.assert_allclose(short[inside], rows[inside])


class TestWholeClients:
    """With the unit `client`, all records of one client are replaced by nothing."""

    @pytest.mark.parametrize("work", WORKS, ids=lambda work: work.kind)
    @given(seed=st.integers(0, 2**32), size=st.floats(1e-3, 1e4))
    def test_a_client_moves_a_sum_by_no_more_than_its_longest(
        self, work: Any, seed: int, size: float
    ) -> None:
        rng = np.random.default_rng(seed)
        features = (size * rng.standard_normal((8, Q))).astype(np.float32)
        labels = (size * rng.standard_normal((8, C))).astype(np.float32)
        short = replace(work, longest=2.5)
        model = rng.standard_normal((Q, C)).astype(np.float32)
        total = _decoded(short, features, labels, model)
        assert np.linalg.norm(total) <= FixedPoint(work.scale).distance(2.5, total.size)

    def test_the_account_is_for_clients(self) -> None:
        (setting,) = played(experiment({"name": "private", "unit": "client", "hours": 0.5}))
        account = setting.scheme.describe(setting.state).account
        assert account is not None
        assert account.document()["unit"] == "client"
        assert account.epsilon == pytest.approx(3.0, rel=1e-6)
        assert not account.sampled
        (other,) = simulation(experiment({"name": "private", "hours": 0.5})).settings
        records = other.scheme.describe(other.state).account
        assert records is not None
        # A quarter of a client's 144 points is hidden, and not one of them alone.
        assert account.releases[0].sigma > 10 * records.releases[0].sigma


class TestDraws:
    """Points of a round are drawn by chance, each with the client's rate."""

    FEATURES = np.eye(Q, dtype=np.float32)[np.arange(4000) % (Q - 1) + 1]
    LABELS = np.ones((4000, C), np.float32)

    def total(self, draw: int, rate: float = 0.2) -> Any:
        """Return the sum of one draw, in units of a point: no residual is clipped."""
        work = ClippedGradient(1.0, 1e6, 2.0**10, DIRECTION, 1.0, 1e3, rates=rate, draw=draw)
        luck = np.random.default_rng
        client = ArrayClient(self.FEATURES, self.LABELS, 1, lambda *keys: luck([5, *keys]))
        answer = work.answer(client, 4000, np.zeros((Q, C), np.float32))
        return -FixedPoint(work.scale).decode(answer.arrays["gradient"])[:, 0] * 1e3

    def test_the_sum_is_right_on_average(self) -> None:
        """Of 200 draws of 800 points, each five times as heavy.

        A mean over 200 draws of Σ 5·b has a standard deviation of 5·√(4000·0.16/200) = 8.9; five of
        them are allowed, a false alarm in 10⁶.
        """
        totals = [self.total(draw).sum() for draw in range(200)]
        assert np.mean(totals) == pytest.approx(4000, abs=45)
        # The variance of one draw is 25·4000·0.16 = 16,000; that of 200 varies by 10%: six of them.
        assert np.var(totals) == pytest.approx(16_000, rel=0.6)

    def test_draws_differ_and_repeat(self) -> None:
        np.testing.assert_array_equal(self.total(3), self.total(3))
        assert (self.total(3) != self.total(4)).any()

    def test_all_points_are_in_at_a_rate_of_one(self) -> None:
        assert self.total(0, rate=1.0).sum() == pytest.approx(4000, abs=6)  # rounding

    def test_a_sample_does_not_depend_on_the_records(self) -> None:
        """Zeroing out a record leaves all others of the draw as they are."""
        before = self.total(1)
        self_changed = TestDraws()
        self_changed.FEATURES = self.FEATURES.copy()
        self_changed.FEATURES[0] = 0.0
        change = before - self_changed.total(1)
        assert np.count_nonzero(change) <= 1
        assert np.abs(change).max() <= 5 + 1  # the record's weight, and rounding


def _decoded(work: Work, features: Any, labels: Any, model: Any) -> Any:
    answer = work.answer(client_of(features, labels), 8, model)
    (residues,) = answer.arrays.values()
    return FixedPoint(work.scale).decode(residues)  # type: ignore[attr-defined]


def test_without_clipping_the_gradient_is_the_usual_one() -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((30, Q)), rng.standard_normal((30, C))
    features[:, 0] = 0.0  # nothing is in the direction that is left out
    model = rng.standard_normal((Q, C))
    work = ClippedGradient(1.0, 100.0, 2.0**20, DIRECTION, 1e3, 1e3)
    answer = work.answer(client_of(features, labels), 10, model)
    total = FixedPoint(work.scale).decode(answer.arrays["gradient"]) * 1e6
    expected = 3 * features[:10].T @ (features[:10] @ model - labels[:10])
    np.testing.assert_allclose(total, expected, atol=1e6 / 2**20)


@given(st.integers(0, 2**32))
def test_the_sum_is_that_of_clipped_features_and_residuals(seed: int) -> None:
    """Against the definition, record by record."""
    rng = np.random.default_rng(seed)
    features, labels = rng.standard_normal((30, Q)), rng.standard_normal((30, C))
    model, direction = rng.standard_normal((Q, C)), rng.standard_normal(Q)
    direction /= np.linalg.norm(direction)
    work = ClippedGradient(1.0, 1.0, 2.0**20, direction.astype(np.float32), 1.5, 0.8)
    expected = np.zeros((Q, C))
    for x, y in zip(features, labels, strict=True):
        residual, rest = model.T @ x - y, x - (x @ direction) * direction
        residual *= min(1, 0.8 / np.linalg.norm(residual))
        expected += np.outer(rest * min(1, 1.5 / np.linalg.norm(rest)), residual)
    np.testing.assert_allclose(work.part((features, labels), model) * 1.2, expected, atol=1e-4)


class TestRoundedNoise:
    """Rounding and wrapping of Gaussian noise are done to what is already private."""

    @given(st.integers(0, 2**32 - 1), st.floats(-1e6, 1e6), st.floats(0.1, 100))
    def test_rounding_the_noise_is_rounding_the_noisy_sum(
        self, total: int, normal: float, sigma: float
    ) -> None:
        """So what is given out is a function of sum + noise, which the proof is about."""
        noise = sigma * normal
        assume(abs(noise - np.floor(noise) - 0.5) > 1e-3)  # ties go to even numbers
        added = int(noise_steps(sigma, np.array([normal]))[0])
        assert (total + added) % 2**32 == int(np.rint(np.longdouble(total) + noise)) % 2**32

    def test_it_is_as_loud_as_it_says(self) -> None:
        """Variance σ² + 1/12, of 200,000 draws: it varies by 0.32%, and five of that are allowed.

        A false alarm has a chance below 10⁻⁶.
        """
        drawn = noise_steps(7.0, np.random.default_rng(0).standard_normal(200_000))
        steps = drawn.view(np.int32).astype(np.float64)
        assert steps.var() == pytest.approx(49 + 1 / 12, rel=0.016)
        assert abs(steps.mean()) < 5 * 7 / 200_000**0.5


class TestAccount:
    @pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, 8.0])
    def test_the_budget_is_spent_exactly_by_what_is_released(self, epsilon: float) -> None:
        (setting,) = played(experiment({"name": "private", "epsilon": epsilon, "hours": 0.5}))
        state, scheme = setting.state, setting.scheme
        account = scheme.describe(state).account
        assert account is not None
        assert 0.97 * epsilon < account.epsilon <= epsilon
        moments, gradients = account.releases
        assert moments.count == 1
        assert state.released <= gradients.count  # type: ignore[attr-defined]
        share = moments.mu**2 / account.mu**2
        assert share == pytest.approx(0.05)

    def test_the_noise_that_is_added_is_that_of_the_account(self) -> None:
        """Every ask carries σ in steps; the numbers are fine enough that rounding is little."""
        scheme = Private(epsilon=1.0, hours=0.5)
        run = simulation(experiment({"name": "private", "epsilon": 1.0, "hours": 0.5}))
        state = run.settings[0].state
        assert isinstance(state, PrivateState)
        account = scheme.describe(state).account
        assert account is not None
        for place, direction in enumerate([None, np.eye(len(state.model))[0]]):
            ask = scheme.ask(replace(state, direction=direction))
            assert ask is not None
            scale = ask.work.scale  # type: ignore[attr-defined]
            release = account.releases[place]
            assert ask.noise == pytest.approx(release.sigma * scale)
            caps = np.broadcast_to(ask.work.cap, 10)  # type: ignore[attr-defined]
            for j, cap in enumerate(caps):
                rate, sensitivity = release.of_client(j)
                assert cap <= sensitivity < 1.05 * cap
                assert rate == np.broadcast_to(ask.work.rates, 10)[j]  # type: ignore[attr-defined]

    def test_no_more_sums_than_were_paid_for(self) -> None:
        asked = {"name": "private", "rounds": 4, "deadline": 60.0}
        (setting,) = played(experiment(asked))
        assert len(setting.rounds) == 5  # the moments first
        assert setting.driver.ask() is None

    def test_every_sum_has_noise_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        drawn: list[bytes] = []

        def noted(sigma: float, normal: FloatArray) -> Residues:
            drawn.append(normal.ravel()[:8].tobytes())
            return noise_steps(sigma, normal)

        monkeypatch.setattr(engine, "noise_steps", noted)
        played(experiment({"name": "private", "rounds": 4, "deadline": 60.0}))
        assert len(set(drawn)) == len(drawn) >= 5

    def test_a_sum_of_one_client_is_not_given_out(self) -> None:
        run = simulation(experiment({"name": "private", "hours": 0.5}))
        sums = {"gradient": np.zeros(4, dtype=np.uint32)}
        for arrived, count in ((1, 0), (2, 1)):
            ask, nothing = cast(Ask, SimpleNamespace(least=2)), np.zeros(10)
            there = np.arange(10) < arrived
            outcome, loads = nothing.astype(np.int8), nothing.astype(np.int64)
            exchange = Arrivals(ask, 0, 1.0, there, outcome, loads, nothing)
            assert len(run._noisy(sums, 5.0, exchange)) == count

    def test_without_a_sum_nothing_is_learnt_and_nothing_spent(self) -> None:
        scheme = Private(hours=0.5)
        (setting,) = simulation(experiment({"name": "private", "hours": 0.5})).settings
        state = setting.state
        assert isinstance(state, PrivateState)
        nobody = scheme.receive(state, Inbox(np.zeros(10, dtype=bool), 0.0))
        assert nobody.round == state.round + 1
        assert nobody.released == state.released == 0
        assert nobody.model is state.model

    def test_rounds_in_which_nobody_can_answer_are_refused(self) -> None:
        asked = {"name": "private", "rounds": 3, "deadline": 1e-3, "setup_deadline": 60.0}
        with pytest.raises(InputError, match="two clients"):
            played(experiment(asked))


def test_a_round_ends_when_everybody_has_answered_or_at_the_deadline() -> None:
    seconds, asked = np.array([3.0, 5.0, 40.0]), np.ones(3, dtype=bool)
    arrived, length = arrivals(Everyone(100.0), seconds, asked)
    assert (arrived.tolist(), length) == ([True] * 3, 40.0)
    arrived, length = arrivals(Everyone(10.0), seconds, asked)
    assert (arrived.tolist(), length) == ([True, True, False], 10.0)


class TestLearning:
    @pytest.mark.slow
    def test_more_budget_learns_more_and_infinite_learns_nearly_all(self) -> None:
        """On 1,437 points: medians of three seeds, so that one unlucky seed does not matter."""
        finals = []
        for epsilon in (0.3, 3.0, inf):
            asked = {"name": "private", "epsilon": epsilon, "hours": 0.5}
            runs = [played(experiment(asked, seeds=[seed])) for seed in range(3)]
            finals.append(float(np.median([run[0].rounds[-1].metric for run in runs])))
        assert finals[0] < finals[1] - 0.1
        assert finals[1] > 0.8
        assert finals[2] > 0.95

    def test_noise_stays_out_of_the_direction_that_is_left_out(self) -> None:
        """Features are longest there, and nothing would pull the model back."""
        asked = {"name": "private", "epsilon": 0.3, "hours": 0.5}
        run = simulation(experiment(asked))
        (setting,), along = run.settings, []
        for _ in run.run():
            state = setting.state
            assert isinstance(state, PrivateState)
            assert state.direction is not None
            along.append(state.direction @ np.asarray(state.model))
        assert len(along) > 2
        np.testing.assert_allclose(along[-1], along[0], atol=1e-4)

    def test_a_run_repeats_and_resumes_exactly(self) -> None:
        check_resumes_exactly(experiment({"name": "private", "hours": 0.5}))


class TestPlan:
    FLEET, WORKLOAD = paper_fleet(2000, Workload(1008, 10)), Workload(1008, 10)

    def planned(self, **changes: Any) -> Any:
        given: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5, "hours": 3.0, "most_rounds": 200}
        return plan_private(self.FLEET, self.WORKLOAD, 87_092, **given | changes)

    def test_it_ends_in_time(self) -> None:
        for hours in (1.0, 3.0, 16.0):
            assert self.planned(hours=hours).seconds <= 3600 * hours * (1 + 1e-9)

    @pytest.mark.slow
    def test_more_time_or_budget_is_never_worse(self) -> None:
        errors = [self.planned(hours=hours).error for hours in (1.0, 2.0, 4.0, 8.0)]
        assert errors == sorted(errors, reverse=True)
        errors = [self.planned(epsilon=epsilon).error for epsilon in (0.5, 1.0, 3.0, 8.0, inf)]
        assert errors == sorted(errors, reverse=True)

    def test_less_budget_means_smaller_weights(self) -> None:
        assert self.planned(epsilon=0.5).cap < self.planned(epsilon=8.0).cap

    def test_what_is_given_is_taken(self) -> None:
        plan = self.planned(rounds=7, deadline=300.0, setup_deadline=900.0, cap=2.0)
        assert (plan.rounds, plan.deadline, plan.setup_deadline) == (7, 300.0, 900.0)
        assert plan.cap <= 2.0

    def test_too_little_time_is_refused(self) -> None:
        with pytest.raises(InputError, match="hours is 0.001"):
            self.planned(hours=0.001)

    @pytest.mark.parametrize("kind", [0, 1], ids=["noise", "draws"])
    def test_the_prediction_follows_nesterovs_method(self, kind: int) -> None:
        """Against the method itself on a diagonal quadratic; noise by 4,000 runs, within 8%.

        The variance of a variance over 4,000 runs and 20 directions is below 0.6%² each, but the
        first directions dominate: 8% is more than 6 standard deviations.
        """
        q, rounds, step = 20, 12, 2.0
        missed, gained = learning_errors(step, q, rounds)
        values = eigenvalues(q)
        size = (1.0, np.sqrt(values))[kind]
        rng = np.random.default_rng(0)
        model = before = np.zeros((4000, q))
        for k in range(rounds):
            lean = max(k - 1, 0) / (max(k - 1, 0) + 3)
            asked = model + lean * (model - before)
            slope = RESIDUAL * values * asked + rng.standard_normal(model.shape) * size
            model, before = asked - step * slope, model
        assert gained[kind, -1] == pytest.approx(float((values * model.var(0)).sum()), rel=0.08)
        assert missed[0] == 1
        assert (np.diff(missed[:5]) < 0).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0.0}, "private.epsilon is 0"),
        ({"epsilon": -1.0}, "private.epsilon is -1"),
        ({"delta": 0.0}, "private.delta is 0"),
        ({"delta": 1.0}, "private.delta is 1"),
        ({"cap": 0.5}, "private.cap is 0.5"),
        ({"hours": inf}, "private.hours is inf"),
        ({"unit": "dog"}, "private.unit is 'dog'"),
        ({"noise": "client"}, "private.noise is 'client'"),
        ({"rounds": 0}, "private.rounds is 0"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_scheme("private", settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": {"kind": "identity", "sigma": 1.0}}, "features with a bound"),
        ({"fleet": {"clients": 1}}, "a sum would be its own answer"),
        ({"training": {"epochs": 1}}, "raise epochs"),
        ({"features": {"kind": "patches", "n_components": 200}}, "features.sigma is 'auto'"),
    ],
)
def test_what_breaks_the_proof_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulation(experiment(**changes))


def test_the_run_directory_says_what_was_given_away(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    asked = {"name": "private", "epsilon": 2.0, "hours": 0.5}
    simulate(experiment(asked, {"name": "one-shot"}), directory)
    (told,) = json.loads((directory.path / "privacy.json").read_text())["runs"]
    releases = [Release(**_with_tuples(one)) for one in told["releases"]]
    assert Account(told["delta"], releases).epsilon == pytest.approx(told["epsilon"])
    assert 1.9 < told["epsilon"] <= 2.0
    assert told["adjacency"] == "zero-out"
    assert told["seed"] == 0


def _with_tuples(release: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in release.items()}
