"""Settings that several schemes have.

`drop` is ψ, the share of the slowest clients that a round does not wait for.
"""

from math import ceil, inf

from codedfedl.core.protocol import Scheme
from codedfedl.core.waiting import Fastest
from codedfedl.errors import InputError


def check_positive(scheme: Scheme, *names: str) -> None:
    """Refuse settings that are given and not finite and above 0."""
    for name in names:
        value = getattr(scheme, name)
        if value is not None and not 0 < value < inf:
            raise InputError(f"{scheme.info.name}.{name} is {value:g}: must be finite and above 0")


def check_at_least_1(scheme: Scheme, *names: str) -> None:
    """Refuse settings below 1."""
    for name in names:
        if getattr(scheme, name) < 1:
            value = getattr(scheme, name)
            raise InputError(f"{scheme.info.name}.{name} is {value}: must be at least 1")


def check_drop(scheme: str, drop: float) -> None:
    """Refuse a share that is none, or that leaves nobody."""
    if not 0 <= drop < 1:
        raise InputError(f"{scheme}.drop is {drop:g}: must be at least 0 and below 1")


def all_but_slowest(drop: float, clients: int) -> Fastest:
    """Wait for the fastest ⌈(1 − ψ)·n⌉: no more than the share ψ is dropped.

    Examples
    --------
    >>> all_but_slowest(0.25, 10)
    Fastest(count=8)
    """
    return Fastest(max(1, ceil((1 - drop) * clients - 1e-9)))
