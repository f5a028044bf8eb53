"""Networks as learners: against slopes by differences, counts by hand, and plain PyTorch loops."""

import pickle
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codedfedl import InputError
from codedfedl.learning.learner import LeastSquares
from codedfedl.learning.module_function import (
    convolution_of_all,
    sequential_layers,
    unfolded_convolution,
)
from codedfedl.learning.modules import build_module
from codedfedl.learning.torch_network import TorchNetwork, chosen_loss

if find_spec("torch"):  # else these tests fail, where they are asked for
    import torch

pytestmark = pytest.mark.extras

MODULE = """
import torch
from torch import nn


def net(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 3), nn.Tanh(), nn.Linear(3, outputs))


class Frozen(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 5), nn.Linear(5, outputs)
        self.first.requires_grad_(False)

    def forward(self, points):
        return self.last(self.first(points))


def batch_norm(outputs):
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, outputs))


def dropout(outputs):
    return nn.Sequential(nn.Dropout(0.1), nn.Linear(4, outputs))


class Coupled(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)

    def forward(self, points):
        return super().forward(points - points.mean(0))


class Looped(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.loop = nn.LSTM(1, outputs, batch_first=True)

    def forward(self, points):
        return self.loop(points[..., None])[0][:, -1]


def images():
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(18, 2))


def deep():
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Sequential(nn.Conv2d(1, 4, (2, 3), stride=(2, 1), padding=(1, 2), dilation=(1, 2))),
        nn.GroupNorm(2, 4),
        nn.GELU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(4, 3, 1, bias=False),
        nn.AvgPool2d((1, 2)),
        nn.Flatten(),
        nn.Linear(6, 3, bias=False),
    )


class Residual(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, inputs), nn.Linear(inputs, outputs)

    def forward(self, points):
        return self.last(points + self.first(points).relu())


def narrow(inputs):
    return nn.Linear(inputs, 1)


def infinite(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, outputs), nn.Threshold(1e9, float("inf")))


def fixed(inputs, outputs):
    return nn.Linear(inputs, outputs).requires_grad_(False)


def nothing():
    return 3
"""


@pytest.fixture(autouse=True)
def _mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_networks.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_networks", raising=False)


class Points:
    """A few points, weights and a model, in float64 so that differences are exact enough."""

    def __init__(self, learner: TorchNetwork, points: int = 7) -> None:
        rng = np.random.default_rng(0)
        self.learner = learner
        self.features = rng.standard_normal((points, learner.inputs))
        self.targets = np.eye(learner.outputs)[rng.integers(0, learner.outputs, points)]
        self.weights = rng.random(points)
        self.model = learner.start(rng) + 0.1 * rng.standard_normal(learner.shape)


@pytest.mark.parametrize("module", ["logistic", "mlp", "cnn", "mine_networks:net"])
@pytest.mark.parametrize("objective", ["cross-entropy", "squared"])
def test_gradient_is_the_weighted_sum_of_the_slopes_of_points(module: str, objective: str) -> None:
    """Central differences along three random directions."""
    points = Points(TorchNetwork(module, 16, 3, objective))
    learner, rng = points.learner, np.random.default_rng(1)

    def weighted_loss(model: Any) -> float:
        each = [
            learner.loss(model, points.features[i : i + 1], points.targets[i : i + 1])
            for i in range(7)
        ]
        return float(points.weights @ each)

    slope = learner.gradient(points.model, points.features, points.targets, points.weights)
    assert slope.shape == learner.shape
    for _ in range(3):
        direction = 1e-5 * rng.standard_normal(learner.shape)
        ahead, behind = (weighted_loss(points.model + sign * direction) for sign in (1, -1))
        assert slope @ direction == pytest.approx((ahead - behind) / 2, rel=1e-4)


