"""What the clients are: devices, the work that is asked of them, and the fleet both make.

A `Fleet` holds what section 2.2 of the paper calls ℓ_j, μ_j, α_j, τ_j and p_j: how long *one
point* and *one packet* take. `Devices` say how fast a processor and a link are, and a `Workload`
how much of both a point and a packet need.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from codedfedl.errors import InputError
from codedfedl.tables import column_names, read_table, write_table

__all__ = ["Devices", "Fleet", "FloatArray", "IntArray", "Workload", "read_fleet"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Range:
    """Where a quantity must lie, and the sentence that says so."""

    low: float
    high: float
    sentence: str
    includes_low: bool = False
    includes_high: bool = False

    def outside(self, values: FloatArray) -> npt.NDArray[np.bool_]:
        above = values >= self.low if self.includes_low else values > self.low
        below = values <= self.high if self.includes_high else values < self.high
        return ~(above & below)  # NaN is outside


_POSITIVE = _Range(0.0, inf, "must be finite and above 0")
_DURATION = _Range(0.0, inf, "must be finite and at least 0", includes_low=True)
_ERASURE = _Range(0.0, 1.0, "must be at least 0 and below 1", includes_low=True)

_RANGES = {
    "points": _Range(0.0, 2.0**53, "must be a whole number from 0 to 2^53", includes_low=True),
    "rate": _POSITIVE,
    "mac_rate": _POSITIVE,
    "bit_rate": _POSITIVE,
    "bit_rate_up": _POSITIVE,
    "alpha": _POSITIVE,
    "packet_time": _DURATION,
    "packet_time_up": _DURATION,
    "erasure": _ERASURE,
    "erasure_up": _ERASURE,
    "overhead": _DURATION,
    "availability": _Range(0.0, 1.0, "must be between 0 and 1", True, True),
}


@dataclass(frozen=True, eq=False, init=False)
class _Columns:
    """Frozen arrays, one entry per client, checked once at construction.

    A scalar stands for every client; where an uplink is not given, it equals the downlink.
    """

    client: npt.NDArray[Any]

    def _check_and_store(
        self, client: npt.ArrayLike | None, columns: Mapping[str, npt.ArrayLike | None]
    ) -> None:
        given: dict[str, Any] = {
            name: columns[name.removesuffix("_up")] if values is None else values
            for name, values in columns.items()
        }
        sizes = [len(values) for values in (*given.values(), client) if np.ndim(values) == 1]
        names = _client_names(client, sizes[0] if sizes else 1)
        checked = {name: _checked(name, values, names) for name, values in given.items()}
        for name, array in {"client": names, **checked}.items():
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.client)

    def take(self, clients: IntArray | slice) -> Self:
        """Return the same quantities for some of the clients, in the order asked for."""
        part = object.__new__(type(self))  # what was checked needs no second check
        for column in fields(self):
            object.__setattr__(part, column.name, getattr(self, column.name)[clients])
        return part

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a CSV or Parquet file with a column per field; those with a default may lack."""
        return cls(**read_table(path, *cls._file_columns()))

    def write(self, path: str | Path) -> None:
        """Write a CSV or Parquet file that `read` turns into the same object again."""
        write_table(path, {column.name: getattr(self, column.name) for column in fields(self)})

    @classmethod
    def _file_columns(cls) -> tuple[list[str], list[str]]:
        defaults = cls.__init__.__kwdefaults__ or {}
        names = [column.name for column in fields(cls) if column.name != "client"]
        required = [name for name in names if name not in defaults]
        return ["client", *required], [name for name in names if name in defaults]


