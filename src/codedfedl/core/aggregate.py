"""How answers are combined before a scheme sees them.

`SUM` is for schemes that do not need individual answers: only their sum leaves this module, with
noise if the scheme asks for it. `EACH` passes on every answer separately.
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
    """A running sum that holds one answer at a time in memory."""

    def __init__(self) -> None:
        self._totals: dict[str, Array] = {}
        self._own: set[str] = set()  # arrays that no answer refers to: safe to update in place

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
