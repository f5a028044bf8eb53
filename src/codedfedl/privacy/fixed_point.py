"""Real numbers as integers modulo 2³², so that sums are exact and masks hide them perfectly."""

from dataclasses import dataclass
from math import floor, inf, log2, sqrt

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray
from codedfedl.errors import InputError

__all__ = ["LEAST_SHARE", "LEAST_SUMMED", "MOST_NOISE", "FixedPoint", "Residues", "noise_steps"]

Residues = npt.NDArray[np.uint32]
"""Integers modulo 2³²."""

LEAST_SUMMED = 2
"""A sum over fewer clients would be a single client's own answer, and is not given out."""

LEAST_SHARE = 4.0
"""Least noise share of a client, in steps: with less, rounded shares reveal more than their sum."""

MOST_NOISE = 2.0**27
"""Largest standard deviation of noise, in steps: its draws, at most 8.3 times that, do not wrap."""

_HALF = 2.0**31
_MOST_STEPS = 2.0**50  # beyond, draws of noise would not fit into 64 bits


def noise_steps(sigma: float, normal: FloatArray) -> Residues:
    """Return standard normal numbers as noise of a standard deviation, in whole steps.

    Rounding the noise is the same as rounding after the noise was added: the sum is a whole number,
    so round(sum + noise) is sum + round(noise).
    """
    if not 0 <= sigma <= _MOST_STEPS:
        raise InputError(f"noise of {sigma:g} steps: must lie between 0 and {_MOST_STEPS:g}")
    return np.asarray(np.rint(sigma * normal).astype(np.int64).astype(np.uint32))


@dataclass(frozen=True)
class FixedPoint:
    """Numbers as multiples of 1/`scale`, rounded to the nearest one.

    Parameters
    ----------
    scale
        Integers a unit. A power of two, so that scaling itself rounds nothing.

    Notes
    -----
    With s for the scale and n summands:

    | quantity | bound |
    | --- | --- |
    | rounding error of a number, of a sum | 1/(2s), n/(2s) |
    | largest sum that cannot wrap around | (2³¹ − 1 − n/2)/s |
    | distance of two rounded vectors of d numbers | that of the vectors, and √d/s |

    Wrapping spoils a result but reveals nothing: it is done to what is already private.
    """

    scale: float

    def __post_init__(self) -> None:
        if not 0 < self.scale < inf or not log2(self.scale).is_integer():
            raise InputError(f"scale is {self.scale!r}: must be a power of two, such as 2.0**15")

    @classmethod
    def for_sums(cls, largest: float, summands: int) -> "FixedPoint":
        """Return the finest resolution at which no sum wraps around.

        Parameters
        ----------
        largest
            No number of the exact sum, noise included, is larger than this.
        """
        room = _HALF - 1 - summands / 2
        if not 0 < largest < inf:
            raise InputError(f"largest is {largest!r}: must be finite and above 0")
        if summands < 1 or room <= 0:
            raise InputError(f"summands is {summands}: must lie between 1 and 2^32 - 4")
        return cls(2.0 ** floor(log2(room / largest)))

    def largest_sum(self, summands: int) -> float:
        """Return how large a number of the exact sum may be without wrapping around."""
        return (_HALF - 1 - summands / 2) / self.scale

    def rounding(self, summands: int = 1) -> float:
        """Return the largest rounding error of each number in a sum."""
        return summands / (2 * self.scale)

    def distance(self, exact: float, numbers: int) -> float:
        """Return how far apart two rounded vectors are at most, in the Euclidean norm.

        Rounding moves the difference of two numbers by less than one step of 1/`scale`.

        Parameters
        ----------
        exact
            The distance before they are rounded.
        numbers
            Length of the vectors.
        """
        return exact + sqrt(numbers) / self.scale

    def encode(self, values: npt.ArrayLike) -> Residues:
        """Return the numbers as integers modulo 2³².

        It never fails, since a failure would reveal something about the data: what does not fit is
        cut off at the largest number there is, and NaN is 0.
        """
        steps = np.rint(np.asarray(values, dtype=np.float64) * self.scale)
        inside = np.clip(np.nan_to_num(steps, posinf=_HALF, neginf=-_HALF), 1 - _HALF, _HALF - 1)
        return np.asarray(inside.astype(np.int64).astype(np.uint32))

    def decode(self, residues: Residues) -> FloatArray:
        """Return the numbers between −2³¹/`scale` and 2³¹/`scale` that the integers stand for."""
        return residues.astype(np.uint32).view(np.int32).astype(np.float64) / self.scale
