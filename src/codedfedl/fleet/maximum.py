"""How long the slowest of all clients takes: what waiting for everybody costs."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray
from codedfedl.fleet.delays import FOREVER, DelayModel

_SURE_PROBABILITY = 1 - 1e-9
_CROSSING_TOLERANCE = 1e-3  # how late a crossing may be, relative to its time
_SHORTEST_SECONDS = 1e-150
_QUADRATURE_NODES = 10  # of a Gauss–Legendre rule
_MAX_PANELS = 512  # a staircase has no smooth ones: it is as good as these make it
_RELATIVE_ERROR = 1e-7
_MAX_ELEMENTS = 1 << 16  # times and clients: what stays in a core's cache


def expected_maximum(delays: DelayModel, loads: npt.ArrayLike) -> float:
    """E[max_j T_j]: the mean round when the server waits for all clients with a load, seconds.

    ∞ if some client may never answer. It is ∫(1 − Π_j P(T_j ≤ t)) dt, by quadrature:
    good to three digits or more where the link alone decides (steps), to six elsewhere.
    """
    loads = np.asarray(loads, dtype=np.float64) * np.ones(len(delays))
    asked = np.flatnonzero(loads > 0)

    model, loads = delays.take(asked), loads[asked]
    if _all_done(model, loads, FOREVER) < _SURE_PROBABILITY:
        return np.inf
    latest = crossing(lambda t: _all_done(model, loads, t) >= _SURE_PROBABILITY)
    earliest = crossing(lambda t: _all_done(model, loads, t) >= 1e-12) / (1 + _CROSSING_TOLERANCE)
    slow = np.flatnonzero(model.cdf(loads, earliest) < 1)  # the others are done by then
    slowest, their_loads = model.take(slow), loads[slow]

    def missing(times: FloatArray) -> FloatArray:
        return 1 - _all_done_by(slowest, their_loads, times)

    return float(earliest + _integral(missing, earliest, latest))


def _all_done(model: DelayModel, loads: FloatArray, t: float) -> float:
    return float(np.prod(model.cdf(loads, t)))


def _all_done_by(model: DelayModel, loads: FloatArray, times: FloatArray) -> FloatArray:
    """Return the probability that all are done by each of the times."""
    if len(loads) * len(times) > _MAX_ELEMENTS:
        return np.array([_all_done(model, loads, t) for t in times.tolist()])
    return np.asarray(np.prod(model.cdf(loads, times[:, None]), axis=1))


def crossing(reached: Callable[[float], bool], tolerance: float = _CROSSING_TOLERANCE) -> float:
    """Return the time at which something becomes true, at most a share `tolerance` late."""
    low, high = 0.0, 1.0
    while not reached(high):
        low, high = high, 2 * high
    while low == 0.0 and high > _SHORTEST_SECONDS and reached(high / 2):
        high /= 2
    low = max(low, high / 2)
    while high > low * (1 + tolerance):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def _integral(function: Callable[[FloatArray], FloatArray], low: float, high: float) -> float:
    """∫ of a function by Gauss–Legendre rules on more and more panels, until nothing changes.

    Not SciPy's `quad`, which is as good: importing it takes longer than a whole plan.
    """
    nodes, weights = np.polynomial.legendre.leggauss(_QUADRATURE_NODES)
    panels, before = 1, np.inf
    while True:
        width = (high - low) / panels
        times = low + width * (np.arange(panels)[:, None] + (nodes + 1) / 2)
        values = function(times.ravel()).reshape(times.shape)
        whole = float((values @ weights).sum() * width / 2)
        if abs(whole - before) <= _RELATIVE_ERROR * high or panels >= _MAX_PANELS:
            return whole
        panels, before = 2 * panels, whole
