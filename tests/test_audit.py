"""The audit: its statistics, and that it tells a broken mechanism from a sound one."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, log
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats
from typer.testing import CliRunner

from codedfedl.audit.attacks import KnowsAllElse, KnowsThePopulation
from codedfedl.audit.lower_bound import (
    Audit,
    Guesses,
    area,
    audit,
    epsilon_bound,
    guess,
    p_value,
    true_positives,
)
from codedfedl.audit.messages import ParityMessage
from codedfedl.audit.records import crafted, first_slots, planted, random_slots, real
from codedfedl.cli import app
from codedfedl.core.clipped import PrivateSum
from codedfedl.core.protocol import Ask
from codedfedl.errors import InputError
from codedfedl.learning.codes import GAUSSIAN
from codedfedl.runs.config import Experiment
from codedfedl.runs.grid import cells
from codedfedl.schemes.private import Private, PrivateState
from codedfedl.simulation.client_data import Batch, Problem
from codedfedl.simulation.engine import Contender
from codedfedl.simulation.units import datasets, units


class TestStatistics:
    def test_right_guesses_at_random_response_are_binomial(self) -> None:
        """Pure ε: the p-value is the binomial's tail, exactly."""
        found = Guesses(100, 60, 50)
        chance = 1 / (1 + np.exp(-1))
        assert p_value(found, 1.0, 0.0) == pytest.approx(stats.binom.sf(49, 60, chance))

    def test_delta_costs_what_the_theorem_says(self) -> None:
        """Against the sum as it is printed, term by term."""
        found, epsilon, delta = Guesses(40, 12, 9), 0.7, 1e-3
        chance = 1 / (1 + np.exp(-epsilon))
        slack = max(
            sum(stats.binom.pmf(9 - k, 12, chance) for k in range(1, i + 1)) / i
            for i in range(1, 10)
        )
        expected = stats.binom.sf(8, 12, chance) + 2 * 40 * delta * slack
        assert p_value(found, epsilon, delta) == pytest.approx(expected)

    @pytest.mark.parametrize("epsilon", [0.5, 2.0])
    def test_the_bound_is_above_the_truth_no_more_often_than_it_says(self, epsilon: float) -> None:
        """Randomised response is ε-DP exactly; 400 audits at 90%, of which 10% may be wrong.

        More than 70 wrong ones have a chance below 10⁻⁵ if each has 10% at most.
        """
        rng = np.random.default_rng(1)
        chance = 1 / (1 + np.exp(-epsilon))
        rights = rng.binomial(300, chance, 400)
        wrong = sum(epsilon_bound(Guesses(300, 300, int(v)), 0.0, 0.9) > epsilon for v in rights)
        assert 10 <= wrong <= 70  # and the bound is not so careful that it never errs

    def test_all_right_of_a_thousand(self) -> None:
        """Nobody refutes more than ln(p/(1 − p)) with p^1000 = 5%."""
        p = 0.05 ** (1 / 1000)
        found = epsilon_bound(Guesses(1000, 1000, 1000), 0.0)
        assert found == pytest.approx(log(p / (1 - p)), rel=1e-3)
        assert epsilon_bound(Guesses(1000, 1000, 500), 0.0) == 0
        assert epsilon_bound(Guesses(1000, 0, 0), 0.0) == 0

    def test_several_sets_share_the_error(self) -> None:
        good, bad = Guesses(1000, 200, 190), Guesses(1000, 1000, 600)
        both = epsilon_bound([good, bad], 0.0, 0.95)
        assert both == pytest.approx(epsilon_bound(good, 0.0, 0.975))

    def test_guesses_take_both_ends(self) -> None:
        scores = np.array([5.0, -3.0, 0.1, 4.0, -2.0, 0.0])
        included = np.array([True, False, False, False, True, True])
        assert guess(scores, included, 4) == Guesses(6, 4, 2)

    def test_area_and_true_positives_against_counting(self) -> None:
        rng = np.random.default_rng(0)
        scores, included = rng.standard_normal(400), rng.random(400) < 0.5
        scores[included] += 1
        pairs = scores[included][:, None] > scores[~included][None, :]
        assert area(scores, included) == pytest.approx(pairs.mean())
        threshold = np.sort(scores[~included])[-5]  # four non-members are above it
        expected = (scores[included] > threshold).mean()
        assert true_positives(scores, included, 4 / (~included).sum() + 1e-9) == expected

    def test_what_cannot_be_is_refused(self) -> None:
        with pytest.raises(InputError, match="must be at most the next"):
            Guesses(10, 11, 5)
        with pytest.raises(InputError, match="confidence is 1"):
            epsilon_bound(Guesses(10, 5, 5), 0.0, 1.0)


