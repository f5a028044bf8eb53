"""Products of large matrices with a few columns, shared by the threads of the linear algebra.

The library copies the operands of a large product into blocks of its own, which pays where it uses
every number hundreds of times. Here that is ten to sixty times. OpenBLAS copies nothing below a
million multiplications, and then works in one thread; so products are cut into panels of that size,
and each thread takes panels of its own. `matrix @ columns` is the naive twin.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

__all__ = ["Crew", "times", "transposed_times"]

_MULTIPLICATIONS = 1_000_000  # in a panel
_ROWS = 4  # a panel has a multiple of so many; where not even those fit, copying pays
_WORTH_A_THREAD = 20_000_000  # multiplications: it takes a while to wake up

Matrix = npt.NDArray[Any]
T = TypeVar("T")


def times(matrix: Matrix, columns: Matrix, out: Matrix | None = None) -> Matrix:
    """Return matrix @ columns, shape (rows, c)."""
    rows, c = len(matrix), columns.shape[1]
    out = np.empty((rows, c), dtype=columns.dtype) if out is None else out
    size = _panel(columns.size)
    whole = rows // size * size if size else 0
    if whole:
        panels = matrix[:whole].reshape(-1, size, matrix.shape[1])
        np.matmul(panels, columns, out=out[:whole].reshape(-1, size, c))
    if whole < rows:
        np.matmul(matrix[whole:], columns, out=out[whole:])
    return out


def transposed_times(matrix: Matrix, columns: Matrix) -> Matrix:
    """Return matrix.T @ columns, shape (columns of the matrix, c)."""
    (inner, rows), c = matrix.shape, columns.shape[1]
    out = np.empty((rows, c), dtype=columns.dtype)
    size = _panel(columns.size)
    whole = rows // size * size if size else 0
    if whole:
        panels = matrix[:, :whole].reshape(inner, -1, size).transpose(1, 2, 0)
        np.matmul(panels, columns, out=out[:whole].reshape(-1, size, c))
    if whole < rows:
        np.matmul(matrix[:, whole:].T, columns, out=out[whole:])
    return out


def _panel(multiplications: int) -> int:
    """Return the rows of a panel, each of which takes so many multiplications; 0: no panels."""
    return _MULTIPLICATIONS // max(multiplications, 1) // _ROWS * _ROWS


class Crew:
    """Threads that share work, as many as the linear algebra has."""

    def __init__(self) -> None:
        self._library = ThreadpoolController().select(user_api="blas")
        self.threads = max((one["num_threads"] for one in self._library.info()), default=1)
        self._others = ThreadPoolExecutor(max(self.threads - 1, 1))

    def each(self, tasks: Sequence[Callable[[], T]], multiplications: int) -> list[T]:
        """Do every task, and return what they found; together they take so many multiplications.

        Whoever is free takes the next one, so the last ones should be short.
        """
        others = min(self.threads, len(tasks)) - 1
        if others < 1 or multiplications < _WORTH_A_THREAD:
            return [task() for task in tasks]
        found: list[Any] = [None] * len(tasks)
        left = deque(enumerate(tasks))

        def work() -> None:
            while True:
                try:
                    place, task = left.popleft()
                except IndexError:
                    return
                found[place] = task()

        with self._library.limit(limits=1):
            helpers = [self._others.submit(copy_context().run, work) for _ in range(others)]
            work()
            for helper in helpers:
                helper.result()
        return found
