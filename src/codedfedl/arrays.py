"""Arrays on the host and on a device, and the types of those on the host."""

from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device, is_cupy_array, is_numpy_array, is_torch_array

from codedfedl.errors import InputError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Array = Any  # an array of NumPy, PyTorch or CuPy


def to_device(array: npt.NDArray[Any], name: str) -> Array:
    """Put a host array on a device: ``cpu``, ``torch`` (PyTorch there), ``cuda`` or ``cupy``."""
    array = np.ascontiguousarray(array)
    if name == "cpu":
        return array
    if name not in ("torch", "cupy") and name.partition(":")[0] != "cuda":
        raise InputError(f"--device {name} is unknown: use cpu, torch, cuda or cupy")
    try:
        if name == "cupy":
            import cupy

            return cupy.asarray(array)
        import torch
    except ImportError as error:
        raise InputError(f"--device {name} needs the package {error.name}: install it") from None
    try:
        return torch.asarray(array, device="cpu" if name == "torch" else name)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"--device {name} cannot be used: {reason}; use --device cpu") from None


def asarray_like(array: npt.NDArray[Any], other: Array) -> Array:
    """Put a host array where another one is."""
    if is_numpy_array(other):
        return array
    return array_namespace(other).asarray(array, device=device(other))


def to_host(array: Array) -> npt.NDArray[Any]:
    """Bring an array to the host."""
    if is_cupy_array(array):
        return np.asarray(array.get())
    return np.asarray(array.cpu() if is_torch_array(array) else array)
