"""What the clients are: devices, the work that is asked of them, and the fleet both make.

`fleet.delays.DelayParameters` hold what section 2.2 of the paper calls μ_j, α_j, τ_j and p_j: how
long *one point* and *one packet* take. A `Fleet` adds ℓ_j, the points of each client. `Devices` say
how fast a processor and a link are, and a `Workload` how much of both a point and a packet need.
"""

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray
from codedfedl.errors import InputError
from codedfedl.fleet.columns import Columns, checked_points
from codedfedl.fleet.delays import DelayModel, DelayParameters
from codedfedl.io.notebook import drawn

if TYPE_CHECKING:
    from codedfedl.report.figures import Picture


@dataclass(frozen=True, eq=False, init=False)
class Fleet(DelayParameters):
    """The clients of a federation, as parameters of the delay model.

    Parameters
    ----------
    points : array of shape (n,)
        Data points per round that each client holds (the paper's ℓ_j).
    rate : array of shape (n,), points per second
        Processing rate (μ_j).
    alpha : array of shape (n,)
        Ratio of deterministic to mean random compute time (α_j).
    packet_time : array of shape (n,), seconds
        Time to send one packet, a model or a gradient (τ_j). 0 means no link at all.
    erasure : array of shape (n,)
        Probability that a packet is lost and retransmitted (p_j).
    packet_time_up, erasure_up : arrays of shape (n,), optional
        The uplink's values, if they differ from the downlink's.
    overhead : array of shape (n,), seconds
        Fixed time per round.
    availability : array of shape (n,)
        Probability that the client takes part in a round at all.
    client : array of shape (n,), optional
        The clients' names; by default 0, 1, ….

    Examples
    --------
    >>> fleet = Fleet(points=[400, 400], rate=[2, 20], alpha=2, packet_time=3, erasure=0.1)
    >>> len(fleet), fleet.total_points
    (2, 800)
    """

    points: FloatArray

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
        self._check_and_store(locals())
        object.__setattr__(self, "points", checked_points(self.points, self.client))

    @classmethod
    def of(cls, parameters: DelayParameters, points: npt.ArrayLike) -> "Fleet":
        """Return the clients of these delays with `points` per round."""
        names = DelayParameters.names()
        return cls(points=points, **{name: getattr(parameters, name) for name in names})

    @classmethod
    def names(cls) -> list[str]:
        """Return the columns in the order of a file: client and points come first."""
        client, *others = DelayParameters.names()
        return [client, "points", *others]

    @property
    def total_points(self) -> int:
        """Points per round over all clients (the paper's m)."""
        return int(self.points.sum())

    def plot(self) -> "Picture":
        """Draw where the time of a round goes, client by client."""
        return drawn("fleet_figures:fleet_figure", self)


@dataclass(frozen=True)
class Workload:
    """The cost of a point and a packet: of a linear model with q features and c labels by default.

    Parameters
    ----------
    features, labels
        q and c: a linear model, and so each packet, holds q·c values.
    bits
        Bits per value sent.
    overhead
        Protocol overhead, as a share of every packet.
    parameters
        Values of any other model.
    gradient_macs
        Multiply-accumulates of one point's gradient of any other model.
    bits_up
        Bits per value of an answer, if they differ.
    """

    features: int = 2000
    labels: int = 10
    bits: int = 32
    overhead: float = 0.1
    parameters: int | None = None
    gradient_macs: float | None = None
    bits_up: float | None = None

    def __post_init__(self) -> None:
        for name in ("features", "labels", "bits"):
            value = getattr(self, name)
            if not 1 <= value <= 2**31 or value != int(value):
                raise InputError(f"{name} is {value}: must be a whole number from 1 to 2^31")
        if not 0 <= self.overhead < inf:
            raise InputError(f"overhead is {self.overhead}: must be finite and at least 0")

    @property
    def point_macs(self) -> float:
        """Multiply-accumulates per point and gradient: q·c to predict, q·c to project back."""
        return self.gradient_macs or 2 * self.features * self.labels

    @property
    def packet_bits(self) -> float:
        """Bits of one packet, a model or a gradient (the paper's b)."""
        return float(self.sent_bits(self.parameters or self.features * self.labels))

    def sent_bits(self, numbers: npt.ArrayLike, bits: int | None = None) -> FloatArray:
        """Bits of so many numbers on a link, by default with as many bits each as a model's."""
        return np.asarray(numbers) * (bits or self.bits) * (1 + self.overhead)

    @property
    def packet_bits_up(self) -> float:
        """Bits of a packet that a client sends."""
        return self.packet_bits * (self.bits_up or self.bits) / self.bits


