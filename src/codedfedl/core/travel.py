"""Work as it travels to a client: its kind, and its fields as plain values."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np

from codedfedl.core.client import WORK
from codedfedl.core.work import Work
from codedfedl.errors import InputError
from codedfedl.io.names import nearest

__all__ = ["work_from", "work_to"]


def work_to(work: Work) -> dict[str, Any]:
    """Return work as it travels: its kind, and its fields as plain values."""
    own = type(work)
    kind = own.kind if WORK.get(own.kind) is own else f"{own.__module__}:{own.__qualname__}"
    return {"kind": kind, **{name: _plain(value) for name, value in work.as_sent().items()}}


def work_from(facts: Mapping[str, Any], find: Callable[[str], type[Work] | None]) -> Work:
    """Return work that somebody asks for.

    Parameters
    ----------
    find
        Returns the class of a custom kind, ``module:Class``; None if it may not be used here.
    """
    kind = str(facts["kind"])
    given = {name: _read(value, find) for name, value in facts.items() if name != "kind"}
    own = WORK.get(kind) or find(kind)
    if own is None:
        raise InputError(f"the work {kind!r} is unknown here: {nearest(kind, list(WORK))}")
    return own.received(**given)


def _plain(value: Any) -> Any:
    if isinstance(value, Work):  # work on another kind of work
        return work_to(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _read(value: Any, find: Callable[[str], type[Work] | None]) -> Any:
    nested = isinstance(value, Mapping) and "kind" in value
    return work_from(value, find) if nested else value
