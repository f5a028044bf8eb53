"""What nodes claim about themselves, and which claims are accepted: a claim acts as a weight.

A node's points weight its answers, and its label columns set the size of everybody's model. What
the operator states takes precedence; otherwise a claim may be at most some times the median, so
that no single node dominates the model.
"""

from collections.abc import Mapping
from typing import Any

from codedfedl.runs.config import FederationConfig

__all__ = ["unbelieved"]

_ALWAYS = 100  # label columns that cost nobody much


def unbelieved(
    greeted: Mapping[int, Mapping[str, Any]], config: FederationConfig
) -> dict[int, str]:
    """Return the nodes whose claims are not believed, and why."""
    if not greeted:
        return {}
    points, columns = (_median(greeted, key) for key in ("points", "columns"))
    widest = config.classes or max(_ALWAYS, config.heaviest * columns)
    found = {}
    for node, facts in greeted.items():
        name, claimed = facts["name"], facts["points"]
        stated = config.points.get(name)
        if stated is not None and claimed != stated:
            found[node] = f"{name} has {claimed} points where federation.points says {stated}"
        elif stated is None and claimed > config.heaviest * points:
            found[node] = (
                f"{name} says that it has {claimed} points, more than {config.heaviest:g} times "
                f"the median of {points}: if it has, say federation.points = {{{name} = {claimed}}}"
            )
        elif facts["columns"] > widest:
            limit = f"where federation.classes is {config.classes}"
            if config.classes is None:
                limit = f"which is many more than the median of {columns}: say federation.classes"
            found[node] = f"{name} says that it has {facts['columns']} label columns, {limit}"
    return found


def _median(greeted: Mapping[int, Mapping[str, Any]], key: str) -> int:
    """Return the lower median, which one of two nodes cannot raise."""
    claims = sorted(int(facts[key]) for facts in greeted.values())
    return claims[(len(claims) - 1) // 2]
