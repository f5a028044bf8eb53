"""Parity: a client's weighted points, mixed by a code (section 3.2 and 3.4)."""

from dataclasses import dataclass

import numpy as np

from codedfedl.arrays import Array, FloatArray
from codedfedl.learning.codes import GAUSSIAN, Code


@dataclass(frozen=True, eq=False)
class ParityRows:
    """X̆, shape (u, q), and Y̆, shape (u, c)."""

    features: Array
    targets: Array


def point_weights(points: int, load: int, return_probability: float) -> FloatArray:
    """Weigh a client's points: √P(no return) for the `load` that it processes, 1 for the others."""
    weights = np.ones(points)
    weights[:load] = np.sqrt(1 - return_probability)
    return weights


def evenness(weights: FloatArray) -> float:
    """Return Σw²/(k·max w²) of k weights: 1 if all are equal, 1/k if one point has all weight.

    k times this many points of equal weight would hide a point as well. Weights that are all 0 mix
    nothing, and count as equal.
    """
    largest = float(np.max(weights, initial=0.0)) ** 2
    return float(np.sum(weights**2)) / (len(weights) * largest) if largest else 1.0


def encode(
    features: Array,
    targets: Array,
    weights: FloatArray,
    rows: int,
    rng: np.random.Generator,
    code: Code = GAUSSIAN,
) -> ParityRows:
    """G·W·X̂ and G·W·Y of one client, with G of `rows` × points from its private stream."""
    return ParityRows(*code.mix((features, targets), weights, rows, rng))
