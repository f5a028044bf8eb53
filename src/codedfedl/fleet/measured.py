"""Delays that follow no formula: measured ones, to plan and to simulate with like any other."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.errors import InputError
from codedfedl.fleet.columns import client_names
from codedfedl.fleet.delays import DelaysWithPoints

__all__ = [
    "MeasuredChance",
    "MeasuredDelays",
    "is_measured",
    "read_measured",
    "rows_by_client",
]

_FILE_COLUMNS = ("client", "points", "per_point", "fixed")


@dataclass(frozen=True, eq=False)
class MeasuredChance:
    """The `Chances` of `MeasuredDelays`: which measurement comes again, shape (rounds, n)."""

    measurement: IntArray

    def of_round(self, round_: int) -> "MeasuredChance":
        """Return the measurements of one round, shape (n,)."""
        return MeasuredChance(self.measurement[round_])


@dataclass(frozen=True, eq=False, init=False)
class MeasuredDelays:
    """Delays without a formula: the clients' own measurements, each equally likely to recur.

    A measurement is a pair (seconds per point, fixed seconds); a load of ℓ̃ points would have taken
    ``fixed + ℓ̃·per_point`` seconds that time. ``inf`` means that no reply arrived.

    Parameters
    ----------
    per_point, fixed : one sequence of measurements per client
        Of equal lengths within a client; the lengths may differ between clients.
    client : array of shape (n,), optional
    """

    per_point: FloatArray
    fixed: FloatArray
    client: npt.NDArray[Any]

    def __init__(
        self,
        per_point: Sequence[npt.ArrayLike],
        fixed: Sequence[npt.ArrayLike],
        client: npt.ArrayLike | None = None,
    ) -> None:
        names = client_names(client, len(per_point) if client is None else np.size(client))
        columns = {"per_point": per_point, "fixed": fixed}
        checked = {name: _measurements(name, rows, names) for name, rows in columns.items()}
        given = [~np.isnan(rows) for rows in checked.values()]
        if given[0].shape != given[1].shape or (given[0] != given[1]).any():
            raise InputError(
                "per_point and fixed differ in length: give both for every measurement"
            )
        for name, array in {"client": names, **checked}.items():
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def take(self, clients: IntArray | slice) -> "MeasuredDelays":
        """Return the same model for some of the clients."""
        return self._with(
            per_point=self.per_point[clients],
            fixed=self.fixed[clients],
            client=self.client[clients],
        )

    def slowed(self, factor: FloatArray) -> "MeasuredDelays":
        """Return clients for which everything takes `factor` times as long, shape (n,)."""
        times = np.asarray(factor, dtype=np.float64)[:, None]
        return self._with(per_point=times * self.per_point, fixed=times * self.fixed)

    def _with(self, **columns: npt.NDArray[Any]) -> "MeasuredDelays":
        model = object.__new__(MeasuredDelays)  # what was checked needs no second check
        for name in ("per_point", "fixed", "client"):
            object.__setattr__(model, name, columns.get(name, getattr(self, name)))
        return model

    def write(self, path: str | Path, points: FloatArray) -> None:
        """Write a CSV or Parquet file that `read_measured` reads, with the clients' points."""
        from codedfedl.io.tables import write_table

        given = ~np.isnan(self.fixed)
        each = given.sum(-1)
        columns = {
            "client": np.repeat(self.client, each),
            "points": np.repeat(points, each),
            "per_point": self.per_point[given],
            "fixed": self.fixed[given],
        }
        write_table(path, columns)

    @property
    def availability(self) -> FloatArray:
        """Share of the measurements with a reply, shape (n,)."""
        return np.asarray(self._replied.sum(-1) / self._count, dtype=np.float64)

    @property
    def _count(self) -> IntArray:
        return np.asarray((~np.isnan(self.fixed)).sum(-1))

    @property
    def _replied(self) -> npt.NDArray[np.bool_]:
        return np.asarray(np.isfinite(self.per_point) & np.isfinite(self.fixed))

    def mean(self, loads: npt.ArrayLike) -> FloatArray:
        """Return the mean of T over the measurements with a reply, seconds; ∞ if none has."""
        load = np.asarray(loads, dtype=np.float64)[..., None]
        seconds = np.where(self._replied, _would_take(self.per_point, self.fixed, load), 0.0)
        count = self._replied.sum(-1)
        return np.where(count > 0, seconds.sum(-1) / np.maximum(count, 1), np.inf)

    def cdf(self, loads: npt.ArrayLike, t: npt.ArrayLike) -> FloatArray:
        """Share of the measurements that would have met t, shape (…, n)."""
        load = np.asarray(loads, dtype=np.float64)[..., None]
        seconds = _would_take(self.per_point, self.fixed, load)
        met = seconds <= np.asarray(t, dtype=np.float64)[..., None]
        return np.asarray(met.sum(-1) / self._count, dtype=np.float64)

    def sample(self, loads: npt.ArrayLike, rounds: int, rng: np.random.Generator) -> FloatArray:
        """Draw T for every round and client, shape (rounds, n); ∞ if no reply arrives."""
        return self.seconds(loads, self.draw(rounds, rng))

    def draw(self, rounds: int, rng: np.random.Generator) -> MeasuredChance:
        """Draw a measurement for every round and client, each equally likely."""
        return MeasuredChance(rng.integers(self._count, size=(rounds, len(self.client))))

    def seconds(self, loads: npt.ArrayLike, chance: MeasuredChance) -> FloatArray:
        """T for the loads and the measurements drawn, shape (…, n); ∞ if no reply arrives."""
        clients = np.arange(len(self.client))
        per_point = self.per_point[clients, chance.measurement]
        fixed = self.fixed[clients, chance.measurement]
        return _would_take(per_point, fixed, np.asarray(loads, dtype=np.float64))

    def bulk(
        self,
        work: npt.ArrayLike,
        packets: npt.ArrayLike,
        rng: np.random.Generator,
        *,
        per_point: float = 1.0,
    ) -> tuple[FloatArray, FloatArray]:
        """Draw the seconds of computing and of uploading for a step outside the rounds.

        One measurement is drawn for each client, among those with a reply: a point takes its
        seconds per point, and every packet its fixed seconds. Measurements do not tell the link
        from the overhead of a round, nor the uplink from the downlink, so the upload is an upper
        estimate. A client that never replied takes for ever.
        """
        clients, chosen = np.arange(len(self.client)), self._with_reply(rng)
        points = np.asarray(work, dtype=np.float64) / per_point
        compute = _each_takes(self.per_point[clients, chosen], points)
        return compute, _each_takes(self.fixed[clients, chosen], packets)

    def upload(self, packets: npt.ArrayLike, rng: np.random.Generator) -> FloatArray:
        """Draw the seconds of uploading packets: an upper estimate, as in `bulk`."""
        clients, chosen = np.arange(len(self.client)), self._with_reply(rng)
        return _each_takes(self.fixed[clients, chosen], packets)

    def _with_reply(self, rng: np.random.Generator) -> IntArray:
        """Draw a measurement with a reply for each client; any, for one that never replied."""
        first_replies = np.argsort(~self._replied, axis=-1, kind="stable")
        drawn = rng.integers(np.maximum(self._replied.sum(-1), 1))
        return np.asarray(first_replies[np.arange(len(self.client)), drawn])


