"""Measured times: what a client took, each time that it was asked.

Probes of a slow minority decide what its clients do, never how long the others wait. A client that
delays its probes, or claims that they took long, would otherwise set the deadline of every round.
So a deadline is planned as if the slowest fifth of the clients were no slower than the slowest of
the others, as far as they stand out (`without_minority`). For that deadline loads and return
probabilities follow from what was measured. The points of a client that is really so slow are then
represented by parity, where there is some.
"""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray
from codedfedl.errors import InputError
from codedfedl.fleet.columns import freeze, numbers
from codedfedl.fleet.measured import rows_by_client

MINORITY_SLOWDOWN = 4.0
"""Clients of a minority that need this many times as long as all others do not set a deadline."""

_CLIENTS_PER_MINORITY = 5
_TIME_COLUMNS = ("down", "compute", "up", "total", "waited")
_PARTS = ("down", "compute", "up")
_REQUIRED = ("client", "load")
_OPTIONAL = (*_PARTS, "total", "retries_down", "retries_up", "waited", "points")
_CLOCK_TOLERANCE = 0.01  # of a total, by which parts measured by another clock may exceed it
# The least and the largest value, and the sentence that says so.
_LARGEST = 1e100
_ABOVE_0 = (1e-100, _LARGEST, "must be finite and above 0; leave it empty if it was not measured")
_DURATION = (0.0, _LARGEST, "must be finite and at least 0; leave it empty if it was not measured")
_COUNT = (0.0, _LARGEST, "must be a whole number from 0; leave it empty if it was not counted")
_RANGES = {
    "load": (
        *_ABOVE_0[:2],
        "must be finite and above 0: the points that the client was asked to process",
    ),
    "down": _DURATION,
    "compute": _ABOVE_0,
    "up": _DURATION,
    "total": (5e-324, np.inf, "must be above 0; write inf or nothing if no reply arrived"),
    "retries_down": _COUNT,
    "retries_up": _COUNT,
    "waited": _ABOVE_0,
    "points": (*_ABOVE_0[:2], "must be finite and above 0: the client's points per round"),
}


@dataclass(frozen=True, eq=False, init=False)
class Traces:
    """Measurements, one entry per array for each: all of shape (n,), NaN if not measured.

    A reply has a ``total``, or all of ``down``, ``compute`` and ``up``. A measurement without a
    reply has ``total`` ∞ or no time at all.

    Parameters
    ----------
    client : array of shape (n,)
        Name of the client.
    load : array of shape (n,), points
        Number of points it was asked to process.
    down, compute, up, total : arrays of shape (n,), seconds, optional
    retries_down, retries_up : arrays of shape (n,), optional
        Number of retransmissions of the packet, 0 if it arrived at once.
    waited : array of shape (n,), seconds, optional
        When the server stopped waiting. Without it, a missing reply counts as absence.
    points : array of shape (n,), optional
        Points per round of the client.

    Examples
    --------
    >>> traces = Traces(["phone", "phone"], load=[100, 200], total=[3.1, float("inf")])
    >>> len(traces), traces.came.tolist()
    (2, [True, False])
    """

    client: npt.NDArray[Any]
    load: FloatArray
    down: FloatArray
    compute: FloatArray
    up: FloatArray
    total: FloatArray
    retries_down: FloatArray
    retries_up: FloatArray
    waited: FloatArray
    points: FloatArray

    def __init__(
        self,
        client: npt.ArrayLike,
        load: npt.ArrayLike,
        *,
        down: npt.ArrayLike | None = None,
        compute: npt.ArrayLike | None = None,
        up: npt.ArrayLike | None = None,
        total: npt.ArrayLike | None = None,
        retries_down: npt.ArrayLike | None = None,
        retries_up: npt.ArrayLike | None = None,
        waited: npt.ArrayLike | None = None,
        points: npt.ArrayLike | None = None,
    ) -> None:
        arguments, names = locals(), np.array(client)
        if names.ndim != 1 or not len(names):
            raise InputError(f"client has shape {names.shape}: give one name per measurement")
        if total is None and any(part is None for part in (down, compute, up)):
            raise InputError("there is no 'total': give it, or all of 'down', 'compute' and 'up'")
        columns = {name: _checked(name, arguments[name], len(names)) for name in _RANGES}
        freeze(self, {"client": names, **columns})
        self._check_rows()

    def __len__(self) -> int:
        """Return the number of measurements."""
        return len(self.client)

    @property
    def came(self) -> npt.NDArray[np.bool_]:
        """Which measurements came back, shape (n,)."""
        return np.isfinite(self.seconds)

    @property
    def seconds(self) -> FloatArray:
        """How long each took, down and up included, shape (n,); ∞ where no reply came."""
        parts = self.down + self.compute + self.up
        known = np.where(np.isnan(self.total), parts, self.total)
        return np.where(np.isnan(known), np.inf, known)

    def write(self, path: str | Path) -> None:
        """Write a CSV or Parquet file that `read_traces` turns into the same object again."""
        from codedfedl.io.tables import write_table

        columns: dict[str, npt.ArrayLike] = {"client": self.client}
        for column in fields(self)[1:]:
            values = getattr(self, column.name)
            if column.name == "total" or not np.isnan(values).all():
                empty = np.isnan(values)
                columns[column.name] = np.where(empty, None, values) if empty.any() else values
        write_table(path, columns)

    def _check_rows(self) -> None:
        """Refuse rows that contradict themselves."""
        parts = np.stack([getattr(self, name) for name in _PARTS])
        any_part, every = ~np.isnan(parts).all(0), ~np.isnan(parts).any(0)
        sum_ = np.nansum(parts, axis=0)
        for wrong, sentence in (
            (
                np.isinf(self.total) & any_part,
                "total is inf beside other times: a measurement without a reply has none",
            ),
            (
                np.isnan(self.total) & any_part & ~every,
                "total is empty: give it, or all of 'down', 'compute' and 'up'",
            ),
            (
                sum_ > self.total * (1 + _CLOCK_TOLERANCE),
                "total is below the sum of down, compute and up: write all of them in seconds",
            ),
        ):
            if wrong.any():
                raise InputError(f"row {int(np.argmax(wrong))} (counted from 0): {sentence}")


