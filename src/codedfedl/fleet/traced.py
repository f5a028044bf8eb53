"""Device files from public traces: every client is one that was measured.

What no trace says is drawn as in the built-in fleet `phones`. Traces of different files are of
different devices: which processor has which link, and is away how often, is drawn by chance.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from codedfedl.arrays import IntArray
from codedfedl.errors import InputError
from codedfedl.fleet.devices import Devices, check_drawn
from codedfedl.fleet.fedscale import read_availabilities, read_capacities
from codedfedl.fleet.packets import read_packet_trace
from codedfedl.fleet.phones import MEDIAN_MAC_RATE, phone_devices
from codedfedl.random import stream

__all__ = ["TraceFiles", "traced_devices"]

_CAPACITY, _AVAILABILITY, _DOWN, _UP = range(10, 14)  # streams of "fleet"


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
        As in `Fleet`; no trace says them. The rates of a trace are those after retransmissions.
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
    if files.down is not None or files.up is not None:
        for key, path, other, step in (
            ("bit_rate", files.down, files.up, _DOWN),
            ("bit_rate_up", files.up, files.down, _UP),
        ):
            trace = read_packet_trace(path or other or "")
            columns[key] = trace.transfer_rates(8 * transfer, clients, stream(seed, "fleet", step))
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
