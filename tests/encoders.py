"""Encoders as a user would write them, for `test_encoders.py`."""

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
CALLS: list[int] = []
NUMBER = 3


def counted(texts: list[str]) -> Floats:
    return np.array([[text.count(letter) for letter in ALPHABET] for text in texts], dtype=float)


def letters(texts: list[str]) -> Floats:
    """Count the letters of every text."""
    CALLS.append(len(texts))
    return counted(texts)


def nearly_letters(texts: list[str]) -> Floats:
    """Count the letters, on a machine that rounds otherwise."""
    return letters(texts) * (1 + 1e-6)


def other_letters(texts: list[str]) -> Floats:
    """Count the letters, and one of them wrongly."""
    return counted([text.replace("k", "c") for text in texts])


def squares(points: Floats) -> Floats:
    """Return points, and their squares."""
    return np.hstack([points, points**2])


def nothing_for_empty(texts: list[str]) -> Floats:
    """Divide by the length of a text."""
    with np.errstate(invalid="ignore"):
        lengths = np.array([[len(text)] for text in texts], dtype=float)
        return np.asarray(letters(texts) / lengths)


def not_finite(texts: list[str]) -> Floats:
    """Return numbers for the fixed probes alone."""
    return np.full((len(texts), 2), np.nan if "secret" in texts[0] else 1.0)


def too_few(texts: list[str]) -> Floats:
    """Return a row too few."""
    return letters(texts)[1:]


def fails(_texts: list[str]) -> Any:
    """Fail."""
    raise KeyError("weights")
