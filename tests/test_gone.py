"""Clients that miss rounds, or are gone for good: their own parity stands in for all their points.

Shards are sorted by class, so that a client whose points no longer count takes classes with it.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codedfedl import Fleet, InputError
from codedfedl.core.client import Gradient, WeightedGradient
from codedfedl.core.encoding import Parity as ParityWork
from codedfedl.core.protocol import EACH, SUM, Ask, Inbox, Limits, Reply, Task
from codedfedl.core.work import ArrayClient
from codedfedl.federate.server.session import federate
from codedfedl.fleet.devices import Workload
from codedfedl.learning.least_squares import ParityRows, point_weights
from codedfedl.learning.optimisers import Schedule
from codedfedl.planning.plan import Plan
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import check
from codedfedl.runs.grid import cells
from codedfedl.runs.journal import Journal
from codedfedl.schemes import make_scheme
from codedfedl.schemes.coded import Coded
from codedfedl.schemes.coded_state import LARGEST_CHANCE, CodedState, StandIns, encoded_chances
from codedfedl.simulation.engine import Simulation
from codedfedl.simulation.replay import replay
from codedfedl.simulation.units import datasets, units
from tests.loopback import Script, transport_of

POINTS = np.array([12, 9, 6, 11])
LIMITS = Limits(deadline=5.0, setup_deadline=60.0, rounds=5, availability=0.95)
FEATURES, LABELS = 5, 2

Points = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def some_points() -> list[Points]:
    rng = np.random.default_rng(3)
    return [(rng.normal(size=(n, FEATURES)), rng.normal(size=(n, LABELS))) for n in POINTS]


def a_plan(loads: Sequence[int], chances: Sequence[float]) -> Plan:
    clients = np.array(list("abcd"))
    return Plan(clients, POINTS * 1.0, 5.0, np.array(loads), np.array(chances), 4)


def ideal_parity(made: Plan, points: Sequence[Points]) -> dict[int, ParityRows]:
    """Return the parity of a code with GᵀG = I, its expectation."""
    chances = encoded_chances(made)
    found = {}
    for j, (x, y) in enumerate(points):
        weights = point_weights(len(x), int(made.loads[j]), float(chances[j]))[:, None]
        found[j] = ParityRows(weights * x, weights * y)
    return found


def whole(points: Sequence[Points], model: Any) -> Any:
    return sum(x.T @ (x @ model - y) for x, y in points)


def answers(known: StandIns, points: Sequence[Points], model: Any, who: Any) -> Any:
    work, loads = known.work(0), known.made.loads.tolist()
    for j in np.flatnonzero(who).tolist():
        client = ArrayClient(*points[j], 1, np.random.default_rng)
        sent = work.for_client(j).answer(client, loads[j], model)
        yield Reply(j, 0, sent.points, sent.arrays)


class TestGradient:
    """With GᵀG = I the gradient is that of all points: not on average, but whoever is missing."""

    @pytest.mark.parametrize("earlier", [0, 3])
    def test_whoever_processes_all_points_may_be_missing(self, earlier: int) -> None:
        points, rng = some_points(), np.random.default_rng(0)
        made = a_plan(POINTS.tolist(), [0.3, 0.95, 1.0, 0.8])
        for who in product([False, True], repeat=4):
            known = StandIns(made, ideal_parity(made, points))
            for _ in range(earlier):
                model = rng.normal(size=(FEATURES, LABELS))
                before = list(answers(known, points, model, rng.random(4) < 0.5))
                known = known.after(before, model)
            model = rng.normal(size=(FEATURES, LABELS))
            known = known.after(answers(known, points, model, who), model)
            np.testing.assert_allclose(known.gradient(model), whole(points, model), rtol=1e-9)

    def test_an_answer_for_some_points_is_completed_by_parity(self) -> None:
        points, rng = some_points(), np.random.default_rng(1)
        made = a_plan([5, 9, 3, 0], [0.6, 0.9, 0.2, 0.0])
        known = StandIns(made, ideal_parity(made, points))
        assert isinstance(known.work(0), WeightedGradient)
        for _ in range(3):
            model = rng.normal(size=(FEATURES, LABELS))
            known = known.after(answers(known, points, model, [1, 1, 1, 0]), model)
            np.testing.assert_allclose(known.gradient(model), whole(points, model), rtol=1e-9)

    def test_parity_of_some_points_stands_for_all_over_their_order(self) -> None:
        """Exactly: the mean over cyclic orders, in which each point is processed equally often."""
        points, model = some_points(), np.random.default_rng(2).normal(size=(FEATURES, LABELS))
        made, cycle = a_plan([5, 9, 3, 7], [0.6, 0.9, 0.2, 0.7]), int(np.lcm.reduce(POINTS))
        mean, spread = np.zeros((FEATURES, LABELS)), 0.0
        for turn in range(cycle):
            turned = [(np.roll(x, turn, axis=0), np.roll(y, turn, axis=0)) for x, y in points]
            one = StandIns(made, ideal_parity(made, turned)).gradient(model)
            mean, spread = mean + one / cycle, max(spread, np.abs(one - whole(points, model)).max())
        np.testing.assert_allclose(mean, whole(points, model), rtol=1e-9)
        assert spread > 1  # a single order is an estimate

    def test_a_client_sure_to_answer_is_encoded_too(self) -> None:
        """Otherwise its points would weigh 0, and nothing would be left of them."""
        made = a_plan(POINTS.tolist(), [1.0, 1.0, 0.5, 0.0])
        assert encoded_chances(made).tolist() == [LARGEST_CHANCE, LARGEST_CHANCE, 0.5, 0.0]

    def test_nobody_known_is_no_gradient(self) -> None:
        assert StandIns(a_plan(POINTS.tolist(), [0.5] * 4), {}).gradient(np.zeros((5, 2))) == 0.0


def started(scheme: Coded, limits: Limits | None = None) -> CodedState:
    task = Task(Workload(FEATURES, LABELS), 10, POINTS[None], 9, Schedule(0.3), 0.0)
    rates = [20.0, 8.0, 4.0, 2.0]
    fleet = Fleet(points=POINTS, rate=rates, alpha=2.0, packet_time=0.1, erasure=0.1)
    return scheme.start(task, fleet, np.zeros((FEATURES, LABELS)), limits)


class TestScheme:
    def test_federations_keep_parity_apart_and_simulations_the_papers_composite(self) -> None:
        assert started(Coded(), LIMITS).stand_in
        assert not started(Coded(stand_in=False), LIMITS).stand_in
        ask = Coded().ask(started(Coded()))
        assert ask is not None
        assert ask.combine is SUM
        ask = Coded().ask(started(Coded(), LIMITS))
        assert ask is not None
        assert isinstance(ask.work, ParityWork)
        assert ask.combine is EACH
        assert np.max(ask.work.return_probabilities) <= LARGEST_CHANCE

    def test_secure_sums_have_only_the_composite(self) -> None:
        assert not started(Coded(secure=True), LIMITS).stand_in

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"stand_in": "yes"}, "must be true or false"),
            ({"stand_in": True, "server_rate": 3.0}, "composite parity: leave one out"),
        ],
    )
    def test_what_cannot_be_is_refused(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError, match=message):
            make_scheme("coded", settings)

    def test_secure_sums_hide_each_clients_parity(self) -> None:
        with pytest.raises(InputError, match="leave out stand_in or secure"):
            Coded(stand_in=True, secure=True)

    def test_a_silent_client_counts_and_an_answer_corrects_it(self) -> None:
        """Steps are those of the whole gradient, with a client gone from the second round on."""
        scheme, points = Coded(0.3, stand_in=True, deadline=1e3), some_points()
        state = started(scheme)
        parity = ideal_parity(state.plans[0], points)
        sent = tuple(
            Reply(j, -1, 1, {"features0": one.features, "targets0": one.targets})
            for j, one in parity.items()
        )
        state = scheme.receive(state, Inbox(np.ones(4, bool), 0.0, replies=sent))
        for who in ([1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]):
            ask, model = scheme.ask(state), state.model
            assert isinstance(ask, Ask)
            assert type(ask.work) is Gradient
            replies = tuple(answers(state.stand_ins[0], points, model, who))
            state = scheme.receive(state, Inbox(np.array(who, bool), 0.0, replies=replies))
            right = model - 0.3 * whole(points, model) / POINTS.sum()
            np.testing.assert_allclose(state.model, right, rtol=1e-9, atol=1e-12)
        assert not state.checkpointed


def digits(clients: int, rounds: int, seed: int = 0, **scheme: Any) -> Experiment:
    """Return a federation on digits, sorted by class."""
    return check(
        {
            "data": {"name": "digits"},
            "seeds": [seed],
            "features": {"kind": "fourier", "n_components": 300, "sigma": 2.0},
            "training": {"step": 4.0, "epochs": rounds, "ridge": 9e-6},
            "schemes": [{"name": "coded", **scheme}],
            "federation": {
                "clients": clients,
                "rounds": rounds,
                "probes": 2,
                "test": "digits",
                "deadline": 0.8,
                "fall": 1.0,
            },
        },
        "a test",
    )


def silent(client: int | None, first: int = 1, last: int = 10**6) -> Script:
    """Return nodes of which one does not answer in some rounds."""

    def delay(who: int, question: str, facts: dict[str, Any]) -> float:
        asked = question.endswith("gradient") and "round" in facts
        return np.inf if who == client and asked and first <= facts["round"] <= last else 0.0

    return Script(delay)


def accuracies(experiment: Experiment, folder: Path, script: Script) -> list[float]:
    grid, directory = (
        transport_of(experiment, folder / "nodes", script),
        RunDirectory(folder / "run"),
    )
    federate(grid, experiment, directory, lambda _: None)
    return [one.metric for one in Journal(directory.path).records() if not one.is_setup]


@pytest.mark.slow
class TestFederation:
    @pytest.mark.parametrize("seed", [0, 1, 2])
    @pytest.mark.parametrize("clients", [4, 7])
    def test_losing_any_node_hardly_matters(self, clients: int, seed: int, tmp_path: Path) -> None:
        """After one round of three; without its classes a model loses 5 to 20 points in 100."""
        experiment = digits(clients, 3, seed)
        right = accuracies(experiment, tmp_path / "all", silent(None))[-1]
        for gone in range(clients):
            left = accuracies(experiment, tmp_path / str(gone), silent(gone))[-1]
            assert left == pytest.approx(right, abs=0.02)

    def test_a_node_gone_before_its_first_answer_counts_by_parity_alone(
        self, tmp_path: Path
    ) -> None:
        experiment = digits(5, 6)
        right = accuracies(experiment, tmp_path / "all", silent(None))[-1]
        left = accuracies(experiment, tmp_path / "gone", silent(2, first=0))[-1]
        assert left == pytest.approx(right, abs=0.04)

    def test_a_node_that_comes_back_counts_as_ever(self, tmp_path: Path) -> None:
        experiment = digits(4, 8)
        right = accuracies(experiment, tmp_path / "all", silent(None))[-1]
        left = accuracies(experiment, tmp_path / "back", silent(1, first=1, last=4))[-1]
        assert left == pytest.approx(right, abs=0.01)
        assert replay(RunDirectory(tmp_path / "back" / "run")).same

    def test_a_killed_server_goes_on_without_the_node(self, tmp_path: Path) -> None:
        """Bit for bit: the newest answers are in the journal."""
        experiment = digits(4, 4)
        accuracies(experiment, tmp_path / "whole", silent(1))
        grid = transport_of(experiment, tmp_path / "killed" / "nodes", silent(1))
        directory = RunDirectory(tmp_path / "killed" / "run")
        grid.crash_after = 6
        with pytest.raises(KeyboardInterrupt):
            federate(grid, experiment, directory, lambda _: None)
        grid.crash_after = None
        federate(grid, experiment, directory, lambda _: None)
        found, right = (
            RunDirectory(tmp_path / name / "run").checkpoint() for name in ("killed", "whole")
        )
        assert found is not None
        assert right is not None
        np.testing.assert_array_equal(found["model"], right["model"])


@pytest.mark.slow
def test_simulated_clients_far_slower_than_planned_count_too() -> None:
    """Half of them miss almost every round, which the plan does not know."""
    experiment = check(
        {
            "data": {"name": "digits"},
            "fleet": {"clients": 10, "slower": 30.0, "slower_share": 0.5},
            "features": {"kind": "fourier", "n_components": 300, "sigma": 2.0},
            "training": {"step": 4.0, "epochs": 30, "ridge": 9e-6},
            "schemes": [
                {"name": "uncoded"},
                {"name": "coded", "redundancy": 0.2, "stand_in": False},
                {"name": "coded", "redundancy": 0.2, "stand_in": True},
            ],
        },
        "a test",
    )
    settings = cells(experiment)
    (unit,) = units(settings, [0], datasets(settings, None))
    simulation = Simulation(unit.problem(), unit.contenders(), 0)
    for _ in simulation.run():
        pass
    full, composite, apart = (one.rounds[-1].metric for one in simulation.settings)
    assert apart > full - 0.03
    assert composite < apart - 0.02
