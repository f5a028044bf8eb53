"""The estimators in scikit-learn's hands: its own checks, pipelines, searches, data frames."""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
import sklearn  # type: ignore[import-untyped]
from sklearn.base import clone  # type: ignore[import-untyped]
from sklearn.datasets import load_digits, make_friedman1  # type: ignore[import-untyped]
from sklearn.linear_model import Ridge  # type: ignore[import-untyped]
from sklearn.model_selection import (  # type: ignore[import-untyped]
    GridSearchCV,
    GroupKFold,
    cross_validate,
)
from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]
from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]
from sklearn.utils.estimator_checks import (  # type: ignore[import-untyped]
    parametrize_with_checks,
)

from codedfedl import CodedFedLClassifier, CodedFedLRegressor, Fleet, InputError
from codedfedl.data import load_dataset
from codedfedl.fleet.devices import read_clients
from codedfedl.learning.features import RandomFourier
from codedfedl.planning.cold_start import ColdStart
from codedfedl.planning.plan import Plan
from codedfedl.schemes.coded import Coded
from codedfedl.simulation.engine import Simulation, entries
from codedfedl.simulation.units import prepare
from tests.virtual import small

SMALL: dict[str, Any] = {"n_components": 100, "epochs": 40}


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    points, labels = load_digits(return_X_y=True)
    return points / 16, labels


@pytest.fixture
def routed() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        CodedFedLClassifier(n_components=60),
        CodedFedLRegressor(n_components=60),
        CodedFedLClassifier("coded"),
        CodedFedLRegressor("uncoded"),
    ]
)
def test_scikit_learns_own_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


class TestClassifier:
    def test_learns_with_every_scheme(self, digits: tuple[np.ndarray, np.ndarray]) -> None:
        x, y = digits
        for scheme in ("uncoded", "coded", "one-shot", "sketch-solve", "coded-newton"):
            model = CodedFedLClassifier(scheme, n_components=300).fit(x[:1400], y[:1400])
            assert model.score(x[1400:], y[1400:]) > 0.85, scheme
            assert model.total_hours_ > model.training_hours_ or scheme == "one-shot"

    def test_is_the_simulation(self) -> None:
        """The estimator and an experiment of the same points, clients and seed: the same model."""
        experiment = small(
            features={"kind": "fourier", "n_components": 60, "sigma": 2.0},
            data={"name": "digits", "batches": 1, "partition": "iid"},
            training={"epochs": 5, "step": 1.0, "decay": 1.0, "ridge": 1e-4},
            schemes=[{"name": "coded", "redundancy": 0.2}],
        )
        data = load_dataset("digits")
        center = data.inputs.mean(axis=0, dtype=np.float64)
        near = replace(data, inputs=data.inputs - center)
        problem, task, fleet = prepare(experiment, near, 0, RandomFourier(60, 2.0, 0), "cpu")
        run = Simulation(problem, entries(task, fleet, experiment.build_schemes()), 0)
        for _ in run.run():
            pass
        setting = run.settings[0]
        model = CodedFedLClassifier(
            Coded(redundancy=0.2),
            fleet=setting.timeline.clock.fleet,
            features="fourier",
            n_components=60,
            sigma=2.0,
            epochs=5,
        ).fit(data.inputs, data.labels)
        np.testing.assert_allclose(model.coef_, setting.state.model, atol=1e-6)
        assert model.total_hours_ * 3600 == pytest.approx(
            sum(record.seconds for record in setting.records)
        )

    def test_what_it_tells(self, digits: tuple[np.ndarray, np.ndarray]) -> None:
        model = CodedFedLClassifier(**SMALL).fit(*digits)
        assert isinstance(model.plan_, ColdStart)
        assert isinstance(CodedFedLClassifier("coded", **SMALL).fit(*digits).plan_, Plan)
        assert {len(column) for column in model.history_.values()} == {model.n_iter_ + 1}
        assert (np.diff(model.history_["total_hours"]) > 0).all()
        assert model.history_["total_hours"][-1] == model.total_hours_
        assert len(model.fleet_) == 30
        assert model.sigma_ == pytest.approx(_half_the_typical_distance(digits[0]), rel=0.05)

    def test_same_seed_same_model(self, digits: tuple[np.ndarray, np.ndarray]) -> None:
        one, same, other = (
            CodedFedLClassifier(**SMALL, random_state=seed).fit(*digits).coef_ for seed in (3, 3, 4)
        )
        np.testing.assert_array_equal(one, same)
        assert not np.allclose(one, other)

    def test_a_saved_model_predicts_without_the_training_data(
        self, digits: tuple[np.ndarray, np.ndarray]
    ) -> None:
        x, y = digits
        model = CodedFedLClassifier(**SMALL).fit(x, y)
        stored = pickle.dumps(model)
        assert len(stored) < 60_000 < x.nbytes  # the model, and a few numbers a client
        np.testing.assert_array_equal(pickle.loads(stored).predict(x), model.predict(x))

    def test_far_from_the_origin(self, digits: tuple[np.ndarray, np.ndarray]) -> None:
        """float32 holds seven digits: without a shift, points at 1e8 would all be the same."""
        x, y = digits
        near, far = (CodedFedLClassifier(**SMALL).fit(x + s, y) for s in (0.0, 1e8))
        assert far.score(x + 1e8, y) == pytest.approx(near.score(x, y), abs=0.03)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"ridge": -1.0}, "ridge is -1.0"),
            ({"ridge": np.nan}, "ridge is nan"),
            ({"epochs": 0}, "epochs is 0"),
            ({"epochs": 5.5}, "epochs is 5.5"),
            ({"n_components": "a"}, "n_components is 'a'"),
            ({"sigma": 0.0}, "sigma is 0.0"),
            ({"step": 0.0}, "step is 0.0"),
            ({"scheme": 3}, "scheme is 3"),
            ({"scheme": "codded"}, "did you mean 'coded'"),
            ({"random_state": -1}, "random_state is -1"),
            ({"features": "poly"}, "features.kind is 'poly'"),
            ({"fleet": "nowhere.csv"}, "nowhere.csv: there is no such file"),
        ],
    )
    def test_bad_parameters(
        self, digits: tuple[np.ndarray, np.ndarray], changes: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InputError, match=message):
            CodedFedLClassifier(**SMALL | changes).fit(*digits)


