"""Side doors of private training: nothing leaves it but what its budget covers.

Neighbouring data sets differ in one record. Trained with the same noise, their models may differ in
what the noisy sums decide, the weights, and in nothing else; and data that are in no sum change
nothing at all.
"""

import json
from dataclasses import fields, is_dataclass, replace
from math import ceil, inf
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
from sklearn.datasets import load_digits, make_friedman1  # type: ignore[import-untyped]
from typer.testing import CliRunner

from codedfedl import CodedFedLClassifier, CodedFedLRegressor, Fleet, load_model
from codedfedl.cli import app
from codedfedl.core.protocol import Inbox
from codedfedl.errors import InputError
from codedfedl.planning.private import PrivatePlan
from codedfedl.report.html import render_report
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.grid import cells
from codedfedl.schemes.private import Private
from codedfedl.simulation.assignments import Arrivals
from codedfedl.simulation.engine import Setting, Simulation
from codedfedl.simulation.experiment import simulate
from codedfedl.simulation.units import datasets, units

CLIENTS = 8
SETTINGS: dict[str, Any] = {"features": "fourier", "n_components": 60, "sigma": 2.0}


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
        relabelled = fitted(points, np.r_[labels[1], labels[1:]])
        assert changed(vars(model), vars(relabelled)) == {"coef_"}

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


def table(folder: Path, rows: int = 400) -> Path:
    """Write a table of two classes, whose columns have units of their own."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, rows)
    columns = {
        "weight": rng.normal(70 + 8 * label, 6),
        "age": rng.uniform(18 + 20 * label, 60 + 20 * label),
        "label": label,
    }
    path = folder / "people.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def experiment(path: Path | str, **changes: Any) -> Experiment:
    data = {"name": str(path), "partition": "iid", "low": [0, 18], "high": [300, 120]}
    document: dict[str, Any] = {
        "data": data | changes.pop("data", {}),
        "fleet": {"clients": CLIENTS},
        "features": {"kind": "fourier", "n_components": 40, "sigma": 0.3},
        "training": {"epochs": 60, "ridge": 1e-6},
        "schemes": [{"name": "private", "hours": 0.1}],
    }
    return Experiment.model_validate(document | changes)


def first_sums(one: Experiment, inputs: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the first sum over these inputs, and how far a record may move it."""
    settings = cells(one)
    ((data, dataset),) = datasets(settings, None).items()
    changed_data = {data: replace(dataset, inputs=inputs)}
    (unit,) = units(settings, one.seeds, changed_data)
    heard: list[np.ndarray] = []

    def listen(setting: Setting, exchange: Arrivals, inbox: Inbox) -> None:
        if inbox.sums and not heard:
            numbers = inbox.total("moments").astype(np.uint32).view(np.int32)
            heard.append(numbers / exchange.ask.work.scale)  # type: ignore[attr-defined]

    run = Simulation(unit.problem(), unit.contenders(), unit.seed, listen)
    next(run.run())
    account = run.settings[0].scheme.describe(run.settings[0].state).account
    assert account is not None
    sensitivity = account.releases[0].sensitivity
    return heard[0], float(np.max(sensitivity))


