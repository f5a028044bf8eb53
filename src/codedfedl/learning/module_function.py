"""A PyTorch module as a function of its trainable parameters: one copy of it, or many at once.

Copies of a sequential module run together, each with parameters and points of its own. Points have
shape (k, m, d) for m copies. Between layers, images have shape (k, m·channels, height, width), so
that a convolution of all copies is one with m groups.
"""

from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from threading import Lock
from typing import Any

from codedfedl.errors import InputError
from codedfedl.learning.modules import images_layer, import_torch

__all__ = [
    "ModuleFunction",
    "checked_function",
    "convolution_of_all",
    "sequential_layers",
    "stacked_outputs",
    "unfolded_convolution",
]

Tensor = Any  # torch.Tensor: PyTorch is an extra
Layer = Any  # torch.nn.Module

ELEMENTWISE = (
    "ReLU",
    "LeakyReLU",
    "ELU",
    "GELU",
    "SiLU",
    "Sigmoid",
    "Softplus",
    "Tanh",
    "Identity",
)
POOLS = ("AvgPool2d", "MaxPool2d", "AdaptiveAvgPool2d")
SHAPES = ("Flatten", "Images", "Unflatten")
TRAINED = ("Linear", "Conv2d", "GroupNorm")


def sequential_layers(module: Layer) -> list[Layer] | None:
    """Return the layers of a module if they run one after another, and each can be stacked."""
    layers = list(_flattened(module))
    kinds = {*ELEMENTWISE, *POOLS, *SHAPES, *TRAINED}
    known = all(
        type(layer) in (images_layer(), getattr(import_torch().nn, type(layer).__name__, None))
        and type(layer).__name__ in kinds
        and _is_plain(layer)
        for layer in layers
    )
    parameters = list(module.parameters())
    alone = len(parameters) == sum(len(list(layer.parameters())) for layer in layers)
    trained = all(parameter.requires_grad for parameter in parameters)
    return layers if known and alone and trained else None


def _flattened(module: Layer) -> Iterator[Layer]:
    if type(module) is not import_torch().nn.Sequential:
        yield module
        return
    for layer in module:
        yield from _flattened(layer)


def _is_plain(layer: Layer) -> bool:
    """Whether a layer has no setting that the stacked one lacks."""
    kind = type(layer).__name__
    if layer._forward_hooks or layer._forward_pre_hooks:
        return False
    if kind == "Conv2d":
        padded = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return layer.groups == 1 and padded
    if kind == "Flatten":
        return (layer.start_dim, layer.end_dim) == (1, -1)
    if kind == "Unflatten":
        return layer.dim == 1 and len(layer.unflattened_size) == 3
    return True


def stacked_outputs(layers: Sequence[Layer], parts: Sequence[Tensor], points: Tensor) -> Tensor:
    """Run m copies, with parameters of shape (m, …), on points (k, m, d); returns (k, m, c)."""
    k, copies = points.shape[:2]
    remaining = iter(parts)
    values = points
    for layer in layers:
        kind = type(layer).__name__
        trained = [next(remaining) for _ in layer.parameters()]
        if kind == "Linear":
            values = _linear(values, *trained)
        elif kind == "Conv2d":
            values = _convolved(layer, values, *trained)
        elif kind == "GroupNorm":
            values = _normed(layer, values, copies, *trained)
        elif kind == "Unflatten":
            channels, *sides = layer.unflattened_size
            values = values.reshape(k, copies * channels, *sides)
        elif kind == "Images":
            height, width, channels = layer.image
            turned = values.reshape(k, copies, *layer.image).permute(0, 1, 4, 2, 3)
            values = turned.reshape(k, copies * channels, height, width)
        elif kind == "Flatten":
            values = values.reshape(k, copies, -1)
        else:
            values = layer(values)
    return values


