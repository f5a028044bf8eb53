"""`coded-newton` on secure sums: the same steps, without any client's gradient at the server."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codedfedl import Fleet, InputError
from codedfedl.core.client import Embedded
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.masked import Anchor, GradientDelta
from codedfedl.core.protocol import Inbox
from codedfedl.core.work import ArrayClient
from codedfedl.planning.secure_rounds import in_time, with_helper
from codedfedl.privacy.fixed_point import FixedPoint
from codedfedl.report.results import outcomes
from codedfedl.runs.directory import RunDirectory
from codedfedl.schemes.coded_newton import CodedNewton
from codedfedl.schemes.newton_on_sums import SummedState
from codedfedl.simulation.assignments import Arrivals
from codedfedl.simulation.checkpoint import restore, snapshot
from codedfedl.simulation.engine import Setting, Simulation, entries
from codedfedl.simulation.experiment import simulate
from tests.newton import SMALL, answer_of, everyone, newton_state, prepared
from tests.private_runs import experiment, played, simulation

SCALE = 2.0**16
LATE: dict[str, Any] = {"name": "coded-newton", "rounds": 60, "deadline": 60.0}
SECURE = LATE | {"secure": True}


def small(*schemes: dict[str, Any], **changes: Any) -> Any:
    return experiment(*schemes, **SMALL | changes)


def client_of(shard: tuple[np.ndarray, np.ndarray]) -> ArrayClient:
    return ArrayClient(*shard, 1, lambda *_: np.random.default_rng(0))


def counted(
    state: SummedState, scheme: CodedNewton, shards: list[Any], arrived: list[int]
) -> SummedState:
    """Play a round by hand, in which some clients arrive and all that they say is a sum."""
    ask = scheme.ask(state)
    assert ask is not None
    sums: dict[str, Any] = {}
    loads = np.zeros(len(shards), dtype=np.int64)
    for j in arrived:
        loads[j] = len(shards[j][0])
        answer = ask.work.for_client(j).answer(client_of(shards[j]), int(loads[j]), state.model)
        sums = {name: array + sums.get(name, 0) for name, array in answer.arrays.items()}
    here = np.isin(np.arange(len(shards)), arrived)
    found = scheme.receive(state, Inbox(here, float(loads.sum()), sums, loads=loads))
    assert isinstance(found, SummedState)
    return found


def summed(plain: Any, scheme: CodedNewton) -> tuple[SummedState, CodedNewton]:
    """Return the state of the plain scheme after its set-up, for the form on sums."""
    known = {name: value for name, value in vars(plain).items() if name != "represented_points"}
    known |= {"by_class": None, "weights": np.ones(plain.task.clients)}
    work = GradientDelta(Embedded(), SCALE, {})
    loads = np.asarray(plain.task.held)
    return SummedState(**known, work=work, loads=loads), replace(scheme, secure=True)


class TestChanges:
    SHARDS: ClassVar[list[Any]] = [
        tuple(np.random.default_rng(j).standard_normal((20, w)).astype(np.float32) for w in (5, 2))
        for j in range(3)
    ]

    @given(st.lists(st.tuples(st.sets(st.integers(0, 2)), st.integers(1, 20)), max_size=8))
    def test_the_sum_is_exactly_that_of_the_last_counted_answers(self, rounds: list[Any]) -> None:
        """Whoever is lost in between, and for however many points each answered."""
        rng, numbers = np.random.default_rng(0), FixedPoint(SCALE)
        total, last = np.zeros((5, 2), np.uint32), dict[int, Anchor]()
        for arrived, load in rounds:
            model = rng.standard_normal((5, 2)).astype(np.float32)
            work = GradientDelta(Embedded(), SCALE, dict(last))
            for j in range(3):  # everybody answers; of some the message is lost
                client = client_of(self.SHARDS[j])
                answer = work.for_client(j).answer(client, load, model)
                if j in arrived:
                    total = total + answer.arrays["gradient"]
                    last[j] = Anchor(model.astype(np.float64), load)
        expected = np.zeros((5, 2), np.uint32)
        for j, anchor in last.items():
            client, model = client_of(self.SHARDS[j]), anchor.model.astype(np.float32)
            plain = Embedded().answer(client, anchor.points, model)
            expected = expected + numbers.encode(plain.arrays["gradient"])
        np.testing.assert_array_equal(total, expected)

    @pytest.mark.parametrize(("points", "known"), [(20, True), (10, False)])
    def test_curvature_is_that_of_the_same_points_alone(self, points: int, known: bool) -> None:
        x, y = self.SHARDS[0]
        old, new = np.random.default_rng(1).standard_normal((2, 5, 2)).astype(np.float32)
        work = GradientDelta(Embedded(), SCALE, {0: Anchor(old.astype(np.float64), points)})
        found = work.for_client(0).answer(client_of((x, y)), 20, new).arrays["curvature"]
        expected = ((x @ (new - old)) ** 2).sum(0) * known
        np.testing.assert_allclose(FixedPoint(SCALE).decode(found), expected, rtol=1e-4)

    def test_a_client_is_told_of_its_own_answer_only(self) -> None:
        anchors = {j: Anchor(np.zeros((5, 2)), j) for j in range(3)}
        work = GradientDelta(Embedded(), SCALE, anchors)
        assert work.for_client(1).counted == {1: anchors[1]}
        assert work.for_client(7).counted == {}

    def test_nobody_is_asked_for_more_than_it_has_done_in_time(self) -> None:
        work = GradientDelta(Embedded(least=10), SCALE, {})
        asked, embedded = np.array([30, 30, 30]), np.array([50, 20, 5])
        loads = work.load(asked, embedded, np.zeros(3, np.int64), np.array([50, 50, 50]))
        assert loads.tolist() == [30, 20, 0]


class TestSteps:
    HELD = (40, 30, 5)

    def test_it_steps_as_the_plain_scheme_on_the_same_answers(self) -> None:
        """Client 2 has no parity; who is lost changes from round to round."""
        plain, shards, scheme = newton_state(held=self.HELD)
        plain = replace(plain, damping=200.0)
        state, same = summed(plain, scheme)
        for round_, arrived in enumerate([[0, 1], [0, 2], [0, 1, 2], [1, 2]]):
            replies = [answer_of(j, round_, shards[j], plain.model) for j in arrived]
            plain = scheme.receive(plain, everyone(*replies))
            state = counted(state, same, shards, arrived)
            assert not plain.raised  # else dampings differ: here they are for all clients
            np.testing.assert_allclose(state.model, plain.model, atol=2e-4)
        assert set(state.anchors) == {0, 1, 2}
        assert not state.gradients

    def test_the_fixed_point_is_exact_ridge_whoever_is_lost(self) -> None:
        plain, shards, scheme = newton_state(held=self.HELD)
        state, same = summed(plain, scheme)
        rng = np.random.default_rng(3)
        for _ in range(150):
            some = np.flatnonzero(rng.random(3) < 0.7).tolist()
            state = counted(state, same, shards, some)
        x, y = (np.concatenate(parts) for parts in zip(*shards, strict=True))
        exact = np.linalg.solve(x.T @ x + 0.75 * np.eye(6), x.T @ y)
        np.testing.assert_allclose(state.model, exact, atol=1e-4)

    def test_a_sum_that_is_not_given_out_counts_nobody(self) -> None:
        plain, shards, scheme = newton_state(held=self.HELD)
        state, same = summed(plain, scheme)
        state = counted(state, same, shards, [0, 1])
        alone = Inbox(np.array([True, False, False]), 40.0, {}, loads=np.array([40, 0, 0]))
        after = same.receive(state, alone)
        assert isinstance(after, SummedState)
        assert after.anchors == state.anchors
        assert (after.total == state.total).all()
        assert after.round == state.round + 1

    def test_too_little_damping_is_noticed_from_the_sum(self) -> None:
        """Five rows for six features: without damping, steps would diverge."""
        plain, shards, scheme = newton_state(held=(40, 10))
        state, same = summed(replace(plain, damping=0.0), scheme)
        for _ in range(60):
            state = counted(state, same, shards, [0, 1])
        assert state.damping > 0
        x, y = (np.concatenate(parts) for parts in zip(*shards, strict=True))
        exact = np.linalg.solve(x.T @ x + 0.5 * np.eye(6), x.T @ y)
        np.testing.assert_allclose(state.model, exact, atol=0.05)


class TestRuns:
    def test_it_learns_nearly_what_the_plain_scheme_learns(self) -> None:
        """On a fleet whose slowest clients are late in most rounds of the plain scheme."""
        plain, secure = played(small(LATE, SECURE))
        assert secure.records[-1].excess < secure.records[0].excess / 10
        assert secure.records[-1].metric > float(plain.records[-1].metric) - 0.03
        assert min(record.arrived.mean() for record in secure.rounds) < 1

    def test_the_server_sees_sums_of_integers_and_no_reply(self) -> None:
        seen: list[tuple[Arrivals, Inbox]] = []
        run = simulation(small(SECURE))
        run.listener = lambda _, exchange, inbox: seen.append((exchange, inbox))
        for _ in run.run():
            pass
        assert len(seen) == 60
        for exchange, inbox in seen:
            assert not inbox.replies
            assert {array.dtype.name for array in inbox.sums.values()} == {"uint32"}
            assert exchange.kept is None  # late answers are lost

    def test_the_helpers_message_is_charged(self) -> None:
        """With a load of 0, only messages take time: a second one up, on everybody's link."""
        run = simulation(small(SECURE))
        (setting,) = run.settings
        ask = setting.driver.ask()
        assert ask is not None
        task = setting.state.task
        nothing = np.zeros(task.clients, dtype=np.int64)
        plain = Embedded().cost(task, nothing)
        assert (ask.work.cost(task, nothing).bits_up == 2 * plain.bits_up).all()

    def test_a_run_resumes_exactly(self) -> None:
        one = small(SECURE | {"rounds": 20})
        (whole,) = played(one)
        half, again = simulation(one), simulation(one)
        steps = half.run()
        for _ in range(7):
            next(steps)
        new = _only(again)
        restore(again, snapshot(half, 0), 0)
        for _ in again.run():
            pass
        np.testing.assert_array_equal(new.state.model, whole.state.model)

    def test_results_say_that_parity_leaves_the_clients(self, tmp_path: Any) -> None:
        directory = RunDirectory(tmp_path / "run")
        simulate(small(SECURE | {"rounds": 2}), directory)
        (outcome,) = outcomes(directory)
        assert outcome.cell.disclosure == ["mixed", "sums"]
        assert CodedNewton(secure=True).disclosure == {Disclosure.MIXED, Disclosure.SUMS}

    def test_features_without_a_bound_are_refused(self) -> None:
        with pytest.raises(InputError, match="features with a bound"):
            simulation(small(SECURE, features={"kind": "identity", "sigma": 1.0}))

    def test_absent_clients_do_not_lengthen_rounds(self) -> None:
        """One of ten never answers, and another in every second round."""
        _, problem, task, planned = prepared(SECURE_PLAN)
        scheme = {"secure": CodedNewton(rounds=30, secure=True)}
        lengths = []
        for availability in (1.0, np.array([1, 1, 0, 0.5, 1, 1, 1, 1, 1, 1])):
            fleet = replace(planned, availability=np.broadcast_to(availability, 10))
            run = Simulation(problem, entries(task, fleet, scheme), 0)
            for _ in run.run():
                pass
            lengths.append(_only(run).facts["round_deadline_s"])
            arrived = np.mean([record.arrived for record in _only(run).rounds], axis=0)
        assert lengths[1] < 1.5 * lengths[0]
        assert arrived[2] == 0 < arrived[3]
        assert _only(run).records[-1].excess < _only(run).records[0].excess