def problem_of(sizes: Sequence[Sequence[int]], q: int = 6, c: int = 3) -> Problem:
    rng = np.random.default_rng(0)
    batches = []
    for row in sizes:
        count = sum(row)
        features = rng.standard_normal((count, q)).astype(np.float32)
        targets = np.eye(c, dtype=np.float32)[rng.integers(0, c, count)]
        batches.append(Batch(features, targets, np.concatenate([[0], np.cumsum(row)])))
    empty = np.zeros((0, q), np.float32)
    return Problem(batches, empty, empty[:, :c], None, np.zeros(c))


class TestRecords:
    SIZES = ((3, 4), (2, 5))

    def test_planting_replaces_rows_or_leaves_nothing(self) -> None:
        problem = problem_of(self.SIZES)
        slots = first_slots(problem.batches, 9, np.array([1, 0]), np.array([4, 6]))
        records = crafted(problem.batches, slots, np.random.default_rng(0))
        assert records.client.tolist() == [1] * 6 + [0] * 3
        assert records.position.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
        assert records.batch.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0]
        included = np.arange(9) % 2 == 0
        changed = planted(problem, records, included)
        for i in range(9):
            features, targets = changed.batches[records.batch[i]].client(int(records.client[i]))
            np.testing.assert_array_equal(
                features[records.index[i]], records.features[i] * included[i]
            )
            np.testing.assert_array_equal(
                targets[records.index[i]], records.targets[i] * included[i]
            )
        # Nothing else has changed.
        same = changed.batches[1].client(0)[0] == problem.batches[1].client(0)[0]
        assert same.all()

    def test_canaries_are_at_right_angles_or_have_other_labels(self) -> None:
        problem = problem_of(((40,),))
        slots = first_slots(problem.batches, 18, np.array([0]), np.array([40]))
        records = crafted(problem.batches, slots, np.random.default_rng(0))
        same = np.abs(records.features @ records.features.T) * (records.targets @ records.targets.T)
        np.testing.assert_allclose(same, np.eye(18), atol=1e-5)

    def test_real_records_are_those_that_lie_there(self) -> None:
        problem = problem_of(self.SIZES)
        records = real(problem.batches, random_slots(problem.batches, 14, np.random.default_rng(0)))
        everyone = planted(problem, records, np.ones(14, dtype=bool))
        for before, after in zip(problem.batches, everyone.batches, strict=True):
            np.testing.assert_array_equal(before.features, after.features)
        assert len({*zip(records.client, records.position, strict=True)}) == 14

    def test_more_than_there_are_is_refused(self) -> None:
        problem = problem_of(self.SIZES)
        with pytest.raises(InputError, match="15 records are more than the 14"):
            random_slots(problem.batches, 15, np.random.default_rng(0))
        with pytest.raises(InputError, match="20 canaries"):
            first_slots(problem.batches, 20, np.array([0, 1]), np.array([5, 9]))


