"""Rivals for networks against naive twins: their papers' rules in plain loops over clients."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from codedfedl.random import stream
from tests.logged import RIDGE, STEP, Log, gradient

ORDERS = 5 << 20
LOCAL: dict[str, Any] = {"local_steps": 3, "points": 2, "step": 0.02}


def trained(log: Log, job: Any, model: np.ndarray, proximal: float = 0.0) -> np.ndarray:
    """Three steps over two points each, in the order of the client's own stream."""
    features, targets = (part.astype(float) for part in log.problem.batches[0].client(job.client))
    order = stream(0, "code", ORDERS, job.client, job.round).permutation(len(targets))
    start = model
    for step in range(3):
        rows = order[2 * step : 2 * step + 2]
        slope = gradient((features[rows], targets[rows]), model) / 2 + RIDGE * model
        model = model - 0.02 * (slope + proximal * (model - start))
    return model


def moves(log: Log, proximal: float = 0.0) -> Iterator[tuple[dict[int, np.ndarray], Any]]:
    """Yield what every client moved in a round, and a function that sets the next model."""
    model = np.zeros((64, 10))
    for arrivals, _ in log.rounds:
        models: dict[str, np.ndarray] = {}
        mine = {j.client: trained(log, j, model, proximal) - model for j in arrivals.done}
        yield mine, lambda made, models=models: models.update(next=made)
        model = models["next"]
    log.agrees(model)


def mean(log: Log, moved: dict[int, np.ndarray]) -> np.ndarray:
    points = sum(log.held[j] for j in moved)
    return sum((log.held[j] / points * m for j, m in moved.items()), start=np.zeros((64, 10)))


def test_fedprox_pulls_back() -> None:
    log = Log("fedprox", 5, **LOCAL, optimiser="gd", proximal=0.7)
    model = np.zeros((64, 10))
    for moved, after in moves(log, 0.7):
        after(model := model + mean(log, moved))


@pytest.mark.parametrize("name", ["fedadam", "fedyogi"])
def test_adaptive_servers_take_moves_for_gradients(name: str) -> None:
    kind = name.removeprefix("fed")
    log = Log(name, 8, **LOCAL, optimiser=f"{kind}-uncorrected")
    model, first, second = (np.zeros((64, 10)) for _ in range(3))
    for moved, after in moves(log):
        delta = mean(log, moved)
        first = 0.9 * first + 0.1 * delta
        towards = delta**2 - second
        second = second + 0.01 * (np.sign(towards) * delta**2 if name == "fedyogi" else towards)
        after(model := model + STEP * first / (np.sqrt(second) + 1e-3))


def test_fedau_weighs_by_the_mean_interval() -> None:
    log = Log("fedau", 25, **LOCAL, optimiser="gd", drop=0.5, longest=4)
    model, since = np.zeros((64, 10)), [0] * 6
    ends: list[list[int]] = [[] for _ in range(6)]
    for moved, after in moves(log):
        for j in range(6):
            since[j] += 1
            if j in moved or since[j] == 4:
                ends[j].append(since[j])
                since[j] = 0
        weights = {j: np.mean(ends[j]) * log.held[j] / log.held.sum() for j in moved}
        after(model := model + sum(weights[j] * moved[j] for j in moved))
    assert max(map(np.mean, ends)) > 2


def test_malenia_waits_for_a_harmonic_mean() -> None:
    log = Log("malenia", 150, load=2, enough=5.0)
    model, steps = np.zeros((64, 10)), 0
    sums: dict[int, list[np.ndarray]] = {j: [] for j in range(6)}
    for arrivals, _ in log.rounds:
        for job in arrivals.done:
            sums[job.client].append(gradient(log.points(job), model) / job.load)
        if all(sums.values()) and 6 / sum(1 / (2 * len(s)) for s in sums.values()) >= 5.0:
            total = sum(log.held[j] * np.mean(s, axis=0) for j, s in sums.items())
            model = model - STEP * (total / log.held.sum() + RIDGE * model)
            sums, steps = {j: [] for j in range(6)}, steps + 1
    log.agrees(model)
    assert steps >= 2
    assert log.state.began > 0


def test_malenia_drops_what_is_under_way_when_it_steps() -> None:
    """No answer of an exchange before the last step ever comes."""
    log = Log("malenia", 150, load=2, enough=2.5)
    began = 0
    for arrivals, _ in log.rounds:
        began = arrivals.round if arrivals.ask.restarts else began
        assert all(job.round >= began for job in arrivals.done)
    assert began > 0


def test_timelyfl_trains_what_fits() -> None:
    """Half of the clients train the last numbers alone; late answers count later."""
    log = Log("timelyfl", 40, optimiser="gd", points=2, step=0.02, drop=0.5)
    shares, steps = log.state.shares, log.state.steps
    times = np.sort(log.fleet.mean(np.full(6, 2)))
    assert log.state.deadline == pytest.approx(times[2])
    assert (shares < 1).sum() == 3
    assert steps.max() > 1
    models, late = [np.zeros((64, 10))], 0
    for arrivals, _ in log.rounds:
        moved, points = np.zeros(640), np.zeros(640)
        for job in arrivals.done:
            late += job.round < arrivals.round
            start = models[job.round]
            after = (stepped(log, job, start, int(steps[job.client])) - start).ravel()
            for number in range(640):
                if number >= 640 - max(1, round(shares[job.client] * 640)):
                    moved[number] += log.held[job.client] * after[number]
                    points[number] += log.held[job.client]
        models.append(models[-1] + (moved / np.maximum(points, 1)).reshape(64, 10))
    log.agrees(models[-1])
    assert late > 3


def test_fedcompass_fills_intervals_with_steps() -> None:
    """The fastest takes ten steps; slow clients two, which take several intervals."""
    log = Log("fedcompass", 40, optimiser="gd", points=2, step=0.02)
    (steps,), mean = log.state.steps, log.fleet.mean
    interval = mean(np.full(6, 20.0)).min()
    assert log.state.deadline == pytest.approx(1.2 * interval)
    for j, count in enumerate(steps):
        seconds = [mean(np.full(6, 2.0 * k))[j] for k in (2, count, count + 1)]
        intervals = np.ceil(seconds[0] / interval)
        assert count in (2, 10) or seconds[1] <= intervals * interval < seconds[2]
    assert (steps.min(), steps.max()) == (2, 10)
    models, late = [np.zeros((64, 10))], 0
    for arrivals, _ in log.rounds:
        total = np.zeros((64, 10))
        for job in arrivals.done:
            age = arrivals.round - job.round
            late += age > 0
            before = models[job.round]
            moved = before - stepped(log, job, before, int(steps[job.client]))
            total += log.held[job.client] / log.held.sum() / np.sqrt(1 + age) * moved
        models.append(models[-1] - total)
    log.agrees(models[-1])
    assert late > 3


def stepped(log: Log, job: Any, model: np.ndarray, count: int) -> np.ndarray:
    features, targets = (part.astype(float) for part in log.problem.batches[0].client(job.client))
    order = stream(0, "code", ORDERS, job.client, job.round).permutation(len(targets))
    for step in range(count):
        rows = order[2 * step : 2 * step + 2]
        slope = gradient((features[rows], targets[rows]), model) / 2 + RIDGE * model
        model = model - 0.02 * slope
    return model
