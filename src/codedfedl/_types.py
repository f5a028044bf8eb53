"""Type aliases for NumPy arrays on the host, by what they hold."""

import numpy as np
import numpy.typing as npt

__all__ = ["FloatArray", "IntArray", "Mask"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
