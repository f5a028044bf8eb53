"""Plans that follow the clients: slow-downs from times, weights that keep gradients unbiased."""

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codedfedl import Fleet, InputError, plan
from codedfedl.core.client import Embedded, WeightedGradient
from codedfedl.core.columns import round_columns
from codedfedl.core.encoding import BlockParity, MoreParity
from codedfedl.core.protocol import Inbox, Limits, Task
from codedfedl.core.work import ArrayClient
from codedfedl.federate.server.session import federate
from codedfedl.fitting.drift import SLOWDOWNS, Drift, Timings
from codedfedl.fleet.devices import Workload
from codedfedl.fleet.measured import MeasuredDelays
from codedfedl.learning.codes import Code
from codedfedl.learning.least_squares import ParityRows, Quadratic, point_weights
from codedfedl.learning.optimisers import Schedule
from codedfedl.planning.plan import LARGEST_WEIGHT, answer_weights, replanned
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.grid import cells
from codedfedl.runs.journal import Journal
from codedfedl.schemes import make_scheme
from codedfedl.schemes.coded import Coded
from codedfedl.schemes.coded_newton import CodedNewton
from codedfedl.schemes.coded_state import CodedState
from codedfedl.schemes.newton_pace import Pace
from codedfedl.schemes.sketch_solve import Block
from codedfedl.simulation.checkpoint import restore, snapshot
from codedfedl.simulation.engine import Setting, Simulation
from codedfedl.simulation.replay import replay
from codedfedl.simulation.units import datasets, units
from tests.loopback import Script, experiment_of, model_of, rounds_of, run, transport_of
from tests.virtual import setup_seconds_of, small

FLEET = Fleet(
    points=[400, 400, 300, 400],
    rate=[20.0, 8.0, 4.0, 2.0],
    alpha=2.0,
    packet_time=3.0,
    erasure=0.1,
)
PLANNED = FLEET
TRAINING = {"epochs": 15, "step": 2.0, "ridge": 9e-6, "target": 0.5}


def watched(planned: Fleet, actual: Fleet, loads: Any, deadline: float, rounds: int) -> Drift:
    """Return what rounds show that end at a deadline."""
    drift, times = Drift.unknown(planned), actual.sample(loads, rounds, np.random.default_rng(5))
    for seconds in times:
        drift = drift.after(Timings.until(loads, seconds, seconds <= deadline, deadline))
    return drift


