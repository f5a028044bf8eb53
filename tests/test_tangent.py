"""Tangent features against gradients taken point by point, and the scheme that trains on them."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codedfedl import InputError, load_model
from codedfedl.core.loop import PREPARE
from codedfedl.core.record import SETUP
from codedfedl.core.task import Task, workload_of
from codedfedl.fleet.built_in import paper_devices
from codedfedl.fleet.devices import Workload, with_workload
from codedfedl.learning.features import Identity, Tangent, fingerprint
from codedfedl.learning.learner import LeastSquares
from codedfedl.learning.optimisers import Schedule
from codedfedl.learning.torch_network import TorchNetwork
from codedfedl.models import Model, save_model
from codedfedl.random import stream
from codedfedl.runs.config import Experiment
from codedfedl.runs.grid import cells
from codedfedl.schemes import make_scheme
from codedfedl.simulation.clock import Clock, Timeline
from codedfedl.simulation.engine import Setting, Simulation
from codedfedl.simulation.units import datasets, units
from tests.conftest import Run

pytestmark = pytest.mark.extras

POINTS = np.random.default_rng(1).random((7, 64)).astype(np.float32)
MODULE = """
from torch import nn

def ends_linear(outputs):
    return nn.Sequential(nn.Linear(64, 6), nn.Softsign(), nn.Linear(6, outputs, bias=False))

def ends_curved(outputs):
    return nn.Sequential(nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, outputs), nn.Tanh())