@dataclass(frozen=True)
class TooQuiet(Private):
    """A broken mechanism: a tenth of the noise that it claims."""

    def ask(self, state: PrivateState) -> Ask | None:
        ask = super().ask(state)
        if ask is None or ask.noise is None:
            return ask
        assert isinstance(ask.work, PrivateSum)
        quiet = replace(ask.work, noise=ask.work.noise / 10)  # the clients' shares, if there are
        return replace(ask, work=quiet, noise=ask.noise / 10)


def digits(scheme: dict[str, Any]) -> tuple[Problem, Contender]:
    document: dict[str, Any] = {
        "data": {"name": "digits"},
        "fleet": {"clients": 10},
        "features": {"kind": "patches", "n_components": 200, "sigma": 2.0},
        "training": {"epochs": 60, "ridge": 1e-6},
        "schemes": [scheme],
    }
    found = cells(Experiment.model_validate(document))
    loaded = datasets(found, None)
    (unit,) = units(found, [0], loaded)
    (entry,) = unit.contenders()
    return unit.problem(), entry


def audited(scheme: dict[str, Any], made: Private | None = None, seed: int = 0) -> Audit:
    problem, entry = digits(scheme)
    if made is not None:
        entry = replace(entry, scheme=made)
    return audit(problem, entry, seed, canaries=1000, records=1400, least_non_members=300)


SOUND = {"name": "private", "epsilon": 3.0, "hours": 0.5}


class TestAudits:
    @pytest.mark.parametrize("noise", ["helper", "clients"])
    def test_a_sound_mechanism_stays_below_its_claim(self, noise: str) -> None:
        """A false alarm has a chance of 5% at most, if ε were just 3; it is far smaller here.

        The best attack on a mechanism of this ε is right in 66% of its guesses, where 3 allows 95%.
        """
        found = audited(SOUND | {"noise": noise})
        assert found.claimed == pytest.approx(3.0, abs=0.1)
        assert found.epsilon < found.claimed
        assert not found.refuted
        # And the attack works: more is found than nothing. With AUC Φ(μ/√2) = 0.7 and 500 of each,
        # its standard deviation is 0.017: 0.6 is more than five below.
        assert 0.6 < found.canaries.area < 0.8

    @pytest.mark.parametrize(
        ("sampling", "noise"), [(True, "helper"), (False, "helper"), (True, "clients")]
    )
    def test_a_tenth_of_the_noise_is_caught(self, sampling: bool, noise: str) -> None:
        """The claim is 3; 500 guesses that are all right refute anything below 4.6."""
        broken = TooQuiet(epsilon=3.0, hours=0.5, sampling=sampling, noise=noise)
        found = audited(SOUND, broken)
        assert found.claimed <= 3.0
        assert found.epsilon > found.claimed
        assert found.refuted

    @pytest.mark.parametrize(
        "scheme", ["uncoded", "coded", "coded-newton", "one-shot", "balanced", "sketch-solve"]
    )
    def test_what_has_no_noise_tells_of_every_canary(self, scheme: str) -> None:
        found = audited({"name": scheme})
        assert found.claimed == inf
        assert found.epsilon > 4
        assert found.canaries.area > 0.99
        # With some 680 on either side the area of a blind guess varies by 0.016.
        assert found.membership.area > 0.5

    @pytest.mark.parametrize("scheme", ["uncoded", "balanced"])
    def test_a_sum_without_noise_tells_of_them_too(self, scheme: str) -> None:
        """Whoever knows all other records knows what is left of the sum."""
        found = audited({"name": scheme, "secure": True})
        assert found.claimed == inf
        assert found.epsilon > 4
        assert found.canaries.area > 0.99

    @pytest.mark.parametrize(
        ("scheme", "message"),
        [
            ({"name": "centralised"}, "raw points leave"),
            ({"name": "fedavg"}, "no attack on 'local_model'"),
            ({"name": "coded", "secure": True}, "no attack on a secure sum of 'parity'"),
            ({"name": "coded-newton", "secure": True}, "no attack on 'gradient_delta'"),
        ],
    )
    def test_what_cannot_be_audited_is_refused(self, scheme: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError, match=message):
            audited(scheme)

    def test_too_few_non_members_are_refused(self) -> None:
        problem, entry = digits({"name": "uncoded"})
        with pytest.raises(InputError, match="raise --records"):
            audit(problem, entry, 0, canaries=200, records=400)


