"""The clock of a window: what clients finish, who is busy, and which model an answer is for."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from codedfedl import Fleet, Inbox, Info, InputError, Scheme, State
from codedfedl.arrays import Array
from codedfedl.core.client import WindowGradient
from codedfedl.core.protocol import EACH, SUM, Ask, Combine
from codedfedl.core.task import Task
from codedfedl.core.waiting import Everyone, Wait
from codedfedl.data import load_dataset
from codedfedl.fleet.devices import Workload
from codedfedl.learning.features import Identity
from codedfedl.learning.optimisers import Schedule
from codedfedl.simulation.assignments import Arrivals, Assignment
from codedfedl.simulation.client_data import SimulatedClient
from codedfedl.simulation.clock import Clock, Timeline
from codedfedl.simulation.engine import Setting, Simulation, entries
from codedfedl.simulation.units import prepare
from tests.virtual import small

WINDOW, LINK = 4.0, 3.0
HELD = np.array([[5, 40, 40, 40, 40, 40]])
FLEET = Fleet(
    points=HELD[0],
    rate=[8.0, 3.0, 1.0, 0.5, 0.2, 0.05],
    alpha=[2.0, 1.0, 2.0, 4.0, 2.0, 2.0],
    packet_time=[0.5, 1.0, 0.2, 0.8, 1.5, 0.5],
    erasure=[0.1, 0.4, 0.0, 0.2, 0.3, 0.1],
    overhead=0.25,
    availability=[1.0, 1.0, 0.8, 1.0, 1.0, 1.0],
)
TASK = Task(Workload(3, 2), 0, HELD, 60, Schedule(), 0.0)


def ask(wait: Wait, *, least: int = 1, keep_late: bool = True) -> Ask:
    work = WindowGradient(0, 0, np.ones(6), seconds=WINDOW, least=least)
    return Ask(work, wait, keep_late=keep_late)


def played(asked: Ask, rounds: int) -> tuple[Timeline, list[Arrivals]]:
    timeline = Timeline(Clock(FLEET, TASK, 3))
    return timeline, [timeline.exchange(asked, round_) for round_ in range(rounds)]


@pytest.mark.parametrize("least", [1, 4])
def test_the_clock_of_windows_against_plain_events(least: int) -> None:
    """Every client by itself: it is free or busy, and finishes points one after another."""
    timeline, rounds = played(ask(Everyone(WINDOW + LINK), least=least), 60)
    draws = timeline.clock.chance.draws
    now, busy = 0.0, {}  # when each client's answer arrives, and the round that it answers
    for round_, given in enumerate(rounds):
        awaited = []
        for j in range(6):
            if j in busy or draws["absent"][round_, j]:
                continue
            a_point = (1 + draws["slowness"][round_, j] / FLEET.alpha[j]) / FLEET.rate[j]
            points, computed, most = 0, 0.0, int(HELD[0, j])
            while points < most and (computed + a_point <= WINDOW or points < min(least, most)):
                points, computed = points + 1, computed + a_point
            if points < most:
                computed = max(computed, WINDOW)
            link = FLEET.packet_time[j] * (draws["down"][round_, j] + draws["up"][round_, j])
            busy[j] = (now + 0.25 + computed + link, round_)
            assert given.loads[j] == points
            if computed <= WINDOW + 1e-9:
                awaited.append(j)
        last = max((busy[j][0] for j in awaited), default=now + WINDOW)
        now = min(last, now + WINDOW + LINK)
        came = {j: asked for j, (when, asked) in busy.items() if when <= now + 1e-9}
        assert {job.client: job.round for job in given.done} == came
        assert_array_equal(np.flatnonzero(given.arrived), [j for j in came if came[j] == round_])
        assert_allclose(sum(earlier.seconds for earlier in rounds[: round_ + 1]), now)
        for j in came:
            del busy[j]
    assert any(job.round < given.round for given in rounds for job in given.done)


def test_nobody_waits_for_who_computes_on() -> None:
    """Waiting for all links, rounds are as long as the slowest link and the window."""
    _, rounds = played(ask(Everyone()), 60)
    assert np.mean([given.arrived[5] for given in rounds]) < 0.3  # 20 seconds a point and more
    assert max(given.seconds for given in rounds) < WINDOW + 30
    assert min(given.seconds for given in rounds) > WINDOW


def test_a_round_in_which_nobody_finishes_lasts_a_window() -> None:
    slow = replace(FLEET, rate=np.full(6, 1e-3))
    timeline = Timeline(Clock(slow, TASK, 3))
    given = timeline.exchange(ask(Everyone()), 0)
    assert not given.arrived.any()
    assert given.seconds == WINDOW


def test_whoever_drops_late_work_never_hears_of_it() -> None:
    """A secure sum: clients begin anew in every round, and the slowest is never done."""
    _, rounds = played(ask(Everyone(WINDOW + LINK), keep_late=False), 60)
    assert not any(given.arrived[5] for given in rounds)
    assert all(job.round == given.round for given in rounds for job in given.done)


def test_a_window_is_above_zero() -> None:
    with pytest.raises(InputError, match="a window of 0 seconds"):
        WindowGradient(0, 0, 1.0)


@pytest.mark.parametrize("combine", [SUM, EACH])
def test_a_late_answer_is_for_the_model_that_the_client_began_with(combine: Combine) -> None:
    """Its gradient is that at the old model, is marked with its round, and is in no fresh sum."""
    experiment = small(training={"epochs": 25, "step": 0.2}, features={"kind": "identity"})
    problem, task, fleet = prepare(experiment, load_dataset("digits"), 0, Identity(), "cpu")
    slow = replace(fleet, rate=np.array([90.0, 50.0, 20.0, 0.9, 0.5, 0.3]))
    heard: list[tuple[Arrivals, Inbox]] = []
    models: dict[int, Array] = {}

    def listen(setting: Setting, arrivals: Arrivals, inbox: Inbox) -> None:
        if arrivals.round >= 0:
            heard.append((arrivals, inbox))
            models[arrivals.round] = setting.driver.question

    for _ in Simulation(problem, entries(task, slow, {"": _Windows(combine)}), 0, listen).run():
        pass

    def answer(job: Assignment, model: Array) -> Array:
        client = SimulatedClient(problem.batches, job.client, 0)
        return job.work.for_client(job.client).answer(client, job.load, model).arrays["gradient"]

    late = 0
    for arrivals, inbox in heard:
        jobs = {(job.client, job.round): job for job in arrivals.done}
        fresh = [job for job in jobs.values() if job.round == arrivals.round]
        for reply in inbox.replies:
            job = jobs[reply.client, reply.round]
            assert reply.model is models[reply.round]
            assert_allclose(reply.arrays["gradient"], answer(job, models[reply.round]), rtol=1e-4)
            if reply.round < arrivals.round:
                late += 1
                wrong = answer(job, models[arrivals.round])
                assert np.abs(reply.arrays["gradient"] - wrong).max() > 1e-3
        if combine is SUM and fresh:
            total = sum(answer(job, models[arrivals.round]) for job in fresh)
            assert_allclose(inbox.total(), total, rtol=1e-3, atol=1e-3)
            assert inbox.points == sum(job.load for job in fresh)
    assert late > 5


@dataclass(frozen=True)
class _Windows(Scheme):
    """Windows of half a second; what comes late counts in the round in which it comes."""

    combine: Combine

    info: ClassVar[Info] = Info("windows")

    def ask(self, state: State) -> Ask | None:
        work = WindowGradient(0, state.round, state.task.points[0], seconds=0.5)
        wait = Everyone(2.0)
        return None if state.finished else Ask(work, wait, combine=self.combine, keep_late=True)

    def receive(self, state: State, inbox: Inbox) -> State:
        each = sum(reply.arrays["gradient"] for reply in inbox.replies)
        return state.descended(inbox.total() + each, float(state.task.held.sum()))
