"""A feature map and an optimiser of one's own: one new file, and a line that names them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from codedfedl import CodedFedLClassifier, InputError, load_dataset, load_model
from codedfedl.learning.features import Identity, feature_map, map_settings
from codedfedl.learning.optimisers import optimiser
from tests.conftest import Run

MODULE = """
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

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
