"""What nodes say of themselves, and how much of it is believed: a claim is a weight.

Points weigh a node's answers, and label columns size everybody's model. What the operator states
counts; otherwise a claim may be some times the median, so that no single node owns the model.
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
    """Return the lower median, which a node among two cannot move up."""
    claims = sorted(int(facts[key]) for facts in greeted.values())
    return claims[(len(claims) - 1) // 2]
