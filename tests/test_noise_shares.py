"""Noise in shares by the clients: as loud as the account says, and which ε holds against whom."""

import json
from dataclasses import replace
from itertools import product
from math import inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr

from codedfedl.audit.messages import SumMessage, known_sum, messages
from codedfedl.core.clipped import ClippedMoments
from codedfedl.core.protocol import Ask, Inbox
from codedfedl.core.work import ArrayClient
from codedfedl.errors import InputError
from codedfedl.planning.secure_rounds import least_arrivals
from codedfedl.privacy.accounting import Account, Release, epsilon_of
from codedfedl.privacy.fixed_point import FixedPoint
from codedfedl.runs.directory import RunDirectory
from codedfedl.schemes.private import Private, PrivateState
from codedfedl.schemes.private_budget import Budget
from codedfedl.simulation.assignments import Arrivals
from codedfedl.simulation.engine import Setting
from codedfedl.simulation.experiment import simulate
from tests.private_runs import check_resumes_exactly, experiment, played, simulation

SHARED: dict[str, Any] = {"name": "private", "hours": 0.5, "noise": "clients"}


def started(**settings: Any) -> tuple[Private, PrivateState]:
    """Return a run before its first sum."""
    (setting,) = simulation(experiment(SHARED | settings)).settings
    scheme, state = setting.scheme, setting.state
    assert isinstance(scheme, Private)
    assert isinstance(state, PrivateState)
    return scheme, state


def asked(scheme: Private, state: PrivateState) -> Ask:
    ask = scheme.ask(state)
    assert ask is not None
    return ask


def account_of(state: PrivateState) -> Account:
    assert state.account is not None
    return state.account


class TestAccount:
    ACCOUNT = Account(1e-5, [Release("gradient", 16, 2.0, 40.0)], shares=9)

    @pytest.mark.parametrize("clients", [1, 4, 9])
    def test_known_shares_are_no_noise(self, clients: int) -> None:
        """Of 10 shares with variance 40²/9 each, so many are left as nobody knows."""
        left = sqrt((10 - clients) * 40.0**2 / 9)
        expected = epsilon_of(4 * 2.0 / left, 1e-5)
        assert self.ACCOUNT.known_to(clients).epsilon == pytest.approx(expected)

    def test_one_client_alone_learns_no_more_than_the_server(self) -> None:
        assert self.ACCOUNT.known_to(1).epsilon == self.ACCOUNT.epsilon

    @pytest.mark.parametrize("clients", [0, 10])
    def test_more_than_there_are_cannot_be_known(self, clients: int) -> None:
        with pytest.raises(InputError, match="sums are over 10"):
            self.ACCOUNT.known_to(clients)

    def test_the_document_says_what_holds_against_whom(self) -> None:
        told = self.ACCOUNT.document()
        server, some, both = (one["epsilon"] for one in told["against"])
        assert server == told["epsilon"] < some < both < inf
        assert both == pytest.approx(epsilon_of(0.2 * 3, 1e-5))
        assert "up to 5" in told["against"][1]["who"]
        assert told["noise_shares"] == 9

    def test_a_helper_that_adds_the_noise_knows_it(self) -> None:
        told = replace(self.ACCOUNT, shares=0).document()
        assert [one["epsilon"] for one in told["against"]] == [told["epsilon"], None, None]
        assert told["noise_shares"] is None


class TestShares:
    def test_a_sum_of_shares_is_as_loud_as_the_account_says(self) -> None:
        """Variance k·(s² + 1/12) of 60,000 numbers.

        It varies by 0.58%, and five of that are allowed: a false alarm has a chance below 10⁻⁶.
        """
        size, shares, share = 20_000, 8, 5.0
        features = np.zeros((2, size - 2), np.float32)
        total = np.zeros((3, size), np.uint32)
        for draw, j in product(range(3), range(shares)):
            work = ClippedMoments(1.0, 1.0, 2.0**10, noise=share, draw=draw)
            client = ArrayClient(features, np.zeros((2, 1)), 1, _streams(j))
            total[draw] += work.answer(client, 2, None).arrays["moments"]
        steps = total.view(np.int32).astype(np.float64)
        assert steps.var() == pytest.approx(shares * (share**2 + 1 / 12), rel=0.029)
        alike = np.asarray(np.corrcoef(steps))[0, 1]
        assert abs(alike) < 5 / sqrt(size)  # every sum has noise of its own

    @pytest.mark.parametrize(("sigma", "apart"), [(4.0, (0, 1e-14)), (0.2, (1e-3, 1))])
    def test_rounded_shares_tell_no_more_than_their_exact_sum(
        self, sigma: float, apart: tuple[float, float]
    ) -> None:
        """Two rounded numbers are the exact sum, less a uniform number, rounded; if σ is large."""
        grid = np.arange(-60, 61)
        one = ndtr((grid + 0.5) / sigma) - ndtr((grid - 0.5) / sigma)
        rounded = np.convolve(one, one)[60:-60]
        spread = sqrt(2) * sigma

        def mass(z: int) -> float:
            inside = lambda f: ndtr((z + 0.5 + f) / spread) - ndtr((z - 0.5 + f) / spread)  # noqa: E731
            return float(quad(inside, -0.5, 0.5, epsabs=1e-15)[0])

        exact = np.array([mass(int(z)) for z in grid])
        assert apart[0] <= np.abs(rounded - exact).max() <= apart[1]

    def test_too_few_steps_are_refused(self) -> None:
        with pytest.raises(InputError, match="a share would be 3 steps"):
            Budget(3.0, 1e-5, "record", "clients").split(9.0, 9)

    @given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6), st.floats(1e-6, 0.4))
    def test_so_many_arrive_at_least(self, chances: list[float], seldom: float) -> None:
        """Against a count over all sets of clients."""
        masses = np.zeros(len(chances) + 1)
        for arrived in product((0, 1), repeat=len(chances)):
            luck = [p if here else 1 - p for p, here in zip(chances, arrived, strict=True)]
            masses[sum(arrived)] += np.prod(luck)
        least = least_arrivals(chances, seldom)
        assert masses[:least].sum() <= seldom + 1e-12
        assert masses[: least + 1].sum() > seldom - 1e-12


