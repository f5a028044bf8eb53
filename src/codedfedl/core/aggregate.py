"""How answers are combined before a scheme sees them.

`SUM` is for schemes that need no single answer: only the sum of all leaves this file, with noise
where the scheme asks for it. `EACH` hands on every answer by itself.
"""

from collections.abc import Mapping
from enum import Enum

import numpy as np

from codedfedl.arrays import Array
from codedfedl.privacy.fixed_point import LEAST_SUMMED, Residues, noise_steps

__all__ = ["EACH", "LEAST_SUMMED", "SUM", "Combine", "RunningSum", "with_noise"]


class Combine(Enum):
    """What a scheme is given of the answers."""

    SUM = "sum"
    EACH = "each"


SUM, EACH = Combine.SUM, Combine.EACH


class RunningSum:
    """A sum of answers, of which one at a time is in memory."""

    def __init__(self) -> None:
        self._totals: dict[str, Array] = {}
        self._own: set[str] = set()  # what no answer refers to, and may be added to in place

    def add(self, arrays: Mapping[str, Array]) -> None:
        """Add an answer."""
        for name, array in arrays.items():
            before = self._totals.get(name)
            if before is None:
                self._totals[name] = array
            elif name in self._own and before.dtype == array.dtype:
                before += array
                self._totals[name] = before
            else:
                self._totals[name] = before + array
                self._own.add(name)

    def result(self) -> dict[str, Array]:
        """Return the sums; empty where nothing was added."""
        return self._totals


def with_noise(total: Residues, sigma: float, rng: np.random.Generator) -> Residues:
    """Return integers modulo 2³² with rounded Gaussian noise."""
    return total + noise_steps(sigma, rng.standard_normal(total.shape))