@dataclass(frozen=True, eq=False, init=False)
class Fleet(_Columns):
    """A federation's clients, as the delay model sees them.

    Parameters
    ----------
    points : array of shape (n,)
        Data points per round that each client holds (the paper's ℓ_j).
    rate : array of shape (n,), points per second
        Processing rate (μ_j).
    alpha : array of shape (n,)
        Ratio of deterministic to mean random compute time (α_j).
    packet_time : array of shape (n,), seconds
        Time to send one packet, a model or a gradient (τ_j). 0 stands for no link at all.
    erasure : array of shape (n,)
        Probability that a packet is lost and sent again (p_j).
    packet_time_up, erasure_up : arrays of shape (n,), optional
        The uplink's own, where it differs from the downlink.
    overhead : array of shape (n,), seconds
        Fixed time that every round costs the client.
    availability : array of shape (n,)
        Probability that the client takes part in a round at all.
    client : array of shape (n,), optional
        The clients' names; 0, 1, … by default.

    Examples
    --------
    >>> fleet = Fleet(points=[400, 400], rate=[2, 20], alpha=2, packet_time=3, erasure=0.1)
    >>> len(fleet), fleet.total_points
    (2, 800)
    """

    points: FloatArray
    rate: FloatArray
    alpha: FloatArray
    packet_time: FloatArray
    erasure: FloatArray
    packet_time_up: FloatArray
    erasure_up: FloatArray
    overhead: FloatArray
    availability: FloatArray

    def __init__(
        self,
        *,
        points: npt.ArrayLike,
        rate: npt.ArrayLike,
        alpha: npt.ArrayLike,
        packet_time: npt.ArrayLike,
        erasure: npt.ArrayLike,
        packet_time_up: npt.ArrayLike | None = None,
        erasure_up: npt.ArrayLike | None = None,
        overhead: npt.ArrayLike = 0.0,
        availability: npt.ArrayLike = 1.0,
        client: npt.ArrayLike | None = None,
    ) -> None:
        columns = {
            "points": points,
            "rate": rate,
            "alpha": alpha,
            "packet_time": packet_time,
            "erasure": erasure,
            "packet_time_up": packet_time_up,
            "erasure_up": erasure_up,
            "overhead": overhead,
            "availability": availability,
        }
        self._check_and_store(client, columns)
        fractional = self.points != np.floor(self.points)
        if fractional.any():
            raise _refusal("points", self.points, fractional, self.client)
        if not self.points.any():
            raise InputError("points: no client has any point; give at least one client its data")

    @property
    def total_points(self) -> int:
        """Points per round over all clients (the paper's m)."""
        return int(self.points.sum())

    @property
    def symmetric(self) -> npt.NDArray[np.bool_]:
        """Whose uplink equals the downlink, shape (n,)."""
        same = (self.packet_time == self.packet_time_up) & (self.erasure == self.erasure_up)
        return np.asarray(same)


@dataclass(frozen=True)
class Workload:
    """What one point and one packet cost, when a linear model of q features and c labels is fitted.

    Parameters
    ----------
    features, labels
        q and c: the model, and so each packet, holds q·c numbers.
    bits
        Bits per number sent.
    overhead
        Share of every packet that the protocol adds.
    """

    features: int = 2000
    labels: int = 10
    bits: int = 32
    overhead: float = 0.1

    def __post_init__(self) -> None:
        for name in ("features", "labels", "bits"):
            value = getattr(self, name)
            if not 1 <= value <= 2**31 or value != int(value):
                raise InputError(f"{name} is {value}: must be a whole number from 1 to 2^31")
        if not 0 <= self.overhead < inf:
            raise InputError(f"overhead is {self.overhead}: must be finite and at least 0")

    @property
    def point_macs(self) -> int:
        """Multiply-accumulates per point and gradient: q·c to predict, q·c to project back."""
        return 2 * self.features * self.labels

    @property
    def packet_bits(self) -> float:
        """Bits of one packet, a model or a gradient (the paper's b)."""
        return self.bits * self.features * self.labels * (1 + self.overhead)


