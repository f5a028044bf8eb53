"""Schemes on secure sums: they learn the same, disclose sums, and refuse what sums hide."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from codedfedl.core.client import Gradient
from codedfedl.core.disclosure import Disclosure, needs_helper
from codedfedl.core.encoding import Parity
from codedfedl.core.loop import Driver
from codedfedl.core.masked import masked
from codedfedl.core.protocol import Inbox
from codedfedl.core.task import Descent
from codedfedl.errors import InputError
from codedfedl.privacy.fixed_point import FixedPoint
from codedfedl.report.results import outcomes
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.federation import scheme_of
from codedfedl.runs.sections import SchemeConfig
from codedfedl.simulation.experiment import simulate
from tests.private_runs import experiment, played, simulation


@pytest.mark.parametrize(
    ("settings", "difference"),
    [
        ({"name": "uncoded", "optimiser": "gd"}, 1e-4),
        ({"name": "uncoded"}, 1e-2),  # block-cg, which solves exactly
        ({"name": "balanced", "setup_deadline": 1e9}, 1e-2),  # else one is weighted by class
        ({"name": "one-shot"}, 1e-2),
    ],
)
def test_who_waits_for_all_learns_the_same(settings: dict[str, Any], difference: float) -> None:
    """But for rounding, which an exact solution enlarges."""
    plain, secure = played(experiment(settings, settings | {"secure": True}))
    before, after = np.asarray(plain.state.model), np.asarray(secure.state.model)
    assert np.abs(after - before).max() <= difference * np.abs(before).max()
    assert secure.scheme.disclosure == {Disclosure.SUMS}
    assert plain.scheme.disclosure != secure.scheme.disclosure
    hours = [sum(one.seconds for one in setting.records) for setting in (plain, secure)]
    assert hours[1] > hours[0]  # the helper's message is charged


def test_coded_runs_on_sums_too() -> None:
    """Its parity is summed before anybody sees it; fewer may arrive, as messages are two."""
    plain, secure = played(experiment({"name": "coded"}, {"name": "coded", "secure": True}))
    assert secure.rounds[-1].metric == pytest.approx(float(plain.rounds[-1].metric), abs=0.08)
    parity = [np.asarray(one.state.parity[0].hessian) for one in (plain, secure)]  # type: ignore[attr-defined]
    np.testing.assert_allclose(parity[1], parity[0], atol=1e-3 * np.abs(parity[0]).max())


@pytest.mark.parametrize("name", ["mifa", "dsag", "fedbuff", "ringleader"])
def test_who_needs_each_answer_is_refused(name: str) -> None:
    settings: dict[str, Any] = {"name": name, "secure": True}
    with pytest.raises(InputError, match=f"{name} needs each client's answer"):
        played(experiment(settings))


@pytest.mark.parametrize("name", ["uncoded", "coded", "coded-newton"])
def test_a_federation_does_not_take_it_for_plain(name: str) -> None:
    """To run without sums would disclose more than was asked for."""
    federation = {"clients": 3, "rounds": 2, "deadline": 1.0}
    one = experiment({"name": name, "secure": True}, federation=federation)
    assert needs_helper(scheme_of(one).disclosure)


@pytest.mark.parametrize("optimiser", ["gd", "block-cg"])
def test_a_sum_that_is_not_given_out_teaches_nothing(optimiser: str) -> None:
    """Not even the ridge's share of a step, as if the points of one client had been heard."""
    (setting,) = played(experiment({"name": "uncoded", "secure": True, "optimiser": optimiser}))
    assert isinstance(setting.state, Descent)
    state = replace(setting.state, round=0, memory=None)  # block-cg knows when it is done
    alone = np.arange(state.task.clients) == 0
    driver = Driver(setting.scheme, state, 5)
    while driver.ask() is not None and driver.state.round == 0:
        driver.receive(Inbox(alone, 10.0, {}))
    after = driver.state
    assert isinstance(after, Descent)
    np.testing.assert_array_equal(after.model, state.model)
    assert np.abs(np.asarray(state.model)).max() > 0
    assert (after.round, after.memory) == (1, None)


def test_features_without_a_bound_are_refused() -> None:
    one = experiment(
        {"name": "uncoded", "secure": True}, features={"kind": "identity", "sigma": 1.0}
    )
    with pytest.raises(InputError, match="features with a bound"):
        played(one)


def test_numbers_are_fine_and_have_room() -> None:
    """A sum of all points with features of the largest length does not wrap around."""
    task = simulation(experiment({"name": "uncoded"})).settings[0].state.task
    points, length = float(task.held.sum()), task.largest_square**0.5
    gradients = FixedPoint(masked(Gradient(0), task).scale)
    assert gradients.largest_sum(task.clients) > 4 * points * length
    assert gradients.rounding(task.clients) < 1e-4 * points
    parity = FixedPoint(masked(Parity([10], [[0] * 10], [[0.0] * 10]), task).scale)
    assert parity.rounding(task.clients) < 1e-4


def test_it_is_said_where_results_are(tmp_path: Any) -> None:
    directory = RunDirectory(tmp_path / "run")
    simulate(experiment({"name": "uncoded", "secure": True}), directory)
    (outcome,) = outcomes(directory)
    assert outcome.cell.disclosure == ["sums"]
    assert SchemeConfig(name="uncoded", secure=True).label == "uncoded secure sums"
