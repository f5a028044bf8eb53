"""What nodes claim about themselves, and how far a claim counts: a claim acts as a weight.

A node's points weight its answers, and its label columns set the size of everybody's model. What
the operator states takes precedence. Otherwise points count up to a cap C, the largest for which
the fifth of the nodes with most points weighs no more than a third of all,

    Σ_{i ≤ k} min(c_i, C) ≤ ⅓·(S + Σ_i min(c_i, C)),  k = ⌊n/5⌋,

where c_1 ≥ c_2 ≥ … are the claims and S is the sum of the points that the operator states. For ten
nodes, of which two claim more than eight equal ones, C is twice what these claim. Fewer than five
nodes have no such minority. No claim counts for more than `heaviest` times the median either.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from codedfedl.arrays import IntArray
from codedfedl.learning.codes import LEAST_MIXING
from codedfedl.runs.config import FederationConfig

__all__ = ["advice_on_claims", "counted_points", "unbelieved"]

_ALWAYS = 100  # label columns that cost nobody much
_MINORITY = 5  # one in so many nodes may lie
_OTHERS = 2  # times the weight of that minority, which the others have at least


def unbelieved(
    greeted: Mapping[int, Mapping[str, Any]], config: FederationConfig
) -> dict[int, str]:
    """Return the nodes whose claims are not believed, and why."""
    if not greeted:
        return {}
    columns = _median([int(facts["columns"]) for facts in greeted.values()])
    widest = config.classes or max(_ALWAYS, config.heaviest * columns)
    doubted = {}
    for node, facts in greeted.items():
        name, claimed = facts["name"], facts["points"]
        stated = config.points.get(name)
        if stated is not None and claimed != stated:
            doubted[node] = f"{name} has {claimed} points where federation.points says {stated}"
        elif facts["columns"] > widest:
            limit = f"where federation.classes is {config.classes}"
            if config.classes is None:
                limit = f"which is many more than the median of {columns}: say federation.classes"
            doubted[node] = f"{name} says that it has {facts['columns']} label columns, {limit}"
    return doubted


def counted_points(claims: Mapping[str, int], config: FederationConfig) -> list[int]:
    """Return how many of the points that each node claims count, in their order."""
    stated = sum(points for name, points in claims.items() if name in config.points)
    others = np.array([points for name, points in claims.items() if name not in config.points])
    most = int(config.heaviest * _median(list(claims.values())))
    if (minority := len(claims) // _MINORITY) and len(others):
        most = min(most, _cap(np.sort(others)[::-1], stated, minority))
    most = max(most, LEAST_MIXING)  # a node answers for no fewer
    return [
        points if name in config.points else min(points, most) for name, points in claims.items()
    ]


def _cap(claims: IntArray, stated: int, minority: int) -> int:
    """Return the largest C that keeps the minority's weight within its share, by bisection.

    The excess is convex in C as far as the largest claim, and not above 0 at C = 0.
    """

    def fits(cap: int) -> bool:
        counted = np.minimum(claims, cap)
        return bool(_OTHERS * counted[:minority].sum() <= stated + counted[minority:].sum())

    low, high = int(claims[-1]), int(claims[0])
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def advice_on_claims(names: Sequence[str], claims: Sequence[int], counted: Sequence[int]) -> str:
    """Return what to do about claims that do not count in full; empty if all do."""
    members = zip(names, claims, counted, strict=True)
    capped = [(name, claim, points) for name, claim, points in members if points < claim]
    if not capped:
        return ""
    each = ", ".join(f"{points} of {claim} of {name}" for name, claim, points in capped)
    table = ", ".join(f"{name} = {claim}" for name, claim, _ in capped)
    return (
        f"points that count: {each}, so that no fifth of the nodes outweighs the others; if they "
        f"have so many, say federation.points = {{ {table} }}"
    )


def _median(claims: Sequence[int]) -> int:
    """Return the lower median, which one of two nodes cannot raise."""
    return sorted(claims)[(len(claims) - 1) // 2]
