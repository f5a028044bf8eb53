"""Delays that follow no formula: measured ones, to plan and to simulate with like any other."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl._types import FloatArray, IntArray
from codedfedl.errors import InputError
from codedfedl.fleet.delays import Chance, FleetDelays
from codedfedl.fleet.devices import Fleet

__all__ = ["MeasuredChance", "MeasuredDelays", "MixedChance", "MixedDelays", "rows_by_client"]

_FILE_COLUMNS = ("client", "points", "per_point", "fixed")


@dataclass(frozen=True, eq=False)
class MeasuredChance:
    """The `Chances` of `MeasuredDelays`: which measurement comes again, shape (rounds, n)."""

    measurement: IntArray

    def of_round(self, round_: int) -> "MeasuredChance":
        """Return the measurements of one round, shape (n,)."""
        return MeasuredChance(self.measurement[round_])


@dataclass(frozen=True, eq=False)
class MixedChance:
    """The `Chances` of `MixedDelays`: those of both models, for all clients."""

    formula: Chance
    measured: MeasuredChance

    def of_round(self, round_: int) -> "MixedChance":
        """Return the chances of one round."""
        return MixedChance(self.formula.of_round(round_), self.measured.of_round(round_))


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
        names = _who_and_how_much(points, client)
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
        names = ("points", "per_point", "fixed", "client")
        return self._made_of({name: getattr(self, name)[clients] for name in names})

    def with_points(self, points: npt.ArrayLike) -> "MeasuredDelays":
        """Return the same clients with other points per round, one number each or for all."""
        checked = _who_and_how_much(points, self.client)
        measured = {"per_point": self.per_point, "fixed": self.fixed, "client": self.client}
        return self._made_of({"points": checked.points, **measured})

    @staticmethod
    def _made_of(columns: dict[str, npt.NDArray[Any]]) -> "MeasuredDelays":
        model = object.__new__(MeasuredDelays)  # what was checked needs no second check
        for name, array in columns.items():
            object.__setattr__(model, name, array)
        return model

    @classmethod
    def read(cls, path: str | Path) -> "MeasuredDelays":
        """Read a CSV or Parquet file with the columns client, points, per_point and fixed.

        A row is a measurement. The points of a client are the same in all of its rows.
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
        return cls([table["points"][which[0]] for which in rows], per_point, fixed, names)

    def write(self, path: str | Path) -> None:
        """Write a CSV or Parquet file that `read` turns into the same model again."""
        from codedfedl.io.tables import write_table

        given = ~np.isnan(self.fixed)
        each = given.sum(-1)
        columns = {
            "client": np.repeat(self.client, each),
            "points": np.repeat(self.points, each),
            "per_point": self.per_point[given],
            "fixed": self.fixed[given],
        }
        write_table(path, columns)

    def cdf(self, loads: npt.ArrayLike, t: npt.ArrayLike) -> FloatArray:
        """Share of the measurements that would have met t, shape (…, n)."""
        load = np.asarray(loads, dtype=np.float64)[..., None]
        seconds = _would_take(self.per_point, self.fixed, load)
        met = seconds <= np.asarray(t, dtype=np.float64)[..., None]
        return np.asarray(met.sum(-1) / (~np.isnan(self.fixed)).sum(-1), dtype=np.float64)

    def sample(self, loads: npt.ArrayLike, rounds: int, rng: np.random.Generator) -> FloatArray:
        """Draw T for every round and client, shape (rounds, n); ∞ where no reply comes."""
        return self.seconds(loads, self.draw(rounds, rng))

    def draw(self, rounds: int, rng: np.random.Generator) -> MeasuredChance:
        """Draw a measurement for every round and client, each equally likely."""
        counts = (~np.isnan(self.fixed)).sum(-1)
        return MeasuredChance(rng.integers(counts, size=(rounds, len(counts))))

    def seconds(self, loads: npt.ArrayLike, chance: MeasuredChance) -> FloatArray:
        """T for the loads and the measurements drawn, shape (…, n); ∞ where no reply comes."""
        clients = np.arange(len(self.points))
        per_point = self.per_point[clients, chance.measurement]
        fixed = self.fixed[clients, chance.measurement]
        return _would_take(per_point, fixed, np.asarray(loads, dtype=np.float64))

    def bulk(
        self, points: npt.ArrayLike, packets: npt.ArrayLike, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Draw the seconds of computing and of uploading for a step outside the rounds.

        One measurement is drawn for each client, among those with a reply: the points take its
        seconds per point, and every packet its fixed seconds. Measurements do not tell the link
        from the overhead of a round, nor the uplink from the downlink, so the upload is an upper
        estimate. A client that never replied takes for ever.
        """
        replied = np.isfinite(self.per_point) & np.isfinite(self.fixed)
        first_replies = np.argsort(~replied, axis=-1, kind="stable")
        clients = np.arange(len(self.points))
        chosen = first_replies[clients, rng.integers(np.maximum(replied.sum(-1), 1))]
        points, packets = (np.asarray(work, dtype=np.float64) for work in (points, packets))
        compute = _would_take(self.per_point[clients, chosen], np.zeros(len(clients)), points)
        upload = _would_take(self.fixed[clients, chosen], np.zeros(len(clients)), packets)
        return compute, upload


@dataclass(frozen=True, eq=False)
class MixedDelays:
    """Clients that follow the paper's model beside clients whose delays follow no formula.

    Parameters
    ----------
    formula, measured
        Both models of all n clients.
    follows : bool array of shape (n,)
        Whose delays are the formula's; those of the others are the measured ones.
    """

    formula: FleetDelays
    measured: MeasuredDelays
    follows: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        sizes = {len(self.formula.points), len(self.measured.points), len(self.follows)}
        if len(sizes) > 1:
            raise InputError(f"the two models have {sizes} clients: give both of the same clients")

    @property
    def client(self) -> npt.NDArray[Any]:
        """The clients' names, shape (n,)."""
        return self.formula.client

    @property
    def points(self) -> FloatArray:
        """Points per round that each client holds, shape (n,)."""
        return self.formula.points

    def take(self, clients: IntArray | slice) -> "MixedDelays":
        """Return the same model of some of the clients."""
        formula, measured = self.formula.take(clients), self.measured.take(clients)
        return MixedDelays(formula, measured, self.follows[clients])

    def with_points(self, points: npt.ArrayLike) -> "MixedDelays":
        """Return the same clients with other points per round, one number each or for all."""
        formula, measured = self.formula.with_points(points), self.measured.with_points(points)
        return MixedDelays(formula, measured, self.follows)

    def cdf(self, loads: npt.ArrayLike, t: npt.ArrayLike) -> FloatArray:
        """P(T ≤ t) for loads and times that broadcast to shape (…, n)."""
        loads, t = (np.asarray(values, dtype=np.float64) for values in (loads, t))
        n = (len(self.follows),)
        loads, t = np.broadcast_arrays(*(np.broadcast_to(v, v.shape or n) for v in (loads, t)))
        result = np.empty(loads.shape)
        for model, part in ((self.formula, self.follows), (self.measured, ~self.follows)):
            who = np.flatnonzero(part)
            result[..., who] = model.take(who).cdf(loads[..., who], t[..., who])
        return result

    def sample(self, loads: npt.ArrayLike, rounds: int, rng: np.random.Generator) -> FloatArray:
        """Draw T for every round and client, shape (rounds, n); ∞ where no reply comes."""
        return self.seconds(loads, self.draw(rounds, rng))

    def draw(self, rounds: int, rng: np.random.Generator) -> MixedChance:
        """Draw the chances of both models for all clients, whichever of them a client follows."""
        return MixedChance(self.formula.draw(rounds, rng), self.measured.draw(rounds, rng))

    def seconds(self, loads: npt.ArrayLike, chance: MixedChance) -> FloatArray:
        """T for the loads and chances, shape (…, n); ∞ where no reply comes."""
        formula = self.formula.seconds(loads, chance.formula)
        return np.where(self.follows, formula, self.measured.seconds(loads, chance.measured))

    def bulk(
        self, points: npt.ArrayLike, packets: npt.ArrayLike, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Draw the seconds of computing and of uploading, by each client's own model."""
        formula = self.formula.bulk(points, packets, rng)
        measured = self.measured.bulk(points, packets, rng)
        compute, upload = (
            np.where(self.follows, *both) for both in zip(formula, measured, strict=True)
        )
        return compute, upload


def rows_by_client(client: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], list[IntArray]]:
    """Return the names in the order of their first appearance, and the rows of each."""
    names, first, belongs = np.unique(client, return_index=True, return_inverse=True)
    sorted_rows = np.argsort(belongs, kind="stable")
    rows = np.split(sorted_rows, np.cumsum(np.bincount(belongs))[:-1])
    order = np.argsort(first)
    return names[order], [rows[j] for j in order]


def _who_and_how_much(points: npt.ArrayLike, client: npt.ArrayLike | None) -> Fleet:
    """Check names and points as a fleet does; its other quantities play no part."""
    return Fleet(points=points, rate=1, alpha=1, packet_time=0, erasure=0, client=client)


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
