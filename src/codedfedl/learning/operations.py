"""How many multiply-accumulates a computation in PyTorch has: its own count of operations."""

import re
from collections.abc import Callable
from typing import Any

from codedfedl.errors import InputError
from codedfedl.learning.modules import import_torch

__all__ = ["count_macs"]

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
