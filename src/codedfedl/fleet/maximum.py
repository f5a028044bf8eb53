"""How long the slowest of all clients takes: what waiting for everybody costs."""

import heapq
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from codedfedl._types import FloatArray
from codedfedl.fleet.delays import FOREVER, DelayDistribution, Delays, delays_of

__all__ = ["expected_maximum"]

_SURELY = 1 - 1e-9
_CROSSING = 1e-3  # how late, relative to the time
_INSTANT = 1e-150  # seconds: no smaller time is looked for
_NODES = 10  # of a Gauss–Legendre rule
_PANELS = 200  # a staircase has no smooth ones: it is as good as these make it
_ACCURACY = 1e-7  # relative


def expected_maximum(fleet: Delays, loads: npt.ArrayLike) -> float:
    """E[max_j T_j]: the mean round when the server waits for all clients with a load, seconds.

    ∞ if some client may never answer. It is ∫(1 − Π_j P(T_j ≤ t)) dt, by adaptive quadrature:
    good to three digits or more where the link alone decides (steps), to six elsewhere.
    """
    model = delays_of(fleet)
    loads = np.asarray(loads, dtype=np.float64) * np.ones(len(model.client))
    asked = np.flatnonzero(loads > 0)

    def all_done(model: DelayDistribution, loads: FloatArray, t: float) -> float:
        return float(np.prod(model.cdf(loads, t)))

    model, loads = model.take(asked), loads[asked]
    if all_done(model, loads, FOREVER) < _SURELY:
        return np.inf
    latest = _crossing(lambda t: all_done(model, loads, t) >= _SURELY)
    earliest = _crossing(lambda t: all_done(model, loads, t) >= 1e-12) / (1 + _CROSSING)
    slow = np.flatnonzero(model.cdf(loads, earliest) < 1)  # the others are done by then
    slowest, their_loads = model.take(slow), loads[slow]
    rest = _integral(lambda t: 1 - all_done(slowest, their_loads, t), earliest, latest)
    return float(earliest + rest)


def _crossing(reached: Callable[[float], bool]) -> float:
    """Return the time at which something becomes true, a little late."""
    low, high = 0.0, 1.0
    while not reached(high):
        low, high = high, 2 * high
    while low == 0.0 and high > _INSTANT and reached(high / 2):
        high /= 2
    low = max(low, high / 2)
    while high > low * (1 + _CROSSING):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def _integral(function: Callable[[float], float], low: float, high: float) -> float:
    """∫ of a function by Gauss–Legendre rules, halving the panel with the largest error.

    Not SciPy's `quad`, which is as good: importing it takes longer than a whole plan.
    """
    places, weights = np.polynomial.legendre.leggauss(_NODES)

    def rule(a: float, b: float) -> float:
        values = [function(t) for t in (a + b + (b - a) * places) / 2]
        return float(weights @ values) * (b - a) / 2

    def panel(a: float, b: float, whole: float) -> tuple[float, float, float, float, float]:
        """Return minus the error, for the heap, the ends, and the integral of each half."""
        left, right = rule(a, (a + b) / 2), rule((a + b) / 2, b)
        return -abs(left + right - whole), a, b, left, right

    panels = [panel(low, high, rule(low, high))]
    while -sum(p[0] for p in panels) > _ACCURACY * high and len(panels) < _PANELS:
        _, a, b, left, right = heapq.heappop(panels)
        heapq.heappush(panels, panel(a, (a + b) / 2, left))
        heapq.heappush(panels, panel((a + b) / 2, b, right))
    return sum(left + right for *_, left, right in panels)
