"""Answers in the wrong form: every way in which an honest one can be spoilt."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.federate.transport import Answered

Spoil = Callable[[np.random.Generator, Answered], Answered]
"""Returns a malformed answer in place of an honest one that has arrays."""

NO_NUMBERS: tuple[Any, ...] = (
    *(None, True, "many", "\ud800", 0.5, np.nan, [], {}, {"a": [1]}),
    *(10**400, -(2**60)),
)
DTYPES = ("f8", "i4", "u4", "c8", "?", "U3", "S2", ">f4", "M8[s]", "V4", "f4,i4")
NAMES = ("", "Gradient", "\ud800", "../gradient", "x" * 10_000, "gradient\n", "features9")


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def _facts(rng: np.random.Generator, answer: Answered) -> Answered:
    key = str(rng.choice(["round", "points"]))
    wrong = [*NO_NUMBERS, _nested(int(rng.integers(1, 950))), -7, 10**9]
    return {**answer[0], key: wrong[rng.integers(len(wrong))]}, answer[1]


def _without(rng: np.random.Generator, answer: Answered) -> Answered:
    key = str(rng.choice(["round", "points"]))
    return {name: value for name, value in answer[0].items() if name != key}, answer[1]


def _other_array(change: Callable[[np.random.Generator, Any], Any]) -> Spoil:
    def spoil(rng: np.random.Generator, answer: Answered) -> Answered:
        name = str(rng.choice(sorted(answer[1])))
        return answer[0], {**answer[1], name: change(rng, answer[1][name])}

    return spoil


def _dtype(rng: np.random.Generator, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    others = [dtype for dtype in DTYPES if np.dtype(dtype) != array.dtype]
    return np.zeros(array.shape, dtype=others[rng.integers(len(others))])


def _shape(rng: np.random.Generator, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    wrong = [array[:-1], array[None], array[:0], np.float32(1.0), np.concatenate([array, array])]
    return np.asarray(wrong[rng.integers(len(wrong))], dtype=array.dtype)


def _not_finite(rng: np.random.Generator, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    spoilt = np.array(array, dtype=np.float32)
    spoilt.ravel()[rng.integers(spoilt.size)] = rng.choice([np.nan, np.inf, -np.inf])
    return spoilt


def _names(rng: np.random.Generator, answer: Answered) -> Answered:
    (_, array), *others = answer[1].items()
    name = NAMES[rng.integers(len(NAMES))]
    wrong = [{name: array, **dict(others)}, {**answer[1], name: array}, {}, dict(others)]
    return answer[0], wrong[rng.integers(len(wrong))]


SPOILS: dict[str, Spoil] = {
    "facts": _facts,
    "without": _without,
    "names": _names,
    "dtype": _other_array(_dtype),
    "shape": _other_array(_shape),
    "not finite": _other_array(_not_finite),
}


def spoilt(rng: np.random.Generator, answer: Answered) -> Answered:
    """Return an honest answer in one of the wrong forms."""
    return SPOILS[str(rng.choice(list(SPOILS)))](rng, answer)