class TestSimulation:
    def test_a_record_changes_nothing_but_what_the_models_decide(self, tmp_path: Path) -> None:
        """A training record of the same label: the split, which is by label, stays the same."""
        path = table(tmp_path)
        ((_, dataset),) = datasets(cells(experiment(path)), None).items()
        runs = [RunDirectory(tmp_path / name) for name in ("one", "other")]
        simulate(experiment(path), runs[0])
        frame = pd.read_csv(path)
        (row,) = np.flatnonzero(np.isclose(frame["weight"] / 300, dataset.inputs[0, 0]))
        frame.loc[row, "weight"] = 250.0
        frame.to_csv(path, index=False)
        simulate(experiment(path), runs[1])
        one, other = (directory.path for directory in runs)
        assert (one / "privacy.json").read_text() == (other / "privacy.json").read_text()
        assert (one / "config.toml").read_text() == (other / "config.toml").read_text()
        files = (dict(np.load(p / "model.npz", allow_pickle=False)) for p in (one, other))
        assert changed(*files) <= {"weights", "card"}  # the card has the test accuracy, and a date
        cards = [load_model(p / "model.npz").card for p in (one, other)]
        assert changed(*cards) <= {"test_metric", "created"}
        kept = [dict(np.load(p / "checkpoint.npz", allow_pickle=False)) for p in (one, other)]
        # Equal metrics are kept once: which of them a round has follows from the metrics.
        metrics = {"0/0/records/metric", "0/0/records/metric_of"}
        assert changed(*kept) <= {"0/0/model"} | metrics
        assert changed(*kept) >= {"0/0/model"}

    def test_a_record_moves_the_first_sum_by_no_more_than_the_account_says(
        self, tmp_path: Path
    ) -> None:
        """With the same noise; another record in its place counts twice, as gone and as new."""
        one = experiment(table(tmp_path))
        ((_, dataset),) = datasets(cells(one), None).items()
        sums, sensitivity = first_sums(one, dataset.inputs)
        for others in neighbours(dataset.inputs):
            moved, _ = first_sums(one, others)
            assert 0 < np.linalg.norm(moved - sums) <= 2 * sensitivity

    def test_the_models_scale_is_that_of_the_bounds(self, tmp_path: Path) -> None:
        directory = RunDirectory(tmp_path / "run")
        simulate(experiment(table(tmp_path)), directory)
        model = load_model(directory.path / "model.npz")
        assert model.preparation is not None
        assert [(c.low, c.span) for c in model.preparation.columns] == [(0, 300), (18, 102)]
        points = np.array([[70.0, 40.0]])
        np.testing.assert_allclose(model.raw(points), [[70 / 300, 22 / 102]])

    def test_the_models_state_their_guarantee(self, tmp_path: Path) -> None:
        directory = RunDirectory(tmp_path / "run")
        schemes = [{"name": "private", "hours": 0.1, "epsilon": e} for e in (2.0, 1.0)]
        simulate(experiment(table(tmp_path), schemes=schemes, seeds=[0, 1]), directory)
        runs = json.loads((directory.path / "privacy.json").read_text())["runs"]
        stored = [load_model(path).card for path in sorted(directory.path.rglob("*.npz"))[1:]]
        assert len(stored) == len(runs) == 4
        for card in stored:
            (run,) = (
                r for r in runs if (r["setting"], r["seed"]) == (card["setting"], card["seed"])
            )
            names = ("epsilon", "delta", "adjacency", "unit", "releases", "against")
            assert {name: card["privacy"][name] for name in names} == {n: run[n] for n in names}
            assert card["epsilon"] == run["epsilon"]
            assert "a simulation, whose noise comes from the seed" in card["privacy"]["holds"]
        # No objective is known, so the first setting's is kept as model.npz, whatever the data.
        assert load_model(directory.path / "model.npz").card["setting"] == runs[0]["setting"]

    def test_the_report_states_the_guarantee(self, tmp_path: Path) -> None:
        directory = RunDirectory(tmp_path / "run")
        schemes = [{"name": "private", "hours": 0.1, "epsilon": 2.0}, {"name": "one-shot"}]
        simulate(experiment(table(tmp_path), schemes=schemes), directory)
        page = render_report(directory)
        (run,) = directory.privacy()["runs"]
        sums = ", ".join(f"{one['count']} of {one['what']}" for one in run["releases"])
        row = page[page.index("<h2>Privacy</h2>") :].split("</table>")[0]
        shown = ceil(1e4 * run["epsilon"]) / 1e4  # never less than what is spent
        assert f"<td>{shown}</td><td>1e-05</td>" in row
        assert f'record</td><td class="left">zero-out</td><td class="left">{sums}</td>' in row
        assert "one-shot" not in row
        assert "whose noise comes from the seed" in page

    def test_no_target_is_computed_from_the_training_points(self, tmp_path: Path) -> None:
        schemes = [{"name": "private", "hours": 0.1}, {"name": "one-shot"}]
        directory = RunDirectory(tmp_path / "run")
        simulate(experiment(table(tmp_path), schemes=schemes), directory)
        kept = directory.checkpoint()
        assert kept is not None
        assert "0/1/fact/exact_metric" in kept
        assert "0/0/fact/exact_metric" not in kept

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"data": {"low": None, "high": None}}, "give public bounds of the values in data.low"),
            ({"data": {"high": None}}, "data.high is None: give both"),
            ({"data": {"low": [0, 200]}}, "with low below high"),
            ({"data": {"low": [0, 1, 2]}}, "a number each, or one for each input column"),
            ({"data": {"low": 0, "high": [1, 2, 3]}}, "3 values where there are 2 input columns"),
            ({"data": {"low": -inf, "high": 1}}, "must be finite"),
            ({"data": {"name": "digits"}}, "whose pixels have known bounds"),
            ({"training": {"objective": True}}, "training.objective is true"),
            ({"features": {"kind": "fourier"}}, "features.sigma is 'auto'"),
        ],
    )
    def test_what_would_read_the_data_is_refused_before_any_work(
        self, changes: dict[str, Any], message: str, tmp_path: Path
    ) -> None:
        directory = RunDirectory(tmp_path / "run")
        with pytest.raises(InputError, match=message):
            simulate(experiment(table(tmp_path), **changes), directory)
        assert not directory.path.exists()

    def test_a_regression_is_refused(self, tmp_path: Path) -> None:
        bounds = {"low": None, "high": None}
        with pytest.raises(InputError, match="whose labels are numbers"):
            simulate(experiment("digits-halves", data=bounds), RunDirectory(tmp_path / "run"))

    def test_other_schemes_are_scaled_as_before(self, tmp_path: Path) -> None:
        one = experiment(
            table(tmp_path), data={"low": None, "high": None}, schemes=[{"name": "one-shot"}]
        )
        ((_, dataset),) = datasets(cells(one), None).items()
        assert dataset.origin.own_scale
        assert np.allclose(dataset.inputs.mean(axis=0), 0, atol=1e-2)


def test_a_federation_here_refuses_to_scale_by_the_data(tmp_path: Path) -> None:
    command = ["federate", "local", "--scheme", "private", "--clients", "3", "--rounds", "4"]
    told = CliRunner().invoke(
        app, [*command, "--dataset", str(table(tmp_path)), "--out", str(tmp_path / "run")]
    )
    assert told.exit_code != 0
    assert "give public bounds" in str(told.exception)
    assert not (tmp_path / "run").exists()
