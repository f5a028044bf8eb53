"""Side doors of private training: nothing leaves it but what its budget covers.

Neighbouring data sets differ in one record. Trained with the same noise, their models may differ in
what the noisy sums decide, the weights, and in nothing else; and data that are in no sum change
nothing at all.
"""

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits, make_friedman1  # type: ignore[import-untyped]

from codedfedl import CodedFedLClassifier, CodedFedLRegressor, Fleet, load_model
from codedfedl.errors import InputError
from codedfedl.planning.private import PrivatePlan
from codedfedl.schemes.private import Private

CLIENTS = 8
SETTINGS: dict[str, Any] = {"n_components": 60, "sigma": 2.0}


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    points, labels = load_digits(return_X_y=True)
    return points[:640] / 16, labels[:640]


def neighbours(points: np.ndarray) -> list[np.ndarray]:
    """Return data sets in which record 0 is another: a usual one, an outlier, and nothing."""
    found = [points.copy() for _ in range(3)]
    for other, record in zip(found, (points[1], 40.0, 0.0), strict=True):
        other[0] = record
    return found


def fitted(points: np.ndarray, labels: np.ndarray, **settings: Any) -> CodedFedLClassifier:
    scheme = settings.pop("scheme", Private(hours=0.5))
    clients = np.arange(len(points)) % CLIENTS
    return CodedFedLClassifier(scheme, **SETTINGS | settings).fit(points, labels, clients=clients)


def same(one: Any, other: Any) -> bool:
    """Say whether two values are equal, bit by bit, through mappings and dataclasses."""
    if is_dataclass(one) and not isinstance(one, type):
        names = [field.name for field in fields(one)]
        return type(one) is type(other) and all(
            same(getattr(one, name), getattr(other, name)) for name in names
        )
    if isinstance(one, dict):
        return set(one) == set(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.tobytes() == other.tobytes())
    return type(one) is type(other) and bool(one == other)


def changed(one: Any, other: Any) -> set[str]:
    """Return the attributes that differ, or the members of two saved files."""
    before, after = dict(one), dict(other)
    assert before.keys() == after.keys()
    return {name for name in before if not same(before[name], after[name])}


def members(model: CodedFedLClassifier, path: Path) -> dict[str, np.ndarray]:
    """Return all that is in the saved file, its date aside."""
    model.save_model(path)
    with np.load(path, allow_pickle=False) as stored:
        found = dict(stored)
    card = load_model(path).card
    return found | {"card": np.array([f"{k}={v}" for k, v in card.items() if k != "created"])}


class TestEstimator:
    def test_a_record_changes_nothing_but_the_weights(
        self, digits: tuple[np.ndarray, np.ndarray], tmp_path: Path
    ) -> None:
        points, labels = digits
        model = fitted(points, labels)
        saved = members(model, tmp_path / "one.npz")
        for others in neighbours(points):
            neighbour = fitted(others, labels)
            assert changed(vars(model), vars(neighbour)) == {"coef_"}
            assert changed(saved, members(neighbour, tmp_path / "other.npz")) == {"weights"}

    def test_data_in_no_sum_change_nothing(
        self, digits: tuple[np.ndarray, np.ndarray], tmp_path: Path
    ) -> None:
        """The last client is too slow to embed a point: its records are in no sum."""
        points, labels = digits
        rates = np.full(CLIENTS, 50.0)
        rates[-1] = 1e-9
        fleet = Fleet(points=1, rate=rates, alpha=2, packet_time=0.1, erasure=0.1)
        others = points.copy()
        others[CLIENTS - 1 :: CLIENTS] = 7.0
        one, other = (fitted(some, labels, fleet=fleet) for some in (points, others))
        assert isinstance(one.plan_, PrivatePlan)
        assert one.plan_.loads[-1] == 0
        assert changed(vars(one), vars(other)) == set()
        files = (members(m, tmp_path / f"{k}.npz") for k, m in enumerate((one, other)))
        assert changed(*files) == set()

    def test_whoever_knows_all_other_records_cannot_compute_the_last(
        self, digits: tuple[np.ndarray, np.ndarray]
    ) -> None:
        points, labels = digits
        attacked, rest = {}, points[1:].sum(axis=0)
        for scheme in ("coded-newton", "private"):
            model = fitted(points, labels, scheme=scheme)
            attacked[scheme] = len(points) * model.center_ - rest
        np.testing.assert_allclose(attacked["coded-newton"], points[0], atol=1e-9)
        assert np.abs(attacked["private"] - points[0]).max() > 1

    def test_what_it_tells(self, digits: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
        model = fitted(*digits)
        assert "score" not in model.history_  # it would be on the training points
        assert not model.center_.any()
        model.save_model(tmp_path / "model.npz")
        stored = load_model(tmp_path / "model.npz")
        assert stored.temperature is None
        with pytest.raises(InputError, match="with public points: the training points are conf"):
            stored.predict_proba(digits[0])
        assert 2.9 < stored.card["epsilon"] <= 3.0
        guarantee = stored.card["privacy"]
        assert guarantee["epsilon"] == stored.card["epsilon"]
        assert (guarantee["delta"], guarantee["adjacency"]) == (1e-5, "zero-out")
        assert [one["what"] for one in guarantee["releases"]] == ["moments", "gradient"]
        assert "anyone who knows the seed knows the noise" in guarantee["holds"]

    @pytest.mark.parametrize("scheme", ["private", Private()])
    def test_a_width_from_the_data_is_refused(
        self, digits: tuple[np.ndarray, np.ndarray], scheme: Any
    ) -> None:
        with pytest.raises(InputError, match="sigma is None, which is computed from the points"):
            fitted(*digits, scheme=scheme, sigma=None)

    def test_a_regression_is_refused_before_its_targets_are_read(self) -> None:
        model = CodedFedLRegressor(Private(hours=0.5), **SETTINGS)
        with pytest.raises(InputError, match="standardised by their exact mean"):
            model.fit(*make_friedman1(400, random_state=0))
        assert not [name for name in vars(model) if name.endswith("_")]

    def test_another_scheme_has_no_guarantee(self, digits: tuple[np.ndarray, np.ndarray]) -> None:
        model = fitted(*digits, scheme="coded-newton", sigma=None)
        assert model.privacy_ is None
        assert model.to_model().card["privacy"] is None
        assert model.to_model().temperature is not None
