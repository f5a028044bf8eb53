"""Points that are made when they are needed, for data that do not fit in memory."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Rows"]


class Rows(ABC):
    """A matrix of float32, shape (n, d), of which only the rows asked for ever exist.

    The same row is the same numbers whenever it is asked for. `Dataset` takes it for its training
    points; nobody checks that the numbers are finite.
    """

    dtype = np.dtype(np.float32)

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Points, and numbers of each."""

    @abstractmethod
    def __getitem__(self, rows: Any) -> npt.NDArray[np.float32]:
        """Return some rows: a slice, or an array of numbers."""

    def __len__(self) -> int:
        return self.shape[0]
