"""Delays that follow no formula: measured ones, alone or beside clients that follow the formula."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.errors import InputError
from codedfedl.fleet.columns import checked_points, client_names, freeze
from codedfedl.fleet.delays import Chances, DelayModel, DelayParameters, points_of

_MAX_POINTS = 2.0**53  # of a measurement that took no time for a point
_FILE_COLUMNS = ("client", "points", "per_point", "fixed")


@dataclass(frozen=True, eq=False, init=False)
class MeasuredDelays(DelayModel):
    """Delays without a formula: the clients' own measurements, each equally likely to recur.

    A measurement is a pair (seconds per point, fixed seconds); a load of ℓ̃ points would have taken
    ``fixed + ℓ̃·per_point`` seconds that time. ``inf`` means that no reply arrived.

    Parameters
    ----------
    per_point, fixed : one sequence of measurements per client
        Of equal lengths within a client; the lengths may differ between clients.
    client : array of shape (n,), optional
    points : array of shape (n,), optional
        Points per round of each client, or one number for all; a plan needs them.
    """

    per_point: FloatArray
    fixed: FloatArray
    client: npt.NDArray[Any]
    points: FloatArray | None

    def __init__(
        self,
        per_point: Sequence[npt.ArrayLike],
        fixed: Sequence[npt.ArrayLike],
        client: npt.ArrayLike | None = None,
        points: npt.ArrayLike | None = None,
    ) -> None:
        names = client_names(client, len(per_point) if client is None else np.size(client))
        columns = {"per_point": per_point, "fixed": fixed}
        checked = {name: _measurements(name, rows, names) for name, rows in columns.items()}
        given = [~np.isnan(rows) for rows in checked.values()]
        if given[0].shape != given[1].shape or (given[0] != given[1]).any():
            raise InputError(
                "per_point and fixed differ in length: give both for every measurement"
            )
        freeze(self, {"client": names, **checked})
        held = None if points is None else checked_points(points, names)
        object.__setattr__(self, "points", held)

    def take(self, clients: IntArray | slice) -> "MeasuredDelays":
        """Return the same model for some of the clients."""
        model = object.__new__(MeasuredDelays)  # what was checked needs no second check
        for column in fields(self):
            values = getattr(self, column.name)
            object.__setattr__(model, column.name, None if values is None else values[clients])
        return model

    def write(self, path: str | Path) -> None:
        """Write a CSV or Parquet file that `read_measured` turns into the same again."""
        from codedfedl.io.tables import write_table

        points = points_of(self)
        given = ~np.isnan(self.fixed)
        each = given.sum(-1)
        columns = {
            "client": np.repeat(self.client, each),
            "points": np.repeat(points, each),
            "per_point": self.per_point[given],
            "fixed": self.fixed[given],
        }
        write_table(path, columns)

    @cached_property
    def availability(self) -> FloatArray:
        """Share of the measurements with a reply, shape (n,)."""
        return np.asarray(self._replied.sum(-1) / self._count, dtype=np.float64)

    def slowed(self, factor: npt.ArrayLike) -> "MeasuredDelays":
        """Return clients for which every measurement takes `factor` times as long, shape (n,)."""
        times = (np.ones(len(self)) * np.asarray(factor))[:, None]
        model = self.take(slice(None))
        for name in ("per_point", "fixed"):
            object.__setattr__(model, name, getattr(self, name) * times)
        return model

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

    def draw(self, rounds: int, rng: np.random.Generator) -> Chances:
        """Draw a measurement for every round and client, each equally likely."""
        return Chances({"measurement": rng.integers(self._count, size=(rounds, len(self)))})

    def seconds(self, loads: npt.ArrayLike, chance: Chances) -> FloatArray:
        """T for the loads and the measurements drawn, shape (…, n); ∞ if no reply arrives."""
        clients, measurement = np.arange(len(self)), chance.draws["measurement"]
        per_point = self.per_point[clients, measurement]
        fixed = self.fixed[clients, measurement]
        return _would_take(per_point, fixed, np.asarray(loads, dtype=np.float64))

    def points_within(self, window: npt.ArrayLike, chance: Chances) -> IntArray:
        """Points that the measured seconds per point leave time for, at most 2⁵³."""
        per_point = self.per_point[np.arange(len(self)), chance.draws["measurement"]]
        with np.errstate(divide="ignore"):
            most = np.minimum(np.asarray(window, dtype=np.float64) / per_point, _MAX_POINTS)
        return np.asarray(most).astype(np.int64)

    def bulk(
        self, work: npt.ArrayLike, packets: npt.ArrayLike, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Draw the seconds of computing and of uploading for a step outside the rounds.

        One measurement is drawn for each client, among those with a reply: a point takes its
        seconds per point, and every packet its fixed seconds. Measurements do not tell the link
        from the overhead of a round, nor the uplink from the downlink, so the upload is an upper
        estimate. A client that never replied takes forever.
        """
        clients, chosen = np.arange(len(self.client)), self._with_reply(rng)
        compute = _each_takes(self.per_point[clients, chosen], work)
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


