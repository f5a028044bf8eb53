"""`TorchNetwork`: any differentiable PyTorch module as a learner, its parameters one flat array."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from functools import cached_property
from threading import Lock
from typing import Any, ClassVar

import numpy as np
from array_api_compat import is_numpy_array

from codedfedl.arrays import Array
from codedfedl.errors import InputError
from codedfedl.io.names import nearest
from codedfedl.learning.learner import Learner
from codedfedl.learning.modules import build_module, check_module_name, import_torch
from codedfedl.learning.operations import count_macs

__all__ = ["LOSSES", "TorchNetwork", "chosen_loss"]

Tensor = Any  # torch.Tensor: PyTorch is an extra

ROWS_AT_ONCE = 512
"""Points of a pass on a processor: their activations stay in a core's cache."""
ROWS_AT_ONCE_ON_GPU = 1 << 15
SKELETON_SEED = 0
"""Draws what is built and not trained: the frozen parameters of a module, if it has some."""

LOSSES = ("cross-entropy", "squared")
"""−Σ_c y_c·log softmax(s)_c, and ½‖s − y‖²."""


def chosen_loss(name: str, *, classes: bool) -> str:
    """Return the loss that "auto" stands for: cross-entropy for classes, else squared."""
    if name == "auto":
        return "cross-entropy" if classes else "squared"
    if name not in LOSSES:
        raise InputError(f"model.loss is {name!r}: {nearest(name, ['auto', *LOSSES])}")
    return name


@dataclass(frozen=True)
class TorchNetwork(Learner):
    """A PyTorch module with a loss; a model is its trainable parameters, shape (p,), in float32.

    The module is run in evaluation mode, a point at a time as far as its outputs can tell. With
    the same arrays it returns the same bits on the same device; two devices round differently.

    Parameters
    ----------
    module
        One of `MODULES`, or a user's ``module:function`` (see `build_module`).
    inputs, outputs
        Numbers of a point, and of its target.
    objective
        One of `LOSSES`.
    image
        (height, width, channels) of a point, for modules that ask for it.
    operations
        Multiply-accumulates of one point's gradient, if stated; they are counted otherwise.
    """

    module: str
    inputs: int
    outputs: int
    objective: str = "cross-entropy"
    image: tuple[int, int, int] | None = None
    operations: int | None = None

    quadratic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_module_name(self.module)
        for name in ("inputs", "outputs"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}: a network needs at least 1")
        chosen_loss(self.objective, classes=True)
        if self.objective == "cross-entropy" and self.outputs < 2:
            raise InputError(
                "model.loss is 'cross-entropy' and the data have one label column: use 'squared', "
                "or data with classes"
            )
        if self.operations is not None and self.operations < 1:
            raise InputError(f"model.operations is {self.operations}: must be at least 1")

    def __getstate__(self) -> dict[str, Any]:
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @property
    def shape(self) -> tuple[int, ...]:
        """(p,)."""
        return (sum(self._network.sizes),)

    @property
    def tensor_sizes(self) -> tuple[int, ...]:
        """Numbers of each of the module's parameters."""
        return tuple(self._network.sizes)

    @cached_property
    def point_macs(self) -> float:
        """What PyTorch counts for one point, forward and backward to the parameters, halved."""
        if self.operations is not None:
            return float(self.operations)
        torch = import_torch()
        point, target = torch.zeros(1, self.inputs), torch.zeros(1, self.outputs)
        model = torch.zeros(self.shape)
        return count_macs(self.module, lambda: self._slope(model, point, target, None))

    def start(self, rng: np.random.Generator) -> Array:
        """Return the parameters that the module draws, in float32."""
        module = self._build(int(rng.integers(2**63)))
        return _flat([part for part in module.parameters() if part.requires_grad]).numpy()

    def scores(self, model: Array, features: Array) -> Array:
        """Return the module's outputs, shape (k, c)."""
        torch = import_torch()
        flat, points = _tensors(model, features)
        with torch.no_grad(), _deterministic(flat):
            parts = [
                self._network.outputs(self._network.split(flat), points[rows])
                for rows in _row_slices(points)
            ]
        made = torch.cat(parts) if parts else flat.new_zeros(0, self.outputs)
        return _like(made, model)

    def loss(self, model: Array, features: Array, targets: Array) -> float:
        """Return Σ_i ℓ_i."""
        scores, wanted = _tensors(self.scores(model, features), targets)
        return float(self._losses(scores, wanted).sum())

    def gradient(
        self, model: Array, features: Array, targets: Array, weights: Array | None = None
    ) -> Array:
        """Σ_i w_i·∇ℓ_i: one pass forward and backward for all points."""
        flat, points, wanted, *scale = _tensors(
            model, features, targets, *([] if weights is None else [weights])
        )
        total = flat.new_zeros(flat.shape)
        with _deterministic(flat):
            for rows in _row_slices(points):
                part = scale[0][rows] if scale else None
                total += self._slope(flat, points[rows], wanted[rows], part)
        return _like(total, model)

    def steps(self, model: Array, features: Array, targets: Array, **settings: Any) -> Array:
        """Return the model after local steps, as `Learner.steps` does."""
        flat, points, wanted = _tensors(model, features, targets)
        return _like(super().steps(flat, points, wanted, **settings), model)

    def check(self, targets: Array) -> None:
        """Refuse targets that the loss cannot be taken of."""
        given = np.asarray(targets)
        if given.ndim != 2 or given.shape[1] != self.outputs:
            raise InputError(
                f"targets has shape {given.shape} and the network {self.outputs} outputs: give a "
                "column for each"
            )
        if self.objective == "squared":
            return
        if (given < 0).any() or not np.allclose(given.sum(axis=1), 1, atol=1e-3):
            raise InputError(
                "model.loss is 'cross-entropy' and the labels are not classes: use 'squared'"
            )

    def _losses(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return ℓ_i, shape (k,)."""
        if self.objective == "squared":
            return ((scores - targets) ** 2).sum(-1) / 2
        return -(targets * scores.log_softmax(-1)).sum(-1)

    def _slope(self, flat: Tensor, points: Tensor, targets: Tensor, weights: Any) -> Tensor:
        """Σ_i w_i·∇ℓ_i of points that go through the module together."""
        parts = [part.detach().requires_grad_() for part in self._network.split(flat)]
        losses = self._losses(self._network.outputs(parts, points), targets)
        total = losses.sum() if weights is None else losses @ weights
        slopes = import_torch().autograd.grad(
            total, parts, allow_unused=True, materialize_grads=True
        )
        return _flat(slopes)

    def _build(self, seed: int) -> Any:
        """Build the module, with its draws from a seed and none from PyTorch's own stream."""
        torch = import_torch()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build_module(self.module, self.inputs, self.outputs, self.image)

    @cached_property
    def _network(self) -> "_Network":
        network = _Network(self._build(SKELETON_SEED))
        _check_outputs(self, network)
        return network


class _Network:
    """A module as a function of its trainable parameters."""

    def __init__(self, module: Any) -> None:
        trained = {name: part for name, part in module.named_parameters() if part.requires_grad}
        fixed = [*module.named_parameters(), *module.named_buffers()]
        self.module = module
        self.shapes = {name: tuple(part.shape) for name, part in trained.items()}
        self.sizes = [part.numel() for part in trained.values()]
        self.fixed = {name: part.detach() for name, part in fixed if name not in trained}
        self._lock = Lock()  # a functional call exchanges the parameters of the module

    def split(self, flat: Tensor) -> list[Tensor]:
        """Cut a flat array into the parameters, as views."""
        parts = flat.split(self.sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes.values(), strict=True)]

    def outputs(self, parts: Sequence[Tensor], points: Tensor) -> Tensor:
        """Run the module on points, shape (k, d), with these parameters."""
        call = import_torch().func.functional_call
        fixed = {name: _to_same(part, points) for name, part in self.fixed.items()}
        trained = dict(zip(self.shapes, parts, strict=True))
        with self._lock:
            return call(self.module, {**fixed, **trained}, (points,))


