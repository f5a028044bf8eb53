"""Columns of checked numbers, one entry per client: what `Fleet` and `Devices` are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.errors import InputError
from codedfedl.io.notebook import html_table

# The least value that is allowed, the least that is too large, and the sentence that says so.
_POSITIVE = (1e-100, 1e100, "must be finite and above 0, from 1e-100 to 1e100")
_ALPHA = (5e-324, inf, "must be finite and above 0")
_DURATION = (0.0, 1e100, "must be finite and at least 0, and below 1e100 seconds")
_ERASURE = (0.0, 1.0, "must be at least 0 and below 1")

_RANGES = {
    "points": (0.0, 2.0**53, "must be a whole number from 0 to 2^53"),
    "rate": _POSITIVE,
    "mac_rate": _POSITIVE,
    "bit_rate": _POSITIVE,
    "bit_rate_up": _POSITIVE,
    "alpha": _ALPHA,
    "packet_time": _DURATION,
    "packet_time_up": _DURATION,
    "erasure": _ERASURE,
    "erasure_up": _ERASURE,
    "overhead": _DURATION,
    "availability": (0.0, 1 + 2.0**-52, "must be between 0 and 1"),
}


@dataclass(frozen=True, eq=False, init=False)
class Columns:
    """Frozen arrays, one entry per client, checked once at construction.

    A scalar stands for every client; where an uplink is not given, it equals the downlink.
    """

    client: npt.NDArray[Any]

    def _check_and_store(self, arguments: Mapping[str, Any]) -> None:
        """Take every column from the constructor's arguments."""
        given = {name: arguments[name] for name in self.names() if name != "client"}
        for name, values in given.items():
            given[name] = given[name.removesuffix("_up")] if values is None else values
        sizes = [len(v) for v in (*given.values(), arguments["client"]) if np.ndim(v) == 1]
        client = client_names(arguments["client"], sizes[0] if sizes else 1)
        checked = {name: _checked(name, values, client) for name, values in given.items()}
        freeze(self, {"client": client, **checked})

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
        """Read a CSV or Parquet file with a column per field, optional where it has a default."""
        from codedfedl.io.tables import read_table

        return cls(**read_table(path, *cls.file_columns()))

    def write(self, path: str | Path) -> None:
        """Write a CSV or Parquet file that `read` turns into the same object again."""
        from codedfedl.io.tables import write_table

        write_table(path, {name: getattr(self, name) for name in self.names()})

    def _repr_html_(self) -> str:
        """Show the columns that say something: not an uplink that equals the downlink."""
        shown = {name: getattr(self, name) for name in self.names()}
        usual = {"overhead": 0.0, "availability": 1.0}
        dull = [
            name
            for name, values in shown.items()
            if (name.endswith("_up") and (values == shown[name.removesuffix("_up")]).all())
            or (name in usual and (values == usual[name]).all())
        ]
        columns = {name: values for name, values in shown.items() if name not in dull}
        return html_table(columns, f"{type(self).__name__} of {len(self):,} clients")

    @classmethod
    def names(cls) -> list[str]:
        """Return the columns, in the order of a file."""
        return [column.name for column in fields(cls)]

    @classmethod
    def file_columns(cls) -> tuple[list[str], list[str]]:
        """Return the columns that a file must have, and those that it may have."""
        defaults = cls.__init__.__kwdefaults__ or {}
        names = [name for name in cls.names() if name != "client"]
        required = [name for name in names if name not in defaults]
        return ["client", *required], [name for name in names if name in defaults]


def freeze(columns: object, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Make arrays the attributes of a frozen object; nobody may write into them."""
    for name, array in arrays.items():
        array.flags.writeable = False
        object.__setattr__(columns, name, array)


def numbers(name: str, values: npt.ArrayLike, size: int, what: str) -> FloatArray:
    """Return a number for each of `size` clients or measurements; a single one is for all."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} is not numeric: give one number per {what}") from None
    if array.ndim == 0:
        array = np.full(size, array)
    if array.shape != (size,):
        raise InputError(
            f"{name} has shape {array.shape} where there are {size} {what}s: give one number per "
            f"{what}"
        )
    return array


def client_names(names: npt.ArrayLike | None, size: int) -> npt.NDArray[Any]:
    """Return the names of `size` clients, which must differ; 0, 1, … where none are given."""
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
        raise InputError(f"client {twice} is listed twice: give every client its own name")
    return client


def checked_points(points: npt.ArrayLike, client: npt.NDArray[Any]) -> FloatArray:
    """Return the points per round of each client, shape (n,); one number stands for all."""
    held = _checked("points", points, client)
    fractional = held != np.floor(held)
    if fractional.any():
        raise _refusal("points", held, fractional, client)
    if not held.any():
        raise InputError("points: no client has any points; give at least one client its data")
    held.flags.writeable = False
    return held


def _checked(name: str, values: npt.ArrayLike, client: npt.NDArray[Any]) -> FloatArray:
    array = numbers(name, values, len(client), "client")
    least, limit, _ = _RANGES[name]
    outside = ~((array >= least) & (array < limit))  # NaN is outside
    if outside.any():
        raise _refusal(name, array, outside, client)
    return array


def _refusal(
    name: str, values: FloatArray, wrong: npt.NDArray[np.bool_], client: npt.NDArray[Any]
) -> InputError:
    """Return the error that names the first wrong value, its client and what it must be."""
    first = int(np.argmax(wrong))
    others = int(wrong.sum()) - 1
    also = f" (and {others} more)" if others else ""
    return InputError(
        f"{name} of client {client[first]} is {values[first]:g}{also}: {_RANGES[name][2]}"
    )