@pytest.mark.parametrize("attacker", [KnowsAllElse, KnowsThePopulation])
def test_points_of_weight_0_have_no_part_in_parity(
    attacker: type[KnowsAllElse] | type[KnowsThePopulation],
) -> None:
    """A client that surely answers for all its points sends rows of zeros, which tell nothing."""
    problem = problem_of([[8, 8]])
    records = real(problem.batches, random_slots(problem.batches, 16, np.random.default_rng(0)))
    attack = attacker(problem, records, 0)
    attack.observe(ParityMessage(0, 0, np.zeros(8), GAUSSIAN, np.zeros((4, 9))))
    assert not attack.touched.any()
    half = np.repeat([0.0, 1.0], 4)
    attack.observe(ParityMessage(0, 0, half, GAUSSIAN, np.ones((4, 9))))
    behind = (records.client == 0) & (records.index >= 4)
    np.testing.assert_array_equal(attack.touched, behind)


def test_noise_that_was_drawn_again_scores_nobody() -> None:
    """Scores of records that are in are no higher than of others where their part is hidden.

    The null of the attack: the noise is a thousand times too large, and 500 of each have an area of
    0.5 ± 0.018; five standard deviations.
    """

    @dataclass(frozen=True)
    class Loud(Private):
        def ask(self, state: PrivateState) -> Ask | None:
            ask = super().ask(state)
            return ask if ask is None or ask.noise is None else replace(ask, noise=ask.noise * 100)

    found = audited(SOUND, Loud(epsilon=3.0, hours=0.5, sampling=False))
    assert abs(found.canaries.area - 0.5) < 0.09
    assert found.epsilon == 0


class TestCommand:
    def run(self, *words: str) -> Any:
        return CliRunner().invoke(app, ["audit", *words])

    def test_an_experiment_on_a_file(self, tmp_path: Path) -> None:
        """31,000 points of three classes: gradients are told, and so is what it is about."""
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 3, 31_000)
        columns = {f"x{i}": rng.standard_normal(31_000) + (labels == i) for i in range(5)}
        pq.write_table(pa.table(columns | {"label": labels}), tmp_path / "points.parquet")
        (tmp_path / "experiment.toml").write_text(
            f"""
            [data]
            name = "{tmp_path / "points.parquet"}"
            [features]
            kind = "fourier"
            n_components = 64
            sigma = 2.0
            [training]
            epochs = 3
            [[schemes]]
            name = "uncoded"
            [[schemes]]
            name = "centralised"
            """
        )
        result = self.run(str(tmp_path / "experiment.toml"), "--records", "24000", "--json")
        assert result.exit_code == 0
        document = json.loads(result.stdout)
        (row,) = document["rows"]
        assert row["setting"] == "uncoded"
        assert row["claimed"] is None
        assert row["canaries"]["records"] == 1000
        assert row["membership"]["non_members"] > 9000
        assert document["skipped"][0]["setting"] == "centralised"
        assert "raw points" in document["skipped"][0]["reason"]

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["demo"], "such as mnist"),
            (["demo", "--canaries", "999"], "--canaries is 999"),
            (["demo", "--records", "100"], "--records is 100"),
            (["demo", "--setting", "uncded"], "--setting 'uncded'"),
            (["nothing-like-it"], "neither a TOML file nor a built-in"),
        ],
    )
    def test_bad_input(
        self, words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "demo").mkdir()  # such as `make demo` leaves; it is no run
        result = self.run(*words)
        assert isinstance(result.exception, InputError)
        assert message in str(result.exception)
