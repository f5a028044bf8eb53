"""Networks in files that stand alone: written, read, refused, exported."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codedfedl import InputError, load_model
from codedfedl.learning.features import Identity, Tangent
from codedfedl.learning.torch_network import TorchNetwork
from codedfedl.models import Model, save_model
from codedfedl.models.onnx import export_onnx
from tests.conftest import Run

pytestmark = pytest.mark.extras

POINTS = np.random.default_rng(1).random((50, 64))
MODULE = """
from torch import nn


def net(outputs, slope=0.1):
    return nn.Sequential(
        nn.Unflatten(1, (4, 4, 4)),
        nn.GroupNorm(2, 4),
        nn.Conv2d(4, 6, 3, padding=1, bias=False),
        nn.LeakyReLU(slope),
        nn.MaxPool2d(2, 1),
        nn.GELU(),
        nn.AvgPool2d(2, padding=1),
        nn.ELU(0.7),
        nn.Flatten(),
        nn.SiLU(),
        nn.Linear(24, 9),
        nn.GroupNorm(3, 9),
        nn.Softplus(2),
        nn.Linear(9, outputs),
    )


def tail(outputs):
    return nn.Sequential(nn.Linear(64, 5), nn.Softsign(), nn.Linear(5, outputs))
"""


@pytest.fixture(autouse=True)
def _mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_networks.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_networks", raising=False)


def a_network(module: str = "cnn", **more: Any) -> Model:
    learner = TorchNetwork(module, 64, 3)
    rng = np.random.default_rng(0)
    weights = learner.start(rng) + 0.1 * rng.standard_normal(learner.shape).astype(np.float32)
    more.setdefault("classes", np.array(["cat", "dog", "eel"]))
    return Model(Identity(), weights, 64, learner=learner, **more)


@pytest.mark.parametrize("module", ["logistic", "mlp", "cnn", "own_networks:net"])
def test_a_network_is_read_as_it_was_written(module: str, tmp_path: Path) -> None:
    model = a_network(module, temperature=0.5)
    save_model(model, tmp_path / "model.npz")
    read = load_model(tmp_path / "model.npz", trust=":" in module)
    assert read.learner == model.learner
    np.testing.assert_array_equal(read.weights, model.weights)
    np.testing.assert_array_equal(read.predict_proba(POINTS), model.predict_proba(POINTS))
    with np.load(tmp_path / "model.npz") as file:  # which would refuse a pickle
        assert json.loads(str(file["facts"]))["network"]["module"] == module
    assert np.unique(read.predict(POINTS)).size > 1


def test_a_module_that_the_file_names_is_imported_only_if_it_is_trusted(tmp_path: Path) -> None:
    save_model(a_network("own_networks:net"), tmp_path / "model.npz")
    with pytest.raises(InputError, match="names the module own_networks:net.*trust=True"):
        load_model(tmp_path / "model.npz")
    # Longer by a character: bytecode is known by a file's size and its second.
    (tmp_path / "own_networks.py").write_text(MODULE.replace("slope=0.1", "slope=0.45"))
    del sys.modules["own_networks"]
    with pytest.raises(InputError, match="is not the one that the model was trained with"):
        load_model(tmp_path / "model.npz", trust=True)


def _changed(path: Path, weights: Any = None, **facts: Any) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    told = json.loads(str(arrays["facts"]))
    told["network"] |= facts
    arrays["facts"] = np.array(json.dumps(told))
    if weights is not None:
        arrays["weights"] = weights
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"module": "cnnn"}, "names the module cnnn, which would be imported"),
        ({"module": 3}, "network.module is 3, which no model has"),
        ({"outputs": 0}, "network.outputs is 0"),
        ({"outputs": 4}, "classes holds"),
        ({"objective": "hinge"}, "model.loss is 'hinge'"),
        ({"image": [8, 8]}, r"network.image.2 is missing"),
        ({"image": [4, 4, 4]}, r"weights has shape \(1571,\) where the module 'cnn' has 2027"),
        ({"fingerprint": [1571.0]}, "is not the one that the model was trained with"),
        ({"fingerprint": "x"}, "network.fingerprint is 'x', which"),
        ({"weights": np.ones((1571, 1))}, "not a network's parameters one after another"),
        ({"weights": np.ones(5)}, r"weights has shape \(5,\) where the module 'cnn' has 1571"),
    ],
)
def test_what_is_no_network_is_refused(spoil: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_model(a_network(), tmp_path / "model.npz")
    _changed(tmp_path / "model.npz", **spoil)
    with pytest.raises(InputError, match=message):
        load_model(tmp_path / "model.npz")


def test_weights_of_another_learner_are_refused() -> None:
    learner = TorchNetwork("mlp", 64, 3)
    with pytest.raises(InputError, match="on 64 features where the learner has"):
        Model(Identity(), np.zeros(7), 64, learner=learner)


@pytest.mark.parametrize("module", ["logistic", "mlp", "cnn", "own_networks:net"])
def test_onnx_gives_the_same_scores(module: str, tmp_path: Path, run: Run) -> None:
    runtime = pytest.importorskip("onnxruntime")
    model = a_network(module)
    save_model(model, tmp_path / "model.npz")
    trust = ["--trust"] if ":" in module else []
    code, _, error = run("export", "model.npz", "--out", "model.onnx", *trust)
    assert code == 0, error
    session = runtime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    scores, label = session.run(None, {"inputs": POINTS.astype(np.float32)})
    np.testing.assert_allclose(scores, model.scores(POINTS), atol=1e-5)
    np.testing.assert_array_equal(model.classes[label], model.predict(POINTS))  # type: ignore[index]


@pytest.mark.parametrize(
    ("module", "settings"),
    [
        ("mlp", {"n_components": 100}),
        ("mlp", {"parts": "last"}),
        ("cnn", {"n_components": 10**6}),
        ("cnn", {"n_components": 500, "parts": 3}),
    ],
)
def test_a_linearised_network_has_an_onnx_form(
    module: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Its gradient by its parameters is a graph too, and the sketch of it."""
    runtime, rng = pytest.importorskip("onnxruntime"), np.random.default_rng(0)
    network = TorchNetwork(module, 64, 3)
    features = Tangent(network, network.start(rng), **settings)
    weights = rng.standard_normal((features.size(64), 3))
    model = Model(features, weights, 64, classes=np.array(["a", "b", "c"]))
    export_onnx(model, tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    scores, _ = session.run(None, {"inputs": POINTS.astype(np.float32)})
    np.testing.assert_allclose(scores, model.scores(POINTS), atol=1e-4)


def test_layers_without_an_onnx_form_are_refused(tmp_path: Path, run: Run) -> None:
    save_model(a_network("own_networks:tail"), tmp_path / "model.npz")
    code, _, error = run("export", "model.npz", "--out", "model.onnx", "--trust")
    assert code == 2
    assert "is not a torch.nn.Sequential of layers that have an ONNX form" in error