class TestDrift:
    def test_evidence_is_the_log_likelihood_term_by_term(self) -> None:
        loads = np.array([400, 0, 300, 0])
        answered = np.array([True, False, False, False])
        timings = Timings(loads + (loads > 0), np.array([70.0, 0.0, 200.0, 0.0]), answered)
        drift = Drift.unknown(PLANNED).after(timings).after(timings)
        for k, s in enumerate(SLOWDOWNS):
            near = [PLANNED.cdf(loads + 1, 70.0 * 2**half / s)[0] for half in (1 / 12, -1 / 12)]
            late = [PLANNED.cdf(loads + 1, 200.0 * 2**half / s)[2] for half in (1 / 12, -1 / 12)]
            each = np.log(near[0] - near[1] + 1e-4), np.log(1 - sum(late) / 2 + 1e-4)
            np.testing.assert_allclose(drift.evidence[k, [0, 2]], 1.98 * np.array(each))
        assert (drift.evidence[:, [1, 3]] == 0).all()  # of whom nothing was seen

    @pytest.mark.parametrize("factor", [[2.0] * 4, [0.5] * 4, [1.0, 1.0, 1.0, 5.0]])
    def test_slow_downs_are_found_within_a_step_of_the_grid(self, factor: list[float]) -> None:
        """Forty rounds, of which some end before everybody has answered."""
        chosen = plan(FLEET, 0.1)
        actual = FLEET.slowed(np.array(factor))
        deadline = max(factor) * chosen.deadline
        found = watched(PLANNED, actual, chosen.loads, deadline, 40).slowdowns
        assert np.abs(np.log2(found / factor)).max() <= 0.11

    def test_right_delays_are_left_alone(self) -> None:
        """A thousand clients, refitted after 5, 20 and 60 rounds: at 0.0005 each, 1.5 are expected.

        More than 8 would be a chance of 1e-4.
        """
        many = FLEET.take(np.tile(np.arange(4), 250))
        chosen = plan(FLEET, 0.1)
        loads = np.tile(chosen.loads, 250)
        alarms = [
            int((watched(many, many, loads, chosen.deadline, rounds).slowdowns != 1).sum())
            for rounds in (5, 20, 60)
        ]
        assert sum(alarms) <= 8

    def test_who_never_answers_is_slow_but_not_beyond_measure(self) -> None:
        loads, never = np.full(4, 100), np.zeros(4, bool)
        drift = Drift.unknown(PLANNED)
        for _ in range(30):
            drift = drift.after(Timings.until(loads, np.full(4, np.inf), never, 200.0))
        late = 1 - FLEET.slowed(drift.slowdowns).cdf(loads, 200.0)
        assert (late > 0.8).all()
        assert (drift.slowdowns < SLOWDOWNS[-1]).all()

    def test_a_client_that_recovers_is_believed(self) -> None:
        slow, loads = FLEET.slowed(np.full(4, 3.0)), np.full(4, 100)
        drift = watched(PLANNED, slow, loads, 1e6, 60)
        assert (drift.slowdowns > 2.5).all()
        for seconds in PLANNED.sample(loads, 150, np.random.default_rng(1)):
            drift = drift.after(Timings.until(loads, seconds, seconds < 1e6, 1e6))
        assert (drift.slowdowns < 1.1).all()

    def test_measured_delays_drift_too(self) -> None:
        """Delays that take five values, of which nothing but the distribution is known."""
        each = [[0.01, 0.02, 0.02, 0.03, 0.04]] * 2
        measured = MeasuredDelays(each, [[1.0, 1.1, 1.2, 1.3, 2.0]] * 2)
        slow, drift = measured.slowed(np.array([1.0, 3.0])), Drift.unknown(measured)
        loads, rng = np.array([50, 50]), np.random.default_rng(2)
        chances = slow.draw(40, rng)
        for round_ in range(40):
            seconds = slow.seconds(loads, chances[round_])
            drift = drift.after(Timings.until(loads, seconds, seconds < 9, 9.0))
        assert drift.slowdowns == pytest.approx([1.0, 3.0], rel=0.1)


