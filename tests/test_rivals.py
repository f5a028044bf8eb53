"""Each rival against a naive twin: its rule in plain loops, on what its clients really sent."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from codedfedl import InputError
from codedfedl.core.disclosure import Disclosure, discloses_no_more, listed
from codedfedl.core.loop import Driver
from codedfedl.core.protocol import Inbox, Limits
from codedfedl.data import load_dataset
from codedfedl.planning.strata import represented_points
from codedfedl.runs.config import Experiment
from codedfedl.schemes import SCHEMES, make_scheme
from codedfedl.schemes.balanced import BalancedState
from codedfedl.simulation.checkpoint import restore, snapshot
from codedfedl.simulation.engine import Setting, Simulation
from tests.virtual import final_of, played, setup_seconds_of, simulation, small

TRAINING = {"epochs": 15, "step": 2.0, "ridge": 9e-6, "target": 0.5}
ROUNDS = 30


class Log:
    """A run of one scheme, with every inbox that it was given and the models before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.inboxes: list[Inbox] = []
        receive = Driver.receive

        def kept(driver: Driver, inbox: Inbox) -> None:
            self.inboxes.append(inbox)
            receive(driver, inbox)

        monkeypatch.setattr(Driver, "receive", kept)
        self.run = simulation(small(training=TRAINING, schemes=[settings]))
        for _ in self.run.run():
            pass
        (self.setting,) = self.run.settings
        self.state: Any = self.setting.state
        self.task = self.state.task
        self.held = self.task.held.astype(float)

    def rounds(self) -> Iterator[Inbox]:
        yield from self.inboxes[-ROUNDS:]

    @property
    def zero(self) -> np.ndarray:
        return np.zeros((60, 10))

    def agrees(self, model: np.ndarray) -> None:
        """Thirty rounds of float32 are a few times 1e-6 off those of float64."""
        np.testing.assert_allclose(self.setting.state.model, model, atol=2e-5)

    def plain(self, client: int, points: int, model: np.ndarray) -> np.ndarray:
        """A client's gradient over its first points, as heavy as all of them."""
        parts = [batch.client(client) for batch in self.run.problem.batches]
        features = np.concatenate([x for x, _ in parts])[:points].astype(float)
        targets = np.concatenate([y for _, y in parts])[:points].astype(float)
        whole = features.T @ (features @ model - targets)
        return np.asarray(whole * (self.held[client] / points))


@pytest.mark.parametrize("name", ["mifa", "dsag"])
def test_tables_of_newest_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, name=name, drop=0.5)
    model, newest, stale = log.zero, {}, 0
    for round_, inbox in enumerate(log.rounds()):
        for reply in inbox.replies:
            stale += reply.round < round_
            sent = log.plain(reply.client, reply.points, np.asarray(reply.model, float))
            np.testing.assert_allclose(reply.arrays["gradient"], sent, atol=1e-3)
            newest[reply.client] = (reply.round, sent)
        held = log.held[list(newest)]
        age = sum(log.held[j] * (round_ - when) for j, (when, _) in newest.items()) / held.sum()
        mean = sum(sent for _, sent in newest.values()) / held.sum() + 9e-6 * model
        model = model - 2.0 / (1 + age) * mean
    log.agrees(model)
    assert (stale > 0) == (name == "dsag")  # late answers count in one of the two alone
    assert (len(log.inboxes[1].replies) == 6) == (name == "mifa")  # which begins with everybody


def test_fedbuff_scales_the_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, name="fedbuff", buffer=2)
    model, stale = log.zero, 0
    for round_, inbox in enumerate(log.rounds()):
        total = np.zeros_like(model)
        for reply in inbox.replies:
            age = round_ - reply.round
            stale += age > 0
            sent = log.plain(reply.client, reply.points, np.asarray(reply.model, float))
            total += sent / log.held[reply.client] / np.sqrt(1 + age)
        model = model - 2.0 * (total / len(inbox.replies) + 9e-6 * model)
    log.agrees(model)
    assert stale > 0


