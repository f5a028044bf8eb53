"""One unit of time for a whole page."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

__all__ = ["UNITS", "Unit", "unit_for"]


@dataclass(frozen=True)
class Unit:
    """A unit of time: its sign, its name, and how many of it are an hour."""

    sign: str
    name: str
    per_hour: float

    def of_seconds(self, seconds: float | None) -> float | None:
        """Return a time in this unit."""
        return None if seconds is None else seconds / 3600 * self.per_hour

    def of_hours(self, hours: float | None) -> float | None:
        """Return a time in this unit."""
        return None if hours is None else hours * self.per_hour


UNITS = (Unit("h", "hours", 1.0), Unit("min", "minutes", 60.0), Unit("s", "seconds", 3600.0))
"""The longest first."""
_ENOUGH = 1.5  # of a unit, before it takes the place of the next smaller one


def unit_for(hours: Iterable[float]) -> Unit:
    """Choose the unit in which most of some times are neither tiny nor huge: by their middle.

    Examples
    --------
    >>> unit_for([0.01, 0.5, 2.6]).name
    'minutes'
    """
    there = [hour for hour in hours if 0 < hour < np.inf]
    if not there:
        return UNITS[0]
    middle = float(np.exp(np.median(np.log(there))))
    return next((unit for unit in UNITS if middle * unit.per_hour >= _ENOUGH), UNITS[-1])