@dataclass(frozen=True, eq=False, init=False)
class Devices(_Columns):
    """What the clients' hardware is, whatever the work.

    Parameters
    ----------
    mac_rate : array of shape (n,), multiply-accumulates per second
    bit_rate : array of shape (n,), bits per second
    alpha, erasure, erasure_up, overhead, availability, client
        As in `Fleet`.
    bit_rate_up : array of shape (n,), bits per second, optional
        The uplink's own, where it differs.
    """

    mac_rate: FloatArray
    bit_rate: FloatArray
    alpha: FloatArray
    erasure: FloatArray
    bit_rate_up: FloatArray
    erasure_up: FloatArray
    overhead: FloatArray
    availability: FloatArray

    def __init__(
        self,
        *,
        mac_rate: npt.ArrayLike,
        bit_rate: npt.ArrayLike,
        alpha: npt.ArrayLike,
        erasure: npt.ArrayLike,
        bit_rate_up: npt.ArrayLike | None = None,
        erasure_up: npt.ArrayLike | None = None,
        overhead: npt.ArrayLike = 0.0,
        availability: npt.ArrayLike = 1.0,
        client: npt.ArrayLike | None = None,
    ) -> None:
        columns = {
            "mac_rate": mac_rate,
            "bit_rate": bit_rate,
            "alpha": alpha,
            "erasure": erasure,
            "bit_rate_up": bit_rate_up,
            "erasure_up": erasure_up,
            "overhead": overhead,
            "availability": availability,
        }
        self._check_and_store(client, columns)

    def fleet(self, workload: Workload, points: npt.ArrayLike) -> Fleet:
        """Return the fleet that these devices are for a workload, with `points` per round."""
        return Fleet(
            points=points,
            rate=self.mac_rate / workload.point_macs,
            alpha=self.alpha,
            packet_time=workload.packet_bits / self.bit_rate,
            erasure=self.erasure,
            packet_time_up=workload.packet_bits / self.bit_rate_up,
            erasure_up=self.erasure_up,
            overhead=self.overhead,
            availability=self.availability,
            client=self.client,
        )


def read_fleet(
    path: str | Path, workload: Workload | None = None, points: float | None = None
) -> Fleet:
    """Read a fleet file, or a device file together with a workload.

    Parameters
    ----------
    path
        Columns of `Fleet`, or those of `Devices` with an optional ``points``.
    workload
        What a device file's clients are to compute; the paper's by default.
    points
        Points per round of every client, where a device file has no such column.
    """
    if "mac_rate" not in column_names(path):
        if points is not None:
            raise InputError(f"{path} has its own column 'points': leave --points out")
        return Fleet.read(path)
    required, optional = Devices._file_columns()
    columns = read_table(path, required, [*optional, "points"])
    held = columns.pop("points", points)
    if held is None:
        raise InputError(
            f"{path} lists devices without their data: add a column 'points', or say --points"
        )
    return Devices(**columns).fleet(workload or Workload(), held)


def _client_names(names: npt.ArrayLike | None, size: int) -> npt.NDArray[Any]:
    if size == 0:
        raise InputError("the fleet is empty: give at least one client")
    if names is None:
        return np.arange(size)
    client = np.array(names)
    if client.shape != (size,):
        raise InputError(f"client has shape {client.shape}: must be one name for each of {size}")
    unique, counts = np.unique(client, return_counts=True)
    if len(unique) < size:
        twice = unique[counts > 1][0]
        raise InputError(f"client {twice} is listed twice: give every client a name of its own")
    return client


def _checked(name: str, values: npt.ArrayLike, client: npt.NDArray[Any]) -> FloatArray:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} is not numeric: give one number per client") from None
    if array.ndim == 0:
        array = np.full(len(client), array)
    if array.shape != client.shape:
        raise InputError(
            f"{name} has shape {array.shape} where there are {len(client)} clients: "
            "give one number per client"
        )
    outside = _RANGES[name].outside(array)
    if outside.any():
        raise _refusal(name, array, outside, client)
    return array


def _refusal(
    name: str, values: FloatArray, wrong: npt.NDArray[np.bool_], client: npt.NDArray[Any]
) -> InputError:
    first = int(np.argmax(wrong))
    others = int(wrong.sum()) - 1
    also = f" (and {others} more)" if others else ""
    return InputError(
        f"{name} of client {client[first]} is {values[first]:g}{also}: {_RANGES[name].sentence}"
    )
