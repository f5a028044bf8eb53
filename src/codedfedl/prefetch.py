"""Results that are computed a little before their use."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def prefetch(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Apply a function to all items and yield the results in order, computing one ahead.

    For example, the next client's code is drawn while the current client's points are multiplied.
    At most two results are in memory.
    """
    with ThreadPoolExecutor(2) as pool:
        ahead: deque[Future[Result]] = deque()
        for item in items:
            ahead.append(pool.submit(function, item))
            if len(ahead) == 2:
                yield ahead.popleft().result()
        for last in ahead:
            yield last.result()
