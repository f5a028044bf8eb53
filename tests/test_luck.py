"""The random delays of exchanges: no two share them, and protection costs no more than its packets.

Draws are continuous or compared between 40 clients: that two independent ones agree everywhere by
chance has a probability far below 1e-6.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from codedfedl import Fleet
from codedfedl.arrays import FloatArray, IntArray
from codedfedl.core.client import Gradient, Gram
from codedfedl.core.encoding import BlockParity, Parity
from codedfedl.core.loop import PREPARE
from codedfedl.core.masked import masked
from codedfedl.core.protocol import Ask, Task
from codedfedl.core.record import SETUP
from codedfedl.core.waiting import Everyone, Until
from codedfedl.core.work import Work
from codedfedl.fleet.costs import Cost, Server, ServerWork
from codedfedl.fleet.devices import Workload
from codedfedl.learning.codes import Code
from codedfedl.learning.optimisers import Schedule
from codedfedl.random import stream
from codedfedl.simulation.assignments import Arrivals
from codedfedl.simulation.clock import Clock, Timeline

CLIENTS, SEED = 40, 3
POINTS = np.full((1, CLIENTS), 30)
TASK = Task(Workload(20, 3), 10, POINTS, 12, Schedule(), 1e-2, largest_square=1.0)
FLEET = Fleet(
    points=POINTS[0], rate=20.0, alpha=2.0, packet_time=0.5, packet_time_up=0.25, erasure=0.4
)
PARITY = Parity([12], POINTS, np.full((1, CLIENTS), 0.8), Code())


@dataclass(frozen=True)
class Large(Gradient):
    """A gradient that takes three packets."""

    kind = "large"

    def cost(self, task: Task, loads: IntArray) -> Cost:
        plain = super().cost(task, loads)
        return Cost(plain.macs, 3 * plain.bits_up)


def timeline() -> Timeline:
    return Timeline(Clock(FLEET, TASK, SEED))


def prepared() -> Timeline:
    """Return clients that have embedded their points, so that rounds take no time for that."""
    line = timeline()
    line.exchange(PREPARE, SETUP)
    return line


def setup(line: Timeline, work: Work) -> Arrivals:
    return line.exchange(Ask(work, Everyone(), setup=True), SETUP)


def packets(later: FloatArray, sooner: FloatArray) -> FloatArray:
    return (later - sooner) / FLEET.packet_time_up


class TestSetUp:
    @pytest.mark.parametrize("work", [Gradient(0), Large(0)])
    def test_work_on_a_model_has_luck_of_its_own(self, work: Work) -> None:
        line = prepared()
        times = [setup(line, work).arrival_times for _ in range(2)]
        rounds = [line.exchange(Ask(work, Everyone()), k).arrival_times for k in range(12)]
        for other in rounds:
            assert (other != times[0]).any()
            assert (other != times[1]).any()
        assert (times[0] != times[1]).any()
        again = prepared()
        np.testing.assert_array_equal(setup(again, work).arrival_times, times[0])

    def test_an_answer_of_three_packets_takes_the_time_of_two_more(self) -> None:
        first, all_three = (setup(prepared(), work) for work in (Gradient(0), Large(0)))
        added = packets(all_three.arrival_times, first.arrival_times)
        np.testing.assert_allclose(added, np.round(added), atol=1e-6)
        assert (added > 2 - 1e-6).all()
        assert (added > 2.5).any()  # of 40 clients, somebody's packet is lost

    @pytest.mark.parametrize("work", [PARITY, Gram(), BlockParity(Code("dealt", 2), 5, 32)])
    def test_a_later_upload_loses_other_packets(self, work: Work) -> None:
        line, uploads = timeline(), [np.zeros(CLIENTS)]
        for _ in range(3):
            line.exchange(Ask(work, Until(1e9), setup=True), SETUP)
            uploads.append(line.setup_upload)
        first, second, third = np.diff(uploads, axis=0)
        assert (first != second).any()
        assert (second != third).any()
        assert (first != third).any()

    def test_the_first_upload_is_drawn_from_the_stream_of_its_kind(self) -> None:
        line = timeline()
        line.exchange(Ask(PARITY, Everyone(), setup=True), SETUP)
        cost, workload = PARITY.cost(TASK, POINTS[0]), TASK.workload
        rng = stream(SEED, "setup", 1)
        _, upload = cost.sample_seconds(FLEET, workload, rng)
        np.testing.assert_array_equal(line.setup_upload, upload)

    def test_noise_and_the_server_are_drawn_anew(self) -> None:
        line = timeline()
        parts = [setup(line, PARITY) for _ in range(3)]
        drawn = [one.luck(SEED, "noise").random() for one in parts]
        assert len(set(drawn)) == 3
        assert drawn[0] == stream(SEED, "noise", 0).random()
        later = line.exchange(Ask(Gradient(0), Everyone()), 4)
        assert later.luck(SEED, "noise").random() == stream(SEED, "noise", 5).random()

    def test_a_slow_server_is_not_late_in_all_parts_or_none(self) -> None:
        """It is done by then with probability ½ in each of 40: all the same once in 2³⁹."""
        work = ServerWork(Server(1.0, 10, 1.0), 10)
        wait = Until(10 + 10 * np.log(2))
        ask = Ask(PARITY, wait, setup=True, server_work=work)
        line = timeline()
        done = [line.exchange(ask, SETUP).server_done for _ in range(40)]
        assert len(set(done)) == 2


class TestRounds:
    def test_a_packet_has_the_luck_of_the_table(self) -> None:
        line = prepared()
        table = FLEET.draw(TASK.rounds, stream(SEED, "delays"))
        for k in (0, 11):
            times = line.exchange(Ask(Gradient(0), Everyone()), k).arrival_times
            expected = FLEET.seconds(POINTS[0], table[k])
            np.testing.assert_array_equal(times, expected)

    def test_work_without_a_model_is_drawn_anew_in_every_round(self) -> None:
        line = timeline()
        setup(line, Gram())
        times = [line.exchange(Ask(Gram(), Everyone()), k).arrival_times for k in range(4)]
        assert len({one.tobytes() for one in times}) == 4
        resumed = timeline()
        setup(resumed, Gram())
        later = resumed.exchange(Ask(Gram(), Everyone()), 3).arrival_times
        np.testing.assert_array_equal(later, times[3])


class TestProtection:
    @pytest.mark.parametrize("work", [PARITY, Gram()])
    def test_secure_set_ups_cost_the_larger_message_alone(self, work: Work) -> None:
        plain, secure = (setup(timeline(), one) for one in (work, masked(work, TASK)))
        self.check(work, plain, secure)

    @pytest.mark.parametrize("work", [Gradient(0), Large(0)])
    def test_and_so_do_secure_rounds(self, work: Work) -> None:
        exchanges = [
            timeline().exchange(Ask(one, Everyone()), 5) for one in (work, masked(work, TASK))
        ]
        self.check(work, *exchanges)

    def check(self, work: Work, plain: Arrivals, secure: Arrivals) -> None:
        """The difference is whole packets: those added, and how often they were lost."""
        added = packets(secure.arrival_times, plain.arrival_times)
        np.testing.assert_allclose(added, np.round(added), atol=1e-6)
        works = work, masked(work, TASK)
        fewer, more = (one.cost(TASK, POINTS[0]).packets(TASK.workload) for one in works)
        assert (added >= more - fewer - 1e-6).all()
        assert (added > more - fewer + 0.5).any()  # of 40 clients, somebody's packet is lost
