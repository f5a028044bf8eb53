"""FedScale's traces of real devices: how fast they are, and when they can be reached.

| file | a pickled dictionary of |
| --- | --- |
| `client_device_capacity` | id → ``computation`` (ms per sample), ``communication`` (kbit/s) |
| `client_behave_trace` | id → ``active`` and ``inactive`` (seconds at which a device became so), ``finish_time`` (length of the trace), ``duration``, ``model`` |
"""  # noqa: E501

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from codedfedl.arrays import FloatArray
from codedfedl.errors import InputError
from codedfedl.io.pickles import read_plain_pickle

__all__ = ["Capacities", "read_availabilities", "read_capacities"]


@dataclass(frozen=True, eq=False)
class Capacities:
    """The devices of a capacity trace; all arrays have shape (devices,).

    Attributes
    ----------
    client
        Their names in the trace.
    sample_seconds : seconds
        For the inference of one sample, by a model that the trace does not name.
    bit_rate : bits per second
    """

    client: list[str]
    sample_seconds: FloatArray
    bit_rate: FloatArray


def read_capacities(path: str | Path) -> Capacities:
    """Read FedScale's `client_device_capacity`."""
    names, rows = [], []
    for name, entry in _entries(path):
        names.append(name)
        rows.append([_positive(path, name, entry, key) for key in ("computation", "communication")])
    computation, communication = np.array(rows).T
    return Capacities(names, computation / 1e3, communication * 1e3)


def read_availabilities(path: str | Path) -> FloatArray:
    """Read the share of the time in which each device of `client_behave_trace` is active.

    A device is active from ``active[k]`` to ``inactive[k]``, as FedScale counts it; intervals that
    overlap count once, and what lies after ``finish_time`` does not count.
    """
    shares = []
    for name, entry in _entries(path):
        end = _positive(path, name, entry, "finish_time")
        since, until = (_times(path, name, entry, key) for key in ("active", "inactive"))
        if len(since) != len(until):
            raise InputError(
                f"{path}: client {name} has {len(since)} times in active and {len(until)} in "
                "inactive: give as many of both"
            )
        shares.append(_covered(since, until, end) / end)
    return np.array(shares)


def _covered(since: FloatArray, until: FloatArray, end: float) -> float:
    """Return how many seconds of [0, end] lie in any of some intervals."""
    order = np.argsort(since, kind="stable")
    since, until = np.clip(since[order], 0, end), np.clip(until[order], 0, end)
    reached = np.maximum.accumulate(np.concatenate([[0.0], until]))[:-1]
    return float(np.maximum(until - np.maximum(since, reached), 0).sum())


def _entries(path: str | Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    found = read_plain_pickle(path)
    if not isinstance(found, dict) or not found:
        raise InputError(f"{path} is not a dictionary of clients: give one of FedScale's traces")
    for name, entry in found.items():
        if not isinstance(entry, dict):
            raise InputError(f"{path}: client {name} is {_shown(entry)}: must be a dictionary")
        yield str(name), entry


def _positive(path: str | Path, name: str, entry: Mapping[str, Any], key: str) -> float:
    value: Any = entry.get(key)
    if not _is_number(value) or not value > 0:
        raise InputError(
            f"{path}: {key} of client {name} is {_shown(value)}: must be a number, finite and "
            "above 0"
        )
    return float(value)


def _times(path: str | Path, name: str, entry: Mapping[str, Any], key: str) -> FloatArray:
    values = entry.get(key)
    if not isinstance(values, list) or not all(map(_is_number, values)):
        raise InputError(
            f"{path}: {key} of client {name} is {_shown(values)}: must be a list of seconds"
        )
    return np.array(values, dtype=np.float64)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _shown(value: Any) -> str:
    """Return a value for an error; a container by its type, since it may be deep."""
    return (
        f"{value!r:.60}" if isinstance(value, float | str | None) else f"a {type(value).__name__}"
    )
