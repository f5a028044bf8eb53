"""Fixed-point numbers, masks and the helper."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, norm

from codedfedl.arrays import FloatArray
from codedfedl.errors import InputError
from codedfedl.privacy.fixed_point import FixedPoint, Residues
from codedfedl.privacy.masks import (
    Binding,
    Helper,
    Sender,
    mask,
    shared_seed,
    system_normal,
)

BINDING = Binding("f", 0, 0, "00")
SMALL = 1e-6  # false alarms of the tests on random numbers, each


class _Full(dict[str, bytes]):
    """A disk without space."""

    def __setitem__(self, key: str, value: bytes) -> None:
        raise OSError("no space left")


class _Federation:
    """A helper and some clients who hold integers."""

    def __init__(
        self, clients: int, numbers: int = 50, *, sigma: float = 0.0, seed: int = 0
    ) -> None:
        rng = np.random.default_rng(seed)
        self.numbers, key = FixedPoint(2.0**10), X25519PrivateKey.generate()
        self.helper_key = key.public_key().public_bytes_raw()
        keys = {f"client-{j}": X25519PrivateKey.generate() for j in range(clients)}
        self.public = {name: one.public_key().public_bytes_raw() for name, one in keys.items()}
        self.answers: dict[str, bytes] = {}
        noise = dict.fromkeys(range(3), sigma)
        self.helper = Helper("f", key, self.public, noise, self.answers)
        seeds = {
            n: shared_seed(k, self.helper_key, helper=self.helper_key) for n, k in keys.items()
        }
        self.senders = {name: Sender(one, {}) for name, one in seeds.items()}
        self.plain = {
            name: rng.integers(0, 2**32, numbers, dtype=np.uint32) for name in self.senders
        }

    def masked(self, names: list[str], binding: Binding = BINDING) -> list[Residues]:
        return [
            self.senders[name].masked(binding, b"", lambda name=name: (b"", self.plain[name]))[1]  # type: ignore[misc]
            for name in names
        ]

    def decoded(self, names: list[str], correction: Residues) -> FloatArray:
        """Return the sum of the answers, as the server sees it."""
        total = np.zeros_like(correction)
        for answer in self.masked(names):
            total += answer
        return self.numbers.decode(total - correction)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=40), st.integers(1, 2**20))
def test_a_sum_is_off_by_no_more_than_its_rounding(values: list[float], more: int) -> None:
    largest = max(sum(abs(v) for v in values), 1.0) * more
    numbers = FixedPoint.for_sums(largest, len(values))
    total = np.zeros(1, dtype=np.uint32)
    for value in values:
        total += numbers.encode([value])
    error = abs(numbers.decode(total)[0] - sum(values))
    assert error <= numbers.rounding(len(values)) + 1e-9 * largest
    assert largest <= numbers.largest_sum(len(values)) < 2 * largest


def test_the_bound_on_overflow_is_sharp() -> None:
    numbers = FixedPoint(1.0)
    largest = int(numbers.largest_sum(2))
    right = numbers.encode([largest]) + numbers.encode([0.0])
    assert numbers.decode(right)[0] == largest
    wrapped = numbers.encode([largest]) + numbers.encode([2.0])
    assert numbers.decode(wrapped)[0] < 0


@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(-50, 50)), min_size=1, max_size=30))
def test_rounding_moves_neighbours_apart_by_less_than_a_step(
    pairs: list[tuple[float, float]],
) -> None:
    numbers = FixedPoint(4.0)
    one, other = np.array(pairs).T
    rounded = numbers.decode(numbers.encode(one)) - numbers.decode(numbers.encode(other))
    exact = float(np.linalg.norm(one - other))
    assert np.linalg.norm(rounded) <= numbers.distance(exact, len(pairs)) + 1e-9


def test_encoding_never_fails() -> None:
    numbers = FixedPoint(1.0)
    extreme = numbers.decode(numbers.encode([np.nan, np.inf, -np.inf, 1e300]))
    np.testing.assert_array_equal(extreme, [0, 2**31 - 1, 1 - 2**31, 2**31 - 1])


@pytest.mark.parametrize("scale", [0.0, -1.0, 3.0, np.inf, np.nan])
def test_scales_are_powers_of_two(scale: float) -> None:
    with pytest.raises(InputError, match="power of two"):
        FixedPoint(scale)


@pytest.mark.parametrize(("largest", "summands"), [(0.0, 1), (np.inf, 1), (1.0, 0), (1.0, 2**33)])
def test_sums_without_room_are_refused(largest: float, summands: int) -> None:
    with pytest.raises(InputError, match="must"):
        FixedPoint.for_sums(largest, summands)


@given(st.data())
def test_the_sum_is_exact_whoever_drops_out(data: st.DataObject) -> None:
    here = _Federation(6)
    every = list(here.senders)
    names = data.draw(st.lists(st.sampled_from(every), min_size=2, unique=True))
    plain = sum((here.plain[name] for name in names), np.zeros(50, dtype=np.uint32))
    here.masked(every)  # those who are left out have sent too
    correction = here.helper.answer(BINDING, names, 50)
    total = here.decoded(names, correction)
    np.testing.assert_array_equal(total, here.numbers.decode(plain))


def test_without_the_helper_the_servers_view_is_uniform() -> None:
    """Of zeros, the most telling plaintext: bytes, and differences of one client's two rounds."""
    here = _Federation(2, 200_000)
    here.plain = {name: np.zeros(200_000, dtype=np.uint32) for name in here.senders}
    first, other = here.masked(list(here.senders))
    again = here.masked(list(here.senders), replace(BINDING, round=1))[0]
    for view in (first, first - other, first - again, first + other):
        counts = np.bincount(view.view(np.uint8), minlength=256)
        expected = view.nbytes / 256
        statistic = ((counts - expected) ** 2 / expected).sum()
        assert chi2.sf(statistic, 255) > SMALL


