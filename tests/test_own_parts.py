"""A feature map, an optimiser, a delay model: one new file, and a line that names each."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from pyarrow.parquet import read_table

from codedfedl import CodedFedLClassifier, DelayModel, InputError, load_dataset, load_model, plan
from codedfedl.learning.features import Identity, feature_map, map_settings
from codedfedl.learning.optimisers import optimiser
from tests.conftest import Run

MODULE = """
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from codedfedl import DelayModel
from codedfedl.fleet.delays import Chances
from codedfedl.learning.optimisers import Optimiser, Step


@dataclass(frozen=True)
class Ramps:
    n_components: int
    seed: int

    largest_square: ClassVar[float] = 1.0
    shift_invariant: ClassVar[bool] = False

    def size(self, inputs):
        return self.n_components

    def macs(self, inputs):
        return inputs * self.n_components

    def transform(self, points):
        ramps = np.random.default_rng(self.seed).normal(size=(points.shape[1], self.n_components))
        return (np.tanh(points @ ramps) / self.n_components**0.5).astype(np.float32)


@dataclass(frozen=True)
class HeavyBall(Optimiser):
    name: ClassVar[str] = "heavy-ball"

    def step(self, asked, gradient, size, memory):
        moved = -size * gradient + (0 if memory is None else 0.8 * memory)
        return Step(asked + moved, asked + moved, moved)


class Rootless:
    pass


@dataclass(frozen=True, eq=False)
class Lorries(DelayModel):
    client: Any

    def cdf(self, loads, t):  # uniform from 1 to 2 seconds a point
        return np.clip(np.asarray(t) / np.maximum(loads, 1e-9) - 1, 0, 1)

    def take(self, clients):
        return Lorries(self.client[clients])

    def draw(self, rounds, rng):
        return Chances({"jam": rng.random((rounds, len(self)))})

    def seconds(self, loads, chance):
        return np.asarray(loads) * (1 + chance.draws["jam"])

    def bulk(self, work, packets, rng):
        return np.asarray(work) * (1 + rng.random(len(self))), self.upload(packets, rng)

    def upload(self, packets, rng):
        return np.asarray(packets) * 1.0


LORRIES = Lorries(np.arange(5))
"""

EXPERIMENT = """
data.name = "digits"
fleet.clients = 5
features.kind = "own_parts:Ramps"
features.n_components = 200
features.sigma = 1.0
training.epochs = 30
training.step = 1.0
[[schemes]]
name = "uncoded"
optimiser = "own_parts:HeavyBall"
[[schemes]]
name = "uncoded"
"""


@pytest.fixture(autouse=True)
def own_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the user's file and experiment, in which the commands run."""
    (tmp_path / "own_parts.py").write_text(MODULE)
    (tmp_path / "mine.toml").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_parts", raising=False)


def test_a_run_uses_them_and_its_model_names_its_map(run: Run) -> None:
    plain, own = "uncoded", "uncoded optimiser own_parts:HeavyBall"
    document = json.loads(run("simulate", "mine.toml", "--out", "run", "--model", own, "--json")[1])
    accuracies = {row["setting"]: row["final"][0] for row in document["rows"]}
    assert accuracies[own] > accuracies[plain] > 0.3  # momentum is ahead
    code, _, err = run("predict", "run/model.npz", "digits")
    assert code == 2
    assert "own_parts:Ramps" in err
    assert "--trust" in err
    document = json.loads(run("predict", "run/model.npz", "digits", "--trust", "--json")[1])
    assert document["accuracy"] == pytest.approx(accuracies[own], abs=1e-6)


def test_a_copied_run_imports_them_only_when_trusted(run: Run) -> None:
    run("simulate", "mine.toml", "--out", "run")
    sys.modules.pop("own_parts")
    code, _, err = run("simulate", "run/config.toml", "--out", "again")
    assert (code, "own_parts" in sys.modules) == (2, False)
    assert "own_parts:Ramps" in err
    assert "own_parts:HeavyBall" in err