def read_measured(path: str | Path) -> DelaysWithPoints[MeasuredDelays]:
    """Read a CSV or Parquet file with the columns client, points, per_point and fixed.

    Each row is a measurement. A client has the same points in all of its rows.
    """
    from codedfedl.io.tables import read_table

    table = read_table(path, _FILE_COLUMNS)
    names, rows = rows_by_client(table["client"])
    for name, which in zip(names, rows, strict=True):
        points = np.unique(table["points"][which])
        if len(points) > 1:
            raise InputError(
                f"{path}: points of client {name} are {points[0]:g} and {points[1]:g}: "
                "write the same number in all of its rows"
            )
    per_point, fixed = ([table[name][which] for which in rows] for name in _FILE_COLUMNS[2:])
    held = np.array([table["points"][which[0]] for which in rows])
    return DelaysWithPoints(MeasuredDelays(per_point, fixed, names), held)


def is_measured(path: str | Path) -> bool:
    """Return whether a file holds measured delays, by its columns."""
    from codedfedl.io.tables import column_names

    return "per_point" in column_names(path)


def rows_by_client(client: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], list[IntArray]]:
    """Return the names in the order of their first appearance, and the rows of each."""
    names, first, belongs = np.unique(client, return_index=True, return_inverse=True)
    sorted_rows = np.argsort(belongs, kind="stable")
    rows = np.split(sorted_rows, np.cumsum(np.bincount(belongs))[:-1])
    order = np.argsort(first)
    return names[order], [rows[j] for j in order]


def _each_takes(seconds: FloatArray, count: npt.ArrayLike) -> FloatArray:
    return _would_take(seconds, np.zeros(len(seconds)), np.asarray(count, dtype=np.float64))


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
                "must be at least 0, or inf if no reply arrived"
            )
    padded = np.full((len(arrays), max(len(row) for row in arrays)), np.nan)
    for target, row in zip(padded, arrays, strict=True):
        target[: len(row)] = row
    return padded
