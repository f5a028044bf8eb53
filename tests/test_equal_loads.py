"""Equal loads, local steps and rounded messages against naive twins in plain loops."""

from typing import Any

import numpy as np
import pytest

from codedfedl import InputError
from codedfedl.core.protocol import Limits
from codedfedl.learning.messages import Rounding
from codedfedl.random import stream
from codedfedl.schemes import SCHEMES, make_scheme, settings_of
from codedfedl.simulation.engine import Simulation, entries
from tests.logged import RIDGE, STEP, Log, gradient

ROUNDINGS = 3 << 21
ORDERS = 5 << 20


@pytest.mark.parametrize(
    ("name", "settings"),
    [("uncoded", {"load": 4}), ("greedy", {"load": 4, "drop": 0.3}), ("tifl", {"load": 4})],
)
def test_equal_loads_stand_for_all_points(name: str, settings: dict[str, Any]) -> None:
    log = Log(name, **settings)
    model = np.zeros((64, 10))
    for arrivals, _ in log.rounds:
        total, points = np.zeros_like(model), 0.0
        for job in arrivals.done:
            assert job.load == 4
            total += log.held[job.client] / 4 * gradient(log.points(job), model)
            points += log.held[job.client]
        model = model - STEP * (total / points + RIDGE * model)
    log.agrees(model)


def test_rounded_messages_are_what_the_server_adds() -> None:
    log = Log("uncoded", load=4, message_bits=4)
    model, rounding = np.zeros((64, 10), np.float32), Rounding(4, (640,))
    for arrivals, _ in log.rounds:
        total = np.zeros((64, 10))
        for job in arrivals.done:
            one = log.held[job.client] / 4 * gradient(log.points(job), model)
            rng = stream(0, "code", ROUNDINGS, job.client, job.round + 1)
            sent = rounding.unpack(rounding.pack(one.astype(np.float32), rng)).reshape(64, 10)
            total += sent
        model = (model - STEP * (total / log.held.sum() + RIDGE * model)).astype(np.float32)
    np.testing.assert_allclose(log.setting.state.model, model, atol=2e-3)
    exact = Log("uncoded", load=4).setting.state.model
    assert np.abs(log.setting.state.model - exact).max() > 5e-3


def test_fewer_bits_shorten_the_uplink_alone() -> None:
    whole, few = (make_scheme("uncoded", {"message_bits": bits}) for bits in (32, 8))
    task = Log("uncoded", epochs=1).task
    assert whole.own_task(task) is task
    workload = few.own_task(task).workload
    assert workload.packet_bits == task.workload.packet_bits
    scale = Rounding(8, (640,)).message_bits / (32 * 640)
    assert workload.packet_bits_up == pytest.approx(scale * task.workload.packet_bits)


def test_a_rounded_model_is_rounded_by_how_far_it_moved() -> None:
    """With the model itself rounded, 4 bits would lose all that local steps learned."""
    settings: dict[str, Any] = {"optimiser": "gd", "local_steps": 3, "step": 0.02}
    log = Log("fedavg", **settings, message_bits=4)
    exact = Log("fedavg", **settings).setting.state.model
    error = np.abs(log.setting.state.model - exact).max()
    assert 0 < error < 0.2 * np.abs(exact).max()


def trained(log: Log, job: Any, model: np.ndarray, count: int, **how: Any) -> np.ndarray:
    """Local steps over two points each, in the order of the client's own stream."""
    features, targets = (part.astype(float) for part in log.problem.batches[0].client(job.client))
    rng, start, order = stream(0, "code", ORDERS, job.client, job.round), model, np.empty(0, int)
    while len(order) < 2 * count:
        order = np.concatenate([order, rng.permutation(len(targets))])
    for step in range(count):
        rows = order[2 * step : 2 * step + 2]
        slope = gradient((features[rows], targets[rows]), model) / 2 + RIDGE * model
        model = model - how["step"] * (slope + how.get("proximal", 0.0) * (model - start))
    return model


@pytest.mark.parametrize("proximal", [0.0, 0.7])
def test_local_steps_over_a_few_points_each(proximal: float) -> None:
    log = Log(
        "fedavg", 5, optimiser="gd", local_steps=3, points=2, step=0.02, proximal=proximal, drop=0.2
    )
    model = np.zeros((64, 10))
    for arrivals, _ in log.rounds:
        after = {
            job.client: trained(log, job, model, 3, step=0.02, proximal=proximal)
            for job in arrivals.done
        }
        assert len(after) == 5
        points = sum(log.held[j] for j in after)
        model = sum((log.held[j] / points * made for j, made in after.items()), start=0 * model)
    log.agrees(model)


def test_a_step_of_its_own() -> None:
    longer = Log("uncoded", load=4, server_step=2 * STEP, epochs=1).setting.state.model
    plain = Log("uncoded", load=4, epochs=1).setting.state.model
    np.testing.assert_allclose(longer, 2 * plain, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("uncoded", {"load": 0}, r"uncoded\.load is 0: must be at least 1"),
        ("paced", {"message_bits": 9}, r"paced\.message_bits is 9: must be 32, or from 2 to 8"),
        ("paced", {"server_step": 0.0}, r"paced\.server_step is 0: must be finite and above 0"),
        ("fedavg", {"deadline": 3.0, "drop": 0.1}, r"fedavg has a deadline of 3 s and drop"),
        ("coded", {"message_bits": 8}, r"has no setting 'message_bits'"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_scheme(name, settings)


def test_what_nodes_and_secure_sums_do_not() -> None:
    limits = Limits(5.0, 1.0, 1, 1.0)
    with pytest.raises(InputError, match="steps over whole mini-batches"):
        make_scheme("fedavg", {"points": 8}).check(limits=limits)
    with pytest.raises(InputError, match="a secure sum has 32"):
        make_scheme("uncoded", {"message_bits": 8}, secure=True)


@pytest.mark.parametrize("name", ["mifa", "dsag", "fedbuff", "ringleader"])
def test_asynchronous_schemes_have_equal_loads_and_optimisers(name: str) -> None:
    """A point each, without a set-up: descent, though slow, and every answer over one point."""
    assert {"load", "optimiser"} <= set(settings_of(name))
    log = Log(name, epochs=200, load=1, optimiser="adam")
    assert {job.load for arrivals, _ in log.rounds for job in arrivals.done} == {1}
    assert log.setting.records[-1].metric > 0.5
    assert SCHEMES[name].info.name == name


def test_late_answers_are_rounded_too() -> None:
    log = Log("dsag", load=1, message_bits=2)
    made = make_scheme("dsag", {"load": 1, "message_bits": 2})
    run = Simulation(log.problem, entries(log.task, log.fleet, {"dsag": made}), 0)
    for _ in run.run():
        pass
    state: Any = run.settings[0].state
    values = {
        round(float(v), 6)
        for reply in state.table.entries.values()
        for v in np.abs(reply.arrays["gradient"]).ravel() / np.abs(reply.arrays["gradient"]).max()
    }
    assert values <= {0.0, 1.0}