def _linear(values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """XWᵀ + b of every copy."""
    torch = import_torch()
    rows, turned = values.transpose(0, 1), weight.transpose(1, 2)
    if bias is None:
        return torch.bmm(rows, turned).transpose(0, 1)
    return torch.baddbmm(bias[:, None], rows, turned).transpose(0, 1)


def _normed(layer: Layer, values: Tensor, copies: int, *trained: Tensor) -> Tensor:
    """Normalise the groups of every copy."""
    norm, groups = import_torch().nn.functional.group_norm, copies * layer.num_groups
    joined = values if values.dim() == 4 else values.reshape(len(values), -1)
    made = norm(joined, groups, *(part.reshape(-1) for part in trained), eps=layer.eps)
    return made.reshape(values.shape)


def _convolved(layer: Layer, values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve the images of every copy: on a GPU, groups are slow."""
    many_on_gpu = values.is_cuda and len(weight) > 1
    way = unfolded_convolution if many_on_gpu else convolution_of_all
    return way(layer, values, weight, bias)


def convolution_of_all(layer: Layer, values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve with as many groups as copies; weights have shape (m, out, in, rows, columns)."""
    joined = None if bias is None else bias.reshape(-1)
    settings = (layer.stride, layer.padding, layer.dilation, len(weight))
    return _grouped().apply(values, weight.flatten(0, 1), joined, settings)


def unfolded_convolution(
    layer: Layer, values: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Convolve by cutting patches and one batched product."""
    torch = import_torch()
    (m, out), k = weight.shape[:2], len(values)
    down, across = layer.padding
    values = torch.nn.functional.pad(values, (across, across, down, down))
    for axis in (2, 3):  # a patch's rows, then its columns, become the last axes
        size, gap = layer.kernel_size[axis - 2], layer.dilation[axis - 2]
        values = values.unfold(axis, gap * (size - 1) + 1, layer.stride[axis - 2])[..., ::gap]
    *_, height, width, rows, columns = values.shape
    patches = values.reshape(k, m, -1, height, width, rows, columns)
    patches = patches.permute(1, 2, 5, 6, 0, 3, 4).reshape(m, -1, k * height * width)
    made = torch.bmm(weight.flatten(2), patches)
    if bias is not None:
        made = made + bias[..., None]
    return made.reshape(m * out, k, height, width).transpose(0, 1)


@cache
def _grouped() -> Any:
    """Return a convolution with groups whose slope by its inputs always has groups.

    On processors that slope takes four times as long without groups: the points of a single copy
    are split in two halves, each a group.
    """
    torch = import_torch()
    convolve, slopes = torch.nn.functional.conv2d, torch.nn.grad

    class Grouped(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Any, settings: Any) -> Tensor:
            ctx.save_for_backward(images, weight)
            ctx.settings = settings
            return convolve(images, weight, bias, *settings)

        @staticmethod
        def backward(ctx: Any, above: Tensor) -> tuple[Any, ...]:
            images, weight = ctx.saved_tensors
            by_images, by_weight, by_bias, _ = ctx.needs_input_grad
            return (
                _by_images(images.shape, weight, above, ctx.settings) if by_images else None,
                slopes.conv2d_weight(images, weight.shape, above, *ctx.settings)
                if by_weight
                else None,
                above.sum((0, 2, 3)) if by_bias else None,
                None,
            )

    def _by_images(shape: Any, weight: Tensor, above: Tensor, settings: Any) -> Tensor:
        *geometry, groups = settings
        if groups > 1 or shape[0] < 2 or above.is_cuda:
            return slopes.conv2d_input(shape, weight, above, *settings)
        even = shape[0] + shape[0] % 2
        padded = torch.nn.functional.pad(above, (0, 0) * 3 + (0, even - shape[0]))
        halves = padded.reshape(even // 2, 2 * above.shape[1], *above.shape[2:])
        made = slopes.conv2d_input(
            (even // 2, 2 * shape[1], *shape[2:]), weight.repeat(2, 1, 1, 1), halves, *geometry, 2
        )
        return made.reshape(even, *shape[1:])[: shape[0]]

    return Grouped


class ModuleFunction:
    """The outputs of a module for points of shape (k, d), as a function of its parameters.

    Parameters that require no gradient are fixed, and so are buffers. `layers` are those of a
    sequential module of which many copies can run at once.
    """

    def __init__(self, module: Any, inputs: int) -> None:
        trained = {name: part for name, part in module.named_parameters() if part.requires_grad}
        fixed = [*module.named_parameters(), *module.named_buffers()]
        self.module, self.inputs = module, inputs
        self.shapes = {name: tuple(part.shape) for name, part in trained.items()}
        self.sizes = tuple(part.numel() for part in trained.values())
        self._fixed = {name: part.detach() for name, part in fixed if name not in trained}
        self.layers = sequential_layers(module)
        self._lock = Lock()  # a functional call exchanges the parameters of the module

    def trained(self) -> list[Tensor]:
        """Return the parameters that the module was built with."""
        return [self.module.get_parameter(name) for name in self.shapes]

    def split(self, flat: Tensor) -> list[Tensor]:
        """Cut arrays of shape (…, p) into the parameters, with those first axes, as views."""
        return [
            part.view(*flat.shape[:-1], *shape)
            for part, shape in zip(flat.split(self.sizes, -1), self.shapes.values(), strict=True)
        ]

    def outputs(self, parts: Sequence[Tensor], points: Tensor) -> Tensor:
        """Run one copy on points, shape (k, d)."""
        fixed = {name: part.to(points.device) for name, part in self._fixed.items()}
        trained = dict(zip(self.shapes, parts, strict=True))
        with self._lock:
            call = import_torch().func.functional_call
            return call(self.module, {**fixed, **trained}, (points,))

    def many_outputs(self, parts: Sequence[Tensor], points: Tensor) -> Tensor:
        """Run m copies on points of shape (k, m, d), with parameters of shape (m, …)."""
        if self.layers is not None:
            return stacked_outputs(self.layers, parts, points)
        if points.shape[1] == 1:
            return self.outputs([part[0] for part in parts], points[:, 0])[:, None]
        together = import_torch().func.vmap(self.outputs, in_dims=(0, 1), out_dims=1)
        return together(list(parts), points)

    @cached_property
    def runs_together(self) -> bool:
        """Whether copies can run at once; ``vmap`` has no rule for recurrent layers, for one."""
        torch = import_torch()
        flat = torch.zeros(2, sum(self.sizes))
        try:
            self.many_outputs(self.split(flat), torch.zeros(1, 2, self.inputs))
        except RuntimeError:
            return False
        return True


def checked_function(name: str, module: Any, inputs: int, outputs: int) -> ModuleFunction:
    """Return a module's function; refuse one that cannot be trained, or that couples points."""
    torch, what = import_torch(), f"the module {name!r}"
    function = ModuleFunction(module, inputs)
    if not function.sizes:
        raise InputError(f"{what} has no parameter to train: build layers that require gradients")
    points = torch.rand(2, inputs, generator=torch.Generator().manual_seed(0))
    try:
        with torch.enable_grad():
            pair, single = module(points), module(points[:1])
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{what} does not take points of shape (n, {inputs}) ({reason}): a module for images "
            "begins with torch.nn.Unflatten(1, (channels, height, width))"
        ) from None
    if not isinstance(pair, torch.Tensor) or pair.shape != (2, outputs):
        given = tuple(pair.shape) if isinstance(pair, torch.Tensor) else type(pair).__name__
        raise InputError(f"{what} returns {given} for 2 points: return one of shape (2, {outputs})")
    if not pair.requires_grad:
        raise InputError(f"{what} has outputs without a gradient: remove detach and no_grad")
    if not torch.isfinite(pair).all():
        raise InputError(
            f"{what} returns numbers that are not finite for points from 0 to 1, at the parameters "
            "that it draws: no step would train it"
        )
    if not torch.allclose(pair[:1], single, rtol=1e-3, atol=1e-4):
        raise InputError(
            f"{what} returns for a point what depends on other points or on chance: normalise "
            "each point by itself, as torch.nn.GroupNorm does, and draw nothing"
        )
    if function.layers is not None and not _stacks(function, points, pair):
        function.layers = None
    return function


def _stacks(function: ModuleFunction, points: Tensor, expected: Tensor) -> bool:
    """Whether the stacked layers compute what the module does, two copies of it."""
    torch = import_torch()
    parts = [part.detach()[None].repeat(2, *[1] * part.dim()) for part in function.trained()]
    try:
        made = function.many_outputs(parts, points[:, None].repeat(1, 2, 1))
    except RuntimeError:
        return False
    return bool(torch.allclose(made, expected[:, None].expand_as(made), rtol=1e-3, atol=1e-4))
