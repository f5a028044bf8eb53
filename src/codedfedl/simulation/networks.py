"""Gradients of networks, of many clients at once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from codedfedl.arrays import Array, IntArray
from codedfedl.core.gradients import Terms
from codedfedl.core.work import Client

__all__ = ["joined", "summed_gradient"]


def summed_gradient(
    work: Any, model: Array, client: Callable[[int], Client], loads: IntArray
) -> Mapping[str, Array]:
    """Return the sum of the clients' answers to a `PointGradient`: one weighted pass for all."""
    parts: list[Terms] = []
    for j in np.flatnonzero(loads > 0).tolist():
        parts += work.for_client(j).terms(client(j), int(loads[j]))
    return {"gradient": joined(parts).gradient(client(0).learner, model)} if parts else {}


def joined(parts: Sequence[Terms]) -> Terms:
    """Return the points of all parts, each with its weight."""
    xp = array_namespace(parts[0].targets)
    weights = [
        xp.full(part.targets.shape[:1], part.factor, dtype=xp.float32, device=part.targets.device)
        if part.weights is None
        else part.factor * part.weights
        for part in parts
    ]
    columns = ([part.features for part in parts], [part.targets for part in parts], weights)
    features, targets, by_point = (xp.concat(column, axis=0) for column in columns)
    return Terms(features, targets, weights=by_point)
