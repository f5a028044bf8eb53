"""What a client may answer: the right form, and a gradient that its own parity can explain.

Parity X̆ = G·W·X of u rows says what a gradient should be, up to the error of the sketch: with
residuals r̆ = X̆β − Y̆ its gradient A = X̆ᵀr̆ estimates Σ w²g over the client's points, with variance
(‖X̆‖²‖r̆‖² + ‖A‖²)/u for any code here whose columns have length 1. Points are in random order, so a
load stands for all of them up to a sampling error. An answer that lies further off than a stated
multiple of both errors together is refused.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from codedfedl.core.client import BlockParity, Embedded, Gradient, Parity
from codedfedl.core.protocol import Task
from codedfedl.core.work import Work
from codedfedl.federate.transport import Arrays, Arrival, printable
from codedfedl.learning import parity
from codedfedl.learning.features import FeatureMap

__all__ = [
    "Bounds",
    "Evidence",
    "Expected",
    "Expecting",
    "RefusedError",
    "check_distance",
    "checked_answer",
    "expected_of_all",
    "expected_of_load",
]

_ROUNDING = 1e-4  # of float32 sums, relative
_ROWS_AT_ONCE = 4096


class RefusedError(ValueError):
    """An answer that is not taken, and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(printable(reason))


@dataclass(frozen=True)
class Bounds:
    """What features and labels that are known to be bounded allow; ∞ where they are not.

    A Fourier feature vector has ‖x‖² ≤ 2, and a one-hot label ‖y‖² = 1.
    """

    squared_features: float = np.inf
    squared_targets: float = np.inf

    @classmethod
    def of(cls, features: FeatureMap, classes: bool) -> "Bounds":
        """Return those of a feature map, and of classes or regression."""
        return cls(features.largest_square, 1.0 if classes else np.inf)

    def check_gradient(
        self, gradient: npt.NDArray[np.float32], model: npt.NDArray[Any], points: int
    ) -> None:
        """Refuse what no `points` points can add up to: ‖Σ xrᵀ‖ ≤ Σ ‖x‖(‖x‖‖β‖ + ‖y‖)."""
        longest = np.sqrt(self.squared_features)
        each = longest * (longest * _norm(model) + np.sqrt(self.squared_targets))
        if not _norm(gradient) <= points * each * (1 + _ROUNDING):
            raise RefusedError(f"gradient is longer than {points} points can make it")

    def check_parity(
        self, arrays: Mapping[str, npt.NDArray[np.float32]], points: int, tolerance: float
    ) -> None:
        """Refuse rows that are longer than `points` points of weight 1 at most can make them."""
        limits = {"features": self.squared_features, "targets": self.squared_targets}
        for name, array in arrays.items():
            spread = 1 + tolerance * np.sqrt(2 / len(array))  # the code's own chance
            limit = limits[name.rstrip("0123456789")] * points * spread
            if not _norm(array) ** 2 <= limit:
                raise RefusedError(f"{name} of parity is longer than {points} points can make it")


@dataclass(frozen=True, eq=False)
class Expected:
    """What a gradient should be, and the root mean square of what it may lie off."""

    gradient: npt.NDArray[np.float64]
    error: float


def expected_of_load(
    parity: parity.Parity,
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
    parity: parity.Parity, model: npt.NDArray[Any], *, points: int, behind: int
) -> Expected:
    """Say what block parity of the first `behind` points tells of a gradient that stands for all.

    The gradient is over as many points or more.
    """
    sampling = points**2 * (1 / behind - 1 / points)  # at most: over all points
    return _expected(parity, model, points, 1.0, sampling)


def _expected(
    parity: parity.Parity, model: npt.NDArray[Any], squares: float, share: float, sampling: float
) -> Expected:
    features, targets = parity.features, parity.targets
    residuals = features @ model - targets
    found = np.asarray(features.T @ residuals, dtype=np.float64)
    lengths = (_norm(features) * _norm(residuals)) ** 2
    sketch = (lengths + _norm(found) ** 2) / len(targets)
    # A point's own gradient has the mean square ‖x‖²‖r‖²; both means come from the parity.
    variance = share**2 * sketch + sampling * lengths / squares**2
    unsure = 1 + np.sqrt(2 / len(targets))  # the lengths themselves are estimates from u rows
    return Expected(share * found, float(unsure * np.sqrt(variance)))