@pytest.mark.parametrize(
    "change", [{"federation": "g"}, {"round": 1}, {"attempt": 1}, {"ask": "01"}]
)
def test_another_question_has_another_mask(change: dict[str, Any]) -> None:
    one, other = (mask(bytes(32), b, 64) for b in (BINDING, replace(BINDING, **change)))
    assert (one != other).sum() > 60  # each is equal with a chance of 2^-32


def test_bindings_cannot_be_confused() -> None:
    assert Binding("f", 1, 11, "00").digest != Binding("f", 11, 1, "00").digest
    assert Binding('f"', 1, 1, "").digest != Binding("f", 1, 1, '"').digest


def test_both_sides_share_a_seed_that_a_third_has_not() -> None:
    helper, client, stranger = (X25519PrivateKey.generate() for _ in range(3))
    pinned, own = helper.public_key().public_bytes_raw(), client.public_key().public_bytes_raw()
    seed = shared_seed(client, pinned, helper=pinned)
    assert seed == shared_seed(helper, own, helper=pinned)
    assert seed != shared_seed(stranger, own, helper=pinned)
    with pytest.raises(InputError, match="pin another"):
        shared_seed(client, bytes(32), helper=bytes(32))  # a point of small order


def test_one_mask_hides_one_plaintext_even_after_a_restart() -> None:
    """The second plaintext is never made: whoever asks again gets what was sent."""
    sent: dict[str, bytes] = {}
    sender = Sender(bytes(32), sent)
    plain = np.arange(5, dtype=np.uint32)
    note, once = sender.masked(BINDING, b"ask", lambda: (b"5 points", plain))
    restarted = Sender(bytes(32), sent)
    again = restarted.masked(BINDING, b"ask", lambda: (b"6 points", plain + np.uint32(1)))
    np.testing.assert_array_equal(once, again[1])
    np.testing.assert_array_equal(once - mask(bytes(32), BINDING, 5), plain)
    assert note == again[0] == b"5 points"
    for binding, question in ((BINDING, b"other"), (replace(BINDING, ask="01"), b"ask")):
        with pytest.raises(InputError, match="new attempt"):
            restarted.masked(binding, question, lambda: (b"", plain))
    assert len(sent) == 1
    restarted.masked(replace(BINDING, attempt=1), b"other", lambda: (b"", plain))


