"""What a client may answer: the right form, and a gradient that its own parity can explain.

Parity X̆ = G·W·X of u rows says what a gradient should be, up to the error of the sketch: with
residuals r̆ = X̆β − Y̆ its gradient A = X̆ᵀr̆ estimates Σ w²g over the client's points, with variance
(‖X̆‖²‖r̆‖² + ‖A‖²)/u for any code here whose columns have length 1. Points are in random order, so a
load stands for all of them up to a sampling error. An answer that lies further off than a stated
multiple of both errors together is refused.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.federate.collect import Arrival
from codedfedl.federate.node import Arrays
from codedfedl.parity import Parity

__all__ = [
    "Expected",
    "RefusedError",
    "check_distance",
    "checked_gradient",
    "checked_parity",
    "expected_of_all",
    "expected_of_load",
]


class RefusedError(ValueError):
    """An answer that is not taken, and why."""


@dataclass(frozen=True, eq=False)
class Expected:
    """What a gradient should be, and the root mean square of what it may lie off."""

    gradient: npt.NDArray[np.float64]
    error: float


def expected_of_load(
    parity: Parity,
    model: npt.NDArray[Any],
    *,
    points: int,
    load: int,
    return_probability: float,
) -> Expected | None:
    """Say what the paper's parity tells of the gradient over the first `load` of `points`.

    None where it tells nothing: all points are processed and sure to return, so all weigh 0.
    """
    squares = (1 - return_probability) * load + points - load  # Σ w²
    if squares <= 0:
        return None
    sampling = load * (1 - load / points) * (points / squares) ** 2
    return _expected(parity, model, squares, load / squares, sampling)


def expected_of_all(
    parity: Parity, model: npt.NDArray[Any], *, points: int, behind: int, answered: int
) -> Expected:
    """Say what block parity tells of a gradient that stands for all `points`.

    The parity is made of the first `behind` of them, and the gradient of the first `answered`.
    """
    sampling = points**2 * abs(1 / behind - 1 / answered)
    return _expected(parity, model, points, 1.0, sampling)


def _expected(
    parity: Parity, model: npt.NDArray[Any], squares: float, share: float, sampling: float
) -> Expected:
    features, targets = parity.features, parity.targets
    residuals = features @ model - targets
    found = np.asarray(features.T @ residuals, dtype=np.float64)
    lengths = float(np.vdot(features, features)) * float(np.vdot(residuals, residuals))
    sketch = (lengths + float(np.vdot(found, found))) / len(targets)
    # A point's own gradient has the mean square ‖x‖²‖r‖²; both means come from the parity.
    variance = share**2 * sketch + sampling * lengths / squares**2
    unsure = 1 + np.sqrt(2 / len(targets))  # the lengths themselves are estimates from u rows
    return Expected(share * found, float(unsure * np.sqrt(variance)))


def checked_gradient(
    arrival: Arrival, round_: int, shape: tuple[int, int], load: int | None = None
) -> tuple[npt.NDArray[np.float32], int]:
    """Return a gradient and its points, if round, points, shape, type and values are right."""
    facts = arrival.facts
    if facts.get("round") != round_:
        raise RefusedError(f"answers round {facts.get('round')!r}, not {round_}")
    points = facts.get("points")
    if not isinstance(points, int) or isinstance(points, bool) or points < 0:
        raise RefusedError(f"points are {points!r}")
    if load is not None and points != load:
        raise RefusedError(f"processed {points} points, not {load}")
    _check_parts(arrival.arrays, {"gradient"})
    return _checked("gradient", arrival.arrays, shape), points


def checked_parity(
    arrays: Arrays, rows: list[int], features: int, columns: int
) -> dict[str, npt.NDArray[np.float32]]:
    """Return parity if it is what was asked for, no more and no less."""
    shapes = {f"features{b}": (u, features) for b, u in enumerate(rows)}
    shapes |= {f"targets{b}": (u, columns) for b, u in enumerate(rows)}
    _check_parts(arrays, set(shapes))
    return {name: _checked(name, arrays, shape) for name, shape in shapes.items()}


def check_distance(
    gradient: npt.NDArray[np.float32], expected: Expected, tolerance: float
) -> float:
    """Refuse a gradient that its parity cannot explain; return how many errors it lies off."""
    rounding = 1e-4 * float(np.linalg.norm(expected.gradient)) + 1e-12
    off = float(np.linalg.norm(gradient - expected.gradient)) / (expected.error + rounding)
    if off > tolerance:
        raise RefusedError(
            f"gradient lies {off:.3g} times its expected error off the client's parity"
        )
    return off


def _check_parts(arrays: Arrays, expected: set[str]) -> None:
    if set(arrays) != expected:
        raise RefusedError(f"has the parts {sorted(arrays)}, not {sorted(expected)}")


def _checked(name: str, arrays: Arrays, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    array = arrays[name]
    if array.dtype != np.float32:
        raise RefusedError(f"{name} holds {array.dtype}, not float32")
    if array.shape != shape:
        raise RefusedError(f"{name} has shape {array.shape}, not {shape}")
    if not np.isfinite(array).all():
        raise RefusedError(f"{name} is not finite")
    return array
