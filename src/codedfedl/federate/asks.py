"""What all parties of a secure sum must agree on: what a mask is bound to, and what it hides."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.core.client import work_to
from codedfedl.core.work import Work
from codedfedl.privacy.fixed_point import Residues

__all__ = ["HELPER", "MASKED", "ask_digest", "in_one_row", "taken_apart"]

HELPER = "helper"
"""The role that a helper names when it is greeted."""

MASKED = "masked"
"""The one array of an answer under a mask."""


def ask_digest(work: Work, model: npt.NDArray[Any] | None) -> str:
    """Return the hash of what is the same for all clients, for `Binding.ask`."""
    text = json.dumps(work_to(work.common), sort_keys=True).encode()
    sent = b"" if model is None else np.asarray(model, dtype="<f4").tobytes()
    return hashlib.sha256(hashlib.sha256(text).digest() + sent).hexdigest()


def in_one_row(arrays: Mapping[str, npt.NDArray[Any]]) -> Residues:
    """Return the integers of an answer in one row, in the order of their names."""
    return np.concatenate([arrays[name].ravel() for name in sorted(arrays)])


def taken_apart(row: Residues, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Residues]:
    """Return the arrays that `in_one_row` has put together."""
    names = sorted(shapes)
    ends = np.cumsum([math.prod(shapes[name]) for name in names])
    parts = np.split(row, ends[:-1])
    return {name: part.reshape(shapes[name]) for name, part in zip(names, parts, strict=True)}
