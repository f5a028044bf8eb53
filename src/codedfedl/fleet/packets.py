"""Packet traces of real links, in mahimahi's form.

A line is a whole number of milliseconds: a moment at which the link could deliver 1,500 bytes. A
number that is there twice means two deliveries, and the trace begins anew at its last moment.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from codedfedl.arrays import FloatArray
from codedfedl.errors import InputError

__all__ = ["PacketTrace", "read_packet_trace"]

_PACKET_BITS = 8 * 1500
_MOST_BYTES = 2**28
_LONGEST = 2**53  # milliseconds


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
        again, place = np.divmod(last, len(self.moments))
        return np.asarray((laps + again) * self.seconds + self.moments[place] - start)

    def transfer_rates(self, bits: float, count: int, rng: np.random.Generator) -> FloatArray:
        """Draw the bits per second of transfers that begin at random moments, shape (count,)."""
        seconds = self.transfer_seconds(bits, rng.random(count) * self.seconds)
        return np.asarray(bits / seconds)


def read_packet_trace(path: str | Path) -> PacketTrace:
    """Read a packet trace."""
    path = Path(path)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{path} has more than {_MOST_BYTES >> 20} MB: give a shorter trace")
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
    return line.isdigit() and len(line) < 20 and int(line) <= _LONGEST