class TestClients:
    def test_names_of_the_fleet(
        self,
        digits: tuple[np.ndarray, np.ndarray],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        x, y = digits
        names = np.array(["north", "south", "east"])
        fleet = Fleet(
            points=1, rate=[5, 50, 500], alpha=2, packet_time=1, erasure=0.1, client=names
        )
        fleet.write(tmp_path / "fleet.csv")
        clients = names[np.arange(len(x)) % 2 * 2]  # the south has no points
        reads = Mock(side_effect=read_clients)
        monkeypatch.setattr("codedfedl.simulation.single.read_clients", reads)
        model = CodedFedLClassifier(fleet=str(tmp_path / "fleet.csv"), **SMALL)
        model.fit(x, y, clients=clients)
        assert reads.call_count == 1
        assert model.fleet_.client.tolist() == ["east", "north"]
        assert model.fleet_.rate.tolist() == [500, 5]
        assert model.fleet_.points.sum() == len(x)
        with pytest.raises(InputError, match="'west', which is not in the fleet"):
            model.fit(x, y, clients=np.full(len(x), "west"))
        with pytest.raises(InputError, match=r"clients has shape \(2,\) where there are"):
            model.fit(x, y, clients=["north", "south"])

    @pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
    def test_every_point_has_a_client(
        self, digits: tuple[np.ndarray, np.ndarray], missing: object
    ) -> None:
        x, y = digits
        clients: list[object] = ["a"] * len(x)
        clients[3] = missing
        with pytest.raises(InputError, match="clients, row 3 .* name the client"):
            CodedFedLClassifier(**SMALL).fit(x, y, clients=clients)

    def test_numbers_are_names_in_any_type(self, digits: tuple[np.ndarray, np.ndarray]) -> None:
        x, y = digits
        owner = np.arange(len(x)) % 3
        fleet = Fleet(points=1, rate=[5, 50, 500], alpha=2, packet_time=1, erasure=0.1)
        found = [
            CodedFedLClassifier(fleet=fleet, **SMALL).fit(x, y, clients=clients).coef_
            for clients in (owner, owner.astype(float), owner.astype(str), pd.Series(owner))
        ]
        for one in found:
            np.testing.assert_array_equal(one, found[0])

    def test_a_client_keeps_its_points(self) -> None:
        """Two clients with opposite labels: with one of them so slow, `greedy` knows the other."""
        rng = np.random.default_rng(0)
        x = rng.standard_normal((400, 2))
        owner = np.repeat([0, 1], 200)
        y = (x[:, 0] > 0).astype(int)
        y[owner == 1] = 1 - y[owner == 1]
        fleet = Fleet(points=1, rate=[1e4, 1e-2], alpha=2, packet_time=1, erasure=0)
        from codedfedl.schemes.greedy import Greedy

        model = CodedFedLClassifier(Greedy(drop=0.5), fleet=fleet, **SMALL)
        model.fit(x, y, clients=owner)
        assert model.score(x[owner == 0], y[owner == 0]) > 0.95

    def test_many_clients_and_few_points(self, digits: tuple[np.ndarray, np.ndarray]) -> None:
        x, y = digits
        model = CodedFedLClassifier(**SMALL).fit(x, y, clients=np.arange(len(x)) // 18)
        assert len(model.fleet_) == 100
        assert model.fleet_.rate.max() / model.fleet_.rate.min() == pytest.approx(0.8**-29)


@pytest.mark.usefixtures("routed")
class TestScikitLearn:
    def test_clients_reach_the_estimator(self, digits: tuple[np.ndarray, np.ndarray]) -> None:
        x, y = digits
        clients = np.array([f"device {k % 7}" for k in range(len(x))])
        pipe = make_pipeline(StandardScaler(), CodedFedLClassifier(**SMALL))
        pipe.fit(x, y, clients=clients)
        assert pipe[-1].fleet_.client.tolist() == [f"device {k}" for k in range(7)]
        found = cross_validate(pipe, x, y, params={"clients": clients}, cv=2, return_estimator=True)
        assert {len(one[-1].fleet_) for one in found["estimator"]} == {7}
        assert found["test_score"].min() > 0.75

    def test_search_over_schemes(self, digits: tuple[np.ndarray, np.ndarray]) -> None:
        x, y = digits
        clients = np.arange(len(x)) % 5
        search = GridSearchCV(
            CodedFedLClassifier(**SMALL),
            {"scheme": ["uncoded", Coded(redundancy=0.3)], "sigma": [2.0, 1e-3]},
            cv=2,
        )
        search.fit(x, y, clients=clients)
        assert search.best_params_["sigma"] == 2.0
        assert len(search.best_estimator_.fleet_) == 5

    def test_whole_clients_can_be_held_out(self, digits: tuple[np.ndarray, np.ndarray]) -> None:
        x, y = digits
        clients = np.arange(len(x)) % 6
        params = {"clients": clients, "groups": clients}
        found = cross_validate(
            CodedFedLClassifier(**SMALL),
            x,
            y,
            params=params,
            cv=GroupKFold(3),
            return_estimator=True,
        )
        assert {len(one.fleet_) for one in found["estimator"]} == {4}

    def test_a_clone_is_not_fitted(self, digits: tuple[np.ndarray, np.ndarray]) -> None:
        model = CodedFedLClassifier(Coded(0.2), **SMALL).fit(*digits)
        assert not hasattr(clone(model), "coef_")
        assert clone(model).scheme == Coded(0.2)


def test_data_frames(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = digits
    frame = pd.DataFrame(x, columns=[f"pixel {k}" for k in range(64)])
    words = pd.Series(y).map(lambda digit: f"a {digit}")
    clients = pd.Series([f"device {k % 4}" for k in range(len(x))], dtype="category")
    model = CodedFedLClassifier(**SMALL).fit(frame, words, clients=clients)
    assert (model.predict(frame) == words).mean() > 0.85
    assert model.feature_names_in_[0] == "pixel 0"
    arrays = CodedFedLClassifier(**SMALL).fit(x, y, clients=np.asarray(clients.astype(str)))
    np.testing.assert_array_equal(model.coef_, arrays.coef_)


class TestRegressor:
    def test_one_shot_is_ridge_on_the_features(self) -> None:
        x, y = make_friedman1(600, random_state=0)
        model = CodedFedLRegressor("one-shot", n_components=80, ridge=1e-3).fit(x, y)
        features = model.feature_map_.transform(x - model.center_)
        exact = Ridge(alpha=1e-3 * len(x), fit_intercept=False)
        exact.fit(features, (y - y.mean()) / y.std())
        np.testing.assert_allclose(
            model.predict(x), exact.predict(features) * y.std() + y.mean(), atol=1e-3
        )

    def test_learns_in_any_units(self) -> None:
        x, y = make_friedman1(2000, noise=0.5, random_state=0)
        wide = np.stack([1e6 + 1e3 * y, -y], axis=1)
        model = CodedFedLRegressor(n_components=300).fit(x[:1500], wide[:1500])
        assert model.predict(x[1500:]).shape == (500, 2)
        assert model.score(x[1500:], wide[1500:]) > 0.8


def _half_the_typical_distance(points: np.ndarray) -> float:
    rng = np.random.default_rng(0)
    one, other = (points[rng.integers(0, len(points), 4000)] for _ in range(2))
    return float(np.sqrt(((one - other) ** 2).sum(1).mean()) / 2)


def test_one_class_is_refused() -> None:
    with pytest.raises(InputError, match="y has one class, 3: there is nothing to distinguish"):
        CodedFedLClassifier().fit(np.random.default_rng(0).random((20, 2)), np.full(20, 3))
