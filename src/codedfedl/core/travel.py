"""Work as it travels to a client: its kind, and its fields as plain values."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
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
    fields = asdict(work)  # type: ignore[call-overload]
    plain = {name: _plain(value) for name, value in fields.items()}
    return {"kind": kind, **plain}


def work_from(facts: Mapping[str, Any], find: Callable[[str], type[Work] | None]) -> Work:
    """Return work that somebody asks for.

    Parameters
    ----------
    find
        Returns the class of a kind that is not ours, ``module:Class``; None where it may not be
        used here.
    """
    kind, fields = str(facts["kind"]), {k: v for k, v in facts.items() if k != "kind"}
    own = WORK.get(kind) or find(kind)
    if own is None:
        raise InputError(f"the work {kind!r} is unknown here: {nearest(kind, list(WORK))}")
    return own.received(**fields)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
