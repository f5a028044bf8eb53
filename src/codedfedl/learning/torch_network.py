"""`TorchNetwork`: any differentiable PyTorch module as a learner, its parameters one flat array."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from array_api_compat import is_numpy_array

from codedfedl.arrays import Array
from codedfedl.errors import InputError
from codedfedl.io.names import nearest
from codedfedl.learning.learner import Learner, batch_rows
from codedfedl.learning.module_function import ModuleFunction, checked_function
from codedfedl.learning.modules import build_module, check_module_name, count_macs, import_torch
from codedfedl.learning.optimisers import step

__all__ = ["LOSSES", "TorchNetwork", "chosen_loss"]

Tensor = Any  # torch.Tensor: PyTorch is an extra

ROWS_AT_ONCE = 512
"""Points of a pass on a processor: their activations stay in a core's cache."""
ROWS_TOGETHER = 320
"""Points of a pass of many models, whose convolutions take more memory."""
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
    def counted_parameters(self) -> int:
        """p, counted without the memory for them: what a file says may be anything."""
        with import_torch().device("meta"):
            module = self._build(SKELETON_SEED)
        return sum(part.numel() for part in module.parameters() if part.requires_grad)

    @property
    def shape(self) -> tuple[int, ...]:
        """(p,)."""
        return (sum(self._function.sizes),)

    @property
    def tensor_sizes(self) -> tuple[int, ...]:
        """Numbers of each of the module's parameters."""
        return self._function.sizes

    @cached_property
    def point_macs(self) -> float:
        """What PyTorch counts for one point, forward and backward to the parameters, halved."""
        if self.operations is not None:
            return float(self.operations)
        torch = import_torch()
        point, target = torch.zeros(1, self.inputs), torch.zeros(1, self.outputs)
        model = torch.zeros(self.shape)
        return count_macs(self.module, lambda: self.gradient(model, point, target))

    @property
    def layers(self) -> list[Any] | None:
        """The layers of a sequential module that can be stacked; None of any other."""
        return self._function.layers

    def split(self, model: Array) -> list[Array]:
        """Return the parameters of a model by themselves, each in its shape."""
        return [_like(part, model) for part in self._function.split(_tensors(model)[0])]

    def start(self, rng: np.random.Generator) -> Array:
        """Return the parameters that the module draws, in float32."""
        module = self._build(int(rng.integers(2**63)))
        parts = [part.reshape(-1) for part in module.parameters() if part.requires_grad]
        return import_torch().cat(parts).detach().numpy()

    def scores(self, model: Array, features: Array) -> Array:
        """Return the module's outputs, shape (k, c)."""
        torch = import_torch()
        flat, points = _tensors(model, features)
        with torch.no_grad(), _deterministic(flat):
            parts = self._function.split(flat)
            made = [self._function.outputs(parts, points[rows]) for rows in _row_slices(points)]
        scores = torch.cat(made) if made else flat.new_zeros(0, self.outputs)
        return _like(scores, model)

    def loss(self, model: Array, features: Array, targets: Array) -> float:
        """Return Σ_i ℓ_i."""
        scores, wanted = _tensors(self.scores(model, features), targets)
        return float(self._losses(scores, wanted).sum())

    def gradient(
        self, model: Array, features: Array, targets: Array, weights: Array | None = None
    ) -> Array:
        """Σ_i w_i·∇ℓ_i: one pass forward and backward for all points."""
        scale = np.ones(len(targets), np.float32) if weights is None else weights
        flat, *data = _tensors(model, features, targets, scale)
        total = flat.new_zeros(flat.shape)
        for rows in _row_slices(data[0]):
            total += self._slopes(flat[None], *(part[rows, None] for part in data))[0]
        return _like(total, model)

    def steps(self, model: Array, features: Array, targets: Array, **settings: Any) -> Array:
        """Return the model after local steps, as `Learner.steps` does."""
        flat, points, wanted = _tensors(model, features, targets)
        return _like(super().steps(flat, points, wanted, **settings), model)

    def many_gradients(
        self,
        models: Array,
        features: Sequence[Array],
        targets: Sequence[Array],
        weights: Sequence[Array] | None = None,
    ) -> Array:
        """Return the gradient of every model at its points: passes of many models at once."""
        if not self._function.runs_together:
            return super().many_gradients(models, features, targets, weights)
        flat, *points = _tensors(models, *features)
        wanted = _tensors(models, *targets)[1:]
        scale = _tensors(models, *(weights or [np.ones(len(part), np.float32) for part in wanted]))
        total = flat.new_zeros(flat.shape)
        for group in _groups([len(part) for part in points], flat):
            if len(group) == 1:
                (j,) = group
                total[j] = self.gradient(flat[j], points[j], wanted[j], scale[1 + j])
                continue
            data = (_padded([parts[j] for j in group]) for parts in (points, wanted, scale[1:]))
            total[group] = self._slopes(flat[group], *data)
        return _like(total, models)

    def many_steps(
        self,
        models: Array,
        features: Sequence[Array],
        targets: Sequence[Array],
        *,
        counts: Sequence[int],
        step_size: float,
        ridge: float,
        batch: int | None = None,
        rngs: Sequence[np.random.Generator | None] | None = None,
        proximal: float = 0.0,
    ) -> Array:
        """Return every model after its local steps: the k-th steps of many models at once."""
        flat = _tensors(models)[0]
        streams = rngs or [None] * len(counts)
        moved = flat.clone()
        rows = [
            batch_rows(len(part), count, batch, rng)
            for part, count, rng in zip(targets, counts, streams, strict=True)
        ]
        for turn in range(max(counts, default=0)):
            active = [j for j, count in enumerate(counts) if turn < count]
            points, wanted = (
                [entry[j][rows[j][turn]] for j in active] for entry in (features, targets)
            )
            means = [np.full(len(part), 1 / max(len(part), 1)) for part in wanted]
            slopes = self.many_gradients(moved[active], points, wanted, means)
            after = step(moved[active], slopes, 1.0, step_size, ridge)
            pull = step_size * proximal * (moved[active] - flat[active]) if proximal else 0.0
            moved[active] = after - pull
        return _like(moved, models)

    def point_gradients(self, model: Array, points: Array, combination: Array, skip: int) -> Array:
        """Return the gradient of f(x)·a at every point, shape (k, p′).

        Parameters
        ----------
        combination : array of shape (c,)
            a.
        skip
            So many of the module's first tensors are left out.
        """
        flat, given, direction = _tensors(model, points, combination)
        tensors, made = self._function.split(flat), []
        for start in range(0, len(given), ROWS_TOGETHER):
            part = given[None, start : start + ROWS_TOGETHER]
            copies = [tensor.expand(part.shape[1], *tensor.shape) for tensor in tensors]
            wanted = [copy.detach().requires_grad_() for copy in copies[skip:]]
            with _deterministic(flat):
                scores = self._function.many_outputs([*copies[:skip], *wanted], part)
                slopes = import_torch().autograd.grad((scores * direction).sum(), wanted)
            made.append(import_torch().cat([slope.flatten(1) for slope in slopes], 1))
        return _like(import_torch().cat(made), model)

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

    def _slopes(self, models: Tensor, points: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return Σ_i w_i·∇ℓ_i of m models, shape (m, p), on points of shape (k, m, d) at once."""
        parts = [part.detach().requires_grad_() for part in self._function.split(models)]
        with _deterministic(models):
            scores = self._function.many_outputs(parts, points)
            total = (self._losses(scores, targets) * weights).sum()
            slopes = import_torch().autograd.grad(
                total, parts, allow_unused=True, materialize_grads=True
            )
        return import_torch().cat([slope.flatten(1) for slope in slopes], 1)

    def _build(self, seed: int) -> Any:
        """Build the module, with its draws from a seed and none from PyTorch's own stream."""
        torch = import_torch()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build_module(self.module, self.inputs, self.outputs, self.image)

    @cached_property
    def _function(self) -> ModuleFunction:
        module = self._build(SKELETON_SEED)
        return checked_function(self.module, module, self.inputs, self.outputs)


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


def _row_slices(points: Tensor) -> Iterator[slice]:
    """Yield the points that go through the module together."""
    count = ROWS_AT_ONCE_ON_GPU if points.is_cuda else ROWS_AT_ONCE
    return (slice(start, start + count) for start in range(0, len(points), count))


def _groups(sizes: Sequence[int], flat: Tensor) -> Iterator[list[int]]:
    """Yield which models go through the module together: of like numbers of points, and so many."""
    most = ROWS_AT_ONCE_ON_GPU if flat.is_cuda else ROWS_TOGETHER
    order = sorted((j for j, size in enumerate(sizes) if size), key=lambda j: -sizes[j])
    while order:
        count = max(1, most // sizes[order[0]])
        yield order[:count]
        order = order[count:]


def _padded(parts: Sequence[Tensor]) -> Tensor:
    """Return arrays of shape (k_j, …) side by side, shape (max k_j, m, …), with zeros below."""
    return import_torch().nn.utils.rnn.pad_sequence(parts)


def _deterministic(flat: Tensor) -> AbstractContextManager[Any]:
    """Choose convolutions on a GPU that return the same bits each time, in full precision."""
    if not flat.is_cuda:
        return nullcontext()
    cudnn = import_torch().backends.cudnn
    chosen: AbstractContextManager[Any] = cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )
    return chosen