def test_without_weights_every_point_counts_once_and_no_point_gives_nothing() -> None:
    points = Points(TorchNetwork("mlp", 16, 3), 1100)  # more than go through the module at once
    learner, data = points.learner, (points.features, points.targets)
    total = learner.gradient(points.model, *data)
    np.testing.assert_allclose(total, learner.gradient(points.model, *data, np.ones(1100)))
    parts = [
        learner.gradient(points.model, *(part[rows] for part in data))
        for rows in (slice(300), slice(300, None))
    ]
    np.testing.assert_allclose(total, sum(parts), rtol=1e-9, atol=1e-9)
    assert not learner.gradient(points.model, *(part[:0] for part in data)).any()
    assert learner.scores(points.model, points.features[:0]).shape == (0, 3)


def test_a_linear_module_with_squared_loss_is_least_squares() -> None:
    points = Points(TorchNetwork("logistic", 4, 3, "squared"))
    ones = np.hstack([points.features, np.ones((7, 1))])
    twin = LeastSquares(5, 3)
    matrix = np.vstack([points.model[:12].reshape(3, 4).T, points.model[12:]])
    slope = twin.gradient(matrix, ones, points.targets)
    data = points.features, points.targets
    np.testing.assert_allclose(
        points.learner.gradient(points.model, *data),
        np.concatenate([slope[:4].T.ravel(), slope[4]]),
        atol=1e-9,
    )
    assert points.learner.loss(points.model, *data) == pytest.approx(
        twin.loss(matrix, ones, points.targets)
    )


@pytest.mark.parametrize("batch", [None, 3])
def test_local_steps_are_a_plain_loop_of_pytorch(batch: int | None) -> None:
    points = Points(TorchNetwork("mine_networks:net", 4, 3))
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3))
    net = net.double()
    torch.nn.utils.vector_to_parameters(torch.tensor(points.model), net.parameters())
    start = points.model.copy()
    for count in range(4):
        rows = [(3 * count + k) % 7 for k in range(3)] if batch else list(range(7))
        x, y = (torch.from_numpy(part[rows]) for part in (points.features, points.targets))
        here = torch.nn.utils.parameters_to_vector(net.parameters())
        pull = 0.05 * ((here - torch.from_numpy(start)) ** 2).sum()
        loss = torch.nn.functional.cross_entropy(net(x), y) + 0.005 * (here**2).sum() + pull
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            for part in net.parameters():
                part.sub_(0.2 * part.grad)
    made = points.learner.steps(
        points.model,
        points.features,
        points.targets,
        count=4,
        step_size=0.2,
        ridge=0.01,
        batch=batch,
        proximal=0.1,
    )
    expected = torch.nn.utils.parameters_to_vector(net.parameters()).detach().numpy()
    np.testing.assert_allclose(made, expected, atol=1e-9)
    np.testing.assert_array_equal(points.model, start)  # it is not changed in its own memory


MODULES = ["mlp", "cnn", *(f"mine_networks:{name}" for name in ("deep", "Residual", "Looped"))]


@pytest.mark.parametrize("module", MODULES)
def test_many_gradients_are_those_of_each(module: str) -> None:
    """Of clients with as many points as they like, none among them."""
    points = Points(TorchNetwork(module, 16, 3), 500)
    learner, rng = points.learner, np.random.default_rng(1)
    cuts = [slice(0, 7), slice(7, 7), slice(7, 100), slice(100, 103), slice(103, 500)]
    models = points.model + 0.1 * rng.standard_normal((5, learner.parameters))
    data = [[part[cut] for cut in cuts] for part in (points.features, points.targets)]
    weights = [points.weights[cut] for cut in cuts]
    for scale in (None, weights):
        each = [
            learner.gradient(models[j], data[0][j], data[1][j], None if scale is None else scale[j])
            for j in range(5)
        ]
        together = learner.many_gradients(models, data[0], data[1], scale)
        np.testing.assert_allclose(together, np.array(each), rtol=1e-7, atol=1e-9)
    alone = torch.func.functional_call(
        module_of(learner, models[0]), {}, (torch.from_numpy(points.features),)
    )
    np.testing.assert_allclose(
        learner.scores(models[0], points.features), alone.detach().numpy(), atol=1e-9
    )


