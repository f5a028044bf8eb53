"""Probes of a slow minority: they decide what its clients do, never how long the others wait.

A client that delays its probes, or claims that they took long, would otherwise set the deadline of
every round. So a deadline is planned as if the slowest fifth of the clients were no slower than the
slowest of the others, as far as they stand out: who needs more than `SLOWER` times as long for
the same work. For that deadline loads and return probabilities follow from what was measured. The
points of a client that is really so slow are then represented by parity, where there is some.
"""

from dataclasses import fields

import numpy as np

from codedfedl.arrays import FloatArray
from codedfedl.fitting.traces import Traces
from codedfedl.fleet.measured import rows_by_client

__all__ = ["SLOWER", "slow_minority", "without_minority"]

SLOWER = 4.0
"""Clients of a minority that need so many times as long as all others do not set a deadline."""

_MINORITY = 5  # one in so many clients
_TIMES = ("down", "compute", "up", "total", "waited")


def slow_minority(traces: Traces) -> dict[str, float]:
    """Return the clients that stand out, and how many times as long as all others they take."""
    names, rows = rows_by_client(traces.client)
    seconds = _for_equal_work(traces)
    each = np.array([np.median(came) if len(came := _finite(seconds[r])) else 0.0 for r in rows])
    order = np.argsort(-each)
    slowest = order[: len(names) // _MINORITY]
    others = float(each[order[len(slowest) :]].max(initial=0.0))
    if others <= 0:
        return {}
    return {str(names[j]): float(each[j] / others) for j in slowest if each[j] > SLOWER * others}


def without_minority(traces: Traces) -> Traces:
    """Return the measurements as if those who stand out were as slow as the slowest of the others.

    The same object if nobody stands out.
    """
    slower = slow_minority(traces)
    if not slower:
        return traces
    factor = np.array([1 / slower.get(str(name), 1.0) for name in traces.client])
    columns = {column.name: getattr(traces, column.name) for column in fields(traces)}
    return Traces(**columns | {name: factor * columns[name] for name in _TIMES})


def _for_equal_work(traces: Traces) -> FloatArray:
    """Return how long each measurement would have taken with the median load."""
    compute = np.nan_to_num(traces.compute, nan=0.0)
    return np.asarray(traces.seconds + compute * (np.median(traces.load) / traces.load - 1))


def _finite(seconds: FloatArray) -> FloatArray:
    return seconds[np.isfinite(seconds)]
