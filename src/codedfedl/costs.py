"""What each step costs in multiply-accumulates and bits, and how long a fleet takes for it.

This is the one place where costs are written. A gradient's cost is the `Workload`'s; here are the
steps that come before the first round, as the paper describes them: random Fourier features
(section 3.1) and parity from a dense random code for every mini-batch (section 3.2).
"""

from dataclasses import dataclass

import numpy as np

from codedfedl.errors import InputError
from codedfedl.fleet import Fleet, FloatArray, Workload

__all__ = ["Cost", "Setup"]


@dataclass(frozen=True)
class Cost:
    """What a step asks of every client; both arrays have shape (n,)."""

    macs: FloatArray
    bits_up: FloatArray

    def mean_seconds(self, fleet: Fleet, workload: Workload) -> FloatArray:
        """Return the mean time on the fleet's delay model: shifted exponential, then packets."""
        compute = self.macs / workload.point_macs / fleet.rate * (1 + 1 / fleet.alpha)
        packets = self.bits_up / workload.packet_bits
        return compute + packets * fleet.packet_time_up / (1 - fleet.erasure_up)


@dataclass(frozen=True)
class Setup:
    """Everything that the clients do once, before the first round.

    Parameters
    ----------
    inputs
        Numbers in a raw data point (the paper's d); 784 for MNIST.
    batches
        Mini-batches, each encoded for itself; the fleet's points are those of one of them.
    """

    inputs: int = 784
    batches: int = 5

    def __post_init__(self) -> None:
        for name in ("inputs", "batches"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}: must be at least 1")

    def embedding(self, fleet: Fleet, workload: Workload) -> Cost:
        """Dense random Fourier features: d·q multiply-accumulates a point."""
        points = self.batches * fleet.points
        return Cost(points * self.inputs * workload.features, np.zeros(len(fleet)))

    def parity(self, fleet: Fleet, workload: Workload, rows: int) -> Cost:
        """Apply a dense code of `rows` × points to q + c columns, and upload what it makes."""
        columns = workload.features + workload.labels
        bits = rows * columns * workload.bits * (1 + workload.overhead)
        return Cost(
            self.batches * rows * fleet.points * columns,
            np.full(len(fleet), self.batches * bits),
        )

    def seconds(self, fleet: Fleet, workload: Workload, rows: int) -> float:
        """Mean set-up time of the client that takes longest in the mean, seconds."""
        embedding = self.embedding(fleet, workload).mean_seconds(fleet, workload)
        parity = self.parity(fleet, workload, rows).mean_seconds(fleet, workload)
        return float((embedding + parity).max())