"""
NETWORKS = ["mlp", "cnn", "own_tangent:ends_linear", "own_tangent:ends_curved"]


@pytest.fixture(autouse=True)
def _mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_tangent.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_tangent", raising=False)


def tangent(module: str = "mlp", count: int = 10**6, **more: Any) -> Tangent:
    learner = TorchNetwork(module, 64, 3)
    return Tangent(learner, learner.start(np.random.default_rng(0)), count, **more)


def gradients(features: Tangent) -> np.ndarray:
    """The gradient of f(x)·a at every point, by differences of the outputs."""
    signs = stream(features.seed, "tangent").choice([-1.0, 1.0], 3) / np.sqrt(3)
    torch = pytest.importorskip("torch")
    model = torch.from_numpy(features.model).double()

    def output(flat: Any, point: Any) -> Any:
        return features.learner.scores(flat, point[None])[0] @ torch.from_numpy(signs)

    points, width, made = torch.from_numpy(POINTS).double(), 1e-6, []
    for k in range(len(model)):
        step = torch.zeros_like(model)
        step[k] = width
        slopes = [(output(model + step, x) - output(model - step, x)) / 2 / width for x in points]
        made.append([float(slope) for slope in slopes])
    return np.array(made).T


@pytest.mark.parametrize("module", ["mlp", *NETWORKS[2:]])
def test_the_kernel_is_that_of_the_gradient_by_all_parameters(module: str) -> None:
    features = tangent(module)
    slopes = gradients(features)
    slopes /= np.linalg.norm(slopes, axis=1, keepdims=True)
    mapped = features.transform(POINTS)
    np.testing.assert_allclose(mapped @ mapped.T, slopes @ slopes.T, atol=2e-5)
    assert mapped.shape == (7, features.size(64))
    copies = 3 - 1 if features.hidden else 0  # of the last hidden layer, which are left out
    assert features.size(64) == slopes.shape[1] - copies * features.copied


@pytest.mark.parametrize("module", NETWORKS)
def test_only_what_is_not_the_last_layer_is_sketched(module: str) -> None:
    whole, features = tangent(module), tangent(module, 90, seed=0)
    copied, count = whole.copied, whole.sketched
    assert features.size(64) == min(90, copied + count)
    exact = whole.transform(POINTS).astype(float)
    expected = np.zeros((7, features.size(64)))
    expected[:, :copied] = exact[:, :copied]
    order = stream(0, "tangent", 1).permutation(count)
    for place, column in enumerate(order):
        bucket = place % (features.size(64) - copied) if copied + count > 90 else column
        expected[:, copied + bucket] += exact[:, copied + column]  # the signs are in it already
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(features.transform(POINTS), expected, atol=2e-6)


@pytest.mark.parametrize("module", ["mlp", "cnn", "own_tangent:ends_linear"])
def test_the_network_is_among_the_linear_models(module: str) -> None:
    features = tangent(module, 90)
    exact = features.learner.scores(features.model, POINTS)
    linear = features.transform(POINTS) @ features.network_weights
    length = exact[:, :1] / linear[:, :1]
    np.testing.assert_allclose(linear * length, exact, rtol=1e-3, atol=1e-5)
    again = features.with_last_layer(3.0 * features.network_weights)
    np.testing.assert_allclose(again, features.model, rtol=1e-5, atol=1e-7)


def test_the_last_layer_alone_is_the_last_hidden_layer() -> None:
    features = tangent("mlp", parts="last")
    assert isinstance(features.learner, TorchNetwork)
    parts = features.learner.split(features.model)
    hidden = np.maximum(POINTS @ parts[0].T + parts[1], 0)
    expected = np.hstack([hidden, np.ones((7, 1))])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(features.transform(POINTS), expected, atol=1e-6)
    assert features.sketched == 0
    assert features.macs(64) < tangent("mlp").macs(64)
    fewer = tangent("mlp", 20, parts="last")  # than the layer has, which is not sketched
    assert fewer.transform(POINTS).shape[1] == fewer.size(64) == len(fewer.network_weights) == 65


def test_maps_differ_by_network_and_seed() -> None:
    first, same = tangent("mlp", 100), tangent("mlp", 100)
    assert first == same
    assert hash(first) == hash(same)
    other = replace(first, model=first.model * 1.01)
    for changed in (replace(first, seed=1), other):
        assert changed != first
        assert not np.allclose(fingerprint(changed, 64), fingerprint(first, 64))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": 65}, "the last hidden layer alone has 65"),
        ({"parts": "first"}, "parts is 'first'"),
    ],
)
def test_what_makes_no_map_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tangent(**settings)
    with pytest.raises(InputError, match="those of a network"):
        Tangent(LeastSquares(4, 2), np.zeros((4, 2)))


def test_a_model_file_has_the_network_and_the_linear_part(tmp_path: Path) -> None:
    features, path = tangent("cnn", 300), tmp_path / "model.npz"
    weights = np.random.default_rng(0).standard_normal((features.size(64), 3))
    model = Model(features, weights, 64, classes=np.arange(3), temperature=0.5)
    save_model(model, path)
    read = load_model(path)
    assert read.features == features
    np.testing.assert_array_equal(read.predict_proba(POINTS), model.predict_proba(POINTS))
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **arrays | {"tangent": 2 * arrays["tangent"]})
    with pytest.raises(InputError, match="is not the one that the model was trained with"):
        load_model(path)
    facts = json.loads(str(arrays["facts"]))
    facts["features"]["seed"] = 5
    np.savez(path, **arrays | {"facts": np.array(json.dumps(facts))})
    with pytest.raises(InputError, match="tangent features differ"):
        load_model(path)


def test_a_fleet_has_another_workload() -> None:
    devices = paper_devices(4)
    before, after = Workload(parameters=5000, gradient_macs=1e5), Workload(300, 3, bits=16)
    fleet = with_workload(devices.fleet(before, 9), before, after)
    expected = devices.fleet(after, 9)
    for name in ("rate", "packet_time", "packet_time_up", "erasure", "points"):
        np.testing.assert_allclose(getattr(fleet, name), getattr(expected, name))


def test_clients_receive_the_network_before_they_embed() -> None:
    features = tangent("mlp", 100)
    points = np.full((1, 4), 50)
    schedule = Schedule(1.0, 1.0, ())
    learner, macs = features.learner, features.macs(64)
    raw = Task(workload_of(learner, 64, 3), 0, points, 1, schedule, 0.0, learner=learner)
    linear = Task(Workload(100, 3), macs, points, 1, schedule, 0.0, features=features)
    devices = replace(paper_devices(4), alpha=np.full(4, 1e12), erasure=np.zeros(4))
    fleet = replace(devices.fleet(raw.workload, 50), erasure_up=np.zeros(4))
    timeline = Timeline(Clock(fleet, raw, 0))
    timeline.begin(linear)
    arrivals = timeline.exchange(PREPARE, SETUP)
    sent = features.learner.parameters * 32 * 1.1 / devices.bit_rate
    embedding = 50 * macs / devices.mac_rate
    np.testing.assert_allclose(arrivals.arrival_times, sent + embedding, rtol=1e-6)


def played(scheme: dict[str, Any], hours: float = 0.03, **tables: Any) -> Setting:
    experiment = Experiment.model_validate(
        {
            "data": {"name": "digits"},
            "fleet": {"clients": 6},
            "model": {"kind": "torch", "module": "mlp"},
            "training": {"epochs": 500, "hours": hours, "ridge": 0.0},
            "schemes": [{"name": "tangent-newton", "hours": 0.005, "n_components": 300, **scheme}],
        }
        | tables
    )
    settings = cells(experiment)
    (unit,) = units(settings, [0], datasets(settings, None))
    kinds: list[str] = []
    run = Simulation(
        unit.problem(), unit.contenders(), 0, lambda _, a, __: kinds.append(a.ask.work.kind)
    )
    for _ in run.run():
        pass
    assert kinds.count("counts") == 1  # clients are asked once, whatever follows
    return run.settings[0]


@pytest.mark.parametrize(
    "solver",
    [{}, {"solver": "balanced"}, {"solver": "one-shot"}, {"turns": 2}],
)
def test_a_network_is_trained_linearised_and_solved(solver: dict[str, Any]) -> None:
    setting = played(solver, 0.06)
    facts = setting.scheme.describe(setting.state).facts
    first = int(facts["solved_from"])
    accuracy = [record.metric for record in setting.rounds]
    assert setting.state.task.workload.features == 300
    assert facts["trained_hours"] >= 0.005
    assert accuracy[-1] > accuracy[first - 1] + 0.05
    assert setting.timeline.now >= 3600 * facts["trained_hours"]


def test_a_run_leaves_one_model_that_predicts(tmp_path: Path, run: Run) -> None:
    from codedfedl.data import load_dataset

    text = """