def test_ringleader_goes_in_two_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, name="ringleader")
    model = log.zero
    slots: dict[int, tuple[int, np.ndarray]] = {}
    gathering, heard, steps = True, set(), 0

    def stepped(model: np.ndarray, round_: int) -> np.ndarray:
        age = sum(log.held[j] * (round_ - when) for j, (when, _) in slots.items()) / log.held.sum()
        mean = sum(sent for _, sent in slots.values()) / log.held.sum() + 9e-6 * model
        return np.asarray(model - 2.0 / (1 + age) * mean)

    for round_, inbox in enumerate(log.rounds()):
        for reply in inbox.replies:
            j = reply.client
            sent = log.plain(j, reply.points, np.asarray(reply.model, float))
            slots[j] = (reply.round, sent)
            if gathering:
                heard.add(j)
                if len(heard) == 6:
                    model, steps = stepped(model, round_), steps + 1
                    gathering, heard = False, set()
            elif j not in heard:
                model, steps = stepped(model, round_), steps + 1
                heard.add(j)
                if len(heard) == 6:
                    gathering, heard = True, set()
    log.agrees(model)
    assert 7 < steps < ROUNDS  # both phases were there, more than once


def test_fednova_averages_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, name="fednova", most_steps=4, step=0.5)
    steps, model = log.state.steps, log.zero
    assert len(set(steps[0])) > 1  # the fast take more
    assert steps.min() == 1
    for round_ in range(ROUNDS):
        batch, points = log.run.problem.batches[round_ % 2], log.task.points[round_ % 2]
        moved, mean_steps = np.zeros_like(model), 0.0
        for j in range(6):
            x, y = (part.astype(float) for part in batch.client(j))
            own = model.copy()
            for _ in range(steps[round_ % 2][j]):
                own = own - 0.5 * (x.T @ (x @ own - y) / len(x) + 9e-6 * own)
            share = len(x) / points.sum()
            moved += share * (model - own) / steps[round_ % 2][j]
            mean_steps += share * steps[round_ % 2][j]
        model = model - mean_steps * moved
    log.agrees(model)


def test_fednova_fills_the_time_of_the_slowest() -> None:
    (setting,) = played(small(schemes=[{"name": "fednova", "most_steps": 50}])).values()
    state: Any = setting.state
    fleet = setting.timeline.clock.fleet
    delays, points = fleet, state.task.points[0]
    slowest = delays.mean(points).max()
    assert (delays.mean(points * state.steps[0]) <= slowest * (1 + 1e-6)).all()
    more = delays.mean(points * (state.steps[0] + 1)) > slowest
    assert (more | (state.steps[0] == 50)).all()


def test_tifl_asks_one_tier_of_like_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, name="tifl", tiers=3)
    tiers, model, asked = log.state.tiers, log.zero, set()
    mean = log.setting.timeline.clock.fleet.mean(log.task.points[0])
    for tier in (0, 1):
        assert mean[tiers == tier].max() <= mean[tiers == tier + 1].min()
    records = log.setting.rounds
    for round_, inbox in enumerate(log.rounds()):
        (tier,) = set(tiers[inbox.arrived])
        asked.add(tier)
        np.testing.assert_array_equal(inbox.arrived, tiers == tier)
        assert (records[round_].loads > 0).tolist() == inbox.arrived.tolist()
        batch = log.run.problem.batches[round_ % 2]
        total, points = np.zeros_like(model), 0
        for j in np.flatnonzero(inbox.arrived).tolist():
            x, y = (part.astype(float) for part in batch.client(j))
            total, points = total + x.T @ (x @ model - y), points + len(x)
        model = model - 2.0 * (total / points + 9e-6 * model)
    log.agrees(model)
    assert asked == {0, 1, 2}


