"""The engine and the schemes train any learner: here softmax regression, in NumPy."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from codedfedl import InputError
from codedfedl.arrays import Array
from codedfedl.core.client import DrawnGradient, Gradient, WeightedGradient, WindowGradient
from codedfedl.core.protocol import EACH, SUM, Ask
from codedfedl.core.waiting import Everyone
from codedfedl.core.work import Work
from codedfedl.data import Dataset, load_dataset
from codedfedl.learning.features import Identity
from codedfedl.learning.learner import Learner
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.grid import cells
from codedfedl.schemes import make_scheme
from codedfedl.simulation.client_data import Problem, SimulatedClient
from codedfedl.simulation.engine import Contender, Simulation
from codedfedl.simulation.experiment import simulate
from codedfedl.simulation.fast import FastSums, Question
from codedfedl.simulation.units import prepare
from tests.virtual import small


@dataclass(frozen=True)
class Softmax(Learner):
    """Multinomial logistic regression: a model is one flat array."""

    features: int
    classes: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.features * self.classes,)

    @property
    def point_macs(self) -> float:
        return 2.0 * self.features * self.classes

    def start(self, rng: np.random.Generator) -> Array:
        return (0.01 * rng.standard_normal(self.shape)).astype(np.float32)

    def scores(self, model: Array, features: Array) -> Array:
        return features @ model.reshape(self.features, self.classes)

    def _chances(self, model: Array, features: Array) -> Array:
        scores = self.scores(model, features)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def loss(self, model: Array, features: Array, targets: Array) -> float:
        return -float((targets * np.log(self._chances(model, features))).sum())

    def gradient(
        self, model: Array, features: Array, targets: Array, weights: Array | None = None
    ) -> Array:
        wrong = self._chances(model, features) - targets
        wrong = wrong if weights is None else wrong * weights[:, None]
        return (features.T @ wrong).ravel().astype(np.float32)


@pytest.fixture(scope="module")
def digits() -> tuple[Problem, Any, Any]:
    """The digits of 6 clients, each with few classes; a task that trains softmax regression."""
    experiment = small(training={"epochs": 30, "step": 0.5}, features={"kind": "identity"})
    data: Dataset = load_dataset("digits")
    problem, task, fleet = prepare(experiment, data, 0, Identity(), "cpu")
    return problem, replace(task, learner=Softmax(64, 10)), fleet


def simulation(digits: tuple[Problem, Any, Any], schemes: list[dict[str, Any]], **how: Any) -> Any:
    problem, task, fleet = digits
    made = [make_scheme(s["name"], {k: v for k, v in s.items() if k != "name"}) for s in schemes]
    entries = [Contender(str(k), scheme, task, fleet, fleet) for k, scheme in enumerate(made)]
    for entry in entries:
        entry.check()
    played = Simulation(problem, entries, 0, **how)
    for _ in played.run():
        pass
    return played


SCHEMES: list[dict[str, Any]] = [
    {"name": "uncoded", "optimiser": "adam"},
    {"name": "greedy", "drop": 0.3},
    {"name": "partial"},
    {"name": "fedavg", "local_steps": 2, "step": 0.1},
    {"name": "fednova", "step": 0.1},
    {"name": "tifl"},
]


def test_schemes_of_gradients_train_whatever_they_are_given(digits: Any) -> None:
    for setting in simulation(digits, SCHEMES).settings:
        assert setting.state.model.shape == (640,)
        assert setting.records[-1].metric > 0.5, setting.scheme
        assert type(setting.records[-1].metric) is float  # on the host, wherever it was computed


def test_a_network_that_breaks_stops_and_says_where(
    digits: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """With one client's point spoiled, it is that client; without, the first that stepped."""
    problem, _, _ = digits
    batch = problem.batches[0]
    features = batch.features.copy()
    features[int(batch.offsets[4])] = 1e38  # client 4's first point
    spoiled = (
        replace(problem, batches=(replace(batch, features=features), *problem.batches[1:])),
        *digits[1:],
    )
    (setting,) = simulation(spoiled, [{"name": "fedavg"}]).settings
    assert len(setting.rounds) == 1
    assert "in which client 4's answer was the first" in caplog.messages[0]
    caplog.clear()
    simulation(digits, [{"name": "fedavg", "step": 1e38, "local_steps": 3}])
    assert "not finite after round 1, in which client 0" in caplog.messages[0]
    assert caplog.messages[0].endswith("try fedavg.step = 1e+37")


