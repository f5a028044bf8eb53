"""Facts of a scheme that the package does not know: in tables, JSON and the report."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet
import pytest

from codedfedl import Ask, Description, Everyone, Inbox, Info, InputError, Scheme, State
from codedfedl.core.client import Gradient
from codedfedl.core.disclosure import Disclosure
from codedfedl.federate.server.session import federate
from codedfedl.report.html import render_report
from codedfedl.runs.directory import RunDirectory
from codedfedl.simulation.experiment import simulate
from tests.conftest import Run
from tests.loopback import experiment_of as federation_of
from tests.loopback import transport_of
from tests.virtual import experiment_of


@dataclass(frozen=True)
class Factual(Scheme):
    """Waiting for all, with facts: one in its own words, and one that other schemes state too."""

    info: ClassVar[Info] = Info("factual", frozenset({Disclosure.GRADIENTS}))

    def ask(self, state: State) -> Ask | None:
        batch = state.task.batch(state.round)
        return None if state.finished else Ask(Gradient(batch), Everyone())

    def receive(self, state: State, inbox: Inbox) -> State:
        return replace(state, model=state.model + 0, round=state.round + 1)

    def describe(self, state: State) -> Description:
        return Description(facts={"lucky_number": 1234.0 + state.round, "planned_hours": 56.75})


@dataclass(frozen=True)
class Unlucky(Factual):
    """It states what is not a number."""

    def describe(self, state: State) -> Description:
        return Description(facts={"lucky_number": "seven"})  # type: ignore[dict-item]


@dataclass(frozen=True)
class Confusing(Factual):
    """It states what another column says."""

    def describe(self, state: State) -> Description:
        return Description(facts={"seed": 1.0})


@dataclass(frozen=True)
class Overruling(Factual):
    """It states what the simulator says."""

    def describe(self, state: State) -> Description:
        return Description(facts={"diverged": 0.0})


OWN = {"name": "tests.test_facts:Factual"}


def test_in_tables_json_and_report(tmp_path: Path, run: Run) -> None:
    """They are as of the last round, of which there are six."""
    directory = RunDirectory(tmp_path / "run")
    simulate(experiment_of([{"name": "coded"}, OWN], seeds=[0, 1]), directory)
    table = pyarrow.parquet.read_table(directory.path / "settings.parquet").to_pydict()
    lucky = dict(zip(table["scheme"], table["lucky_number"], strict=True))
    assert lucky["factual"] == 1240.0
    assert np.isnan(lucky["coded"])
    code, out, err = run("report", directory.path, "--json")
    assert code == 0, err
    coded, factual = json.loads(out)["rows"]
    assert factual["facts"] == {"planned_hours": [56.75] * 2, "lucky_number": [1240.0] * 2}
    assert factual["planned_hours"] == [56.75] * 2
    assert factual["disclosure"] == ["gradients"]
    assert coded["facts"] == {}
    page = (directory.path / "report.html").read_text("utf-8")
    assert "lucky_number</td><td>1,240</td>" in page
    assert "planned_hours</td><td>56.8</td>" in page


def test_in_a_federation(tmp_path: Path) -> None:
    experiment = federation_of(3, 2, OWN)
    directory = RunDirectory(tmp_path / "run")
    federate(transport_of(experiment, tmp_path / "nodes"), experiment, directory, lambda _: None)
    table = pyarrow.parquet.read_table(directory.path / "settings.parquet").to_pydict()
    assert table["lucky_number"] == [1236.0]
    assert "lucky_number" in render_report(directory)


def test_without_own_facts_there_is_no_such_table(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    simulate(experiment_of([{"name": "coded"}]), directory)
    assert "Facts of the schemes" not in render_report(directory)


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (Unlucky, "states lucky_number = 'seven': must be a number"),
        (Confusing, "states a fact 'seed', which another column is called"),
        (Overruling, "states a fact 'diverged', which another column is called"),
    ],
)
def test_what_is_no_fact_is_refused_before_the_first_round(
    scheme: type[Scheme], message: str, tmp_path: Path
) -> None:
    seen: list[Any] = []
    with pytest.raises(InputError, match=message):
        simulate(
            experiment_of([{"name": f"tests.test_facts:{scheme.__name__}"}]),
            RunDirectory(tmp_path / "run"),
            watch=lambda _, progress: seen.append(progress),
        )
    assert set(seen) <= {None}
