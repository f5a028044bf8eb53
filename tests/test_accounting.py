"""The accountant, against closed forms, a naive test of hypotheses, and dp-accounting."""

from math import e, inf, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from codedfedl.errors import InputError
from codedfedl.privacy.accounting import (
    Account,
    Release,
    delta_of,
    epsilon_of,
    mu_of,
)
from codedfedl.privacy.sampling import (
    composed_epsilon,
    renyi_divergences,
    renyi_epsilon,
    weight_ratios,
)

MUS, DELTAS = st.floats(0.02, 8), st.floats(1e-9, 0.1)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.3, 0.5), (1.0, 1.0), (1.0, 4.0), (3.0, 2.0)])
def test_delta_is_the_mass_by_which_one_density_exceeds_the_other(
    mu: float, epsilon: float
) -> None:
    """By its definition: ∫ max(p − e^ε·q, 0) for p = N(μ, 1) and q = N(0, 1)."""
    crossing = epsilon / mu + mu / 2
    excess = quad(lambda x: norm.pdf(x - mu) - norm.pdf(x) * e**epsilon, crossing, 40)
    assert delta_of(mu, epsilon) == pytest.approx(excess[0], rel=1e-6)


@given(MUS, DELTAS)
def test_both_ways_agree_and_never_err_on_the_wrong_side(mu: float, delta: float) -> None:
    epsilon = epsilon_of(mu, delta)
    assert delta_of(mu, epsilon) <= delta
    if epsilon > 0:
        assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-6)
        assert delta_of(mu_of(epsilon, delta), epsilon) <= delta


@given(MUS, DELTAS, st.floats(1.01, 3))
def test_more_noise_is_more_private(mu: float, delta: float, factor: float) -> None:
    assert epsilon_of(mu / factor, delta) <= epsilon_of(mu, delta)
    assert delta_of(mu / factor, 1.0) <= delta_of(mu, 1.0)


@given(MUS, DELTAS)
def test_it_is_no_worse_than_the_textbook_bound(mu: float, delta: float) -> None:
    """σ ≥ Δ·√(2·ln(1.25/δ))/ε, which is proven for ε < 1 (Dwork and Roth, 2014)."""
    textbook = mu * sqrt(2 * log(1.25 / delta))
    if textbook < 1:
        assert epsilon_of(mu, delta) <= textbook


def test_extremes() -> None:
    assert delta_of(0.0, 1.0) == 0
    assert delta_of(inf, 1.0) == 1
    assert epsilon_of(inf, 1e-5) == inf
    assert mu_of(inf, 1e-5) == inf
    assert epsilon_of(1e-9, 1e-5) == 0
    assert 0 <= delta_of(40.0, 900.0) <= 1  # e^900 is beyond floating point


def test_releases_compose_as_squares() -> None:
    once = Release("gradient", 1, 2.0, 10.0)
    many = Release("gradient", 16, 2.0, 10.0)
    assert many.mu == pytest.approx(4 * once.mu)
    both = Account(1e-5, [many, Release("centre", 1, 3.0, 5.0)])
    assert both.mu == pytest.approx(1.0)
    assert both.epsilon == pytest.approx(epsilon_of(1.0, 1e-5))


def test_the_document_is_enough_to_account_again() -> None:
    account = Account(1e-5, [Release("centre", 1, 1.5, 20.0), Release("gradient", 40, 0.5, 9.0)])
    told = account.document()
    again = sum(one["count"] * (one["sensitivity"] / one["sigma"]) ** 2 for one in told["releases"])
    assert epsilon_of(sqrt(again), told["delta"]) == pytest.approx(told["epsilon"])
    assert told["adjacency"] == "zero-out"


def test_without_noise_there_is_no_epsilon() -> None:
    account = Account(1e-5, [Release("gradient", 3, 1.0, 0.0)])
    assert account.epsilon == inf
    assert account.document()["epsilon"] is None
    assert Account(1e-5, [Release("gradient", 0, 1.0, 0.0)]).epsilon == 0


