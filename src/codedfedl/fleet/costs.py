"""What each step costs in multiply-accumulates and bits, and how long a fleet takes for it.

This is the one place where costs are written. A gradient's cost is the `Workload`'s: 2·q·c
multiply-accumulates a point, and a packet of q·c numbers each way. These are the steps that come
once:

| step | multiply-accumulates of a client | numbers that it sends |
| --- | --- | --- |
| `embedding` | d·q a point, for random Fourier features; O(q·log d) for structured ones | – |
| `parity` | u·ℓ·(q + c) for every mini-batch; s·ℓ·(q + c) for a sparse code | u·(q + c) for each |
| `gram` | q(q + 1)/2 + q·c a point | q(q + 1)/2 + q·c |
| `raw` | – | the points themselves, as many bits as they have |

What the server computes is free, as in the paper; `Server` is for where it is not: a node without
a link, whose processor takes time for the coded gradient.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray, Mask
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel, DelayParameters
from codedfedl.fleet.devices import Workload

IN_TIME = 0.98
"""Probability with which parity is there by the deadline: a class may depend on one client's."""


@dataclass(frozen=True)
class Cost:
    """The cost of a step on every client; both arrays have shape (n,)."""

    macs: FloatArray
    bits_up: FloatArray

    def packets(self, workload: Workload) -> IntArray:
        """Return how many packets of the size of a model hold the bits."""
        return np.ceil(self.bits_up / workload.packet_bits - 1e-9).astype(np.int64)

    def mean_seconds(self, fleet: DelayParameters, workload: Workload) -> FloatArray:
        """Return the mean time on the fleet's delay model: shifted exponential, then packets."""
        compute = self.macs / (workload.point_macs * fleet.rate) * (1 + 1 / fleet.alpha)
        packets = self.packets(workload)
        return compute + packets * fleet.packet_time_up / (1 - fleet.erasure_up)

    def sample_seconds(
        self, delays: DelayModel, workload: Workload, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Draw the time of the computation and of the upload."""
        return delays.bulk(self.macs / workload.point_macs, self.packets(workload), rng)


def packet(workload: Workload, loads: npt.ArrayLike) -> Cost:
    """Process some points for a gradient, and send one packet: a model or a gradient."""
    macs = np.asarray(loads, dtype=np.float64) * workload.point_macs
    return Cost(macs, np.full(macs.shape, workload.packet_bits))


def embedding(points: npt.ArrayLike, feature_macs: int) -> Cost:
    """Map every point of a client to its features, once."""
    macs = np.asarray(points, dtype=np.float64) * feature_macs
    return Cost(macs, np.zeros_like(macs))


def seconds_to_embed(
    feature_macs: int, workload: Workload, fleet: DelayParameters, slowness: npt.ArrayLike = 1.0
) -> FloatArray:
    """Return what embedding a point takes each client; a slowness of 1 is the mean of Exp(1)."""
    once = feature_macs / (workload.point_macs * fleet.rate)
    return np.asarray(once * (1 + np.asarray(slowness) / fleet.alpha), dtype=np.float64)


def embedded_by(deadline: float | FloatArray, seconds: FloatArray, held: npt.ArrayLike) -> IntArray:
    """Return how many of its points each client has embedded by a deadline, shape (n,)."""
    most = np.asarray(held, dtype=np.float64)
    return np.minimum(deadline / np.maximum(seconds, 1e-300), most).astype(np.int64)


def raw(points: npt.ArrayLike, workload: Workload, bits: int) -> Cost:
    """Send every point of a client as it is, at so many bits with its label; compute nothing."""
    points = np.asarray(points, dtype=np.float64)
    return Cost(np.zeros_like(points), points * bits * (1 + workload.overhead))


def parity(
    points: npt.ArrayLike,
    rows: Sequence[int],
    workload: Workload,
    operations: Sequence[int] | None = None,
) -> Cost:
    """Apply a code to every mini-batch, and send the parity.

    Parameters
    ----------
    points : array of shape (batches, n)
    rows
        u of every mini-batch.
    operations
        What a point costs for each of its numbers; by default u, for a dense code.
    """
    points = np.asarray(points, dtype=np.float64)
    columns = workload.features + workload.labels
    each = np.asarray(rows if operations is None else operations, dtype=np.float64)
    bits = workload.sent_bits(sum(rows) * columns)
    return Cost(each @ points * columns, np.full(points.shape[1], bits))


def gram(points: npt.ArrayLike, workload: Workload) -> Cost:
    """Sum the outer products of every point of a client, and send the triangle and the moments."""
    points = np.asarray(points, dtype=np.float64)
    q, c = workload.features, workload.labels
    numbers = q * (q + 1) / 2 + q * c
    return Cost(points * numbers, np.full(points.shape, workload.sent_bits(numbers)))


def block_rows(points: npt.ArrayLike, mixing: int, rows_a_point: int) -> IntArray:
    """Return how many rows some points make, each of `mixing` distinct points at least.

    A client with fewer points than that makes none.
    """
    held = np.asarray(points, dtype=np.int64)
    return np.where(held >= mixing, held // -(-mixing // rows_a_point), 0)


@dataclass(frozen=True)
class BlockSetup:
    """Embed, mix `mixing` points into every row of the client's parity, and send it by a deadline.

    Parameters
    ----------
    workload
        The size of a packet and the cost of a point.
    feature_macs
        Multiply-accumulates to embed a point.
    operations
        Rows that each point goes into: the cost of mixing, per value of the point.
    mixing
        Points mixed into every parity row.
    bits
        Bits per parity value; by default the workload's.
    """

    workload: Workload
    feature_macs: int
    operations: int
    mixing: int
    bits: int | None = None

    def ways(self) -> list["BlockSetup"]:
        """Return the set-ups that differ only in the number of rows per point.

        More rows are a better sketch and take longer to mix and to send. A client never sends more
        than half as many rows as it has points. Each number of rows comes once, the cheapest way.
        """
        most = max(self.mixing // 2, 1)
        blocks = -(-self.mixing // np.arange(1, most + 1))  # points for a row, fewer and fewer
        _, first = np.unique(blocks, return_index=True)
        return [replace(self, operations=int(s)) for s in sorted(first + 1)]

    def rows(self, points: npt.ArrayLike) -> IntArray:
        """Return the number of rows for a number of points."""
        return block_rows(points, self.mixing, self.operations)

    def mixing_cost(self, points: npt.ArrayLike) -> Cost:
        """Return the cost of mixing and sending a number of embedded points."""
        points = np.asarray(points, dtype=np.int64)
        columns = self.workload.features + self.workload.labels
        bits = self.workload.sent_bits(self.rows(points) * columns, self.bits)
        return Cost(points * float(self.operations * columns), bits)

    def packets(self, points: npt.ArrayLike) -> IntArray:
        """Return the number of packets for the parity of a number of points."""
        return self.mixing_cost(points).packets(self.workload)

    def seconds_per_point(
        self, fleet: DelayParameters, slowness: npt.ArrayLike = 1.0
    ) -> FloatArray:
        """Return the processor's time for a point; a slowness of 1 is the mean of Exp(1)."""
        columns = self.workload.features + self.workload.labels
        macs = self.feature_macs + self.operations * columns
        return seconds_to_embed(macs, self.workload, fleet, slowness)

    def points_by(
        self,
        deadline: float | FloatArray,
        fleet: DelayParameters,
        held: npt.ArrayLike,
        seconds_per_point: FloatArray,
    ) -> IntArray:
        """Return how many points each client can finish by the deadline, shape (n,).

        It stops embedding when the time left just suffices to mix and to send, with probability
        `IN_TIME`. A client that cannot fill one row has 0. Deadlines of shape (k, 1) give a row
        each.
        """
        sent = _sent(int(self.packets(held).max(initial=0)), fleet.erasure_up.tobytes())
        who = np.arange(len(fleet))

        def done(points: IntArray) -> Mask:
            sending = sent[self.packets(points), who] * fleet.packet_time_up
            return np.asarray(points * seconds_per_point + sending <= deadline)

        shape = np.broadcast_shapes(np.shape(deadline), (len(fleet),))
        most = most_points(done, np.broadcast_to(held, shape))
        return np.where(most >= self.mixing, most, 0)


def most_points(done: Callable[[IntArray], Mask], held: npt.ArrayLike) -> IntArray:
    """Return the most points of each client that are done, by bisection; more take longer."""
    high = np.asarray(held, dtype=np.int64)
    low = np.zeros_like(high)
    while (low < high).any():
        middle = (low + high + 1) // 2
        fits = done(middle)
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return low


@lru_cache(maxsize=8)
def _sent(most: int, erasures: bytes) -> FloatArray:
    """Return the number of transmissions until all packets arrive, with that probability.

    Shape (most + 1, n): the row is the number of packets. A plan asks for it thousands of times.
    """
    from scipy.stats import nbinom

    delivered = 1 - np.frombuffer(erasures)
    packets = np.arange(1, most + 1)[:, None]
    known = packets + nbinom.ppf(IN_TIME, packets, delivered)
    return np.concatenate([np.zeros((1, len(delivered))), known])


@dataclass(frozen=True)
class Server:
    """The server as an additional node, which has no link and computes the coded gradient.

    Parameters
    ----------
    rate : points per second
        Parity rows that it processes per second.
    max_rows
        Maximum number of parity rows (the paper's u_max).
    alpha
        As for a client.
    """

    rate: float
    max_rows: int
    alpha: float = 2.0

    def __post_init__(self) -> None:
        for name in ("rate", "alpha", "max_rows"):
            value = getattr(self, name)
            if not 0 < value < np.inf:
                raise InputError(f"the server's {name} is {value:g}: must be finite and above 0")
        if self.max_rows != int(self.max_rows):
            raise InputError(f"the server's max_rows is {self.max_rows}: must be a whole number")

    def beside(self, clients: DelayParameters) -> DelayParameters:
        """Return the clients and, as one more of them, the server."""
        node = {"rate": self.rate, "alpha": self.alpha, "availability": 1.0}
        names = DelayParameters.names()[1:]
        columns = {name: np.append(getattr(clients, name), node.get(name, 0.0)) for name in names}
        return DelayParameters(**columns)

    def return_probability(self, rows: int, t: float) -> float:
        """P(T_C ≤ t) with a number of rows."""
        spare = t - rows / self.rate
        return float(-np.expm1(-self.alpha * self.rate / rows * spare)) if spare > 0 else 0.0


@dataclass(frozen=True)
class ServerWork:
    """What the server computes while it waits for the clients: a gradient on parity rows."""

    server: Server
    rows: int

    def seconds(self, slowness: float) -> float:
        """T_C = u/μ·(1 + slowness/α), the delay model of a client without a link.

        Parameters
        ----------
        slowness
            A standard exponential draw.
        """
        return self.rows / self.server.rate * (1 + slowness / self.server.alpha)
