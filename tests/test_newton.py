import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from codedfedl import Fleet, InputError
from codedfedl.core.client import BlockParity, Embedded
from codedfedl.core.protocol import EACH, Ask, Inbox, Reply
from codedfedl.core.record import SETUP
from codedfedl.core.waiting import Everyone, Until
from codedfedl.learning.codes import Code
from codedfedl.learning.sketch import Sketch
from codedfedl.schemes import make_scheme
from codedfedl.schemes.by_class import ask_counts
from codedfedl.schemes.newton_step import (
    anchored,
    assumed_curvature,
    newton_step,
)
from codedfedl.schemes.sketch_solve import SketchState, blocks_of
from codedfedl.simulation.client_data import Batch, SimulatedClient
from codedfedl.simulation.clock import Clock, Timeline
from codedfedl.simulation.engine import Setting, Simulation, entries
from tests.newton import answer_of, everyone, newton_state, parity_of, prepared


def played(*, fleet: dict[str, Any] | None = None, **settings: Any) -> tuple[Simulation, Setting]:
    """Run `coded-newton`."""
    scheme = {"name": "coded-newton"} | settings
    experiment, problem, task, planned = prepared(scheme, **(fleet or {}))
    run = Simulation(problem, entries(task, planned, experiment.build_schemes()), 0)
    for _ in run.run():
        pass
    return run, run.settings[0]


