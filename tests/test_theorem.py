"""The Theorem as printed, against sums by hand and draws; the fast path has tests against it."""

import doctest
from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codedfedl import Fleet, InputError
from codedfedl.planning import theorem
from codedfedl.planning.theorem import PaperClient

CLIENT = PaperClient(points=400, rate=2, alpha=2, packet_time=3, erasure=0.1)


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(theorem).failed == 0


def test_two_terms_by_hand() -> None:
    """t = 10, τ = 3: ν_m = 3; a load of 4 points takes 2 s at least and leaves 2 s and no time."""
    assert theorem.transmissions(CLIENT, 10.0).tolist() == [2, 3]
    assert theorem.expected_return(CLIENT, 10.0, 4) == pytest.approx(0.81 * 4 * (1 - exp(-2)))
    both = 0.81 * (1 - exp(-4 * (9.5 - 6))) + 2 * 0.81 * 0.1 * (1 - exp(-4 * (9.5 - 9)))
    assert theorem.expected_return(CLIENT, 10.0, 1) == pytest.approx(both)


def test_no_return_before_two_transmissions() -> None:
    """ν_m satisfies t − τν_m > 0: at t = 2τ only one transmission fits."""
    assert theorem.transmissions(CLIENT, 6.0).tolist() == []
    assert theorem.expected_return(CLIENT, 6.0, 1) == 0
    assert theorem.best_load(CLIENT, 6.0) == 0


@pytest.mark.parametrize("erasure", [0.0, 0.1, 0.9, 0.99])
def test_h_is_a_distribution(erasure: float) -> None:
    link_only = CLIENT._replace(packet_time=0.0, erasure=erasure)
    nu = theorem.transmissions(link_only, 1.0)
    probability = theorem.h(nu, erasure)
    assert probability.sum() == pytest.approx(1, abs=1e-12)
    assert nu @ probability == pytest.approx(2 / (1 - erasure))  # two geometric numbers, eq. 2


def test_return_against_draws_of_the_total_delay() -> None:
    """20 loads, 1e-6 false alarms together by Hoeffding's inequality: 200,000 draws of eq. 3."""
    fleet = Fleet(points=[400], rate=2, alpha=2, packet_time=3, erasure=0.4)
    (client,), draws = theorem.clients_of(fleet), 200_000
    bound = np.sqrt(np.log(2 * 20 / 1e-6) / (2 * draws))
    rng = np.random.default_rng(0)
    for load in np.linspace(5, 100, 20):
        arrived = fleet.sample([load], draws, rng) <= 50
        assert abs(arrived.mean() - theorem.expected_return(client, 50.0, load) / load) < bound


class TestOptimalLoadOfATerm:
    @pytest.mark.parametrize("alpha", [0.01, 0.5, 1.0, 2.0, 20.0, 600.0])
    def test_stable_form_equals_eq_14(self, alpha: float) -> None:
        client = CLIENT._replace(alpha=alpha)
        printed = theorem.optimal_load_by_lambert_w(client, 50.0, 4)
        assert theorem.optimal_load(client, 50.0, 4) == pytest.approx(printed, rel=1e-9)

    def test_printed_form_underflows_and_the_stable_one_does_not(self) -> None:
        client = CLIENT._replace(alpha=800.0)
        assert theorem.optimal_load_by_lambert_w(client, 50.0, 4) == 0
        assert 0.98 < theorem.optimal_load(client, 50.0, 4) / (2 * (50 - 12)) < 1

    @given(log_alpha=st.floats(-3, 3), nu=st.integers(2, 16))
    def test_no_other_load_returns_more(self, log_alpha: float, nu: int) -> None:
        client = CLIENT._replace(alpha=10**log_alpha)
        best = theorem.optimal_load(client, 50.0, nu)
        terms = [
            theorem.f(np.array([nu]), 50.0, best * factor, client)[0]
            for factor in (0.9, 0.999, 1, 1.001, 1.1)
        ]
        assert np.argmax(terms) == 2

    def test_is_zero_where_the_packets_take_all_the_time(self) -> None:
        assert theorem.optimal_load(CLIENT, 12.0, 4) == 0
        assert theorem.optimal_load_by_lambert_w(CLIENT, 11.0, 4) == 0


def test_step_1_finds_the_best_whole_load() -> None:
    client = CLIENT._replace(points=60)
    best = theorem.best_load(client, 30.0)
    others = [theorem.expected_return(client, 30.0, load) for load in range(61)]
    assert others[best] == max(others) > 0
    assert 0 < best < 60


def test_step_2_finds_the_smallest_time() -> None:
    clients = [CLIENT._replace(points=20), CLIENT._replace(points=30, rate=0.5)]
    t = theorem.minimum_waiting_time(clients, 40.0)

    def returned(t: float) -> float:
        return sum(theorem.expected_return(c, t, theorem.best_load(c, t)) for c in clients)

    assert returned(t) >= 40 > returned(t * (1 - 1e-8))


def test_links_that_differ_are_refused() -> None:
    fleet = Fleet(points=[4], rate=1, alpha=1, packet_time=1, erasure=0, packet_time_up=2)
    with pytest.raises(InputError, match="symmetric links"):
        theorem.clients_of(fleet)
