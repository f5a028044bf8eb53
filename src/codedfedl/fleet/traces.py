"""Device files from public traces: every client is one that was measured.

What the traces do not say is drawn as in the built-in fleet `phones`. Traces of different files are of
different devices: which processor has which link, and is away how often, is drawn by chance.

FedScale's traces are pickled dictionaries:

| file | a pickled dictionary of |
| --- | --- |
| `client_device_capacity` | id → ``computation`` (ms per sample), ``communication`` (kbit/s) |
| `client_behave_trace` | id → ``active`` and ``inactive`` (seconds at which a device became so), ``finish_time`` (length of the trace), ``duration``, ``model`` |

A line of mahimahi's packet traces is a whole number of milliseconds: a moment at which the link
could deliver 1,500 bytes. A number that is there twice means two deliveries, and the trace begins
anew at its last moment.
"""  # noqa: E501

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.errors import InputError
from codedfedl.fleet.built_in import MEDIAN_MAC_RATE, phone_devices
from codedfedl.fleet.devices import Devices, check_drawn
from codedfedl.io.pickles import read_plain_pickle
from codedfedl.random import stream

_CAPACITY, _AVAILABILITY, _DOWN, _UP = range(10, 14)  # streams of "fleet"
_PACKET_BITS = 8 * 1500
_MAX_TRACE_BYTES = 2**28
_MAX_MILLISECONDS = 2**53


@dataclass(frozen=True)
class TraceFiles:
    """Traces to build a fleet from.

    Attributes
    ----------
    capacity, availability
        FedScale's `client_device_capacity` and `client_behave_trace`.
    down, up
        mahimahi's packet traces of a downlink and an uplink; one alone serves both ways.
    """

    capacity: Path | None = None
    availability: Path | None = None
    down: Path | None = None
    up: Path | None = None

    def __post_init__(self) -> None:
        if not any((self.capacity, self.availability, self.down, self.up)):
            raise InputError(
                "no trace is given: give --capacity, --availability, --down or --up, or use the "
                "built-in fleet 'phones'"
            )


def traced_devices(
    files: TraceFiles,
    clients: int,
    *,
    mac_rate: float = MEDIAN_MAC_RATE,
    alpha: float = 2.0,
    erasure: float = 0.0,
    transfer: float = 1e6,
    seed: int = 0,
) -> Devices:
    """Draw clients from traces.

    Parameters
    ----------
    mac_rate : multiply-accumulates per second
        Of the median device of a capacity trace, which says only how fast devices are relative to
        one another: its samples are those of a model that it does not name.
    alpha, erasure
        As in `Fleet`; not in the traces. The rates of a trace are those after retransmissions.
    transfer : bytes
        A client's link is as fast as a transfer of this size, begun at a random moment of a packet
        trace.
    """
    check_drawn(clients, seed)
    for name, value in (("mac_rate", mac_rate), ("transfer", transfer)):
        if not 0 < value < np.inf:
            raise InputError(f"{name} is {value:g}: must be finite and above 0")
    phones = phone_devices(clients, alpha=alpha, erasure=erasure, seed=seed)
    columns: dict[str, Any] = {name: getattr(phones, name) for name in Devices.names()}
    if files.capacity is not None:
        known = read_capacities(files.capacity)
        drawn = _drawn(len(known.client), clients, files.capacity, seed)
        median = np.median(known.sample_seconds)
        columns["client"] = np.array(known.client)[drawn]
        columns["mac_rate"] = mac_rate * median / known.sample_seconds[drawn]
        columns["bit_rate"] = columns["bit_rate_up"] = known.bit_rate[drawn]
    down, up = files.down or files.up, files.up or files.down
    for key, path, step in (("bit_rate", down, _DOWN), ("bit_rate_up", up, _UP)):
        if path is not None:
            luck = stream(seed, "fleet", step)
            columns[key] = read_packet_trace(path).transfer_rates(8 * transfer, clients, luck)
    if files.availability is not None:
        shares = read_availabilities(files.availability)
        luck = stream(seed, "fleet", _AVAILABILITY)
        columns["availability"] = shares[luck.integers(len(shares), size=clients)]
    return Devices(**columns)