SECURE_PLAN = {"name": "coded-newton", "secure": True}


class TestPlan:
    FLEET = Fleet(points=[200, 200, 200], rate=[50, 10, 1], alpha=2, packet_time=1, erasure=0.1)

    @given(st.floats(0.1, 0.95), st.floats(1.0, 300.0))
    def test_loads_in_time_are_the_largest(self, probability: float, seconds: float) -> None:
        delays, points = self.FLEET, np.array([200, 200, 200])
        loads = in_time(delays, seconds, points, probability)
        done = delays.cdf(loads, seconds) >= probability
        assert (done | (loads == 0)).all()
        more = delays.cdf(np.minimum(loads + 1, points), seconds) >= probability
        assert (~more | (loads == points)).all()

    def test_the_helpers_message_takes_as_long_again(self) -> None:
        helped = with_helper(self.FLEET)
        assert (helped.packet_time_up == 2).all()
        assert (helped.packet_time == 1).all()

    def test_rounds_leave_time_for_the_slowest(self) -> None:
        """In the plain scheme they answer in a later round; here they would never be heard."""
        plain, secure = simulation(small({"name": "coded-newton"}, SECURE_PLAN)).settings
        assert secure.facts["round_deadline_s"] > 10 * plain.facts["round_deadline_s"]
        state = secure.state
        assert isinstance(state, SummedState)
        assert (state.loads > 0).all()


def _only(run: Simulation) -> Setting:
    (setting,) = run.settings
    return setting
