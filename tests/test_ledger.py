"""The ledger knows a data set by its owner's name: a changed row has no budget of its own."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from codedfedl.cli import app
from codedfedl.errors import InputError
from codedfedl.privacy.accounting import Account, Release, epsilon_of, mu_of
from codedfedl.privacy.contract import Contract
from codedfedl.privacy.ledger import Ledger

DELTA = 1e-5


def contract_of(federation: int, epsilon: float = 4.0, sums: int = 3) -> Contract:
    """Return gradients that spend ε together."""
    release = Release("gradient", sums, 2.0, 2.0 * sums**0.5 / mu_of(epsilon, DELTA))
    account = Account(DELTA, [release])
    return Contract(str(federation) * 32, "a" * 64, "b" * 64, account=account, scale=2.0**10)


def spend(ledger: Ledger, data: str, contract: Contract, content: str = "") -> None:
    for number in range(contract.sums):
        ledger.charge(data, contract, number, content)


def test_a_changed_row_gets_no_fresh_cap(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.json", 5.0, DELTA)
    spend(ledger, "patients", contract_of(0), content="hash of 99 rows")
    with pytest.raises(InputError, match=r"4 before it"):
        ledger.charge("patients", contract_of(1), 0, "hash of 100 rows")
    with pytest.raises(InputError, match=r"4 before it"):
        ledger.check("patients", contract_of(1))
    ledger.check("staff", contract_of(1))
    assert ledger.spent("patients") == pytest.approx(4.0, rel=1e-6)


def test_the_content_is_written_down_and_nothing_depends_on_it(tmp_path: Path) -> None:
    ledger, contract = Ledger(tmp_path / "ledger.json", 5.0, DELTA), contract_of(0)
    for number, content in enumerate(["before", "after", "after"]):
        ledger.charge("patients", contract, number, content)
        ledger.charge("patients", contract, number, "another")  # once
    ((entry,),) = ledger.data_sets().values()
    assert (entry.data, entry.content, entry.sums) == ("patients", "after", (0, 1, 2))


def without_names(path: Path) -> dict[str, Any]:
    """Rewrite a ledger as it was when data sets were known by a hash of their content."""
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    for entry in document["entries"]:
        entry["data"] = entry.pop("content")
    document["format"] = 1
    path.write_text(json.dumps(document), "utf-8")
    return document


class TestWithoutNames:
    """A ledger from before there were names: what it has counts for every data set."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "ledger.json"
        ledger = Ledger(path, 10.0, DELTA)
        spend(ledger, "patients", contract_of(0), "hash of 99 rows")
        spend(ledger, "patients", contract_of(1), "hash of 100 rows")
        without_names(path)
        return path

    def test_all_that_was_spent_carries_over_to_a_name(self, path: Path) -> None:
        both = epsilon_of(2**0.5 * mu_of(4.0, DELTA), DELTA)
        assert Ledger(path, 10.0, DELTA).spent("patients") == pytest.approx(both)
        with pytest.raises(InputError, match=r"5\.9\d+ before it"):
            Ledger(path, 7.0, DELTA).charge("patients", contract_of(2), 0, "hash of 101 rows")

    def test_also_to_a_second_name_and_after_it_was_written_again(self, path: Path) -> None:
        Ledger(path, 10.0, DELTA).charge("patients", contract_of(2), 0)
        assert json.loads(path.read_text("utf-8"))["format"] == 2
        both = epsilon_of(2**0.5 * mu_of(4.0, DELTA), DELTA)
        assert Ledger(path, 10.0, DELTA).spent("staff") == pytest.approx(both)
        assert Ledger(path, 10.0, DELTA).spent("patients") > both

    def test_a_federation_that_had_begun_is_continued(self, tmp_path: Path) -> None:
        path, contract = tmp_path / "ledger.json", contract_of(0)
        ledger = Ledger(path, 4.1, DELTA)
        ledger.charge("patients", contract, 0)
        without_names(path)
        spend(ledger, "patients", contract)
        assert ledger.spent("patients") == pytest.approx(4.0, rel=1e-6)
        assert len(json.loads(path.read_text("utf-8"))["entries"]) == 1  # no sum is in it twice

    def test_the_command_says_so(self, path: Path) -> None:
        text = CliRunner().invoke(app, ["federate", "ledger", str(path.parent)]).stdout
        assert "without a name, which count for every data set: epsilon 5.9" in text

    def test_one_that_does_not_add_up_is_refused(self, path: Path) -> None:
        document = json.loads(path.read_text("utf-8"))
        document["entries"].pop()
        path.write_text(json.dumps(document), "utf-8")
        with pytest.raises(InputError, match="the total does not add up"):
            Ledger(path, 10.0, DELTA).spent("patients")


def test_data_without_a_name_have_no_budget(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.json", 5.0, DELTA)
    with pytest.raises(InputError, match="has no name"):
        ledger.check("", contract_of(0))
    with pytest.raises(InputError, match="has no name"):
        ledger.charge("", contract_of(0), 0)
    assert not ledger.path.exists()