@pytest.mark.parametrize(
    ("epsilon", "delta", "message"),
    [
        (0.0, 1e-5, "epsilon is 0"),
        (-1.0, 1e-5, "epsilon is -1"),
        (float("nan"), 0.1, "epsilon"),
        (1.0, 0.0, "delta is 0"),
        (1.0, 1.0, "delta is 1"),
        (1.0, float("nan"), "delta"),
    ],
)
def test_budgets_out_of_range_are_refused(epsilon: float, delta: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mu_of(epsilon, delta)


def test_releases_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match="sensitivity"):
        Release("gradient", 1, 0.0, 1.0)
    for rate in (0.0, 1.5, (0.5, 0.0)):
        with pytest.raises(InputError, match="sampling_rate"):
            Release("gradient", 1, 1.0, 1.0, sampling_rate=rate)
    with pytest.raises(InputError, match="unit is 'dog'"):
        Account(1e-5, [], unit="dog")


def test_epsilon_is_the_largest_over_clients() -> None:
    """A client that is heavy in one sum and light in the other is not both at once."""
    releases = [Release("a", 1, (3.0, 1.0), 4.0), Release("b", 1, (1.0, 2.0), 4.0)]
    expected = epsilon_of(sqrt(3**2 + 1) / 4, 1e-5)
    assert Account(1e-5, releases).epsilon == pytest.approx(expected)


class TestSampling:
    def test_the_bound_is_exact_where_all_points_are_in(self) -> None:
        """A Gaussian's divergence of order α is α/(2σ²): the bound is no closer than that."""
        orders = np.arange(2, 161)
        divergence = 40 * orders / (2 * 8.0**2)
        best = divergence + np.log1p(-1 / orders) - np.log(1e-5 * orders) / (orders - 1)
        found = renyi_epsilon([(1.0, 8.0, 40)], 1e-5)
        assert found == pytest.approx(best.min(), rel=0.01)
        assert found >= epsilon_of(sqrt(40) / 8.0, 1e-5)

    @pytest.mark.parametrize("rate", [0.05, 0.3])
    def test_one_divergence_against_its_integral(self, rate: float) -> None:
        """Order 2, by its definition: log ∫ p²/q for p = (1 − γ)·N(0, σ²) + γ·N(1, σ²)."""
        sigma = 1.5

        def ratio(x: float) -> float:
            p = (1 - rate) * norm.pdf(x, 0, sigma) + rate * norm.pdf(x, 1, sigma)
            return float(p**2 / norm.pdf(x, 0, sigma))

        exact = log(quad(ratio, -30, 30)[0])
        assert renyi_divergences(np.array([rate]), np.array([sigma]))[0, 0] == pytest.approx(
            exact, rel=1e-6
        )

    @given(st.floats(0.01, 1.0), st.floats(0.5, 20), st.integers(1, 200))
    def test_more_points_noise_or_sums_go_the_right_way(
        self, rate: float, noise: float, count: int
    ) -> None:
        here = renyi_epsilon([(rate, noise, count)], 1e-5)
        assert renyi_epsilon([(rate / 2, noise, count)], 1e-5) <= here + 1e-9
        assert renyi_epsilon([(rate, 2 * noise, count)], 1e-5) <= here + 1e-9
        assert renyi_epsilon([(rate, noise, 2 * count)], 1e-5) >= here - 1e-9

    @pytest.mark.parametrize("epsilon", [1.0, 3.0, 8.0])
    def test_points_that_are_drawn_seldom_may_weigh_more(self, epsilon: float) -> None:
        mu, rates = mu_of(epsilon, 1e-5), np.array([0.02, 0.1, 0.3, 0.7, 1.0])
        ratios = weight_ratios(mu, 1e-5, 64, rates)
        assert ratios[-1] == pytest.approx(1.0)
        assert (np.diff(ratios) < 0).all()
        assert (ratios * rates <= 1 + 1e-6).all()  # never more than in the mean
        # Most of what sampling could give is there while it is not too rare.
        assert (ratios * rates)[1:].min() > 0.4

    def test_sums_out_of_range_are_refused(self) -> None:
        for sums in [(0.0, 1.0, 1), (1.1, 1.0, 1), (0.5, 0.0, 1), (0.5, 1.0, 0)]:
            with pytest.raises(InputError, match="must be one"):
                renyi_epsilon([sums], 1e-5)