class TestReplan:
    @pytest.mark.parametrize("factor", [0.5, 2.0, 3.0])
    def test_slower_clients_need_as_much_more_time(self, factor: float) -> None:
        chosen = plan(FLEET, 0.1)
        found = replanned(chosen, PLANNED.slowed(np.full(4, factor)))
        assert found.deadline == pytest.approx(factor * chosen.deadline, rel=2e-3)
        assert found.expected_return == pytest.approx(chosen.expected_return, rel=2e-3)
        assert answer_weights(chosen, found) == pytest.approx(np.ones(4), rel=0.01)
        assert found.loads is chosen.loads

    def test_a_client_that_is_gone_is_weighted_no_further(self) -> None:
        chosen = plan(FLEET, 0.3)
        found = replanned(chosen, PLANNED.slowed(np.array([1, 1, 1, 32.0])), deadline=300.0)
        assert found.deadline == 300.0
        assert answer_weights(chosen, found)[3] == pytest.approx(LARGEST_WEIGHT)

    def test_a_limit_of_the_deadline_changes_the_weights(self) -> None:
        """Who answers half as often as planned counts twice."""
        chosen, slow = plan(FLEET, 0.3), PLANNED.slowed(np.full(4, 2.0))
        found = replanned(chosen, slow, longest=1.5 * chosen.deadline)
        assert found.deadline == 1.5 * chosen.deadline
        weights = answer_weights(chosen, found)
        chances = slow.cdf(chosen.loads, found.deadline)
        assert weights.max() > 1.3
        np.testing.assert_allclose(weights * chances, chosen.return_probabilities)

    @pytest.mark.parametrize("replan", [0, 1])
    def test_the_expected_step_is_that_of_the_whole_gradient(self, replan: int) -> None:
        """Exactly: over all arrivals, with the probabilities of clients 2 and 1.4 times as slow.

        Parity is that of a code with GᵀG = 1, its expectation. Without new weights it is biased.
        """
        rng, factor = np.random.default_rng(0), np.array([2.0, 2.0, 1.0, 2**0.5])
        task = Task(Workload(5, 2), 10, np.array([[40, 30, 20, 40]]), 9, Schedule(0.3), 0.01)
        fleet = replace(FLEET, points=task.points[0])
        data = [(rng.normal(size=(n, 5)), rng.normal(size=(n, 2))) for n in task.points[0]]
        scheme = Coded(redundancy=0.3, replan=replan)
        state: CodedState = scheme.start(task, fleet, rng.normal(size=(5, 2)))
        made = state.plans[0]
        weights = [
            point_weights(*one)[:, None]
            for one in zip(task.points[0], made.loads, made.return_probabilities, strict=True)
        ]
        rows = [(w * x, w * y) for w, (x, y) in zip(weights, data, strict=True)]
        parity = Quadratic.of(*(np.concatenate(part) for part in zip(*rows, strict=True)))
        state = replace(state, parity=(parity,))
        if replan:
            evidence = np.zeros((len(SLOWDOWNS), 4))
            evidence[np.abs(SLOWDOWNS[:, None] - factor).argmin(0), np.arange(4)] = 1e3
            state = replace(state, drift=Drift(fleet, evidence), round=8)
            nobody = np.zeros(4, bool)
            state = replace(scheme.receive(state, Inbox(nobody, 0.0)), model=state.model, round=0)
            assert state.current[0].deadline > 1.2 * made.deadline
        ask = scheme.ask(state)
        assert ask is not None
        assert isinstance(ask.work, WeightedGradient) == bool(replan)
        clients = [ArrayClient(x, y, 1, np.random.default_rng) for x, y in data]
        answers = [
            ask.work.for_client(j).answer(client, load, state.model).arrays["gradient"]
            for j, (client, load) in enumerate(zip(clients, made.loads.tolist(), strict=True))
        ]
        chances = fleet.slowed(factor).cdf(made.loads, ask.wait.deadline)
        expected = np.zeros((5, 2))
        for arrived in product([False, True], repeat=4):
            total = sum((a for a, came in zip(answers, arrived, strict=True) if came), np.zeros(()))
            after = scheme.receive(state, Inbox(np.array(arrived), 0.0, {"gradient": total}))
            expected += np.where(arrived, chances, 1 - chances).prod() * after.model
        whole = sum(x.T @ (x @ state.model - y) for x, y in data)
        right = state.model - 0.3 * (whole / task.points.sum() + 0.01 * state.model)
        off = float(np.abs(expected - right).max())
        assert off < 1e-12 if replan else off > 1e-3


def _slow(**fleet: Any) -> dict[str, Any]:
    return {"slower": 3.0, **fleet}


ADAPTIVE = [
    {"name": "coded", "replan": 3, "optimiser": "nesterov"},
    {"name": "coded-newton", "replan": 2, "rounds": 12},
    {"name": "balanced", "replan": 3},
]


def simulation(experiment: Experiment) -> Simulation:
    """Return a simulation whose clients may be others than planned."""
    settings = cells(experiment)
    (unit,) = units(settings, [0], datasets(settings, None))
    return Simulation(unit.problem(), unit.contenders(), 0)


def played(experiment: Experiment) -> list[Setting]:
    run = simulation(experiment)
    for _ in run.run():
        pass
    return run.settings


