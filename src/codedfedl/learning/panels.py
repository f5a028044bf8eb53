"""Products of large matrices with a few columns, shared by the threads of the linear algebra.

The library copies the operands of a large product into blocks of its own, which pays where it uses
every number hundreds of times. Here that is ten to sixty times. OpenBLAS copies nothing below a
million multiplications, and then works in one thread; so products are cut into panels of that size,
and each thread takes panels of its own. `matrix @ columns` is the naive twin.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from contextvars import copy_context
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

__all__ = ["Crew", "times"]

_MULTIPLICATIONS = 1_000_000  # in a panel
_LEAST = 24  # rows of a panel, or the product is cut along its sums too
_MANY = 96  # columns, for which copying pays
_WORTH_A_THREAD = 20_000_000  # multiplications: it takes a while to wake up

Matrix = npt.NDArray[Any]
T = TypeVar("T")


def times(matrix: Matrix, columns: Matrix, out: Matrix | None = None) -> Matrix:
    """Return matrix @ columns, shape (rows, c)."""
    (rows, inner), c = matrix.shape, columns.shape[1]
    if out is None:
        out = np.empty((rows, c), dtype=columns.dtype)
    if c > _MANY or not matrix.size:
        return np.matmul(matrix, columns, out=out)
    cuts = -(-inner * c * _LEAST // _MULTIPLICATIONS)
    step = -(-inner // cuts)
    size = max(_MULTIPLICATIONS // (step * c) // 4, 1) * 4
    whole = rows // size * size
    panels = matrix[:whole].reshape(-1, size, inner), out[:whole].reshape(-1, size, c)
    for some, own in (panels, (matrix[whole:], out[whole:])):
        if own.size:
            np.matmul(some[..., :step], columns[:step], out=own)
            for k in range(step, inner, step):
                np.add(own, some[..., k : k + step] @ columns[k : k + step], out=own)
    return out


class Crew:
    """Threads that share work, as many as the linear algebra has."""

    def __init__(self) -> None:
        self._library = ThreadpoolController().select(user_api="blas")
        self.threads = max((one["num_threads"] for one in self._library.info()), default=1)
        self._others = ThreadPoolExecutor(max(self.threads - 1, 1))

    def alone(self) -> AbstractContextManager[Any]:
        """Give the library one thread for a while, where tasks alternate with its own products.

        Its threads wait for work by looking for it all the time, and so get in the crew's way.
        """
        limit: AbstractContextManager[Any] = self._library.limit(limits=1)
        return limit

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
                try:
                    found[place] = task()
                except BaseException:
                    left.clear()  # nobody begins another one
                    raise

        with self.alone():
            helpers = [self._others.submit(copy_context().run, work) for _ in range(others)]
            try:
                work()
            finally:
                wait(helpers)
        for helper in helpers:
            helper.result()
        return found