def test_a_client_stores_its_answer_before_it_is_sent() -> None:
    sender = Sender(bytes(32), _Full())
    with pytest.raises(OSError, match="no space"):
        sender.masked(BINDING, b"", lambda: (b"", np.zeros(3, dtype=np.uint32)))


def test_a_sender_takes_integers_only() -> None:
    with pytest.raises(InputError, match="uint32"):
        Sender(bytes(32), {}).masked(BINDING, b"", lambda: (b"", np.zeros(3)))  # type: ignore[arg-type,return-value]


def test_the_helper_answers_one_list_a_round_with_the_same_bytes() -> None:
    here = _Federation(4, sigma=1000.0)
    names = list(here.senders)
    first = here.helper.answer(BINDING, names[:3], 50)
    np.testing.assert_array_equal(first, here.helper.answer(BINDING, names[2::-1], 50))
    for binding, arrived, numbers in (
        (BINDING, names, 50),
        (BINDING, names[:2], 50),
        (BINDING, names[:3], 49),
        (replace(BINDING, attempt=1), names[:3], 50),
        (replace(BINDING, ask="01"), names[:3], 50),
    ):
        with pytest.raises(InputError, match="start a new round"):
            here.helper.answer(binding, arrived, numbers)
    assert not np.array_equal(first, here.helper.answer(replace(BINDING, round=1), names[:3], 50))


def test_the_helper_stores_its_answer_before_it_is_sent() -> None:
    here = _Federation(3)
    here.helper._answers = _Full()
    with pytest.raises(OSError, match="no space"):
        here.helper.answer(BINDING, list(here.senders), 50)


@pytest.mark.parametrize(
    ("binding", "arrived", "numbers", "message"),
    [
        (BINDING, ["client-0"], 5, "a sum is over 2 or more"),
        (BINDING, ["client-0", "client-0"], 5, "twice"),
        (BINDING, ["client-0", "client-9"], 5, "not a client"),
        (BINDING, ["client-0", "client-1"], 0, "at least 1"),
        (replace(BINDING, federation="g"), ["client-0", "client-1"], 5, "serves 'f'"),
        (replace(BINDING, round=3), ["client-0", "client-1"], 5, "no budget"),
    ],
)
def test_the_helper_refuses(
    binding: Binding, arrived: list[str], numbers: int, message: str
) -> None:
    here = _Federation(3)
    with pytest.raises(InputError, match=message):
        here.helper.answer(binding, arrived, numbers)
    assert not here.answers


@pytest.mark.parametrize("least", [1, 4])
def test_the_least_number_of_clients_makes_sense(least: int) -> None:
    here = _Federation(3)
    key = X25519PrivateKey.generate()
    with pytest.raises(InputError, match="least"):
        Helper("f", key, here.public, {0: 0.0}, {}, least=least)


def test_the_helpers_noise_is_normal_and_exact_whoever_arrives() -> None:
    """A Kolmogorov-Smirnov bound (Dvoretzky-Kiefer-Wolfowitz) at false alarms of 1e-6."""
    count, sigma = 100_000, 5000.0
    here = _Federation(3, count, sigma=sigma)
    names = list(here.senders)[:2]
    plain = here.numbers.decode(here.plain[names[0]] + here.plain[names[1]])
    correction = here.helper.answer(BINDING, names, count)
    total = here.decoded(names, correction)
    steps = ((total - plain) * here.numbers.scale + 2**31) % 2**32 - 2**31
    empirical = np.arange(1, count + 1) / count
    distance = np.abs(norm.cdf(np.sort(steps) / sigma) - empirical).max()
    rounding = 0.4 / sigma  # half a step, times the largest density
    assert distance < np.sqrt(np.log(2 / SMALL) / (2 * count)) + 2 / count + rounding


def test_two_draws_from_the_system_differ() -> None:
    assert (system_normal(100) != system_normal(100)).all()  # equal with a chance below 1e-13
