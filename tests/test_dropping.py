"""`drop` means the same in every scheme: no more than this share is dropped."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from codedfedl import InputError
from codedfedl.core.protocol import Task
from codedfedl.core.waiting import Fastest
from codedfedl.fleet.devices import Workload
from codedfedl.learning.optimisers import Schedule
from codedfedl.schemes import SCHEMES, settings_of
from codedfedl.schemes.dsag import DSAG
from codedfedl.schemes.greedy import Greedy
from codedfedl.schemes.mifa import MIFA, TableState
from codedfedl.schemes.settings import all_but_slowest

DROPPING = [name for name in SCHEMES if "drop" in settings_of(name)]


@given(percent=st.integers(0, 99), clients=st.integers(1, 500))
@example(percent=70, clients=10)  # (1 − 0.7)·10 is above 3 in floating point
def test_no_more_than_the_share_is_dropped(percent: int, clients: int) -> None:
    count = all_but_slowest(percent / 100, clients).count
    dropped = Fraction(clients - count, clients)
    assert dropped <= Fraction(percent, 100) < dropped + Fraction(1, clients)


@pytest.mark.parametrize(("drop", "clients", "count"), [(0.25, 6, 5), (0.1, 5, 5), (0.2, 6, 5)])
def test_greedy_mifa_and_dsag_wait_for_as_many(drop: float, clients: int, count: int) -> None:
    """⌈4.5⌉, ⌈4.5⌉ and ⌈4.8⌉; rounding to even would make the first two 4."""
    task = Task(Workload(3, 1), 1, np.full((1, clients), 9), 2, Schedule(), 0.0)
    greedy = Greedy(drop)
    ask = greedy.ask(greedy.start(task, _no_fleet(), None))
    assert ask is not None
    mixed = DSAG(drop=drop).ask_round(TableState(task, None, setup_deadline=1.0))
    assert ask.wait == MIFA(drop=drop).awaited(task) == mixed.wait == Fastest(count)


def _no_fleet() -> Any:
    return None


def test_all_that_drop_are_here() -> None:
    names = "dsag fedadam fedau fedavg fedcompass fednova fedprox fedyogi greedy mifa timelyfl"
    assert sorted(DROPPING) == names.split()


@pytest.mark.parametrize("name", DROPPING)
@pytest.mark.parametrize("drop", [-0.1, 1.0])
def test_shares_that_are_none_are_refused(name: str, drop: float) -> None:
    with pytest.raises(InputError, match=rf"{name}.drop is {drop:g}: must be at least 0"):
        SCHEMES[name](drop=drop)  # type: ignore[call-arg]