def read_traces(path: str | Path) -> Traces:
    """Read a CSV or Parquet file of measurements, with the columns that `Traces` has.

    An empty cell or a missing column means not measured. Other columns are ignored, with a warning.
    """
    from codedfedl.io.tables import read_table, row_in_file

    columns = read_table(path, _REQUIRED, _OPTIONAL, blank=_OPTIONAL, others=True)
    try:
        return Traces(**columns)
    except InputError as error:
        row, said = re.match(r"row (\d+) \(counted from 0\): ", str(error)), str(error)
        if row:
            said = f"{row_in_file(Path(path), int(row[1]))}: {said.removeprefix(row[0])}"
        raise InputError(f"{path}, {said}") from None


def _checked(name: str, values: npt.ArrayLike | None, size: int) -> FloatArray:
    """Return a column of valid numbers, NaN where nothing was measured."""
    if values is None:
        return np.full(size, np.nan)
    array = numbers(name, values, size, "measurement")
    least, largest, must = _RANGES[name]
    valid = (least <= array) & (array <= largest)
    if must is _COUNT[2]:
        valid &= array == np.floor(array)
    wrong = ~valid if name == "load" else ~valid & ~np.isnan(array)
    if wrong.any():
        row = int(np.argmax(wrong))
        value = "empty" if np.isnan(array[row]) else f"{array[row]:g}"
        raise InputError(f"row {row} (counted from 0): {name} is {value}: {must}")
    return array


def slow_minority(traces: Traces) -> dict[str, float]:
    """Return the clients that stand out, and how many times as long as all others they take."""
    names, rows = rows_by_client(traces.client)
    compute = np.nan_to_num(traces.compute, nan=0.0)
    # How long each would have taken with the median load.
    seconds = traces.seconds + compute * (np.median(traces.load) / traces.load - 1)
    finite = [seconds[r][np.isfinite(seconds[r])] for r in rows]
    each = np.array([np.median(times) if len(times) else 0.0 for times in finite])
    order = np.argsort(-each)
    slowest = order[: len(names) // _CLIENTS_PER_MINORITY]
    others = float(each[order[len(slowest) :]].max(initial=0.0))
    if others <= 0:
        return {}
    return {
        str(names[j]): float(each[j] / others)
        for j in slowest
        if each[j] > MINORITY_SLOWDOWN * others
    }


def without_minority(traces: Traces) -> Traces:
    """Return the measurements as if those who stand out were as slow as the slowest of the others.

    The same object if nobody stands out.
    """
    slower = slow_minority(traces)
    if not slower:
        return traces
    factor = np.array([1 / slower.get(str(name), 1.0) for name in traces.client])
    columns = {column.name: getattr(traces, column.name) for column in fields(traces)}
    return Traces(**columns | {name: factor * columns[name] for name in _TIME_COLUMNS})
