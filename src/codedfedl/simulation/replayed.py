"""Operations that are captured once on a CUDA device, and replayed.

There, beginning an operation takes the host longer than a small one takes the device.
"""

from collections.abc import Callable
from typing import Any

from array_api_compat import device, is_torch_array

from codedfedl.arrays import Array

__all__ = ["Replayed"]


class Replayed:
    """A function of arrays, which is recorded the first time that arrays of some shapes come.

    Elsewhere than on a CUDA device of PyTorch it is called as it is. What it returns is overwritten
    by the next call.

    Parameters
    ----------
    function
        Without side effects, of arrays on one device, to one array. Whatever else it uses must stay
        where it is.
    """

    def __init__(self, function: Callable[..., Array]) -> None:
        self.function = function
        self._recorded: dict[tuple[tuple[int, ...], ...], tuple[Any, list[Array], Array]] = {}

    def __call__(self, *arrays: Array) -> Array:
        """Return the function's value."""
        if not is_torch_array(arrays[0]) or device(arrays[0]).type != "cuda":
            return self.function(*arrays)
        key = tuple(tuple(one.shape) for one in arrays)
        if key not in self._recorded:
            self._recorded[key] = self._record([one.clone() for one in arrays])
        graph, inputs, output = self._recorded[key]
        for own, given in zip(inputs, arrays, strict=True):
            own.copy_(given)
        graph.replay()
        return output

    def _record(self, inputs: list[Array]) -> tuple[Any, list[Array], Array]:
        import torch

        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries prepare themselves in the first calls
            for _ in range(2):
                self.function(*inputs)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = self.function(*inputs)
        return graph, inputs, output