def module_of(learner: TorchNetwork, model: np.ndarray) -> Any:
    """The module as its author would use it, with these parameters."""
    module = build_module(learner.module, learner.inputs, learner.outputs).double()
    torch.nn.utils.vector_to_parameters(torch.tensor(model), module.parameters())
    return module


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("batch", [None, 3])
def test_many_steps_are_the_steps_of_each(module: str, batch: int | None) -> None:
    points = Points(TorchNetwork(module, 16, 3), 20)
    learner, counts = points.learner, [3, 0, 2]
    data = [[part[:2], part[2:9], part[9:]] for part in (points.features, points.targets)]
    models = np.array([points.model, points.model, 0.9 * points.model])
    settings: dict[str, Any] = {"step_size": 0.1, "ridge": 0.01, "batch": batch, "proximal": 0.2}
    together = learner.many_steps(
        models, *data, counts=counts, rngs=[np.random.default_rng(j) for j in range(3)], **settings
    )
    for j in range(3):
        alone = learner.steps(
            models[j],
            data[0][j],
            data[1][j],
            count=counts[j],
            rng=np.random.default_rng(j),
            **settings,
        )
        np.testing.assert_allclose(together[j], alone, rtol=1e-7, atol=1e-9)


def test_patches_and_a_batched_product_are_a_convolution() -> None:
    """What a GPU does in place of groups, and the slopes of both."""
    layers = sequential_layers(build_module("mine_networks:deep", 16, 3).double())
    assert layers is not None
    convolution = layers[1]
    rng = torch.Generator().manual_seed(0)
    values, weight, bias = (
        torch.randn(*shape, generator=rng, dtype=torch.float64, requires_grad=True)
        for shape in ((5, 2, 4, 4), (2, 4, 1, 2, 3), (2, 4))
    )
    made = [
        way(convolution, values, weight, bias) for way in (unfolded_convolution, convolution_of_all)
    ]
    torch.testing.assert_close(*made)
    above = torch.randn(made[0].shape, generator=rng, dtype=torch.float64)
    slopes = [torch.autograd.grad((way * above).sum(), (values, weight, bias)) for way in made]
    torch.testing.assert_close(*slopes)


def test_operations_are_those_counted_by_hand() -> None:
    """Forward, the slopes of the parameters, and those of the inputs but of the first layer."""
    first, second, head = 144 * 25 * 8, 25 * 72 * 16, 400 * 10
    network = TorchNetwork("cnn", 784, 10)
    assert network.parameters == sum(network.tensor_sizes) == 5386
    assert network.tensor_sizes == (200, 8, 1152, 16, 4000, 10)
    assert network.point_macs == 2 * (first + second + head) + second + head == 156_000
    assert TorchNetwork("logistic", 784, 10).point_macs == 2 * 7840
    assert TorchNetwork("mlp", 64, 10).point_macs == 2 * (64 * 64 + 640) + 640
    assert TorchNetwork("cnn", 64, 10).parameters == 2026
    frozen = TorchNetwork("mine_networks:Frozen", 4, 2)
    assert (frozen.parameters, frozen.point_macs) == (12, 4 * 5 + 2 * 10)
    assert TorchNetwork("mine_networks:Looped", 4, 2, operations=77).point_macs == 77


def test_same_seed_same_bits_wherever_it_is_unpickled() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    points = Points(TorchNetwork("cnn", 64, 10))
    twin = pickle.loads(pickle.dumps(points.learner))
    assert twin == points.learner
    rng = np.random.default_rng
    np.testing.assert_array_equal(points.learner.start(rng(3)), twin.start(rng(3)))
    assert (twin.start(rng(3)) != twin.start(rng(4))).any()
    data = points.features.astype(np.float32), points.targets.astype(np.float32)
    model = twin.start(rng(3))
    gradients = [learner.gradient(model, *data) for learner in (points.learner, twin)]
    np.testing.assert_array_equal(*gradients)
    assert model.dtype == gradients[0].dtype == np.float32
    assert torch.equal(state, torch.get_rng_state())  # PyTorch's own stream is left alone


