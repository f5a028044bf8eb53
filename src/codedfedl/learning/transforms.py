"""Transforms of a gradient that compose to a server optimiser, after optax's ``chain``."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

from array_api_compat import array_namespace

from codedfedl.arrays import Array
from codedfedl.errors import InputError


class Transform(ABC):
    """A rule that turns a gradient into another direction, with a memory."""

    @abstractmethod
    def apply(self, gradient: Array, memory: Any) -> tuple[Array, Any]:
        """Return the direction, and what is remembered; the memory is None at first."""


@dataclass(frozen=True)
class Trace(Transform):
    """Heavy-ball momentum."""

    decay: float = 0.9

    def __post_init__(self) -> None:
        _check_share("decay", self.decay)

    def apply(self, gradient: Array, memory: Any) -> tuple[Array, Any]:
        """Remember m = γ·m + g, and go along it."""
        trace = gradient if memory is None else self.decay * memory + gradient
        return trace, trace


class _Moments(NamedTuple):
    mean: Array
    square: Array
    steps: int


@dataclass(frozen=True)
class Adaptive(Transform):
    """Adam and Yogi: every number is scaled by the root of its mean square.

    Parameters
    ----------
    decay, square_decay
        β₁ and β₂, of the means of g and of g².
    floor
        ε, which is added to the root.
    additive
        Yogi: the mean square moves by (1 − β₂)·g² at most, towards g².
    corrected
        Whether both means are divided by 1 − βᵗ, since they start at 0. The rules FedAdam and
        FedYogi of Reddi et al. (2021) do not, with β₂ = 0.99 and ε = 0.001.
    """

    decay: float = 0.9
    square_decay: float = 0.999
    floor: float = 1e-8
    additive: bool = False
    corrected: bool = True

    def __post_init__(self) -> None:
        _check_share("decay", self.decay)
        _check_share("square_decay", self.square_decay)
        if not self.floor > 0:
            raise InputError(f"floor is {self.floor:g}: must be above 0")

    def apply(self, gradient: Array, memory: Any) -> tuple[Array, Any]:
        """m/(√v + ε)."""
        xp = array_namespace(gradient)
        mean, square, steps = memory or _Moments(0 * gradient, 0 * gradient, 0)
        squared, steps = gradient * gradient, steps + 1
        mean = self.decay * mean + (1 - self.decay) * gradient
        towards = squared - square
        moved = xp.sign(towards) * squared if self.additive else towards
        square = square + (1 - self.square_decay) * moved
        known = [1 - share**steps for share in (self.decay, self.square_decay)]
        first, second = known if self.corrected else (1.0, 1.0)
        direction = (mean / first) / (xp.sqrt(square / second) + self.floor)
        return direction, _Moments(mean, square, steps)


def _check_share(name: str, share: float) -> None:
    if not 0 <= share < 1:
        raise InputError(f"{name} is {share:g}: must be at least 0 and below 1")