def _streams(client: int) -> Any:
    return lambda *keys: np.random.default_rng([client, *keys])


class TestRuns:
    @pytest.mark.parametrize("first", [True, False])
    def test_the_least_arrivals_have_the_noise_of_the_account(self, first: bool) -> None:
        scheme, state = started()
        account = account_of(state)
        direction = None if first else np.eye(len(state.model))[0]
        ask = asked(scheme, replace(state, direction=direction))
        share = ask.work.noise / ask.work.scale  # type: ignore[attr-defined]
        sigma = account.releases[0 if first else 1].sigma
        assert ask.least == account.shares + 1 >= 8  # of ten
        assert share * sqrt(ask.least - 1) == pytest.approx(sigma)  # one client knows its own
        assert ask.noise == 0  # the helper adds none
        assert account.epsilon <= 3

    def test_a_sum_of_fewer_is_not_given_out_and_is_spent(self) -> None:
        """For server and helper together have seen the answers."""
        scheme, state = started(rounds=3, deadline=60.0)
        few = Inbox(np.arange(10) < 5, 0.0)
        state = replace(state, direction=np.eye(len(state.model))[0], round=1)
        for left in (3, 2, 1):
            assert scheme.ask(state) is not None, left
            state = scheme.receive(state, few)
        assert state.released == 0
        assert scheme.ask(state) is None
        plain = replace(state, account=replace(account_of(state), shares=0))
        assert scheme.ask(plain) is not None  # a helper's noise is only spent with a sum

    def test_the_first_sum_is_asked_for_once(self) -> None:
        scheme, state = started()
        with pytest.raises(InputError, match="5 clients arrived for the first sum"):
            scheme.receive(state, Inbox(np.arange(10) < 5, 0.0))

    def test_no_helper_noise_reaches_the_sum_and_fewer_make_none(self) -> None:
        run = simulation(experiment(SHARED))
        (setting,) = run.settings
        ask = setting.driver.ask()
        assert ask is not None
        exchange = setting.timeline.exchange(ask, 0)
        sums = {"moments": np.arange(4, dtype=np.uint32)}
        assert ask.noise == 0
        np.testing.assert_array_equal(run._noisy(sums, 0.0, exchange)["moments"], sums["moments"])
        fewer = replace(exchange, arrived=np.arange(10) < ask.least - 1)
        assert run._noisy(sums, 0.0, fewer) == {}

    def test_it_learns_nearly_as_much_as_with_the_helpers_noise(self) -> None:
        """More arrive than are needed, so the noise is louder by a few percent, not by times."""
        finals = []
        for noise in ("helper", "clients"):
            runs = [played(experiment(SHARED | {"noise": noise}, seeds=[s])) for s in range(3)]
            finals.append(float(np.median([run[0].rounds[-1].metric for run in runs])))
        assert finals[1] > 0.7
        assert finals[1] > finals[0] - 0.1

    def test_a_run_resumes_exactly(self) -> None:
        check_resumes_exactly(experiment(SHARED))

    def test_an_auditor_does_not_know_the_noise(self) -> None:
        """What is left of a sum, once all records are known, is noise of the size that it is told.

        Of 200 numbers and more the deviation varies by 5%: six of that are allowed, and more.
        """
        run = simulation(experiment(SHARED))
        seen: list[SumMessage] = []

        def listen(setting: Setting, exchange: Arrivals, inbox: Inbox) -> None:
            found = messages(setting, exchange, inbox, run.problem, run.seed)
            seen.extend(one for one in found if isinstance(one, SumMessage))

        run.listener = listen
        for _ in zip(range(2), run.run(), strict=False):
            pass
        assert len(seen) == 2
        for message in seen:
            left = message.values - known_sum(message, run.problem, run.seed)
            assert left.std() == pytest.approx(message.sigma, rel=0.35)

    def test_the_run_directory_says_it(self, tmp_path: Path) -> None:
        directory = RunDirectory(tmp_path / "run")
        simulate(experiment(SHARED | {"rounds": 2, "deadline": 60.0}), directory)
        document = json.loads((directory.path / "privacy.json").read_text())
        (told,) = document["runs"]
        server, _, both = (one["epsilon"] for one in told["against"])
        assert server == pytest.approx(told["epsilon"])
        assert 3 * server < both
        assert "named by each run" in document["holds"]


def test_numbers_have_room_for_all_shares() -> None:
    """All ten clients' noise fits, not that of the least number alone."""
    scheme, state = started(epsilon=0.3)
    ask = asked(scheme, state)
    loudest = 8.3 * ask.work.noise * sqrt(10)  # type: ignore[attr-defined]
    assert loudest < FixedPoint(ask.work.scale).largest_sum(10) * ask.work.scale  # type: ignore[attr-defined]
