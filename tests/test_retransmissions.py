import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codedfedl.arrays import FloatArray
from codedfedl.fleet.transmissions import (
    NEGLIGIBLE,
    SymmetricLinks,
    arrived_by,
    late_mass,
    late_mass_derivatives,
    mean_transmissions,
    useful_transmissions,
)
from tests.naive import truncated_sums


def one(value: float) -> FloatArray:
    return np.array([float(value)])


@given(
    p=st.one_of(st.just(0.0), st.floats(1e-9, 0.99)),
    log_tau=st.floats(-3, 1),
    log_alpha=st.floats(-6, 6),
    log_compute=st.floats(-2, 2),
    last=st.integers(2, 80),
    beyond=st.floats(0, 1),
)
def test_closed_sums_equal_their_terms(
    p: float, log_tau: float, log_alpha: float, log_compute: float, last: int, beyond: float
) -> None:
    last = 2 if p == 0 else last
    tau, alpha, compute = 10**log_tau, 10**log_alpha, 10**log_compute
    t = compute + last * tau + beyond * tau
    expected = truncated_sums(t, last, compute, alpha, tau, p)
    links = SymmetricLinks(*(one(value) for value in (alpha, tau, p, last)))
    arguments = links, one(t), one(last), one(1 / compute)
    # exp(x) inherits the rounding of x, whose terms are of the order of α·t/compute
    rounding = 1e-9 + 4e-16 * alpha * t / compute
    found = [late_mass(*arguments)[0], *(part[0] for part in late_mass_derivatives(*arguments))]
    for value, reference in zip(found, expected[[0, 0, 1, 2]], strict=True):
        assert value == pytest.approx(reference, rel=100 * rounding, abs=1e-290)


@given(p=st.floats(1e-9, 0.999), last=st.integers(2, 300))
def test_distribution_of_the_number_of_transmissions(p: float, last: int) -> None:
    *_, arrived, mean = truncated_sums(1.0, last, 1.0, 1.0, 0.0, p)
    assert arrived_by(one(p), one(last))[0] == pytest.approx(arrived, rel=1e-9)
    found = mean_transmissions(one(p), one(last))[0]
    assert found <= mean * (1 + 1e-12)  # it serves in an upper bound, and must not exceed the mean
    assert found == pytest.approx(mean, rel=1e-4 if p > 0.9 else 1e-8)


@pytest.mark.parametrize("p", [0.0, 1e-6, 0.1, 0.3, 0.9, 0.99])
def test_what_is_left_out_is_negligible(p: float) -> None:
    last = useful_transmissions(one(p))[0]
    tail = p ** (last - 1) * (p + last * (1 - p))
    assert tail <= 2 * NEGLIGIBLE
    assert last <= 2 or p ** (last - 3) * (p + (last - 2) * (1 - p)) > NEGLIGIBLE / 2
