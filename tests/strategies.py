"""Random fleets for hypothesis, from ordinary to extreme."""

import numpy as np
from hypothesis import strategies as st

from codedfedl import Fleet


def _spread(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(np.log10(low), np.log10(high)).map(lambda exponent: 10.0**exponent)


def _with_zero(values: st.SearchStrategy[float]) -> st.SearchStrategy[float]:
    return st.one_of(st.just(0.0), values)


@st.composite
def fleets(
    draw: st.DrawFn,
    max_clients: int = 5,
    max_points: int = 60,
    min_points: int = 1,
    max_erasure: float = 0.95,
    max_alpha: float = 1e6,
    always_there: bool = True,
    own_uplink: bool = False,
) -> Fleet:
    n = draw(st.integers(1, max_clients))

    def column(values: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(values, min_size=n, max_size=n))

    packet_times = _with_zero(_spread(1e-4, 1e4))
    erasures = _with_zero(st.floats(1e-6, max_erasure))
    return Fleet(
        points=column(st.integers(min_points, max_points).map(float)),
        rate=column(_spread(1e-3, 1e3)),
        alpha=column(_spread(1e-6, max_alpha)),
        packet_time=column(packet_times),
        erasure=column(erasures),
        packet_time_up=column(packet_times) if own_uplink else None,
        erasure_up=column(erasures) if own_uplink else None,
        overhead=column(_with_zero(_spread(1e-2, 1e2))),
        availability=1.0 if always_there else column(st.floats(0.2, 1.0)),
    )


def times() -> st.SearchStrategy[float]:
    return _spread(1e-2, 1e4)
