"""What leaves a client: a scheme declares it, and is compared with those that disclose no more."""

from collections.abc import Collection
from enum import StrEnum


class Disclosure(StrEnum):
    """What anyone but the client sees, the most revealing first.

    Parity and Gram matrices rank alike, and so do a client's gradients, its models, and how many of
    its points have each label.
    """

    RAW = "raw"
    MIXED = "mixed"
    STATISTICS = "statistics"
    GRADIENTS = "gradients"
    MODELS = "models"
    COUNTS = "counts"
    SUMS = "sums"
    DP = "dp"


Disclosed = frozenset[Disclosure]
"""All that a scheme discloses."""

_RANK: dict[str, int] = dict(zip(Disclosure, (4, 3, 3, 2, 2, 2, 1, 0), strict=True))


def discloses_no_more(disclosed: Collection[str], other: Collection[str]) -> bool:
    """Return whether the most revealing of `disclosed` ranks no higher than that of `other`.

    A scheme that declares nothing is assumed to disclose everything.

    Examples
    --------
    >>> discloses_no_more({"gradients"}, {"mixed", "gradients"})
    True
    """
    return _rank(disclosed) <= _rank(other)


def only_private(disclosure: Collection[str]) -> bool:
    """Return whether nothing leaves a client but what differential privacy covers.

    Then nobody else may read the data either: not for a σ, not to calibrate probabilities.
    """
    return set(disclosure) == {Disclosure.DP}


def needs_helper(disclosure: Collection[str]) -> bool:
    """Return whether answers leave a client only as masked sums, which a helper unmasks."""
    return not {Disclosure.SUMS, Disclosure.DP}.isdisjoint(disclosure)


def listed(disclosure: Collection[str]) -> str:
    """Return a disclosure in words, the most revealing first."""
    return ", ".join(sorted(disclosure, key=list(Disclosure).index)) or "not said"  # type: ignore[arg-type]


def _rank(disclosure: Collection[str]) -> int:
    return max((_RANK[kind] for kind in disclosure), default=max(_RANK.values()))