class TestScheme:
    @pytest.mark.parametrize("order", [(0, 2), (2, 0)])
    def test_a_step_solves_the_sum_of_the_clients_quadratics(self, order: tuple[int, int]) -> None:
        """Written out client by client, with anchors of different ages and one never heard."""
        state, shards, scheme = newton_state()
        rng = np.random.default_rng(1)
        old, now = (rng.standard_normal((6, 2)).astype(np.float32).astype(float) for _ in range(2))
        state = replace(state, model=now, round=1)
        replies = {j: answer_of(j, 0, shards[j], old) for j in order}
        state = anchored(state, replies.values(), damped=scheme.damped)
        parity = state.sketch.features @ state.sketch.basis.T
        whole = parity.T @ parity
        assert state.start_ridge > 0  # of which client 1, whom nobody heard, keeps its share
        ridge, eye = 1e-2 * 75 + state.start_ridge * 30 / 70, np.eye(6)
        block = [state.blocks[j].parity for j in (0, 1)]
        hessians = [
            block[0].features.T @ block[0].features + state.damping * 40 / 70 * eye,
            block[1].features.T @ block[1].features + state.damping * 30 / 70 * eye,
            5 / 70 * (whole + state.damping * eye),
        ]
        total = ridge * now
        total = total + replies[0].arrays["gradient"] + hessians[0] @ (now - old)
        total = total + block[1].features.T @ (block[1].features @ now - block[1].targets)
        total = total + replies[2].arrays["gradient"] + hessians[2] @ (now - old)
        expected = np.linalg.solve(sum(hessians) + ridge * eye, total)
        np.testing.assert_allclose(newton_step(state)[0], expected, atol=1e-10)

    def test_the_fixed_point_is_exact_ridge_whoever_is_late(self) -> None:
        """Client 0 answers every round, 1 every third and two rounds late, 2 has no parity."""
        state, shards, scheme = newton_state()
        sent = []
        for round_ in range(150):
            sent.append(state.model)
            asked = [(0, round_), (2, round_)]
            if round_ % 3 == 2:
                asked.append((1, round_ - 2))
            replies = [answer_of(j, r, shards[j], sent[r]) for j, r in asked]
            state = scheme.receive(state, everyone(*replies))
        x, y = (np.concatenate(parts) for parts in zip(*shards, strict=True))
        exact = np.linalg.solve(x.T @ x + 0.75 * np.eye(6), x.T @ y)
        np.testing.assert_allclose(state.model, exact, atol=2e-5)

    def test_old_answers_are_no_evidence(self) -> None:
        """Slopes that are predicted from them fall by themselves."""
        state, shards, scheme = newton_state()
        model = state.model
        state = scheme.receive(state, everyone(answer_of(0, 0, shards[0], model)))
        late = scheme.receive(state, everyone(answer_of(1, 0, shards[1], model)))
        fresh = scheme.receive(state, everyone(answer_of(1, 1, shards[1], state.model)))
        assert late.estimate == np.inf > fresh.estimate

    def test_more_points_are_wanted_once_the_same_have_shown_the_curvature(self) -> None:
        state, shards, scheme = newton_state()
        for round_, wanted in enumerate(([0, 0, 0], [60, 0, 0], [60, 45, 8])):
            who = range(3)[: 3 if round_ else 1]
            replies = [answer_of(j, round_, shards[j], state.model) for j in who]
            state = replace(scheme.receive(state, everyone(*replies)), patience=1.5)
            assert state.least_points.tolist() == wanted

    def test_a_client_that_is_never_heard_stays_its_parity(self) -> None:
        state, shards, scheme = newton_state(held=(40, 30))
        for round_ in range(150):
            state = scheme.receive(state, everyone(answer_of(0, round_, shards[0], state.model)))
        (x, y), parity = shards[0], state.blocks[1].parity
        ridge = 0.7 + state.start_ridge * 30 / 70  # parity is fitted no more closely than at first
        hessian = x.T @ x + parity.features.T @ parity.features + ridge * np.eye(6)
        expected = np.linalg.solve(hessian, x.T @ y + parity.features.T @ parity.targets)
        np.testing.assert_allclose(state.model, expected, atol=2e-5)

    def test_the_undamped_step_diverges_and_the_damped_one_does_not(self) -> None:
        """Five rows for six features: parity is flat where the data are not."""

        def farthest(damped: bool) -> float:
            state, shards, scheme = newton_state(damped=damped, held=(40, 10))
            try:
                for round_ in range(30):
                    model = state.model
                    replies = [answer_of(j, round_, one, model) for j, one in enumerate(shards)]
                    state = scheme.receive(state, everyone(*replies))
            except InputError:  # not even finite
                return np.inf
            return float(np.abs(state.model).max())

        assert farthest(damped=False) > 1e6
        assert farthest(damped=True) < 10

    def test_too_little_damping_is_noticed_from_the_answers(self) -> None:
        state, shards, scheme = newton_state(held=(40, 10))
        state = replace(state, damping=0.0)
        for round_ in range(45):
            model = state.model
            replies = [answer_of(j, round_, one, model) for j, one in enumerate(shards)]
            state = scheme.receive(state, everyone(*replies))
        assert state.damping == 0
        assert state.raised.keys() == {0, 1}
        x, y = (np.concatenate(parts) for parts in zip(*shards, strict=True))
        exact = np.linalg.solve(x.T @ x + 0.5 * np.eye(6), x.T @ y)
        np.testing.assert_allclose(state.model, exact, atol=0.05)

    @pytest.mark.parametrize("answered", [(), (0, 2), (2,), (0, 1, 2)])
    def test_late_parity_counts_at_once_as_if_it_had_been_decomposed(
        self, answered: tuple[int, ...]
    ) -> None:
        """By an update of two rows to sixteen and more; the third client is the late one.

        Rounding is 1e-16 times the condition number, which the ridge bounds by 1e4.
        """
        state, shards, scheme = newton_state(held=(140, 130, 5))
        replies = [answer_of(j, 0, shards[j], np.asarray(state.model)) for j in answered]
        rng = np.random.default_rng(2)
        state = anchored(replace(state, round=1), replies, damped=scheme.damped)
        state = replace(state, model=rng.standard_normal((6, 2)).astype(np.float32))
        late = blocks_of([parity_of(2, 5, shards[2][0][:2], shards[2][1][:2])], state.task)
        after = scheme._with_parity(state, late)
        assert (after.sketch.rows, after.sketch.late_rows) == (state.sketch.rows + 2, 2)
        assert (state.represented_points, after.represented_points) == (270, 275)
        assert after.damping / 275 == pytest.approx(state.damping / 270)
        parity = after.sketch.features @ after.sketch.basis.T
        decomposed = Sketch.of(parity, after.sketch.targets)
        anew = replace(
            after.with_sketch(after.blocks, decomposed, after.weights), damping=after.damping
        )
        moment = after.sketch.from_basis(after.moment)
        np.testing.assert_allclose(moment, decomposed.from_basis(anew.moment), rtol=1e-11)
        (step, decrement), (expected, same) = newton_step(after), newton_step(anew)
        np.testing.assert_allclose(step, expected, rtol=1e-9)
        assert decrement == pytest.approx(same, rel=1e-9)
        moved = rng.standard_normal((6, 2))
        for client in range(3):
            curvature = assumed_curvature(after, client, after.sketch.to_basis(moved))
            expected = assumed_curvature(anew, client, decomposed.to_basis(moved))
            np.testing.assert_allclose(curvature, expected, rtol=1e-11)
        assert after.judged(0.1).estimate == pytest.approx(anew.judged(0.1).estimate)

    def test_much_late_parity_is_decomposed_anew(self) -> None:
        state, shards, scheme = newton_state()
        late = parity_of(2, 5, shards[2][0][:1], shards[2][1][:1])  # one row to seven
        after = scheme.receive(state, Inbox(np.zeros(3, bool), 0.0, replies=(late,)))
        assert (after.sketch.rows, after.sketch.late_rows) == (8, 0)
        assert (state.represented_points, after.represented_points) == (70, 75)
        assert after.damping >= state.damping

    def test_further_parity_of_a_client_joins_its_own(self) -> None:
        """It comes late where a set-up went on: half of the points each, half the weight each."""
        state, shards, scheme = newton_state(held=(140, 130, 5))
        own = state.blocks[0].parity
        more = blocks_of([parity_of(0, 140, shards[0][0][:2], shards[0][1][:2])], state.task)
        after = scheme._with_parity(state, more)
        assert after.sketch.late_rows == 0
        assert (after.blocks[0].points, list(after.blocks)) == (280, [0, 1])
        rows = after.places[0]
        expected = np.concatenate([own.features, shards[0][0][:2]]) * 0.5**0.5
        parity = after.sketch.features @ after.sketch.basis.T
        np.testing.assert_allclose(parity[rows], expected, rtol=1e-6)