def test_partial_divides_by_what_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, name="partial", missing=0.3)
    """Each answer counts by class; the first round, at β = 0, is over all that clients hold."""
    log = Log(monkeypatch, name="partial", missing=0.3)
    batches, plans, by_class = log.run.problem.batches, log.state.plans, log.state.by_class
    labels = [np.sum([part.client(j)[1].sum(0) for part in batches], axis=0) for j in range(6)]
    np.testing.assert_allclose(by_class.counts, labels)
    model, missed, uneven = log.zero, 0, 0.0
    for round_, inbox in enumerate(log.rounds()):
        batch, plan, total = batches[round_ % 2], plans[round_ % 2], np.zeros_like(model)
        points = log.task.points[round_ % 2]
        share = (points / log.held)[:, None]
        counts = represented_points(by_class.counts * share, plan.loads, by_class.shift)
        if not round_:
            points = log.held
            heard = np.where(inbox.arrived, log.held, 0)
            first = represented_points(by_class.counts, heard, by_class.shift)
        for j in np.flatnonzero(inbox.arrived).tolist():
            load, chance = int(plan.loads[j]), plan.return_probabilities[j]
            if round_:
                x, y = (part.astype(float) for part in batch.client(j, 0, load))
                total += x.T @ (x @ model - y) * counts[j] / (load * chance)
                uneven = max(uneven, abs(counts[j] / points[j] - 1))
            else:
                total += log.plain(j, int(log.held[j]), model) * first[j] / log.held[j]
        missed += (plan.loads > 0).sum() - inbox.arrived.sum()
        model = model - 2.0 * (total / points.sum() + 9e-6 * model)
    log.agrees(model)
    assert missed > 0
    assert uneven > 0.001  # by client it would be 0