def test_tensors_stay_tensors_and_memory_that_is_read_only_is_read() -> None:
    points = Points(TorchNetwork("mlp", 4, 3))
    for array in (points.features, points.targets, points.model):
        array.flags.writeable = False
    data = points.features, points.targets
    made = points.learner.gradient(points.model, *data)
    tensors = [torch.tensor(part) for part in (points.model, *data)]
    given = points.learner.gradient(*tensors)
    assert isinstance(given, torch.Tensor)
    assert not given.requires_grad
    np.testing.assert_array_equal(given.numpy(), made)
    assert isinstance(points.learner.scores(*tensors[:2]), torch.Tensor)
    small = points.learner.gradient(tensors[0].float(), *tensors[1:])
    assert small.dtype == torch.float32


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("cnnn", "model.module is 'cnnn': did you mean 'cnn'"),
        ("mine_networks:batch_norm", "BatchNorm1d .1., whose statistics.*use torch.nn.GroupNorm"),
        ("mine_networks:dropout", "Dropout .0., which draws at random.*leave it out"),
        ("mine_networks:Coupled", "depends on other points or on chance"),
        ("mine_networks:images", r"does not take points of shape \(n, 4\).*torch.nn.Unflatten"),
        ("mine_networks:narrow", r"returns \(2, 1\) for 2 points: return one of shape \(2, 2\)"),
        ("mine_networks:infinite", "numbers that are not finite for points from 0 to 1"),
        ("mine_networks:fixed", "has no parameter to train"),
        ("mine_networks:nothing", "returned int: return a torch.nn.Module"),
        ("mine_networks:missing", "is not a function: write module:function"),
        ("no_such_module:net", "cannot be imported"),
    ],
)
def test_modules_that_cannot_be_trained_are_refused(module: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        _ = TorchNetwork(module, 4, 2).shape
    assert "\n" not in str(caught.value)


def test_uncountable_operations_are_refused() -> None:
    with pytest.raises(InputError, match="cannot be counted .*give model.operations"):
        _ = TorchNetwork("mine_networks:Looped", 4, 2).point_macs


def test_losses_and_labels_that_do_not_fit_are_refused() -> None:
    assert chosen_loss("auto", classes=True) == "cross-entropy"
    assert chosen_loss("auto", classes=False) == "squared"
    with pytest.raises(InputError, match="model.loss is 'cross-entropi': did you mean"):
        chosen_loss("cross-entropi", classes=True)
    with pytest.raises(InputError, match="one label column: use 'squared'"):
        TorchNetwork("mlp", 4, 1)
    with pytest.raises(InputError, match="points of 48 numbers.*no image of 7×7×1: give features"):
        _ = TorchNetwork("cnn", 48, 2).shape
    assert TorchNetwork("cnn", 48, 10, image=(4, 4, 3)).parameters == 8 * 76 + 1168 + 170
    network = TorchNetwork("mlp", 4, 3)
    network.check(np.eye(3))
    with pytest.raises(InputError, match="labels are not classes: use 'squared'"):
        network.check(2 * np.eye(3))
    with pytest.raises(InputError, match=r"targets has shape \(3, 2\) and the network 3 outputs"):
        network.check(np.ones((3, 2)))
    TorchNetwork("mlp", 4, 3, "squared").check(2 * np.eye(3))


def test_channels_of_a_pixel_lie_side_by_side() -> None:
    """The first layer sees images whose channels are swapped if those of every pixel are."""
    rng = np.random.default_rng(0)
    network = TorchNetwork("cnn", 8 * 8 * 2, 3, image=(8, 8, 2))
    model, points = network.start(rng), rng.random((2, 8, 8, 2), dtype=np.float32)
    swapped = model.copy()
    swapped[:400] = model[:400].reshape(8, 2, 25)[:, ::-1].ravel()
    np.testing.assert_allclose(
        network.scores(model, points.reshape(2, -1)),
        network.scores(swapped, points[..., ::-1].reshape(2, -1)),
        atol=1e-6,
    )