@pytest.mark.extras
@pytest.mark.parametrize(("rate", "noise", "count"), [(0.1, 1.5, 40), (0.5, 6.0, 80), (1, 8, 40)])
def test_the_renyi_bound_is_above_the_library_and_not_far(
    rate: float, noise: float, count: int
) -> None:
    bound = renyi_epsilon([(rate, noise, count)], 1e-5)
    found = composed_epsilon(((rate, noise, count),), 1e-5)
    assert found <= bound <= 1.35 * found


@pytest.mark.extras
def test_weights_by_renyi_keep_the_budget_by_the_library() -> None:
    mu, rates, count = mu_of(3.0, 1e-5), np.array([0.03, 0.1, 0.4, 1.0]), 46
    noise = sqrt(count) / mu
    for rate, ratio in zip(rates, weight_ratios(mu, 1e-5, count, rates), strict=True):
        assert composed_epsilon(((float(rate), noise / float(ratio), count),), 1e-5) <= 3.02


@pytest.mark.extras
@pytest.mark.parametrize(("sigma", "count"), [(10.0, 40), (3.0, 1), (50.0, 500), (2.0, 7)])
@pytest.mark.parametrize("delta", [1e-5, 1e-7])
def test_dp_accounting_finds_the_same_epsilon(sigma: float, count: int, delta: float) -> None:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp_accounting.GaussianDpEvent(sigma), count)
    ours = Account(delta, [Release("sum", count, 1.0, sigma)]).epsilon
    # Theirs is an upper bound from a grid of width 1e-4: it is never below.
    assert ours <= accountant.get_epsilon(delta) + 1e-9
    assert ours == pytest.approx(accountant.get_epsilon(delta), rel=2e-3)


@pytest.mark.extras
def test_sampling_is_accounted_for_between_its_bounds() -> None:
    whole = Account(1e-5, [Release("sum", 40, 1.0, 4.0)]).epsilon
    assert composed_epsilon(((1.0, 4.0, 40),), 1e-5) == pytest.approx(whole, rel=2e-3)
    drawn = Account(1e-5, [Release("sum", 40, 1.0, 4.0, sampling_rate=0.2)])
    # The limit of many rounds: μ = p·√(T·(exp(1/σ²) − 1)) (Bu et al., 2020).
    limit = epsilon_of(0.2 * sqrt(40 * (e ** (1 / 16) - 1)), 1e-5)
    assert drawn.epsilon < whole / 3
    assert drawn.epsilon == pytest.approx(limit, rel=0.15)
    assert drawn.accountant == "dp-accounting, PLD"


@pytest.mark.extras
def test_a_dominated_client_changes_nothing() -> None:
    worst = Account(1e-5, [Release("sum", 20, (1.0, 2.0), 9.0, (1.0, 0.3))]).epsilon
    more = Account(1e-5, [Release("sum", 20, (1.0, 2.0, 1.9), 9.0, (1.0, 0.3, 0.2))]).epsilon
    alone = [Account(1e-5, [Release("sum", 20, w, 9.0, r)]) for w, r in ((1.0, 1.0), (2.0, 0.3))]
    assert more == worst == pytest.approx(max(one.epsilon for one in alone), rel=2e-3)


def test_without_the_library_the_bound_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codedfedl.privacy.sampling.find_spec", lambda _name: None)
    account = Account(1e-6, [Release("sum", 7, 1.0, 3.0, sampling_rate=0.25)])
    assert account.document()["accountant"] == "Rényi divergences"
    assert account.epsilon == renyi_epsilon([(0.25, 3.0, 7)], 1e-6)