def _drawn(known: int, clients: int, path: Path, seed: int) -> IntArray:
    """Draw clients of a trace, each once at most."""
    if clients > known:
        raise InputError(f"clients is {clients}, and {path} has {known}: ask for no more")
    return stream(seed, "fleet", _CAPACITY).permutation(known)[:clients]


class Capacities(NamedTuple):
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
    devices = read_plain_pickle(path)
    if not isinstance(devices, dict) or not devices:
        raise InputError(f"{path} is not a dictionary of clients: give one of FedScale's traces")
    for name, entry in devices.items():
        if not isinstance(entry, dict):
            raise InputError(f"{path}: client {name} is {_shown(entry)}: must be a dictionary")
        yield str(name), entry


def _positive(path: str | Path, name: str, entry: Mapping[str, Any], key: str) -> float:
    value: Any = entry.get(key)
    if not _is_number(value) or not value > 0:
        raise _refusal(path, name, entry, key, "a number, finite and above 0")
    return float(value)


def _times(path: str | Path, name: str, entry: Mapping[str, Any], key: str) -> FloatArray:
    values = entry.get(key)
    if not isinstance(values, list) or not all(map(_is_number, values)):
        raise _refusal(path, name, entry, key, "a list of seconds")
    return np.array(values, dtype=np.float64)


def _refusal(
    path: str | Path, name: str, entry: Mapping[str, Any], key: str, must: str
) -> InputError:
    value = _shown(entry.get(key))
    return InputError(f"{path}: {key} of client {name} is {value}: must be {must}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _shown(value: Any) -> str:
    """Return a value for an error; a container by its type, since it may be deep."""
    return (
        f"{value!r:.60}" if isinstance(value, float | str | None) else f"a {type(value).__name__}"
    )


@dataclass(frozen=True, eq=False)
class PacketTrace:
    """When a link could deliver a packet, again and again.

    Attributes
    ----------
    moments : array of shape (packets,), seconds
        In ascending order; the last is the length of the trace.
    """

    moments: FloatArray

    @property
    def seconds(self) -> float:
        """Length of the trace."""
        return float(self.moments[-1])

    @property
    def bit_rate(self) -> float:
        """Bits per second on average over the whole trace."""
        return len(self.moments) * _PACKET_BITS / self.seconds

    def transfer_seconds(self, bits: float, start: FloatArray) -> FloatArray:
        """Return how long transfers take that begin at some moments of the trace, shape (n,)."""
        packets = int(np.ceil(bits / _PACKET_BITS))
        laps, within = np.divmod(start, self.seconds)
        last = np.searchsorted(self.moments, within, side="right") + packets - 1
        again, position = np.divmod(last, len(self.moments))
        return np.asarray((laps + again) * self.seconds + self.moments[position] - start)

    def transfer_rates(self, bits: float, count: int, rng: np.random.Generator) -> FloatArray:
        """Draw the bits per second of transfers that begin at random moments, shape (count,)."""
        seconds = self.transfer_seconds(bits, rng.random(count) * self.seconds)
        return np.asarray(bits / seconds)


def read_packet_trace(path: str | Path) -> PacketTrace:
    """Read a packet trace."""
    path = Path(path)
    try:
        if path.stat().st_size > _MAX_TRACE_BYTES:
            limit = _MAX_TRACE_BYTES >> 20
            raise InputError(f"{path} has more than {limit} MB: give a shorter trace")
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    wrong = next((k for k, line in enumerate(lines) if not _is_moment(line)), None)
    if wrong is not None:
        raise InputError(
            f"{path}: line {wrong + 1} is {lines[wrong][:40].decode('ascii', 'replace')!r}: must "
            "be a whole number of milliseconds"
        )
    moments = np.array([int(line) for line in lines], dtype=np.float64) / 1e3
    falls = np.flatnonzero(np.diff(moments) < 0)
    if len(falls):
        raise InputError(
            f"{path}: line {falls[0] + 2} is earlier than the line before it: sort the lines"
        )
    if not len(moments) or moments[-1] == 0:
        raise InputError(f"{path} lasts no time: give a trace whose last line is above 0")
    return PacketTrace(moments)


def _is_moment(line: bytes) -> bool:
    return line.isdigit() and len(line) < 20 and int(line) <= _MAX_MILLISECONDS
