"""Checks of a client's answer: it has the right form, and is no larger than its points allow."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import Array
from codedfedl.core.protocol import Task
from codedfedl.core.work import Work
from codedfedl.errors import InputError
from codedfedl.federate.node.schema import MAX_NUMBER
from codedfedl.federate.transport import Arrays, Arrival, printable

_ROUNDING = 1e-4  # of float32 sums, relative
_NUMBERS_AT_ONCE = 1 << 20
_UNKNOWN = 2**28  # bytes of an answer whose work does not declare its shapes


class RefusedError(ValueError):
    """An answer that is not taken, and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(printable(reason))


@dataclass(frozen=True)
class NormBounds:
    """Bounds on the norms of features and labels; ∞ where there is none.

    A Fourier feature vector has ‖x‖² ≤ 2, and a one-hot label ‖y‖² = 1.
    """

    squared_features: float = np.inf
    squared_targets: float = np.inf

    @classmethod
    def of(cls, largest_square: float, classes: bool) -> "NormBounds":
        """Return those of a feature map, by its longest vector, and of classes or regression."""
        return cls(largest_square, 1.0 if classes else np.inf)

    def check_gradient(
        self, gradient: npt.NDArray[np.float32], model: npt.NDArray[Any], points: float
    ) -> None:
        """Refuse what no `points` points can add up to: ‖Σ xrᵀ‖ ≤ Σ ‖x‖(‖x‖‖β‖ + ‖y‖).

        Without bounds on both features and labels there is none on a gradient.
        """
        if np.isinf(self.squared_features) or np.isinf(self.squared_targets):
            return
        longest = np.sqrt(self.squared_features)
        each = longest * (longest * norm(model) + np.sqrt(self.squared_targets))
        if not norm(gradient) <= points * each * (1 + _ROUNDING):
            raise RefusedError(f"gradient is longer than {points:g} points allow")

    def check_parity(
        self,
        arrays: Mapping[str, npt.NDArray[np.float32]],
        squares: Sequence[float],
        tolerance: float,
    ) -> None:
        """Refuse rows longer than the client's points allow with their weights.

        Labels of known length also give a lower bound.

        Parameters
        ----------
        squares
            Σ w² over the points of every mini-batch.
        """
        limits = {"features": self.squared_features, "targets": self.squared_targets}
        for name, array in arrays.items():
            kind = name.rstrip("0123456789")
            spread = 1 + tolerance * np.sqrt(2 / len(array))  # randomness of the code
            if not np.isfinite(limits[kind]):
                continue
            length, expected = norm(array) ** 2, squares[int(name.removeprefix(kind))]
            if not length <= limits[kind] * expected * spread:
                raise RefusedError(f"{name} of parity is longer than the client's points allow")
            if kind == "targets" and not length >= limits[kind] * expected / spread**2:
                raise RefusedError(f"{name} of parity is shorter than the client's points allow")


def check_sent(model: npt.NDArray[np.float32], task: Task, round_: int) -> None:
    """End a run whose model no node would take."""
    if not (np.abs(model) <= MAX_NUMBER).all():
        raise InputError(
            f"after round {round_} the model has numbers beyond {MAX_NUMBER:g}, or not finite: "
            "start again with another --out and a shorter step, such as "
            f"{0.1 * task.schedule.step:g} for training.step, or the scheme's own"
        )


def answer_bytes(work: Work, task: Task) -> int:
    """Return how many bytes an answer has: float32 numbers of the shapes that the work says."""
    shapes = work.shapes(task, int(task.held.max()))
    if shapes is None:
        return _UNKNOWN
    return max(1, 4 * sum(math.prod(shape) for shape in shapes.values()))


def checked_answer(
    arrival: Arrival, work: Work, task: Task, round_: int, load: int, model: Array = None
) -> tuple[dict[str, npt.NDArray[np.float32]], int]:
    """Return an answer's arrays and its points, if they match the work.

    Work that lets a client choose its points may be answered for any number up to `load`.

    Parameters
    ----------
    model
        That it is about, of which a packed answer may tell the difference.
    """
    given, points = whole(arrival.facts, "round"), whole(arrival.facts, "points")
    if given != round_:
        raise RefusedError(f"answers round {given}, not {round_}")
    if work.elastic and not 0 <= points <= load:
        raise RefusedError(f"stands for {points} points where the client has {load}")
    if not work.elastic and points != load:
        raise RefusedError(f"processed {points} points, not {load}")
    shapes = work.shapes(task, points) if points or not work.elastic else {}
    if shapes is None:  # a kind of work that is not ours
        return {name: _checked(name, arrival.arrays, None) for name in arrival.arrays}, points
    if work.once and points and not shapes:  # whoever has too few points says 0
        raise RefusedError(f"sends nothing for {points} points")
    _check_parts(arrival.arrays, set(shapes))
    try:
        arrays = dict(work.unpacked(arrival.arrays, points, model))
    except InputError as error:
        raise RefusedError(str(error)) from None
    return {name: _checked(name, arrays, shape) for name, shape in shapes.items()}, points


def whole(facts: Mapping[str, Any], name: str) -> int:
    """Return a whole number; no other value from a client ever appears in a message."""
    value = facts.get(name)
    if type(value) is not int or abs(value) > 2**53:
        raise RefusedError(f"{name} is not a whole number of points or rounds")
    return value


def norm(array: npt.NDArray[Any]) -> float:
    """Return the Frobenius norm in float64, some rows at a time."""
    squares, at_once = 0.0, max(1, _NUMBERS_AT_ONCE // max(array[:1].size, 1))
    for start in range(0, len(array), at_once):
        rows = np.asarray(array[start : start + at_once], dtype=np.float64)
        squares += float(np.vdot(rows, rows))
    return float(np.sqrt(squares))


def low_median(values: Sequence[float]) -> float:
    """Return the lower of the two middle values: one of two clients cannot raise it."""
    return sorted(values)[(len(values) - 1) // 2]


def _check_parts(arrays: Arrays, expected: set[str]) -> None:
    if set(arrays) != expected:
        named = ", ".join(sorted(arrays)[:5]) or "nothing"
        raise RefusedError(f"consists of {named}, not of {', '.join(sorted(expected))}")


def _checked(name: str, arrays: Arrays, shape: tuple[int, ...] | None) -> npt.NDArray[np.float32]:
    array = arrays[name]
    if array.dtype not in (np.float32, np.float16):
        raise RefusedError(f"{name} holds {array.dtype}, not float32")
    if shape is not None and array.shape != shape:
        raise RefusedError(f"{name} has shape {array.shape}, not {shape}")
    if not np.isfinite(array).all():
        raise RefusedError(f"{name} is not finite")
    return array.astype(np.float32, copy=False)