class Evidence:
    """What the clients' own parity, sent in the set-up, says of their later answers.

    Parameters
    ----------
    stored
        Returns the parity of a client and mini-batch; None where there is none.
    behind
        Returns from how many points a client's parity was made.
    """

    def __init__(
        self,
        task: Task,
        stored: Callable[[int, int], parity.Parity | None],
        behind: Callable[[int], int],
    ) -> None:
        self.task, self._stored, self._behind = task, stored, behind
        self.setup: Work | None = None

    def expects(
        self, work: Work, client: int, load: int, model: npt.NDArray[Any]
    ) -> Expected | None:
        """Say what an answer should be; None where nothing is known."""
        made, held = self.setup, int(self.task.held[client])
        if isinstance(work, Gradient) and isinstance(made, Parity):
            weights = made.for_client(client)
            planned = np.asarray(weights.loads)[work.batch]
            found = self._stored(client, work.batch)
            if found is None or planned != load:
                return None
            return expected_of_load(
                found,
                model,
                points=int(self.task.points[work.batch, client]),
                load=load,
                return_probability=float(np.asarray(weights.return_probabilities)[work.batch]),
            )
        if isinstance(work, Embedded) and isinstance(made, BlockParity):
            found = self._stored(client, 0)
            if found is None:
                return None
            return expected_of_all(found, model, points=held, behind=self._behind(client))
        return None


class Expecting:
    """What clients should answer, computed while they are waited for.

    To judge an answer reads a client's parity, which may be large; a deadline has no time for that.

    Parameters
    ----------
    left
        Returns how many seconds are left.
    """

    def __init__(
        self,
        expect: Callable[[int], Expected | None],
        clients: Iterable[int],
        left: Callable[[], float],
    ) -> None:
        self._pool, self._left = ThreadPoolExecutor(1), left
        self._found = {client: self._pool.submit(expect, client) for client in clients}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __getitem__(self, client: int) -> Expected | None:
        """Return what a client should answer; `TimeoutError` where that is not known in time."""
        left = self._left()
        return self._found[client].result(left if np.isfinite(left) else None)


def checked_answer(
    arrival: Arrival, work: Work, task: Task, round_: int, load: int
) -> tuple[dict[str, npt.NDArray[np.float32]], int]:
    """Return an answer's arrays and its points, if all is as the work says.

    Work that lets a client choose its points may be answered for any number up to `load`.
    """
    given, points = _whole(arrival.facts, "round"), _whole(arrival.facts, "points")
    if given != round_:
        raise RefusedError(f"answers round {given}, not {round_}")
    chosen = type(work).load is not Work.load
    if chosen and not 0 <= points <= load:
        raise RefusedError(f"stands for {points} points where the client has {load}")
    if not chosen and points != load:
        raise RefusedError(f"processed {points} points, not {load}")
    shapes = work.shapes(task, points) if points or not chosen else {}
    if shapes is None:  # a kind of work that is not ours
        return {name: _checked(name, arrival.arrays, None) for name in arrival.arrays}, points
    _check_parts(arrival.arrays, set(shapes))
    return {name: _checked(name, arrival.arrays, shape) for name, shape in shapes.items()}, points


def check_distance(
    gradient: npt.NDArray[np.float32], expected: Expected, tolerance: float
) -> float:
    """Refuse a gradient that its parity cannot explain; return how many errors it lies off."""
    rounding = _ROUNDING * _norm(expected.gradient) + 1e-12
    off = _norm(gradient - expected.gradient) / (expected.error + rounding)
    if not off <= tolerance or not np.isfinite(expected.error):
        raise RefusedError(
            f"gradient lies {off:.3g} times its expected error off the client's parity"
        )
    return off


def _whole(facts: Mapping[str, Any], name: str) -> int:
    """Return a whole number; nothing else that somebody sends is ever written out."""
    value = facts.get(name)
    if type(value) is not int or abs(value) > 2**53:
        raise RefusedError(f"{name} is not a whole number of points or rounds")
    return value


def _norm(array: npt.NDArray[Any]) -> float:
    """Return the Frobenius norm in float64, a few thousand rows at a time."""
    squares = 0.0
    for start in range(0, len(array), _ROWS_AT_ONCE):
        rows = np.asarray(array[start : start + _ROWS_AT_ONCE], dtype=np.float64)
        squares += float(np.vdot(rows, rows))
    return float(np.sqrt(squares))


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