PARITY = BlockParity(Code("dealt"), 10)
ASK_PARITY = Ask(PARITY, Everyone(), combine=EACH, keep_late=True, setup=True)


def excess_of(setting: Setting) -> np.ndarray:
    """Return the relative excess after the set-up and after every round."""
    assert setting.records[0].round == SETUP  # label counts, before there is a model
    return np.array([record.excess for record in setting.records[1:]])


class TestRuns:
    def test_reaches_exact_ridge_although_clients_are_late(self) -> None:
        _, setting = played(rounds=390, deadline=20.0)
        late = 1 - np.mean([record.arrived for record in setting.rounds], axis=0)
        assert (late > 0.3).sum() >= 2  # of ten clients
        excess = excess_of(setting)
        assert excess[-1] < 2e-3
        assert excess[-1] < excess[0] / 50

    def test_prediction_is_reported_and_of_the_right_size(self) -> None:
        _, setting = played()
        facts = setting.facts
        assert facts["predicted_excess"] <= 0.2
        assert facts["predicted_start_loss"] == pytest.approx(facts["start_loss"], rel=0.5)
        assert facts["points_per_parity_row"] >= 10
        _, fixed = played(rounds=20)
        hours = sum(record.seconds for record in fixed.records[1:]) / 3600
        assert fixed.facts["predicted_hours"] == pytest.approx(hours, rel=0.05)

    def test_hardly_ever_gets_worse(self) -> None:
        _, setting = played(rounds=100, deadline=20.0)
        excess = excess_of(setting)
        assert excess.max() == excess[0]
        assert (excess[1:] < 1.1 * np.minimum.accumulate(excess)[:-1] + 0.01).all()

    def test_a_short_set_up_makes_it_rise_at_first_and_not_for_long(self) -> None:
        """Clients embed on, and answer for few points at first. Few rows are a rough guide.

        Over eight draws of the damping's sketch the excess rose to 1.02 to 2.3 times what it had
        been, in the first rounds, and was at most 0.065 after twenty.
        """
        _, setting = played(rounds=100, deadline=20.0, setup_deadline=10.0)
        excess = excess_of(setting)
        assert excess.max() < 1.5 * excess[0]
        assert excess[20:].max() < 0.1

    def test_slow_clients_go_on_embedding_between_rounds(self) -> None:
        _, setting = played(rounds=60, setup_deadline=10.0, deadline=20.0)
        held, embedded = setting.state.task.held, setting.timeline._embedded
        assert setting.facts["embedded_points"] < held.sum()
        assert embedded.sum() > 1.05 * setting.facts["embedded_points"]
        assert (embedded <= held).all()

    def test_few_points_send_no_parity_and_are_counted(self) -> None:
        _, setting = played(fleet={"clients": 100, "k2": 0.95}, mixing=15, rounds=20)
        held = setting.state.task.held
        assert (held < 15).any()
        assert setting.facts["unrepresented_points"] >= held[held < 15].sum()
        excess = excess_of(setting)
        assert excess[-1] < excess[0]

    def test_absent_clients_delay_nobody(self) -> None:
        _, problem, task, planned = prepared({"name": "coded-newton"})
        absent = replace(planned, availability=np.array([1, 1, 0, 0.5, 1, 1, 1, 1, 1, 1]))
        scheme = {"coded-newton": make_scheme("coded-newton", {"rounds": 10})}
        run = Simulation(problem, entries(task, absent, scheme), 0)
        for _ in run.run():
            pass
        (setting,) = run.settings
        assert len(setting.rounds) == 10
        assert not any(record.arrived[2] for record in setting.rounds)
        assert np.isfinite(excess_of(setting)).all()

    def test_sketch_solve_is_ridge_on_parity(self) -> None:
        experiment, problem, task, planned = prepared({"name": "sketch-solve"})
        run = Simulation(problem, entries(task, planned, experiment.build_schemes()), 0)
        (setting,) = run.settings
        assert [record.round for record in setting.records] == [SETUP, SETUP]
        timeline = Timeline(Clock(planned, task, 0))
        timeline.exchange(ask_counts(), SETUP)
        exchange = timeline.exchange(ASK_PARITY, SETUP)
        assert exchange.seconds == setting.records[1].seconds > 0
        answers = [
            PARITY.answer(SimulatedClient(problem.batches, job.client, 0), job.load, None).arrays
            for job in exchange.done
        ]
        assert isinstance(setting.state, SketchState)
        assert setting.state.by_class is not None
        weights = setting.state.by_class.weights(task.held)
        assert weights == pytest.approx(np.ones(10))  # everybody has embedded all
        x = np.concatenate([arrays["features0"] for arrays in answers]).astype(float)
        y = np.concatenate([arrays["targets0"] for arrays in answers]).astype(float)
        least = 1e-4 * float(task.held.sum())
        ridge = Sketch.of(x, y).best_ridge(least)
        expected = np.linalg.solve(x.T @ x + ridge * np.eye(60), x.T @ y)
        np.testing.assert_allclose(setting.state.model, expected, atol=1e-4)