@dataclass(frozen=True, eq=False, init=False)
class Devices(Columns):
    """The clients' hardware, independent of the workload.

    Parameters
    ----------
    mac_rate : array of shape (n,), multiply-accumulates per second
    bit_rate : array of shape (n,), bits per second
    alpha, erasure, erasure_up, overhead, availability, client
        As in `Fleet`.
    bit_rate_up : array of shape (n,), bits per second, optional
        The uplink's rate, if it differs.
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
        self._check_and_store(locals())

    def parameters(self, workload: Workload) -> DelayParameters:
        """Return how long a point and a packet of a workload take these devices."""
        return DelayParameters(
            rate=self.mac_rate / workload.point_macs,
            alpha=self.alpha,
            packet_time=workload.packet_bits / self.bit_rate,
            erasure=self.erasure,
            packet_time_up=workload.packet_bits_up / self.bit_rate_up,
            erasure_up=self.erasure_up,
            overhead=self.overhead,
            availability=self.availability,
            client=self.client,
        )

    def fleet(self, workload: Workload, points: npt.ArrayLike) -> Fleet:
        """Return the fleet that these devices are for a workload, with `points` per round."""
        return Fleet.of(self.parameters(workload), points)


def with_workload(fleet: Fleet, before: Workload, after: Workload) -> Fleet:
    """Return the same clients for another workload, whose points and packets differ in size."""
    return replace(
        fleet,
        rate=fleet.rate * before.point_macs / after.point_macs,
        packet_time=fleet.packet_time * after.packet_bits / before.packet_bits,
        packet_time_up=fleet.packet_time_up * after.packet_bits_up / before.packet_bits_up,
    )


def fleet_of(delays: DelayModel, points: npt.ArrayLike, needed_for: str) -> Fleet:
    """Return delays that follow the paper's formula as a fleet; refuse others.

    Parameters
    ----------
    points
        Of each client, where the delays do not know them.
    needed_for
        What needs a fleet: the subject of the error.
    """
    if isinstance(delays, Fleet):
        return delays
    if delays.parameters is None:
        raise InputError(
            f"{needed_for} needs a Fleet: measured delays say how long rounds take, not how long "
            "other steps do; give a fleet file, such as `codedfedl fit --out` writes"
        )
    return Fleet.of(delays.parameters, points)


def check_drawn(clients: int, seed: int) -> None:
    """Refuse a number of clients, or a seed, that no fleet can be drawn with."""
    if clients < 1 or clients != int(clients):
        raise InputError(f"clients is {clients}: must be a whole number above 0")
    if seed < 0:
        raise InputError(f"seed is {seed}: must be at least 0")


def read_fleet(
    path: str | Path, workload: Workload | None = None, points: float | None = None
) -> Fleet:
    """Read a fleet file, or a device file together with a workload.

    Parameters
    ----------
    path
        Columns of `Fleet`, or those of `Devices` with an optional ``points``.
    workload
        The workload of a device file's clients; by default the paper's.
    points
        Points per round of every client, if a device file has no such column.
    """
    from codedfedl.io.tables import column_names, read_table

    if "mac_rate" not in column_names(path):
        return Fleet.read(path)
    required, optional = Devices.file_columns()
    columns = read_table(path, required, [*optional, "points"])
    held = columns.pop("points", points)
    if held is None:
        raise InputError(
            f"{path} lists devices without their data: add a column 'points', or give --points"
        )
    return Devices(**columns).fleet(workload or Workload(), held)


def read_clients(path: str | Path) -> Devices | DelayParameters:
    """Read a device file, or a fleet file without its points."""
    from codedfedl.io.tables import column_names, read_table

    kind = Devices if "mac_rate" in column_names(path) else DelayParameters
    required, optional = kind.file_columns()
    columns = read_table(path, required, [*optional, "points"])
    columns.pop("points", None)
    return kind(**columns)