class TestSimulated:
    def test_right_delays_change_nothing(self) -> None:
        found = played(
            small(
                training=TRAINING,
                schemes=[
                    {"name": "coded"},
                    {"name": "coded", "replan": 2},
                    {"name": "coded-newton", "rounds": 20, "replan": 0},
                    {"name": "coded-newton", "rounds": 20, "replan": 2},
                ],
            )
        )
        still, following, newton, following_newton = found
        for kept, moved in ((still, following), (newton, following_newton)):
            assert [one.seconds for one in kept.rounds] == [one.seconds for one in moved.rounds]
            np.testing.assert_allclose(kept.state.model, moved.state.model, atol=1e-6)

    def test_deadlines_follow_to_those_of_a_plan_that_knew(self) -> None:
        scheme = {"name": "coded", "replan": 3}
        known = self.played_on(scheme, _slow(foreseen=True))
        found = self.played_on(scheme, _slow())
        wrong = self.played_on({"name": "coded"}, _slow())
        right = known.rounds[-1].deadline
        assert wrong.rounds[-1].deadline == pytest.approx(right / 3, rel=1e-6)
        assert found.rounds[0].deadline == wrong.rounds[0].deadline
        assert found.rounds[-1].deadline == pytest.approx(right, rel=0.15)
        share = [np.mean([one.arrived.mean() for one in s.rounds[9:]]) for s in (known, found)]
        assert share[0] == pytest.approx(share[1], abs=0.1)

    @staticmethod
    def played_on(scheme: dict[str, Any], fleet: dict[str, Any]) -> Setting:
        (found,) = played(small(training=TRAINING, schemes=[scheme], fleet=fleet))
        return found

    @pytest.mark.parametrize("fleet", [{}, _slow()])
    def test_balanced_takes_in_what_was_embedded_meanwhile(self, fleet: dict[str, Any]) -> None:
        """Loads at most double, once rounds bring little, until nearly all points are in."""
        found = self.played_on({"name": "balanced"}, fleet)
        loads = [record.loads for record in found.rounds]
        changed = [k for k in range(1, len(loads)) if (loads[k] != loads[k - 1]).any()]
        assert len(changed) > 1
        assert all((after >= before).all() for before, after in pairwise(loads))
        for k in changed:
            before = np.maximum(loads[k - 1], 1)
            assert (loads[k] <= 2 * before).all()
        assert loads[-1].sum() > 0.8 * found.state.task.held.sum() > loads[0].sum()
        assert found.rounds[-1].excess < 0.03 < found.rounds[changed[0] - 1].excess

    def test_balanced_does_not_end_with_too_few_points(self) -> None:
        """Its optimiser settles long before the hundredth round."""
        followed, kept = (
            self.played_on({"name": "balanced", "replan": replan, "excess": 0.05}, _slow())
            for replan in (100, 0)
        )
        assert len(kept.rounds) < len(followed.rounds) < 30
        assert followed.rounds[-1].excess < 0.7 * kept.rounds[-1].excess

    @pytest.mark.slow
    def test_a_run_resumes_exactly(self) -> None:
        experiment = small(training=TRAINING | {"epochs": 6}, schemes=ADAPTIVE, fleet=_slow())
        whole, half, again = (simulation(experiment) for _ in range(3))
        for _ in whole.run():
            pass
        steps = half.run()
        for _ in range(7):
            next(steps)
        restore(again, snapshot(half, 0), 0)
        for _ in again.run():
            pass
        for once, twice in zip(whole.settings, again.settings, strict=True):
            np.testing.assert_array_equal(once.state.model, twice.state.model, once.label)
            deadlines = [[one.deadline for one in s.records] for s in (once, twice)]
            assert deadlines[0] == deadlines[1]
            if once.scheme.info.name == "coded":
                assert len(set(deadlines[0][1:])) > 1  # there was something to resume


