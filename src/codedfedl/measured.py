"""Delays that follow no formula: measured ones, behind the same `cdf`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.errors import InputError
from codedfedl.fleet import Fleet, FloatArray, IntArray

__all__ = ["MeasuredDelays"]


@dataclass(frozen=True, eq=False, init=False)
class MeasuredDelays:
    """Delays that follow no formula: the clients' own measurements, each equally likely again.

    A measurement is a pair (seconds per point, fixed seconds); a load of ℓ̃ points would have taken
    ``fixed + ℓ̃·per_point`` seconds that time. ``inf`` stands for a reply that never came.

    Parameters
    ----------
    points : array of shape (n,)
    per_point, fixed : one sequence of measurements per client
        Of equal lengths within a client; the lengths may differ between clients.
    client : array of shape (n,), optional
    """

    points: FloatArray
    per_point: FloatArray
    fixed: FloatArray
    client: npt.NDArray[Any]

    def __init__(
        self,
        points: npt.ArrayLike,
        per_point: Sequence[npt.ArrayLike],
        fixed: Sequence[npt.ArrayLike],
        client: npt.ArrayLike | None = None,
    ) -> None:
        # A fleet checks names and points; its other quantities play no part.
        names = Fleet(points=points, rate=1, alpha=1, packet_time=0, erasure=0, client=client)
        columns = {"per_point": per_point, "fixed": fixed}
        checked = {name: _measurements(name, rows, names.client) for name, rows in columns.items()}
        given = [~np.isnan(rows) for rows in checked.values()]
        if given[0].shape != given[1].shape or (given[0] != given[1]).any():
            raise InputError(
                "per_point and fixed differ in length: give both for every measurement"
            )
        stored = {"points": names.points, "client": names.client, **checked}
        for name, array in stored.items():
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def take(self, clients: IntArray | slice) -> "MeasuredDelays":
        """Return the same model of some of the clients."""
        part = object.__new__(MeasuredDelays)
        for name in ("points", "per_point", "fixed", "client"):
            object.__setattr__(part, name, getattr(self, name)[clients])
        return part

    def cdf(self, loads: npt.ArrayLike, t: npt.ArrayLike) -> FloatArray:
        """Share of the measurements that would have met t, shape (…, n)."""
        load = np.asarray(loads, dtype=np.float64)[..., None]
        seconds = _would_take(self.per_point, self.fixed, load)
        met = seconds <= np.asarray(t, dtype=np.float64)[..., None]
        return np.asarray(met.sum(-1) / (~np.isnan(self.fixed)).sum(-1), dtype=np.float64)

    def sample(self, loads: npt.ArrayLike, rounds: int, rng: np.random.Generator) -> FloatArray:
        """Draw measurements anew, shape (rounds, n)."""
        counts = (~np.isnan(self.fixed)).sum(-1)
        chosen = rng.integers(counts, size=(rounds, len(counts)))
        clients = np.arange(len(counts))
        per_point, fixed = self.per_point[clients, chosen], self.fixed[clients, chosen]
        return _would_take(per_point, fixed, np.asarray(loads, dtype=np.float64))


def _would_take(per_point: FloatArray, fixed: FloatArray, loads: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):  # 0 points at ∞ seconds each take no time
        return np.asarray(fixed + np.where(loads > 0, loads * per_point, 0.0))


def _measurements(name: str, rows: Sequence[npt.ArrayLike], client: npt.NDArray[Any]) -> FloatArray:
    """One row per client, padded with NaN to equal lengths."""
    if len(rows) != len(client):
        raise InputError(f"{name} has {len(rows)} rows for {len(client)} clients: give one each")
    try:
        arrays = [np.asarray(row, dtype=np.float64).ravel() for row in rows]
    except (TypeError, ValueError):
        raise InputError(f"{name} is not numeric: give a list of numbers per client") from None
    for who, row in zip(client, arrays, strict=True):
        if not len(row):
            raise InputError(f"{name} of client {who} is empty: measure it at least once")
        if np.isnan(row).any() or (row < 0).any():
            raise InputError(
                f"{name} of client {who} holds {row[~(row >= 0)][0]:g}: "
                "must be at least 0, or inf where no reply came"
            )
    padded = np.full((len(arrays), max(len(row) for row in arrays)), np.nan)
    for target, row in zip(padded, arrays, strict=True):
        target[: len(row)] = row
    return padded
