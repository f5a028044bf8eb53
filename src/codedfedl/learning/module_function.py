"""A PyTorch module as a function of its trainable parameters: one copy of it, or many at once."""

from collections.abc import Sequence
from functools import cached_property
from threading import Lock
from typing import Any

from codedfedl.errors import InputError
from codedfedl.learning.modules import import_torch
from codedfedl.learning.stacked import sequential_layers, stacked_outputs

__all__ = ["ModuleFunction", "checked_function"]

Tensor = Any  # torch.Tensor: PyTorch is an extra


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