class TestAnswers:
    """What the simulator's clients send."""

    def test_parity_stands_for_all_points_in_expectation(self) -> None:
        """E[X̃ᵀX̃] over codes and over which points come first is XᵀX, for k of ℓ points.

        2,000 draws; 49 entries at five standard errors: false-alarm probability 3e-5.
        """
        rng = np.random.default_rng(0)
        x, y = rng.standard_normal((30, 7)).astype(np.float32), np.zeros((30, 1))
        draws = []
        for seed in range(2000):
            batch = Batch(x[rng.permutation(30)], y, np.array([0, 30]))
            answer = PARITY.answer(SimulatedClient([batch], 0, seed), 21, None)
            mixed = answer.arrays["features0"].astype(float)
            assert mixed.shape == (2, 7)
            draws.append(mixed.T @ mixed)
        error = np.std(draws, axis=0) / np.sqrt(2000)
        assert (np.abs(np.mean(draws, axis=0) - x.T @ x) < 5 * error).all()

    @pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
    def test_labels_in_any_unit_survive_sixteen_bits(self, unit: float) -> None:
        rng = np.random.default_rng(0)
        x, y = rng.standard_normal((2, 30, 1)).astype(np.float32)
        told = [
            PARITY.answer(SimulatedClient([Batch(x, y * u, np.array([0, 30]))], 0, 0), 30, None)
            for u in (1.0, unit)
        ]
        plain, other = (np.asarray(one.arrays["targets0"], float) for one in told)
        np.testing.assert_allclose(other / unit, plain, rtol=2e-3)

    def test_inputs_that_sixteen_bits_cannot_hold_keep_thirty_two(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An error once told a server of a real client the largest number of any row."""
        x = np.full((30, 1), 1e6, dtype=np.float32)
        client = SimulatedClient([Batch(x, x, np.array([0, 30]))], 0, 0)
        sent = PARITY.answer(client, 30, None).arrays["features0"]
        assert sent.dtype == np.float32
        assert np.isfinite(sent).all()
        assert "scale the inputs, or set bits = 32" in caplog.text

    def test_answers_equal_the_plain_gradient_of_the_first_points(self) -> None:
        _, problem, _, _ = prepared({"name": "sketch-solve"})
        model = np.random.default_rng(0).standard_normal((60, 10)).astype(np.float32)
        first, second = problem.batches
        features, targets = (
            np.concatenate([a, b]) for a, b in zip(first.client(3), second.client(3), strict=True)
        )
        held = len(features)
        for points in (1, 100, 130, held):
            plain = features[:points].T @ (features[:points] @ model - targets[:points])
            answer = Embedded().answer(SimulatedClient(problem.batches, 3, 0), points, model)
            found = answer.arrays["gradient"]
            np.testing.assert_allclose(found, plain * held / points, rtol=2e-3, atol=2e-3)


class TestTimeline:
    """When they send it."""

    @staticmethod
    def timeline() -> Timeline:
        _, _, task, fleet = prepared({"name": "sketch-solve"})
        return Timeline(Clock(fleet, task, 0))

    def test_nobody_does_two_things_at_once(self) -> None:
        """Each reply takes its own time, and a busy client is not asked again."""
        timeline = self.timeline()
        timeline.exchange(ASK_PARITY, SETUP)
        last = dict.fromkeys(range(10), -1)
        free = np.zeros(10)
        counts = np.zeros(10)
        ask = Ask(Embedded(least=10), Until(30.0), combine=EACH, keep_late=True)
        for round_ in range(100):
            busy = {job.client for job in timeline.pending}
            exchange = timeline.exchange(ask, round_)
            assert exchange.seconds == 30
            clients = [job.client for job in exchange.done]
            assert len(set(clients)) == len(clients)
            for job in exchange.done:
                assert last[job.client] < job.round <= round_
                assert (job.round < round_) == (job.client in busy)
                assert free[job.client] < job.finished <= timeline.now
                last[job.client], free[job.client] = job.round, job.finished
                counts[job.client] += 1
        rates = timeline.clock.fleet.rate
        assert counts[np.argmax(rates)] > 3 * counts[np.argmin(rates)] > 0

    @pytest.mark.parametrize("keep_late", [True, False])
    def test_who_computes_does_not_embed_meanwhile(self, keep_late: bool) -> None:
        """From one round's start to the next, a client embeds for what its answer leaves of it."""
        timeline = self.timeline()
        parity = Ask(PARITY, Until(2.0), combine=EACH, keep_late=keep_late, setup=True)
        timeline.exchange(parity, SETUP)
        ask = Ask(Embedded(), Until(30.0), combine=EACH, keep_late=keep_late)
        speed, grown = timeline.clock.embedding_speed, 0
        exchange = timeline.exchange(ask, 0)
        for round_ in range(1, 6):
            before = timeline._embedded
            busy = np.where(exchange.loads > 0, np.minimum(exchange.arrival_times, 30.0), 0.0)
            exchange = timeline.exchange(ask, round_)
            now = timeline._embedded
            grown += int(((before < now) & (now < timeline.held)).sum())
            assert (now <= before + (30.0 - busy) * speed + 1e-6).all()
        assert grown > 5


class TestBadInput:
    def test_settings(self) -> None:
        with pytest.raises(InputError, match=r"coded-newton\.mixing is 0"):
            make_scheme("coded-newton", {"mixing": 0})
        with pytest.raises(InputError, match=r"coded-newton\.mixing is 10\.0"):
            make_scheme("coded-newton", {"mixing": 10.0})
        with pytest.raises(InputError, match=r"sketch-solve\.setup_deadline is 'soon': must"):
            make_scheme("sketch-solve", {"setup_deadline": "soon"})
        with pytest.raises(InputError, match="nonzeros is 0"):
            make_scheme("sketch-solve", {"nonzeros": 0})
        with pytest.raises(InputError, match="nonzeros is 0"):
            make_scheme("coded-newton", {"nonzeros": 0})
        with pytest.raises(InputError, match=r"coded-newton\.bits is 8: must be 16 or 32"):
            make_scheme("coded-newton", {"bits": 8})
        with pytest.raises(InputError, match=r"sketch-solve\.setup_deadline is -1"):
            make_scheme("sketch-solve", {"setup_deadline": -1})
        with pytest.raises(InputError, match="no setting 'round_deadline': it is now 'deadline'"):
            make_scheme("coded-newton", {"round_deadline": 60.0})
        with pytest.raises(InputError, match="no setting 'deadline': it is now 'setup_deadline'"):
            make_scheme("sketch-solve", {"deadline": 60.0})
        for settings, match in (
            ({"excess": 0.0}, "excess is 0"),
            ({"deadline": 1e-9, "nonzeros": 1}, "deadline is too short"),
            ({"deadline": 1e-9, "nonzeros": 1, "setup_deadline": 60.0}, "deadline is too short"),
            ({"setup_deadline": -5.0}, "setup_deadline is -5"),
            ({"setup_deadline": 0.001}, r"setup_deadline is 0\.001 s.*the first needs some"),
            ({"rounds": -1}, "rounds is -1"),
            ({"rounds": 10**6}, "would need 1000000 rounds where"),
            ({"mixing": 10**6}, "every client has fewer points"),
            ({"hours": 1e-9}, "hours is 1e-09"),
        ):
            with pytest.raises(InputError, match=match):
                played(**settings)

    def test_fewer_points_a_row_than_ten_warn(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            played(mixing=10)
            assert not caplog.records
            played(mixing=4)
        assert "coded-newton: a parity row mixes 4 points and is close to raw data" in caplog.text

    def test_parity(self) -> None:
        state, _, scheme = newton_state()
        wrong = parity_of(1, 20, np.ones((2, 5)), np.ones((2, 2)))
        with pytest.raises(InputError, match=r"client 1 has the shapes \(2, 5\) and \(2, 2\)"):
            scheme.receive(state, everyone(wrong))
        uneven = parity_of(1, 20, np.ones((2, 6)), np.ones((3, 2)))
        with pytest.raises(InputError, match=r"client 1 has the shapes \(2, 6\) and \(3, 2\)"):
            scheme.receive(state, everyone(uneven))
        broken = parity_of(1, 20, np.full((2, 6), np.nan), np.ones((2, 2)))
        with pytest.raises(InputError, match="NaN or infinity"):
            scheme.receive(state, everyone(broken))
        fleet = Fleet(points=(40, 30, 5), rate=1, alpha=2, packet_time=1, erasure=0.1)
        nobody = scheme.start(state.task, fleet, np.zeros((6, 2), np.float32))
        nobody = scheme.receive(nobody, everyone())
        with pytest.raises(InputError, match="no client sent parity"):
            scheme.receive(nobody, Inbox(np.zeros(3, bool), 0.0))

    def test_a_gradient_that_is_not_finite_stops_the_run(self) -> None:
        state, _, scheme = newton_state()
        for wrong in (np.full((6, 2), np.inf), np.ones((6, 1))):
            reply = Reply(0, 0, 40, {"gradient": wrong}, state.model)
            with pytest.raises(InputError, match=r"gradient of client 0 .*shape \(6, 2\)"):
                scheme.receive(state, everyone(reply))
