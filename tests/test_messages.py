"""Rounded messages: right on average, bounded, and as many bits as are counted."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codedfedl import InputError
from codedfedl.learning.messages import Rounding

ROUNDINGS = st.builds(
    Rounding, st.integers(2, 8), st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)
)


def numbers(rounding: Rounding, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal(size) * 10.0 ** rng.integers(-30, 30) for size in rounding.sizes]
    return np.concatenate(parts).astype(np.float32)


class Strata:
    """A generator whose draws are spread evenly, and differently for each number: no luck."""

    def __init__(self, draw: int, draws: int) -> None:
        self.draw, self.draws = draw, draws

    def random(self, count: int) -> np.ndarray:
        order = [np.random.default_rng(i).permutation(self.draws)[self.draw] for i in range(count)]
        return (np.array(order) + 0.5) / self.draws


@settings(max_examples=25)
@given(ROUNDINGS, st.integers(0, 999))
def test_right_on_average(rounding: Rounding, seed: int) -> None:
    """Over 16 evenly spread draws, up to half a sixteenth of a step."""
    given_, draws = numbers(rounding, seed).astype(np.float64), 16
    rounded: list[Any] = [rounding.rounded(given_, Strata(i, draws)) for i in range(draws)]  # type: ignore[arg-type]
    start = 0
    for size in rounding.sizes:
        part = slice(start, start := start + size)
        step = np.abs(given_[part]).max() / rounding.levels
        off = np.mean([array[part] for array in rounded], axis=0) - given_[part]
        assert np.abs(off).max() <= step * (0.5 / draws + 1e-6)


def test_luck_has_the_mean_and_the_variance_that_are_stated() -> None:
    """2,000 draws of 50 numbers; a false alarm in 1 of 10,000 runs: z < 4.9 for all 50."""
    rounding, rng = Rounding(4, (50,)), np.random.default_rng(0)
    given_ = rng.standard_normal(50)
    rounded = np.array([rounding.rounded(given_, rng) for _ in range(2000)])
    step = np.abs(given_).max() / rounding.levels
    assert rounded.var(axis=0).max() <= step**2 / 4 * 1.001
    z = (rounded.mean(axis=0) - given_) / np.maximum(rounded.std(axis=0), 1e-5 * step) * 2000**0.5
    assert np.abs(z).max() < 4.9


@given(ROUNDINGS, st.integers(0, 999))
def test_packed_and_unpacked_it_is_what_the_simulator_rounds(rounding: Rounding, seed: int) -> None:
    given_ = numbers(rounding, seed)
    message = rounding.pack(given_, np.random.default_rng(seed))
    again = rounding.rounded(given_, np.random.default_rng(seed))
    assert again.dtype == np.float32
    np.testing.assert_allclose(rounding.unpack(message), again, rtol=1e-6)
    assert 8 * message.nbytes == rounding.message_bits
    bits = sum(rounding.sizes) * rounding.bits + 32 * len(rounding.sizes)
    assert bits <= rounding.message_bits < bits + 8


@given(ROUNDINGS, st.integers(0, 999))
def test_no_number_moves_by_a_step(rounding: Rounding, seed: int) -> None:
    given_, start = numbers(rounding, seed), 0
    rounded = rounding.rounded(given_, np.random.default_rng(seed))
    for size in rounding.sizes:
        part = slice(start, start := start + size)
        step = float(np.abs(given_[part]).max()) / rounding.levels
        assert np.abs(rounded[part].astype(float) - given_[part]).max() <= step * (1 + 1e-5)
        assert np.abs(rounded[part]).max() <= np.abs(given_[part]).max() * (1 + 1e-6)


def test_zeros_stay_and_shapes_too() -> None:
    rounding, rng = Rounding(2, (4,)), np.random.default_rng(0)
    assert not rounding.rounded(np.zeros((2, 2)), rng).any()
    assert rounding.rounded(np.eye(2), rng).tolist() == [[1, 0], [0, 1]]


def test_what_is_no_message_is_refused() -> None:
    rounding, rng = Rounding(4, (3, 1)), np.random.default_rng(0)
    message = rounding.pack(np.ones(4), rng)
    with pytest.raises(InputError, match="bits is 9: messages are rounded to 2 to 8 bits"):
        Rounding(9, (1,))
    with pytest.raises(InputError, match="not 10 bytes: send it again, rounded to 4 bits"):
        rounding.unpack(message[:-1])
    with pytest.raises(InputError, match="a code above 7"):
        rounding.unpack(np.append(message[:-1], np.uint8(255)))
    message[:4] = 255
    with pytest.raises(InputError, match="a scale that is not a number"):
        rounding.unpack(message)
    with pytest.raises(InputError, match="of 4 numbers cannot hold 5"):
        rounding.pack(np.ones(5), rng)
    with pytest.raises(InputError, match="not finite"):
        rounding.pack(np.array([1, 2, np.nan, 3]), rng)
