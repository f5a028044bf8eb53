"""The server as a node of `coded`: its coded gradient takes time, and may miss the deadline."""

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy.stats import binomtest, kstest

from codedfedl import Coded, Fleet, InputError, Server, plan
from codedfedl.core.protocol import Ask, Inbox, Info, Task
from codedfedl.data import load_dataset
from codedfedl.federate.server.session import federate
from codedfedl.fleet.built_in import paper_fleet
from codedfedl.fleet.costs import ServerWork
from codedfedl.fleet.devices import Workload
from codedfedl.fleet.measured import MeasuredDelays
from codedfedl.learning.features import RandomFourier
from codedfedl.learning.least_squares import gradient
from codedfedl.learning.optimisers import Schedule
from codedfedl.random import stream
from codedfedl.runs.directory import RunDirectory
from codedfedl.schemes import make_scheme
from codedfedl.schemes.uncoded import Uncoded
from codedfedl.simulation.engine import Listener, Setting, Simulation, entries
from codedfedl.simulation.units import prepare
from tests.loopback import experiment_of, transport_of
from tests.virtual import small

FEATURES, LABELS, POINTS = 4, 2, 6


@dataclass(frozen=True)
class Timed(Uncoded):
    """A scheme of somebody's own that times the server."""

    info: ClassVar[Info] = replace(Uncoded.info, name="timed")

    def ask(self, state: Any) -> Ask | None:
        ask = super().ask(state)
        return ask and replace(ask, server_work=ServerWork(Server(1.0, 10), 10))


def fleet_of_three() -> Fleet:
    return Fleet(
        points=[POINTS] * 3, rate=[2.0, 4.0, 1.0], alpha=2.0, packet_time=[0.5, 0.1, 1.0],
        erasure=0.2, availability=[1.0, 0.9, 1.0],
    )  # fmt: skip


def started(scheme: Coded, fleet: Fleet) -> tuple[Any, Any, Any]:
    """Return the state after a set-up with the code G = I, and the points of every client."""
    rng = np.random.default_rng(3)
    inputs, targets = (rng.normal(size=(3, POINTS, width)) for width in (FEATURES, LABELS))
    task = Task(
        Workload(FEATURES, LABELS), 1, np.full((1, 3), POINTS), 5, Schedule(0.1), ridge=0.01
    )
    state = scheme.start(task, fleet, rng.normal(size=(FEATURES, LABELS)))
    chosen = state.plans[0]
    weights = np.ones((3, POINTS))
    for j, load in enumerate(chosen.loads):
        weights[j, :load] = chosen.weights[j]
    parity = {
        name: (weights[:, :, None] * array).reshape(3 * POINTS, -1)
        for name, array in (("features0", inputs), ("targets0", targets))
    }
    state = scheme.receive(state, Inbox(np.ones(3, dtype=bool), 3.0 * POINTS, parity))
    return state, inputs, targets


def test_the_step_is_unbiased_over_everything_that_can_happen() -> None:
    """Every set of arrivals, with and without the server, by its probability: no sampling."""
    scheme = Coded(redundancy=0.6, server_rate=3.0, server_alpha=1.0)
    state, inputs, targets = started(scheme, fleet_of_three())
    chosen, mean = state.plans[0], np.zeros((FEATURES, LABELS))
    assert 0.3 < chosen.server_return_probability < 0.95
    chances = np.array([*chosen.return_probabilities, chosen.server_return_probability])
    for happened in product([True, False], repeat=4):
        arrived, done = np.array(happened[:3]), happened[3]
        total = sum(
            gradient(inputs[j, :load], targets[j, :load], state.asked)
            for j, load in enumerate(chosen.loads)
            if arrived[j] and load
        )
        points = float(chosen.loads[arrived].sum())
        inbox = Inbox(arrived, points, {"gradient": total}, server_done=done)
        probability = np.prod(np.where(happened, chances, 1 - chances))
        mean += probability * scheme.receive(state, inbox).model
    everything = inputs.reshape(-1, FEATURES), targets.reshape(-1, LABELS)
    direction = gradient(*everything, state.model) / (3 * POINTS) + state.task.ridge * state.model
    full = state.model - state.task.step_size(0) * direction
    np.testing.assert_allclose(mean, full, rtol=1e-11)