@dataclass(frozen=True, eq=False)
class MixedDelays(DelayModel):
    """Clients that follow the paper's model, together with clients whose delays are measured.

    Parameters
    ----------
    formula, measured
        Two models, each of all n clients.
    follows : bool array of shape (n,)
        Which clients follow the formula; the others have measured delays.
    """

    formula: DelayParameters
    measured: MeasuredDelays
    follows: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        sizes = {len(self.formula), len(self.measured), len(self.follows)}
        if len(sizes) > 1:
            raise InputError(f"the two models have {sizes} clients: give both of the same clients")

    @property
    def client(self) -> npt.NDArray[Any]:  # type: ignore[override]
        """The clients' names, shape (n,)."""
        return self.formula.client

    @property
    def points(self) -> FloatArray | None:  # type: ignore[override]
        """Points per round of each client, where the formula's model knows them, shape (n,)."""
        return self.formula.points

    @property
    def availability(self) -> FloatArray:
        """Probability that a reply ever arrives, shape (n,)."""
        return self._each(lambda _, model: model.availability)

    def _each(self, quantity: Callable[[str, DelayModel], Any]) -> npt.NDArray[Any]:
        """Return a quantity of each client's own model; clients are along its last axis."""
        models = (("formula", self.formula), ("measured", self.measured))
        formula, measured = (quantity(name, model) for name, model in models)
        return np.asarray(np.where(self.follows, formula, measured))

    def take(self, clients: IntArray | slice) -> "MixedDelays":
        """Return the same model for some of the clients."""
        formula, measured = self.formula.take(clients), self.measured.take(clients)
        return MixedDelays(formula, measured, self.follows[clients])

    def slowed(self, factor: npt.ArrayLike) -> "MixedDelays":
        """Return clients for which everything takes `factor` times as long, shape (n,)."""
        return MixedDelays(self.formula.slowed(factor), self.measured.slowed(factor), self.follows)

    def cdf(self, loads: npt.ArrayLike, t: npt.ArrayLike) -> FloatArray:
        """P(T ≤ t) for loads and times that broadcast to shape (…, n)."""
        return self._each(lambda _, model: model.cdf(loads, t))

    def mean(self, loads: npt.ArrayLike) -> FloatArray:
        """Return the mean of T, by each client's own model, shape (…, n)."""
        return self._each(lambda _, model: model.mean(loads))

    def draw(self, rounds: int, rng: np.random.Generator) -> Chances:
        """Make the random draws of both models for all clients, whichever a client follows."""
        formula, measured = self.formula.draw(rounds, rng), self.measured.draw(rounds, rng)
        return Chances({"formula": formula, "measured": measured})

    def seconds(self, loads: npt.ArrayLike, chance: Chances) -> FloatArray:
        """T for the loads and chances, shape (…, n); ∞ if no reply arrives."""
        return self._each(lambda name, model: model.seconds(loads, chance.draws[name]))

    def points_within(self, window: npt.ArrayLike, chance: Chances) -> IntArray:
        """Points finished in a window, by each client's own model."""
        return self._each(lambda name, model: model.points_within(window, chance.draws[name]))

    def bulk(
        self, work: npt.ArrayLike, packets: npt.ArrayLike, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Draw the seconds of computing and of uploading, by each client's own model."""
        compute, upload = self._each(lambda _, model: model.bulk(work, packets, rng))
        return compute, upload

    def upload(self, packets: npt.ArrayLike, rng: np.random.Generator) -> FloatArray:
        """Draw the seconds of uploading packets, by each client's own model."""
        return self._each(lambda _, model: model.upload(packets, rng))

    def mean_parts(self, loads: FloatArray, chances: Chances) -> dict[str, FloatArray]:
        """Return where the time of the clients that follow the formula went; NaN for others."""
        parts = self.formula.mean_parts(loads, chances.draws["formula"])
        return {name: np.where(self.follows, values, np.nan) for name, values in parts.items()}


def read_measured(path: str | Path) -> MeasuredDelays:
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
    return MeasuredDelays(per_point, fixed, names, held)


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
