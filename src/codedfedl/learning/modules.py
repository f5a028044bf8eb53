"""PyTorch modules by name, a few built in, or a user's ``module:function``; their operations.

PyTorch is imported when a module is built, and not before.
"""

import inspect
import re
from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

from codedfedl.errors import InputError
from codedfedl.io.names import member_of, nearest

__all__ = [
    "MODULES",
    "build_module",
    "check_module_name",
    "count_macs",
    "images_layer",
    "import_torch",
]

Module = Any  # torch.nn.Module: PyTorch is an extra
Image = tuple[int, int, int]

HIDDEN_UNITS = 64
SMALL_IMAGE_PIXELS = 16
"""Images with a shorter side are padded by half a kernel, so that two strides leave a pixel."""

MOVES = re.compile(
    r"_?(adaptive_)?(avg|max)_pool[123]d(_with_indices)?|_?(log_)?softmax|native_(group|layer)_norm"
    r"|(new_)?(empty|zeros|ones|full)(_like|_strided)?|(zero|fill|copy)_|arange|linspace|eye"
    r"|scalar_tensor|_to_copy|lift_fresh_copy|clone|cat|stack|flip|roll|repeat|_unsafe_view"
    r"|(re(flection|plication)|constant)_pad(_nd|[123]d)|pixel_(un)?shuffle|select|slice|unfold"
    r"|im2col|col2im|tril|triu|gather|scatter(_add)?|_?(unsafe_)?index(_select|_put)?|embedding"
    r"|embedding_dense|upsample_\w+|sum|mean|prod|amax|amin|max|min|std|var(_mean)?|argmax|topk"
    r"|cumsum|linalg_vector_norm|glu|_prelu_kernel"
)
"""Operations that move, reduce or norm numbers: little work, which is not counted."""


def import_torch() -> Any:
    """Return the package torch, or say how it is installed."""
    try:
        import torch
    except ImportError:
        raise InputError(
            "a network needs the package torch: install it with pip install 'codedfedl[torch]', or "
            "train a linear model"
        ) from None
    return torch


def logistic(inputs: int, outputs: int) -> Module:
    """One linear layer that starts at 0: with cross-entropy, logistic regression."""
    layer = import_torch().nn.Linear(inputs, outputs)
    for parameter in layer.parameters():
        parameter.detach().zero_()
    return layer


def mlp(inputs: int, outputs: int) -> Module:
    """One hidden layer of 64 units."""
    nn = import_torch().nn
    hidden = nn.Linear(inputs, HIDDEN_UNITS)
    return nn.Sequential(hidden, nn.ReLU(), nn.Linear(HIDDEN_UNITS, outputs))


def cnn(inputs: int, outputs: int, image: Image | None = None) -> Module:
    """Two convolutions of stride 2, 5×5 of 8 and 3×3 of 16, and a linear head.

    It has 5,386 parameters on images of 28×28 with ten classes.
    """
    torch = import_torch()
    nn = torch.nn
    height, width, channels = image = _image_shape(inputs, image)
    small = min(height, width) < SMALL_IMAGE_PIXELS
    body = nn.Sequential(
        _pixels_first(image),
        nn.Conv2d(channels, 8, 5, stride=2, padding=2 * small),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1 * small),
        nn.ReLU(),
        nn.Flatten(),
    )
    with torch.no_grad():
        hidden = body(torch.zeros(1, inputs)).shape[1]
    return nn.Sequential(*body, nn.Linear(hidden, outputs))


def _image_shape(inputs: int, image: Image | None) -> Image:
    """Return (height, width, channels): by default a point is a square of one channel."""
    side = round(inputs**0.5)
    shape = (side, side, 1) if image is None else tuple(image)
    if len(shape) != 3 or prod(shape) != inputs:
        raise InputError(
            f"the module 'cnn' gets points of {inputs} numbers, which are no image of "
            f"{'×'.join(map(str, shape))}: give features.image = [height, width, channels], or "
            "choose the module 'mlp'"
        )
    height, width, channels = shape
    return height, width, channels


