"""How many threads the linear algebra has: another number gives other last digits."""

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_info, threadpool_limits

from codedfedl.arrays import to_device

__all__ = ["limited", "set_threads", "usable_threads"]


def usable_threads() -> int | None:
    """Return how many threads a product has in this process; None: its library does not say."""
    libraries = [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
    return max(libraries, default=None)


def set_threads(threads: int | None, device: str) -> None:
    """Give the linear algebra of this process so many threads, from now on; None changes nothing.

    Parameters
    ----------
    device
        Its library is loaded first: one that is loaded later would not be limited.
    """
    _load(device)
    if threads is not None:
        threadpool_limits(threads)


@contextmanager
def limited(threads: int | None, device: str) -> Iterator[None]:
    """Give the linear algebra so many threads for a while; None changes nothing."""
    _load(device)
    with threadpool_limits(threads):
        yield


def _load(device: str) -> None:
    import numpy as np
    import scipy.linalg  # noqa: F401

    to_device(np.zeros(1), device)
