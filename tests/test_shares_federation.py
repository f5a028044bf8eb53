"""`private` with noise in shares by the clients, in a federation on an in-memory transport."""

from math import inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codedfedl.errors import InputError
from codedfedl.privacy.accounting import Account, Release
from codedfedl.privacy.contract import Contract, contract_of
from codedfedl.privacy.masks import own_noise
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.journal import Journal
from codedfedl.simulation.replay import replay
from tests.loopback import FIRST_NODE, Script
from tests.summing import (
    HELPER,
    Summing,
    ledger_of,
    private,
    run,
    run_killed,
    run_until_sum,
    share_spent,
    summing,
)

CLIENTS = 10  # four shares are the noise, and sums are over five clients or more


def shared(rounds: int = 4) -> Any:
    return private(CLIENTS, rounds, noise="clients")


def contract_in(grid: Summing) -> Contract:
    facts = next(facts for _, kind, facts in grid.asked if kind == "agree")
    return contract_of(facts["contract"])


def silent(count: int, round_: int) -> Script:
    """Let some clients be silent in a round."""
    return Script(
        delay=lambda c, _k, f: inf if c < count and "sum" in f and f.get("round") == round_ else 0.0
    )


class TestRuns:
    def test_all_agree_on_shares_and_the_helper_adds_nothing(self, tmp_path: Path) -> None:
        grid = summing(experiment := shared(), tmp_path)
        exchanges, _ = run(grid, experiment, tmp_path)
        contract = contract_in(grid)
        assert (contract.shares, contract.least) == (4, 5)
        assert [contract.noise_of(n) for n in range(4)] == [0.0] * 4
        asked = [
            facts["work"] for _, kind, facts in grid.asked if kind == "work" and "sum" in facts
        ]
        shares = {work["kind"]: work["noise"] for work in asked}
        for number, kind in enumerate(("clipped_moments", "clipped_gradient")):
            whole = contract.release(number).sigma * contract.scale
            assert shares[kind] == pytest.approx(whole / 2)
        assert share_spent(tmp_path / "run") == pytest.approx(1.0)
        assert len(exchanges) == 5
        found = replay(RunDirectory(tmp_path / "run"))
        assert (found.rounds, found.difference) == (4, 0.0)

    def test_a_round_with_too_few_arrivals_is_spent(self, tmp_path: Path) -> None:
        """Its answers have left, each with a share of its own: no round more makes up for it."""
        grid = summing(experiment := shared(), tmp_path, silent(6, 2))
        exchanges, said = run(grid, experiment, tmp_path)
        assert "no sum: 4 clients arrived, fewer than 5" in said
        assert [bool(one.sums) for one in exchanges[1:]] == [True, True, False, True]
        spent = [one.spent for one in exchanges[1:]]
        assert spent == sorted(set(spent))
        assert share_spent(tmp_path / "run") == pytest.approx(1.0)
        assert ledger_of(grid, 9)["entries"][0]["sums"] == [0, 1, 2, 3]
        assert replay(RunDirectory(tmp_path / "run")).difference == 0.0

    def test_a_first_sum_with_too_few_ends_the_run(self, tmp_path: Path) -> None:
        grid = summing(experiment := shared(), tmp_path, silent(6, 0))
        with pytest.raises(InputError, match="a second one is not paid for"):
            run(grid, experiment, tmp_path)
        assert not [kind for node, kind, _ in grid.asked if (node, kind) == (HELPER, "sum")]

    @pytest.mark.parametrize("asks", range(5, 19))
    def test_the_server_dies_at_any_question(self, asks: int, tmp_path: Path) -> None:
        grid = summing(experiment := shared(), tmp_path, silent(6, 2))
        run_killed(grid, experiment, tmp_path, asks)
        assert share_spent(tmp_path / "run") == pytest.approx(1.0)
        assert Journal(tmp_path / "run").rounds() == 4
        assert ledger_of(grid, 9)["entries"][0]["sums"] == [0, 1, 2, 3]
        assert replay(RunDirectory(tmp_path / "run")).difference == 0.0


class TestNode:
    def question(self, tmp_path: Path) -> tuple[Summing, dict[str, Any], dict[str, Any]]:
        """Return the nodes before the helper's first sum, and what the first was asked."""
        grid = summing(experiment := shared(), tmp_path)
        run_until_sum(1, grid, experiment, tmp_path)
        (facts,) = [facts for node, _, facts in grid.asked if node == FIRST_NODE and "sum" in facts]
        return grid, facts, {"model": np.zeros((64, 10), dtype=np.float32)}

    def test_another_attempt_would_be_a_second_answer(self, tmp_path: Path) -> None:
        """Server and helper together would have two, with different noise on the same numbers."""
        grid, facts, arrays = self.question(tmp_path)
        again = facts | {"sum": {**facts["sum"], "attempt": 7}}
        with pytest.raises(InputError, match="sum 0 was already answered"):
            grid.node(0).answer("work", again, arrays)

    @pytest.mark.parametrize("share", [0.0, 0.5, 2.0])
    def test_a_share_is_what_the_contract_says(self, share: float, tmp_path: Path) -> None:
        grid, facts, arrays = self.question(tmp_path)
        work = {**facts["work"], "noise": share * facts["work"]["noise"]}
        with pytest.raises(InputError, match="steps of noise is asked for, and the contract has"):
            grid.node(0).answer("work", facts | {"work": work}, arrays)

    def test_small_shares_are_refused(self, tmp_path: Path) -> None:
        grid, facts, arrays = self.question(tmp_path)
        contract = facts["sum"]["contract"]
        releases = [{**one, "sigma": 2 / contract["scale"]} for one in contract["releases"]]
        other = {**contract, "releases": releases}
        work = {**facts["work"], "noise": 1.0}
        asked = facts | {"work": work, "sum": {**facts["sum"], "contract": other}}
        with pytest.raises(InputError, match="1 steps of the integers, and the proof needs 4"):
            grid.node(0).answer("work", asked, arrays)

    def test_its_noise_is_the_systems(self) -> None:
        """Variance of 200,000 numbers varies by 0.32%: five of that have a chance below 10⁻⁶."""
        first, second = (own_noise(9.0, 200_000).view(np.int32).astype(float) for _ in range(2))
        assert first.var() == pytest.approx(81 + 1 / 12, rel=0.016)
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / sqrt(200_000)
        assert not own_noise(0.0, 10).any()


class TestContract:
    ACCOUNT = Account(1e-5, [Release("gradient", 3, 1.0, 8.0)], shares=4)

    def test_it_comes_back_from_its_document(self) -> None:
        made = Contract("0" * 32, "a" * 64, "b" * 64, 5, self.ACCOUNT, 2.0**10)
        found = contract_of(made.document())
        assert found.digest == made.digest
        assert found.share_of(1) == 8.0 * 2.0**10 / 2

    def test_sums_over_fewer_clients_have_too_little_noise(self) -> None:
        with pytest.raises(InputError, match="sums must be over one client more"):
            Contract("0" * 32, "a" * 64, "b" * 64, 4, self.ACCOUNT, 2.0**10)