seeds = [0]
[data]
name = "digits"
[fleet]
clients = 6
[model]
kind = "torch"
module = "mlp"
[training]
epochs = 500
hours = 0.03
[[schemes]]
name = "tangent-newton"
hours = 0.005
n_components = 300
training = { least = 2 }
"""
    (tmp_path / "tangent.toml").write_text(text)
    code, _, err = run("simulate", tmp_path / "tangent.toml", "--out", tmp_path / "run", "--json")
    assert code == 0, err
    model = load_model(tmp_path / "run" / "model.npz")
    assert isinstance(model.features, Tangent)
    dataset = load_dataset("digits")
    accuracy = (model.predict(dataset.test_inputs) == dataset.test_labels).mean()
    assert accuracy == pytest.approx(model.card["test_metric"], abs=1e-6)
    assert accuracy > 0.8


def test_a_linear_model_is_refused() -> None:
    with pytest.raises(InputError, match=r"set model\.kind = 'torch'"):
        played({}, model={"kind": "linear"})
    with pytest.raises(InputError, match="scheme 'paced' has no setting 'leats'"):
        make_scheme("tangent-newton", {"training": {"leats": 3}})
    with pytest.raises(InputError, match="leave secure and message_bits out"):
        make_scheme("tangent-newton", {}, secure=True)


def test_features_of_a_trained_network_are_a_kind_of_features(tmp_path: Path) -> None:
    learner = TorchNetwork("mlp", 64, 10)
    save_model(
        Model(Identity(), learner.start(np.random.default_rng(0)), 64, learner=learner),
        tmp_path / "network.npz",
    )
    features = {"kind": "tangent", "network": str(tmp_path / "network.npz"), "n_components": 200}
    scheme = {"name": "one-shot"}
    experiment = Experiment.model_validate(
        {"data": {"name": "digits"}, "fleet": {"clients": 6}, "features": features}
        | {"schemes": [scheme], "training": {"ridge": 1e-6}}
    )
    settings = cells(experiment)
    (unit,) = units(settings, [0], datasets(settings, None))
    run = Simulation(unit.problem(), unit.contenders(), 0)
    for _ in run.run():
        pass
    assert run.settings[0].rounds[-1].metric > 0.9
    with pytest.raises(InputError, match="features.network"):
        experiment.model_copy(
            update={"features": experiment.features.model_copy(update={"network": None})}
        ).feature_map()
