"""Pace any Flower app: `paced` around the grid of its server app, `timed` around a client's loader.

A client imports no part of the server's side.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from codedfedl.pacing.flower.batches import timed

if TYPE_CHECKING:
    from codedfedl.pacing.flower.grid import PacedGrid, paced

__all__ = ["PacedGrid", "paced", "timed"]


def __getattr__(name: str) -> Any:
    grid = import_module("codedfedl.pacing.flower.grid")
    if name.startswith("_") or not hasattr(grid, name):
        raise AttributeError(f"codedfedl.pacing.flower has no {name}")
    return getattr(grid, name)
