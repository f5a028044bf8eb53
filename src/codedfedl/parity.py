"""Parity: random linear combinations of weighted features and labels (sections 3.2 and 3.4)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device

from codedfedl.features import Array
from codedfedl.fleet import FloatArray

__all__ = ["Parity", "compose", "encode", "point_weights"]

_SLICE = 1 << 20  # entries of a code that exist at one time


@dataclass(frozen=True, eq=False)
class Parity:
    """X̆, shape (u, q), and Y̆, shape (u, c)."""

    features: Array
    targets: Array


def point_weights(points: int, load: int, return_probability: float) -> FloatArray:
    """Weigh a client's points: √P(no return) for the `load` that it processes, 1 for the others."""
    weights = np.ones(points)
    weights[:load] = np.sqrt(1 - return_probability)
    return weights


def encode(
    features: Array, targets: Array, weights: FloatArray, rows: int, code: np.random.Generator
) -> Parity:
    """G·W·X̂ and G·W·Y of one client, with G of `rows` × points drawn from N(0, 1/rows).

    The code is drawn a slice of columns at a time and never kept.

    Parameters
    ----------
    code
        The client's private stream; whoever has it can undo the mixing.
    """
    xp, where = array_namespace(features), device(features)
    total = None
    width = max(1, _SLICE // rows)
    for start in range(0, features.shape[0], width):
        part = slice(start, min(start + width, features.shape[0]))
        draws = code.standard_normal((rows, part.stop - start), dtype=np.float32)
        draws *= (weights[part] / np.sqrt(rows)).astype(np.float32)
        slice_of_code = xp.asarray(draws, device=where)
        mixed = Parity(slice_of_code @ features[part], slice_of_code @ targets[part])
        total = mixed if total is None else compose([total, mixed])
    assert total is not None
    return total


def compose(parities: Sequence[Parity]) -> Parity:
    """Return the composite parity, the sum over clients (eq. parityX)."""
    first, *others = parities
    features, targets = first.features, first.targets
    for parity in others:
        features, targets = features + parity.features, targets + parity.targets
    return Parity(features, targets)
