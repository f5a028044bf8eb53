"""Delays of clients that take longer than a delay model says, each by a factor of its own."""

from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.fleet.delays import DelayDistribution, FleetDelays
from codedfedl.fleet.devices import Fleet
from codedfedl.fleet.measured import MeasuredDelays

__all__ = ["slowed"]

_TIMES = ("packet_time", "packet_time_up", "overhead")


@overload
def slowed(delays: Fleet, factor: FloatArray) -> Fleet: ...
@overload
def slowed(delays: DelayDistribution, factor: FloatArray) -> DelayDistribution: ...
def slowed(delays: Fleet | DelayDistribution, factor: FloatArray) -> Fleet | DelayDistribution:
    """Return clients for which everything takes `factor` times as long, shape (n,)."""
    if isinstance(delays, FleetDelays):
        return FleetDelays(_slowed(delays.fleet, factor))
    if isinstance(delays, Fleet):
        slower: Fleet = _slowed(delays, factor)
        return slower
    if isinstance(delays, MeasuredDelays):
        return delays.slowed(factor)
    return _Slowed(delays, factor)


def _slowed(fleet: Any, factor: FloatArray) -> Any:
    times = {name: getattr(fleet, name) * factor for name in _TIMES}
    return replace(fleet, rate=fleet.rate / factor, **times)


@dataclass(frozen=True, eq=False)
class _Slowed:
    """Any other delay model, on a slower clock."""

    model: DelayDistribution
    factor: FloatArray

    @property
    def client(self) -> npt.NDArray[Any]:
        return self.model.client

    def cdf(self, loads: npt.ArrayLike, t: npt.ArrayLike) -> FloatArray:
        return self.model.cdf(loads, np.asarray(t, dtype=np.float64) / self.factor)

    def take(self, clients: IntArray | slice) -> "_Slowed":
        return _Slowed(self.model.take(clients), self.factor[clients])