class TestNewton:
    played_on = staticmethod(TestSimulated.played_on)

    def test_slower_clients_embed_first(self) -> None:
        evidence = np.zeros((len(SLOWDOWNS), 4))
        evidence[18, 2:] = 50.0  # twice as slow
        pace = Pace(FLEET, Drift(PLANNED, evidence))
        held = np.array([400, 400, 300, 400])
        found = pace.least_points(np.full(4, 70), {0: 100, 1: 50, 2: 200}, 2.0, held)
        assert found.tolist() == [0, 0, 300, 70]

    def test_a_client_with_fewer_points_says_nothing_yet(self) -> None:
        work = Embedded(least=[10, 50, 500])
        asked, embedded, answered = (np.array(n) for n in ([60] * 3, [20, 40, 60], [0, 30, 0]))
        held = np.full(3, 60)
        assert work.load(asked, embedded, answered, held).tolist() == [20, 0, 60]
        own = work.for_client(1)
        assert own.least == 50
        assert own.load(asked[1], embedded[1], answered[1], held[1]) == 0
        assert work.common.least == 1

    def test_a_set_up_tells_who_is_slow(self) -> None:
        """The pace of embedding is a client's own for the whole set-up: one time, and no more."""
        found = played(
            small(
                training=TRAINING,
                schemes=[{"name": "coded-newton", "replan": 50, "rounds": 1, "excess": 0.05}],
                fleet={"slower": 12.0},
            )
        )
        state: Any = found[0].state
        seen = state.pace.drift.evidence.any(axis=0)
        assert seen.sum() >= 5
        assert (state.pace.drift.slowdowns > 1)[seen].mean() >= 0.7

    def test_one_answer_of_each_tells_how_slow_all_are(self) -> None:
        """The clients one by one are not known to be slower, and all together are.

        As planned, 1 in 2,000 sets of answers raises a false alarm: two of twenty are 5e-5.
        """
        clients, loads = np.tile(np.arange(4), 8), np.full(32, 200)
        fleet = replace(FLEET.take(clients), client=np.arange(32).astype(str))
        many, slow = fleet, fleet.slowed(np.full(32, 2.0))
        for actual, low, high in ((slow, 1.5, 2.7), (many, 1.0, 1.0)):
            times = actual.sample(loads, 20, np.random.default_rng(8))
            drifts = [
                Drift.unknown(many).after(Timings(loads, one, np.isfinite(one))) for one in times
            ]
            found = [drift.common for drift in drifts]
            assert np.mean([(drift.slowdowns == 1).mean() for drift in drifts]) > 0.8
            assert sum(not low <= one <= high for one in found) < 2

    def test_a_set_up_goes_on_where_all_are_slower(self) -> None:
        scheme = {"name": "coded-newton", "rounds": 10}
        fleet = _slow(clients=20, slower=4.0)
        foreseen, found, kept = (
            self.played_on(scheme | more, fleet | known)
            for more, known in (({}, {"foreseen": True}), ({}, {}), ({"extended": False}, {}))
        )
        setups = [  # the first asks for label counts
            [one for one in s.records if one.is_setup][1:] for s in (foreseen, found, kept)
        ]
        assert [len(one) for one in setups] == [1, 2, 1]
        right, first = setups[0][0].seconds, setups[2][0].seconds
        assert setups[1][0].seconds == first == pytest.approx(right / 4, rel=0.25)
        assert 0.5 * right < sum(one.seconds for one in setups[1]) < 1.1 * right  # of few answers
        points = [s.facts["embedded_points"] for s in (foreseen, found, kept)]

        assert points[0] > points[1] > 1.4 * points[2]
        hours = round_columns(found.records)["total_hours"]
        counting = found.records[0].seconds
        assert hours[0] == pytest.approx((counting + first) / 3600)  # there is a model in between
        assert hours[1] == pytest.approx(setup_seconds_of(found) / 3600)

    def test_more_parity_joins_what_was_sent(self) -> None:
        """Of orthogonal points, each counts as much as any other, and they for all together."""
        held = 60
        client = ArrayClient(
            np.eye(held, dtype=np.float32),
            np.ones((held, 1), dtype=np.float32),
            1,
            lambda *names: np.random.default_rng(names),
        )
        code = Code("dealt", 2)
        first = BlockParity(code, 5, 32).answer(client, 20, None)
        further = MoreParity(code, 5, 32, np.array([7, 20])).for_client(1)
        more = further.answer(client, 50, None)
        assert (first.points, more.points) == (20, 30)
        blocks = [
            Block(ParityRows(one.arrays["features0"], one.arrays["targets0"]), one.points)
            for one in (first, more)
        ]
        both = blocks[0].joined(blocks[1])
        assert both.points == 50
        weights = (both.parity.features**2).sum(axis=0)
        np.testing.assert_allclose(weights, np.where(np.arange(held) < 50, held / 50, 0), rtol=1e-5)

    def test_more_parity_costs_what_is_new(self) -> None:
        task = Task(Workload(30, 1), 10, np.array([[60, 60]]), 9, Schedule(), 1e-2)
        code, fleet = Code("dealt", 2), FLEET.take(slice(2))
        whole, more = BlockParity(code, 5), MoreParity(code, 5, after=np.array([20, 60]))
        loads = np.array([50, 60])
        cost, new = more.cost(task, loads), whole.cost(task, np.array([30, 0]))
        np.testing.assert_array_equal([cost.macs, cost.bits_up], [new.macs, new.bits_up])
        points, seconds = more.points_by(1e9, task, fleet, np.ones(2), np.zeros(2))
        assert points.tolist() == [60, 60]
        assert seconds[1] == 0 < seconds[0]
        points, seconds = more.points_by(1e-9, task, fleet, np.ones(2), np.zeros(2))
        assert points.tolist() == [20, 60]

    def test_a_federation_plans_from_probes_instead(self) -> None:
        limits = Limits(deadline=None, setup_deadline=60.0, rounds=5, availability=0.9)
        task = Task(Workload(20, 2), 10, np.full((1, 4), 400), 50, Schedule(0.3), 0.001)
        fleet = Fleet(points=[400] * 4, rate=50.0, alpha=2.0, packet_time=0.1, erasure=0.1)
        state = CodedNewton().start(task, fleet, None, limits)
        assert not state.settings.extended