DRIVEN = """
data.name = "digits"
fleet.name = "own_parts:LORRIES"
features.n_components = 100
training.epochs = 4
[[schemes]]
name = "coded"
redundancy = 0.2
[[schemes]]
name = "uncoded"
"""


def test_a_delay_model_is_planned_with_and_simulated(run: Run) -> None:
    Path("driven.toml").write_text(DRIVEN)
    assert run("simulate", "driven.toml", "--out", "run", "--json")[0] == 0
    rounds, clients = (
        {name: np.array(values) for name, values in read_table(path).to_pydict().items()}
        for path in ("run/rounds.parquet", "run/clients.parquet")
    )
    seconds = {
        name: rounds["seconds"][rounds["scheme"] == name][1:] for name in ("coded", "uncoded")
    }
    lorries: DelayModel = importlib.import_module("own_parts").LORRIES
    points = clients["points"][:5]
    longest = seconds["uncoded"]
    assert (longest > points.max()).all()
    assert (longest < 2 * points.max()).all()
    assert np.allclose(seconds["coded"], plan(lorries, 0.2, points=points).deadline)
    assert seconds["coded"].max() < longest.max()
    sys.modules.pop("own_parts")
    code, _, err = run("simulate", "run/config.toml", "--out", "again")
    assert (code, "own_parts" in sys.modules) == (2, False)
    assert "own_parts:LORRIES" in err
    code, _, err = run("simulate", "driven.toml", "--set", "fleet.name=own_parts:Lorries")
    assert code == 2
    assert "must be a codedfedl.DelayModel" in err


def test_an_estimator_takes_them() -> None:
    data = load_dataset("digits")
    model = CodedFedLClassifier(features="own_parts:Ramps", n_components=150)
    model.fit(data.inputs, data.labels)
    assert model.score(data.test_inputs, data.test_labels) > 0.8
    model.save_model("model.npz")
    loaded = load_model("model.npz", trust=True)
    assert map_settings(loaded.features) == map_settings(model.feature_map_)
    expected = model.predict(data.test_inputs)
    np.testing.assert_array_equal(loaded.predict(data.test_inputs), expected)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_parts:Rootless", "is not a dataclass"),
        ("own_parts:HeavyBall", "has no size"),
        ("own_parts:Nothing", "is not a dataclass"),
        ("no_such_file:Map", "cannot be imported"),
        ("ramps", "did you mean|known are"),
    ],
)
def test_what_is_no_feature_map_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        feature_map(name, 10, 1.0, 0)


@pytest.mark.parametrize("name", ["own_parts:Ramps", "own_parts:Nothing"])
def test_what_is_no_optimiser_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="is not a subclass"):
        optimiser("coded", name, same_points=False)


def test_settings_make_the_same_map_again() -> None:
    made = feature_map("own_parts:Ramps", 7, 1.0, 3)
    settings = map_settings(made)
    assert settings is not None
    assert settings["kind"] == "own_parts:Ramps"
    assert feature_map(settings["kind"], settings["n_components"], 1.0, settings["seed"]) == made
    assert (map_settings(Identity()) or {})["kind"] == "identity"


def test_a_delay_model_is_planned_for(run: Run) -> None:
    Path("cars.py").write_text("from codedfedl import paper_fleet\nfleet = paper_fleet()\n")
    own, paper = (
        json.loads(run("plan", name, "--redundancy", 0.1, "--json")[1])
        for name in ("cars:fleet", "paper")
    )
    assert own["deadline_s"] == paper["deadline_s"]
    code, _, err = run("plan", "cars:fleet", "--excess", 0.2)
    assert code == 2
    assert "--excess and the delay model cars:fleet do not go together" in err
    code, _, err = run("plan", "own_parts:LORRIES")
    assert code == 2
    assert "points" in err