def _pixels_first(image: Image) -> Module:
    """Return a layer from points, with the channels of a pixel side by side, to images."""
    nn = import_torch().nn
    height, width, channels = image
    if channels == 1:
        return nn.Unflatten(1, (1, height, width))
    return images_layer()(image)


@cache
def images_layer() -> type[Module]:
    """Return the class of the layer that makes points images, with the channels first."""

    class Images(import_torch().nn.Module):  # type: ignore[misc]
        def __init__(self, image: Image) -> None:
            super().__init__()
            self.image = image

        def forward(self, points: Any) -> Any:
            return points.reshape(-1, *self.image).permute(0, 3, 1, 2)

    return Images


MODULES: dict[str, Callable[..., Module]] = {"logistic": logistic, "mlp": mlp, "cnn": cnn}
"""Every module that comes with the package."""


def check_module_name(name: str) -> None:
    """Refuse a name that is neither of `MODULES` nor ``module:function``; it imports nothing."""
    if name not in MODULES and ":" not in name:
        hint = nearest(name, list(MODULES))
        raise InputError(f"model.module is {name!r}: {hint}; or name your own as module:function")


def build_module(name: str, inputs: int, outputs: int, image: Image | None = None) -> Module:
    """Build one of `MODULES`, or a user's, and refuse layers that federated gradients cannot have.

    A user's function, or a subclass of ``torch.nn.Module``, is called with those of `inputs`,
    `outputs` and `image` that it names as parameters; its module takes points of shape
    (n, inputs), and returns outputs of shape (n, outputs).
    """
    check_module_name(name)
    torch = import_torch()
    builder = MODULES.get(name) or member_of(name, "the module")
    if not callable(builder):
        raise InputError(f"the module {name!r} is not a function: write module:function")
    settings = {"inputs": inputs, "outputs": outputs, "image": image}
    wanted = inspect.signature(builder).parameters
    module = builder(**{key: settings[key] for key in wanted if key in settings})
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"{name!r} returned {type(module).__name__}: return a torch.nn.Module")
    _check_layers(name, module)
    return module.eval()


def _check_layers(name: str, module: Module) -> None:
    """Refuse layers whose output for a point depends on other points, or on chance."""
    layers = import_torch().nn.modules
    for path, layer in module.named_modules():
        where = f"the module {name!r} has the layer {type(layer).__name__} ({path})"
        if isinstance(layer, layers.batchnorm._NormBase) and (
            isinstance(layer, layers.batchnorm._BatchNorm) or layer.track_running_stats
        ):
            raise InputError(
                f"{where}, whose statistics over a batch cannot be summed over clients: use "
                "torch.nn.GroupNorm"
            )
        if isinstance(layer, layers.dropout._DropoutNd) and layer.p > 0:
            raise InputError(
                f"{where}, which draws at random, so that nobody can repeat a gradient: leave it "
                "out, and use training.ridge against overfitting"
            )


def count_macs(name: str, compute: Callable[[], Any]) -> float:
    """Return the multiply-accumulates of a computation: half of what PyTorch counts.

    Matrix products, convolutions and attention are counted; what works on each number by itself is
    not. Anything else is refused, since its work is unknown.

    Parameters
    ----------
    name
        The module, for the error.
    """
    torch = import_torch()
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode, flop_registry

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            known = op._overloadpacket in flop_registry or op.is_view
            plain = re.sub("_backward(_data)?$", "", op._overloadpacket.__name__)
            moves = op.namespace == "aten" and MOVES.fullmatch(plain)
            if not (known or moves or torch.Tag.pointwise in op.tags):
                raise InputError(
                    f"the operations of the module {name!r} cannot be counted ({op} is unknown): "
                    "give model.operations, the multiply-accumulates of one point's gradient"
                )
            return op(*args, **(kwargs or {}))

    with FlopCounterMode(display=False) as counter, Watch():
        compute()
    return float(counter.get_total_flops()) / 2