FOLLOWING = {"name": "coded", "redundancy": 0.2, "replan": 2}


class TestFederation:
    """Gradients take 1.6 s where probes took 0.4: rounds that were planned for these are missed."""

    @staticmethod
    def delay(client: int, question: str, facts: dict[str, Any]) -> float:
        slow = 4.0 if question.endswith("gradient") else 1.0
        return slow * (0.35 + 0.02 * client + 0.01 * (int(facts.get("round", 0)) % 4))

    @pytest.mark.parametrize("stand_in", [False, True])
    def test_the_deadline_follows_and_all_is_replayed(self, stand_in: bool, tmp_path: Path) -> None:
        """Weights follow composite parity; parity kept apart is right without them."""
        scheme = FOLLOWING | {"stand_in": stand_in}
        experiment = experiment_of(4, 10, scheme, deadline=None, probes=4)
        grid, exchanges, _ = run(experiment, tmp_path, Script(self.delay))
        records = rounds_of(exchanges)
        assert not records[0].arrived.any()
        assert np.mean([record.arrived for record in records[-4:]]) > 0.7  # 80% are planned
        assert records[-1].deadline > 1.5
        assert bool(grid.kinds("weighted_gradient")) != stand_in
        assert replay(RunDirectory(tmp_path / "run")).same

    def test_a_killed_server_goes_on_with_the_same_plans(self, tmp_path: Path) -> None:
        """Bit for bit: what the scheme knows is what the journal says."""
        experiment = experiment_of(4, 8, FOLLOWING, deadline=None, probes=4)
        run(experiment, tmp_path / "whole", Script(self.delay))
        grid = transport_of(experiment, tmp_path / "killed" / "nodes", Script(self.delay))
        directory = RunDirectory(tmp_path / "killed" / "run")
        grid.crash_after = 11
        with pytest.raises(KeyboardInterrupt):
            federate(grid, experiment, directory, lambda _: None)
        grid.crash_after = None
        federate(grid, experiment, directory, lambda _: None)
        np.testing.assert_array_equal(model_of(tmp_path / "whole"), model_of(tmp_path / "killed"))
        assert replay(directory).same

    def test_newton_waits_longer_for_slower_clients(self, tmp_path: Path) -> None:
        """Answers take four times as long as in the probes, late ones too; and after a kill."""

        def delay(client: int, question: str, facts: dict[str, Any]) -> float:
            return (1.6 if question == "embedded" else 0.4) + 0.01 * client

        scheme = {"name": "coded-newton", "setup_deadline": 2.0, "mixing": 10, "replan": 2}
        scheme |= {"rounds": 12}  # in some of which nobody is free to be asked
        experiment = experiment_of(4, 12, scheme, deadline=None, probes=4)
        grid = transport_of(experiment, tmp_path / "nodes", Script(delay))
        directory = RunDirectory(tmp_path / "run")
        grid.crash_after = 10
        with pytest.raises(KeyboardInterrupt):
            federate(grid, experiment, directory, lambda _: None)
        grid.crash_after = None
        federate(grid, experiment, directory, lambda _: None)
        records = rounds_of(list(Journal(directory.path).exchanges()))
        assert not records[0].arrived.any()
        assert records[-1].deadline > 2 * records[0].deadline
        assert records[-1].arrived.all()
        assert replay(directory).same


@pytest.mark.parametrize("name", ["coded", "coded-newton", "balanced"])
def test_a_number_of_rounds_is_none(name: str) -> None:
    with pytest.raises(InputError, match=rf"{name}.replan is -1: must be a whole number"):
        make_scheme(name, {"replan": -1})