def _check_outputs(learner: TorchNetwork, network: _Network) -> None:
    """Refuse a module that cannot be trained on such points, or couples the points of a batch."""
    torch, name = import_torch(), f"the module {learner.module!r}"
    if not network.sizes:
        raise InputError(f"{name} has no parameter to train: build layers that require gradients")
    points = torch.rand(2, learner.inputs, generator=torch.Generator().manual_seed(SKELETON_SEED))
    try:
        with torch.enable_grad():
            pair, single = network.module(points), network.module(points[:1])
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{name} does not take points of shape (n, {learner.inputs}) ({reason}): a module for "
            "images begins with torch.nn.Unflatten(1, (channels, height, width))"
        ) from None
    if not isinstance(pair, torch.Tensor) or pair.shape != (2, learner.outputs):
        given = tuple(pair.shape) if isinstance(pair, torch.Tensor) else type(pair).__name__
        raise InputError(
            f"{name} returns {given} for 2 points: return one of shape (2, {learner.outputs})"
        )
    if not pair.requires_grad:
        raise InputError(f"{name} has outputs without a gradient: remove detach and no_grad")
    if not torch.allclose(pair[:1], single, rtol=1e-3, atol=1e-4, equal_nan=True):
        raise InputError(
            f"{name} returns for a point what depends on other points or on chance: normalise "
            "each point by itself, as torch.nn.GroupNorm does, and draw nothing"
        )


def _tensors(model: Array, *arrays: Array) -> tuple[Tensor, ...]:
    """Return arrays as tensors of the model's precision, on the model's device."""
    torch = import_torch()
    flat = model if isinstance(model, torch.Tensor) else _from_host(model)
    moved = [entry if isinstance(entry, torch.Tensor) else _from_host(entry) for entry in arrays]
    return (flat.detach(), *(_to_same(entry, flat) for entry in moved))


def _from_host(array: Array) -> Tensor:
    if not is_numpy_array(array):
        raise InputError(
            f"a network is given an array of {type(array).__module__.partition('.')[0]}: use "
            "--device cpu, torch or cuda"
        )
    held = np.ascontiguousarray(array)
    return import_torch().from_numpy(held if held.flags.writeable else held.copy())


def _to_same(tensor: Tensor, other: Tensor) -> Tensor:
    """Move a tensor to another's device, floating point to its precision too."""
    kind = other.dtype if tensor.is_floating_point() else None
    return tensor.to(other.device, kind)


def _like(tensor: Tensor, model: Array) -> Array:
    """Return NumPy's array where the model is one."""
    return tensor.numpy() if is_numpy_array(model) else tensor


def _flat(parts: Iterable[Tensor]) -> Tensor:
    return import_torch().cat([part.detach().reshape(-1) for part in parts])


def _row_slices(points: Tensor) -> Iterator[slice]:
    """Yield the points that go through the module together."""
    count = ROWS_AT_ONCE_ON_GPU if points.is_cuda else ROWS_AT_ONCE
    return (slice(start, start + count) for start in range(0, len(points), count))


def _deterministic(flat: Tensor) -> AbstractContextManager[Any]:
    """Choose convolutions on a GPU that return the same bits each time, in full precision."""
    if not flat.is_cuda:
        return nullcontext()
    cudnn = import_torch().backends.cudnn
    chosen: AbstractContextManager[Any] = cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )
    return chosen