def played(settings: dict[str, Any], epochs: int = 4) -> tuple[Setting, list[bool]]:
    """Play `coded`; return it, and in which rounds the server was done."""
    experiment = small(training={"epochs": epochs, "step": 2.0, "ridge": 9e-6})
    problem, task, fleet = prepare(
        experiment, load_dataset("digits"), 0, RandomFourier(60, 2.0, 0), "cpu"
    )
    done: list[bool] = []

    def note(setting: Setting, exchange: Any, inbox: Inbox) -> None:
        if not exchange.ask.setup:
            done.append(inbox.server_done)

    listener: Listener = note
    scheme = make_scheme("coded", {"redundancy": 0.2} | settings)
    run = Simulation(problem, entries(task, fleet, {"coded": scheme}), 0, listener)
    for _ in run.run():
        pass
    return run.settings[0], done


def test_a_very_fast_server_changes_no_bit() -> None:
    plain, _ = played({})
    fast, done = played({"server_rate": 1e12})
    assert done == [True] * 8
    assert plain.state.model.tobytes() == fast.state.model.tobytes()
    assert [one.seconds for one in plain.records] == [one.seconds for one in fast.records]
    np.testing.assert_equal(plain.facts, fast.facts)


def test_a_slow_server_is_late_as_often_as_planned() -> None:
    """False alarm: 1e-6."""
    slow, done = played({"server_rate": 30.0}, epochs=300)
    sure = slow.facts["server_return_probability"]
    assert 0.3 < sure < 0.97
    assert binomtest(sum(done), len(done), sure).pvalue > 1e-6
    plain, _ = played({}, epochs=300)
    assert slow.facts["round_deadline_s"] > plain.facts["round_deadline_s"]
    assert slow.facts["parity_rows"] <= plain.facts["parity_rows"]
    # It learns: unbiased, if noisier. Without the division it would miss the parity's part.
    assert float(slow.records[-1].metric) > 0.85


def test_its_delay_follows_the_planned_distribution() -> None:
    """Kolmogorov and Smirnov; false alarm: 1e-6."""
    server, rows = Server(rate=20.0, max_rows=100, alpha=0.7), 80
    work = ServerWork(server, rows)
    drawn = [work.seconds(stream(0, "server", k).standard_exponential()) for k in range(4000)]
    cdf = np.vectorize(lambda t: server.return_probability(rows, t))
    assert kstest(drawn, cdf).pvalue > 1e-6
    assert server.return_probability(rows, rows / server.rate) == 0


def test_the_plan_says_what_the_node_does() -> None:
    found = plan(paper_fleet(), server=Server(rate=1.0, max_rows=3000))
    probability = Server(1.0, 3000).return_probability(found.parity_rows, found.deadline)
    assert found.server_return_probability == pytest.approx(probability, rel=1e-9)


class TestErrors:
    @pytest.mark.parametrize("key", ["server_rate", "server_alpha"])
    @pytest.mark.parametrize("value", [0.0, -1.0, np.inf, np.nan])
    def test_bad_numbers(self, key: str, value: float) -> None:
        with pytest.raises(InputError, match=rf"coded\.{key} is .*must be (finite|a number)"):
            make_scheme("coded", {key: value})

    @pytest.mark.parametrize("rival", [{"deadline": 9.0}, {"planned": "hours"}])
    def test_two_rules_for_the_deadline(self, rival: dict[str, Any]) -> None:
        with pytest.raises(InputError, match=rf"coded\.{next(iter(rival))}.*leave one out"):
            Coded(server_rate=3.0, **rival)

    def test_a_server_that_is_too_slow_for_a_row(self) -> None:
        task = Task(Workload(2, 1), 1, np.full((1, 3), POINTS), 1, Schedule(0.1), 0.0)
        fleet = replace(fleet_of_three(), availability=np.ones(3))
        with pytest.raises(InputError, match=r"coded\.server_rate is 1e-09: so slow"):
            Coded(server_rate=1e-9).start(task, fleet, None)

    def test_measured_delays(self) -> None:
        task = Task(Workload(2, 1), 1, np.array([[10]]), 1, Schedule(0.1), 0.0)
        with pytest.raises(InputError, match=r"coded\.server_rate is 3, which needs a Fleet"):
            Coded(server_rate=3.0).start(task, MeasuredDelays([[1.0]], [[1.0]]), None)

    @pytest.mark.parametrize(
        ("scheme", "message"),
        [
            ({"name": "coded", "server_rate": 3.0}, r"coded\.server_rate is 3.*leave server_rate"),
            (
                {"name": "tests.test_server_node:Timed"},
                "only a simulation plays.*leave server_work",
            ),
        ],
    )
    def test_a_federation_has_a_real_server(
        self, scheme: dict[str, Any], message: str, tmp_path: Path
    ) -> None:
        experiment = experiment_of(scheme=scheme)
        nodes = transport_of(experiment, tmp_path / "nodes", None)
        with pytest.raises(InputError, match=message):
            federate(nodes, experiment, RunDirectory(tmp_path / "run"), lambda _: None)