def test_one_pass_for_all_clients_gives_the_sum_of_their_answers(digits: Any) -> None:
    """The fast path against each client's own answer; Adam would enlarge what rounding leaves."""
    fast, plain = (simulation(digits, SCHEMES[1:], fast=fast) for fast in (True, False))
    for one_pass, each in zip(fast.settings, plain.settings, strict=True):
        assert_allclose(one_pass.state.model, each.state.model, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize(
    "name", ["coded", "coded-newton", "one-shot", "centralised", "gradient-coding", "private"]
)
def test_what_needs_a_quadratic_is_refused_before_any_work(digits: Any, name: str) -> None:
    _, task, fleet = digits
    entry = Contender("any", make_scheme(name, {}), task, fleet, fleet)
    with pytest.raises(InputError, match=r"model\.kind = 'linear'"):
        entry.check()


def test_an_optimiser_of_quadratics_is_refused(digits: Any) -> None:
    with pytest.raises(InputError, match=r"uncoded\.optimiser is 'block-cg'"):
        simulation(digits, [{"name": "uncoded", "optimiser": "block-cg"}])


WEIGHTS = np.arange(1.0, 7.0)
CLASSES = np.linspace(0.5, 2.0, 10)
WORKS: list[Work] = [
    Gradient(0),
    WeightedGradient(0, WEIGHTS),
    DrawnGradient(0, 3, WEIGHTS),
    DrawnGradient(0, 4, WEIGHTS, CLASSES),
    WindowGradient(0, 5, WEIGHTS, CLASSES, seconds=2.0),
]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.kind)
def test_sums_of_gradients_have_a_fast_path(digits: Any, work: Work) -> None:
    problem, task, _ = digits
    learner, model = task.learner, np.linspace(-1, 1, 640, dtype=np.float32)
    loads, arrived = np.array([3, 250, 20, 1, 0, 7]), np.array([1, 1, 0, 1, 0, 1], dtype=bool)
    ask = Ask(work, Everyone(), loads, SUM)
    asked = Question("any", ask, loads, arrived, model, learner)
    inbox = FastSums(problem.batches).inboxes([asked])[0]
    assert inbox.points == 261
    clients = {
        j: SimulatedClient(problem.batches, j, 0, learner=learner)
        for j in np.flatnonzero(arrived).tolist()
    }
    answers = [work.for_client(j).answer(c, int(loads[j]), model) for j, c in clients.items()]
    total = sum(answer.arrays["gradient"] for answer in answers)
    assert_allclose(inbox.total(), total, rtol=1e-3, atol=1e-3)
    each = replace(asked, ask=replace(ask, combine=EACH))
    assert FastSums(problem.batches).inboxes([each]) == {}


def test_drawn_points_are_drawn_evenly_and_weighted(digits: Any) -> None:
    """Over many draws, every point of a client is in as often; the naive sum of one draw."""
    problem, task, _ = digits
    client = SimulatedClient(problem.batches, 2, 0, learner=task.learner)
    features, targets = client.batch(0)
    held, counts = len(targets), np.zeros(len(targets))
    rows = {row.tobytes(): k for k, row in enumerate(features)}
    for draw in range(400):
        work = DrawnGradient(0, draw, 6.0, CLASSES)
        drawn = [(p, y, w) for part in work.terms(client, 60) for p, y, w in _points(part)]
        assert len(drawn) == 60
        for point, target, weight in drawn:
            assert weight == pytest.approx(CLASSES[target.argmax()] + 6.0 / 60, rel=1e-6)
            counts[rows[point.tobytes()]] += 1
    expected = 400 * 60 / held  # of a binomial; correlated within a draw, not between draws
    assert np.abs(counts - expected).max() < 6 * np.sqrt(expected)  # false alarms: below 1e-6


def _points(part: Any) -> list[Any]:
    weights = np.full(len(part.targets), 1.0) if part.weights is None else part.weights
    return list(zip(part.features, part.targets, part.factor * weights, strict=True))


class TestConfiguration:
    """`[model]` in an experiment; errors come before any work."""

    def test_a_network_takes_the_points_as_they_are(self) -> None:
        assert small(features={}).features.kind == "structured"
        network = small(model={"kind": "torch"}, features={})
        assert network.features.kind == "identity"
        assert type(network).model_validate(network.model_dump()) == network
        mapped = small(model={"kind": "torch"}, features={"kind": "patches"})
        assert mapped.features.kind == "patches"

    def test_settings_of_linear_models_keep_their_ids(self) -> None:
        """An id must not change with the version: runs are compared by it."""
        (plain,) = cells(small(schemes=[{"name": "uncoded"}]))
        (same,) = cells(small(schemes=[{"name": "uncoded"}], model={"module": "mlp"}))
        assert plain.id == same.id
        assert plain.model == "linear"

    def test_modules_are_an_axis(self) -> None:
        experiment = small(schemes=[{"name": "uncoded"}], model={"kind": "torch"})
        grid = {"model.module": ["cnn", "mlp"]}
        both = cells(type(experiment).model_validate(experiment.model_dump() | {"grid": grid}))
        assert [cell.model for cell in both] == ["cnn", "mlp"]

    @pytest.mark.extras
    @pytest.mark.parametrize(
        ("model", "scheme", "words"),
        [
            ({"module": "cnm"}, "uncoded", "did you mean 'cnn'"),
            ({"module": "no.such:net"}, "uncoded", "no.such"),
            ({"module": "mlp"}, "coded", r"model\.kind = 'linear'"),
        ],
    )
    def test_what_cannot_be_trained_is_refused(
        self, tmp_path: Path, model: dict[str, str], scheme: str, words: str
    ) -> None:
        experiment = small(model={"kind": "torch"} | model, schemes=[{"name": scheme}])
        with pytest.raises(InputError, match=words):
            simulate(experiment, RunDirectory(tmp_path / "run"))
        assert not (tmp_path / "run").exists()