def test_balanced_solves_ridge_on_the_points_that_everybody_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weighted ridge regression in closed form; loads go by speed, and never change.

    Clients stand for their class as far as their class sums agree (`test_strata.py`).
    """
    log = Log(monkeypatch, name="balanced", replan=0)
    first = log.setting.rounds[0].loads
    assert all((record.loads == first).all() for record in log.setting.rounds)
    clock, budget = log.setting.timeline.clock, log.state.setup_deadline
    macs = log.task.feature_macs / log.task.workload.point_macs
    each = macs / clock.fleet.rate * (1 + clock.slowness / clock.fleet.alpha)
    counts = log.setting.records[0].seconds  # in which those who have sent theirs embed
    assert (first >= np.minimum(budget // each, log.held)).all()
    assert (first <= np.minimum((budget + counts) // each, log.held)).all()
    assert (first < log.held).any()
    state = log.setting.state
    assert isinstance(state, BalancedState)
    assert state.represents is not None
    heavier = state.represents / log.held
    assert (np.abs(heavier - 1) > 0.1).any()
    hessian, moment = 9e-6 * log.held.sum() * np.eye(60), np.zeros((60, 10))
    for j in range(6):
        moment -= heavier[j] * log.plain(j, int(first[j]), log.zero)
    for k in range(0, 60, 10):  # the Hessian, ten columns at a time
        probe = np.zeros((60, 10))
        probe[k : k + 10] = np.eye(10)
        for j in range(6):
            here = log.plain(j, int(first[j]), probe) - log.plain(j, int(first[j]), log.zero)
            hessian[:, k : k + 10] += heavier[j] * here
    exact = np.linalg.solve(hessian, moment)
    off = np.asarray(log.setting.state.model, float) - exact

    def cost(change: np.ndarray) -> float:
        return float((change * (hessian @ change)).sum())

    assert cost(off) < 1e-4 * cost(exact)
    assert final_of(log.setting) > 0.85


def test_gradient_coding_is_exact_whoever_straggles(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, name="gradient-coding", stragglers=2, optimiser="gd")
    model = log.zero
    arrived = [record.arrived.sum() for record in log.setting.rounds]
    assert set(arrived) == {4}
    for _ in log.rounds():
        total = sum(log.plain(j, int(log.held[j]), model) for j in range(6))
        model = model - 2.0 * (total / log.held.sum() + 9e-6 * model)
    log.agrees(model)


def test_centralised_is_one_shot_without_a_clients_work() -> None:
    runs = played(small(schemes=[{"name": "one-shot"}, {"name": "centralised"}]))
    raw, gram = runs["centralised"], runs["one-shot"]
    np.testing.assert_array_equal(raw.state.model, gram.state.model)
    assert setup_seconds_of(raw) == 0
    clock, task = raw.timeline.clock, raw.state.task
    bits = task.held * (64 * 8 + 8) * 1.1
    packets = np.ceil(bits / task.workload.packet_bits)
    least = (packets * clock.fleet.packet_time_up).max()
    assert least <= raw.rounds[0].seconds < 3 * least  # some are lost and sent again


def test_block_cg_without_a_mini_batch_is_exact_ridge() -> None:
    runs = played(
        small(
            training=TRAINING | {"epochs": 30},
            schemes=[{"name": "uncoded", "optimiser": "block-cg"}, {"name": "one-shot"}],
        )
    )
    krylov, exact = runs["uncoded optimiser block-cg"], runs["one-shot"]
    assert len(krylov.rounds) < 30  # it stops by itself
    assert abs(final_of(krylov) - final_of(exact)) < 0.02


ALL = [
    {"name": "balanced"},
    {"name": "partial", "missing": 0.2, "optimiser": "nesterov"},
    {"name": "centralised"},
    {"name": "mifa"},
    {"name": "dsag"},
    {"name": "fedbuff", "buffer": 3},
    {"name": "ringleader"},
    {"name": "gradient-coding"},
    {"name": "uncoded", "optimiser": "nesterov"},
    {"name": "coded", "optimiser": "nesterov"},
]


class TestResume:
    def test_every_rival_resumes_exactly(self) -> None:
        """Half of a run, then a new one that is told what the first recorded."""
        experiment = small(training=TRAINING | {"epochs": 6}, schemes=ALL)
        whole = _played(simulation(experiment))
        half, again = simulation(experiment), simulation(experiment)
        steps = half.run()
        for _ in range(5):
            next(steps)
        restore(again, snapshot(half, 0), 0)
        for label, setting in _played(again).items():
            np.testing.assert_array_equal(setting.state.model, whole[label].state.model, label)
            assert len(setting.records) == len(whole[label].records)


def _played(run: Simulation) -> dict[str, Setting]:
    for _ in run.run():
        pass
    return {setting.label: setting for setting in run.settings}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "balanced", "excess": 0.0}, "balanced.excess is 0: must be finite and above 0"),
        ({"name": "dsag", "setup_deadline": -1.0}, "dsag.setup_deadline is -1"),
        ({"name": "mifa", "drop": 1.0}, "mifa.drop is 1: must be at least 0 and below 1"),
        ({"name": "dsag", "drop": -0.1}, "dsag.drop is -0.1"),
        ({"name": "fedbuff", "buffer": 0}, "fedbuff.buffer is 0"),
        ({"name": "gradient-coding", "stragglers": 0}, "gradient-coding.stragglers is 0"),
        ({"name": "partial", "missing": 1.0}, "partial.missing is 1"),
        ({"name": "coded", "optimiser": "block-cg"}, "coded.optimiser is 'block-cg', which needs"),
        ({"name": "balanced", "optimiser": "newton"}, "balanced.optimiser is 'newton'"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    name = settings.pop("name")
    with pytest.raises(InputError, match=message):
        make_scheme(name, settings)


def test_more_stragglers_than_clients_are_refused() -> None:
    with pytest.raises(InputError, match="stragglers is 6 with 6 clients: lower it"):
        simulation(small(schemes=[{"name": "gradient-coding", "stragglers": 6}]))


@pytest.mark.parametrize("name", ["centralised", "gradient-coding"])
def test_what_no_node_does_is_refused_in_a_federation(name: str) -> None:
    with pytest.raises(InputError, match="which no node does: simulate it"):
        make_scheme(name, {}).check(limits=Limits(10.0, 10.0, 5, 1.0))


class TestDisclosure:
    def test_every_scheme_says_what_leaves_a_client(self) -> None:
        for name, scheme in SCHEMES.items():
            assert scheme.info.disclosure, name
            assert scheme.info.disclosure <= set(Disclosure)

    def test_order(self) -> None:
        assert discloses_no_more({"sums"}, {"gradients"})
        assert discloses_no_more({"mixed"}, {"statistics"})
        assert not discloses_no_more({"mixed", "gradients"}, {"gradients"})
        assert not discloses_no_more((), {"mixed"})  # who says nothing may disclose all
        assert listed({Disclosure.GRADIENTS, Disclosure.MIXED}) == "mixed, gradients"


def test_the_data_say_how_many_bits_a_point_has() -> None:
    experiment = Experiment.model_validate({"data": {"name": "digits"}})
    dataset = load_dataset(experiment.data.name)
    assert (dataset.bits, dataset.label_bits) == (8, 8)
