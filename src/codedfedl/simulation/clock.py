"""The virtual clock: how long every client takes, and who arrives when.

The random delays of a seed are the same for every scheme (`Clock`). Each client of a setting has a
time line of its own (`Timeline`): it embeds its points, works on what it is asked, may be late, and
continues to embed while it is idle. If all clients drop their work when a round begins, that
reduces to the delays of the round. Two clocks run side by side: the paper's counts training rounds
alone; the other also charges what the clients do before the first round.
"""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from math import inf

import numpy as np

from codedfedl.arrays import FloatArray, IntArray, Mask
from codedfedl.core.loop import loads_of
from codedfedl.core.protocol import Ask, Task
from codedfedl.core.record import SETUP
from codedfedl.core.waiting import Limited, Until, Wait, arrivals
from codedfedl.core.work import Window, Work
from codedfedl.fleet import costs
from codedfedl.fleet.costs import Cost
from codedfedl.fleet.delays import DelayModel
from codedfedl.fleet.devices import Fleet, fleet_of, with_workload
from codedfedl.random import stream
from codedfedl.simulation.assignments import Arrivals, Assignment, outcome_of

OWN_PACE = "embedding until a deadline"
"""What measured delays cannot play."""
PATIENCE = 2.0
"""How many times the mean time of the slowest client is waited, where somebody may be absent."""
_EMBED, _SLOWNESS, _LOSSES, _OTHER, _MORE_PACKETS, _WITH_MODEL, _ANNOUNCED = 0, 3, 4, 5, 6, 7, 8
_STEP_OF_KIND = {"parity": 1, "gram": 2}  # Streams of work without a model; others share one.


class Clock:
    """The random draws of all rounds of one seed, made before the first: the same for every scheme.

    Parameters
    ----------
    delays
        A `Fleet`, or any other delay model.
    patience
        As `training.patience`.
    """

    def __init__(
        self, delays: DelayModel, task: Task, seed: int, patience: float | None = None
    ) -> None:
        self.task, self.seed, self.patience = task, seed, patience or PATIENCE
        self.model = delays
        self.chance = self.model.draw(task.rounds, stream(seed, "delays"))

    @cached_property
    def fleet(self) -> Fleet:
        """The fleet, where the delays are the formula's."""
        return fleet_of(self.model, self.task.points[0], OWN_PACE)

    @cached_property
    def slowness(self) -> FloatArray:
        """Of each client's processor while it embeds at its own pace."""
        return stream(self.seed, "setup", _SLOWNESS).standard_exponential(self.task.clients)

    def for_task(self, task: Task) -> "Clock":
        """Return the same luck of the same clients for another task."""
        other = copy(self)
        vars(other).pop("embedding_speed", None)
        other.task = task
        other.model = with_workload(self.fleet, self.task.workload, task.workload)
        vars(other)["fleet"] = other.model
        return other

    def seconds_of_round(self, round_: int, cost: Cost) -> FloatArray:
        """Return when each answer arrives, of one packet, in a round."""
        points = cost.macs / self.task.workload.point_macs
        return np.asarray(self.model.seconds(points, self.chance[round_]))

    @cached_property
    def embedding_speed(self) -> FloatArray:
        """How many points each client embeds in a second, at its own pace."""
        task = self.task  # with the formula, the luck is that of `slowness`
        a_point = Cost(np.full(task.clients, float(task.feature_macs)), np.zeros(task.clients))
        luck = stream(self.seed, "setup", _SLOWNESS)
        seconds, _ = a_point.sample_seconds(self.model, task.workload, luck)
        return 1 / np.maximum(seconds, 1e-300)


class Draws:
    """The delays of one setting that are drawn when it asks: no two of its exchanges share them.

    The first exchange that needs a stream of the set-up has it as it is, and later ones have
    numbered ones. Those of rounds after the first go by the round, so that a run that is resumed
    draws the same.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock, self.task = clock, clock.task
        self._counts: Counter[int] = Counter()

    def in_round(self, round_: int, work: Work, loads: IntArray) -> FloatArray:
        """Return when each answer of a round arrives; ∞ for a client that is absent."""
        seconds = self.clock.seconds_of_round(round_, work.cost(self.task, loads))
        luck = stream(self.clock.seed, "setup", _MORE_PACKETS, round_)
        return seconds + self._more_packets(work, loads, 1, luck)

    def in_window(
        self, round_: int, window: Window, most: IntArray
    ) -> tuple[IntArray, FloatArray, Mask]:
        """Return points and arrival of each answer of a window, and who is done when it ends.

        A client answers early when it has no more points, and late when it had to compute on.
        """
        model, chance = self.clock.model, self.clock.chance[round_]
        finished = np.minimum(model.points_within(window.seconds, chance), most)
        points = np.maximum(finished, np.minimum(window.least, most))
        in_time = model.seconds(np.zeros(len(most)), chance) + window.seconds
        otherwise = (finished < points) | (finished == most)
        seconds = np.where(otherwise, model.seconds(points, chance), in_time)
        return points, seconds, finished == points

    def in_setup(self, work: Work, loads: IntArray) -> FloatArray:
        """Return when each answer on a model arrives before the first round."""
        luck, model = self._stream(_WITH_MODEL, SETUP), self.clock.model
        points = work.cost(self.task, loads).macs / self.task.workload.point_macs
        seconds = model.seconds(points, model.draw(1, luck)[0])
        return np.asarray(seconds + self._more_packets(work, loads, 1, luck))

    def embedding(self, round_: int, cost: Cost) -> FloatArray:
        """Draw the processors' seconds of embedding."""
        luck = self._stream(_EMBED, round_)
        return cost.sample_seconds(self.clock.model, self.task.workload, luck)[0]

    def once(self, round_: int, work: Work, loads: IntArray) -> tuple[FloatArray, FloatArray]:
        """Draw the processor's and the link's seconds of work without a model."""
        step, workload = _STEP_OF_KIND.get(work.plain.kind, _OTHER), self.task.workload
        luck, plain = self._stream(step, round_), work.plain.cost(self.task, loads)
        compute, upload = plain.sample_seconds(self.clock.model, workload, luck)
        return compute, upload + self._more_packets(work, loads, plain.packets(workload), luck)

    def announcement(self, numbers: int) -> FloatArray:
        """Draw the seconds in which clients receive so many numbers."""
        workload, luck = self.task.workload, self._stream(_ANNOUNCED, SETUP)
        packets = np.ceil(workload.sent_bits(numbers) / workload.packet_bits - 1e-9)
        return self.clock.model.upload(np.full(self.task.clients, int(packets)), luck)

    def upload(self, round_: int, cost: Cost) -> FloatArray:
        """Draw the seconds of uploading block parity."""
        packets = cost.packets(self.task.workload)
        return self.clock.model.upload(packets, self._stream(_LOSSES, round_))

    def _more_packets(
        self, work: Work, loads: IntArray, sent: int | IntArray, luck: np.random.Generator
    ) -> FloatArray:
        """Draw the seconds of packets beyond those sent; those of protection come last."""
        workload, seconds = self.task.workload, np.zeros(self.task.clients)
        plain, whole = (w.cost(self.task, loads).packets(workload) for w in (work.plain, work))
        for more in (plain - sent, whole - np.maximum(plain, sent)):
            if (more > 0).any():
                seconds = seconds + self.clock.model.upload(np.maximum(more, 0), luck)
        return seconds

    def _stream(self, step: int, round_: int) -> np.random.Generator:
        if round_ > 0:
            return stream(self.clock.seed, "setup", step, round_ + 1)
        earlier = self._counts[step]
        self._counts[step] += 1
        return stream(self.clock.seed, "setup", step, *([0, earlier] if earlier else []))


def has_own_pace(work: Work) -> bool:
    """Return whether the time available decides how many points each client processes."""
    return type(work).points_by is not Work.points_by


class Timeline:
    """All clients of one setting, from second 0 of the set-up on.

    Attributes
    ----------
    setup_compute, setup_upload : arrays of shape (n,), seconds
        What each client's processor and link did in the set-up.
    processed : array of shape (n,)
        Points that each was last asked to process, every local step counted.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock, self.task = clock, clock.task
        self.held, clients = clock.task.held, clock.task.clients
        self.draws, self.now = Draws(clock), 0.0
        self.setup_compute, self.setup_upload = np.zeros(clients), np.zeros(clients)
        self.processed = np.zeros(clients)
        self._embedded = np.zeros(clients)
        self._answered = np.zeros(clients, dtype=np.int64)  # points of the last answer
        self._idle_since = np.zeros(clients)
        self._jobs: dict[int, Assignment] = {}
        self._setups = 0  # exchanges of the set-up so far

    @property
    def pending(self) -> Sequence[Assignment]:
        """What the clients are still busy with."""
        return list(self._jobs.values())

    def begin(self, task: Task) -> None:
        """Go on with another task: clients drop their work, and are sent its feature map.

        A client that is still receiving the map owes the points that it could have embedded
        meanwhile; its link is taken to be no slower down than up.
        """
        if task is self.task:
            return
        sent = self.draws.announcement(getattr(task.features, "sent_numbers", 0))
        self.task, self.clock = task, self.clock.for_task(task)
        self.draws.clock, self.draws.task = self.clock, task
        self._jobs.clear()
        self._idle_since = np.full(task.clients, self.now)
        self._embedded = -sent * self.clock.embedding_speed
        self._answered = np.zeros_like(self._answered)

    def exchange(self, ask: Ask, round_: int) -> Arrivals:
        """Ask the idle clients, and wait."""
        self._begin(ask)
        idle = self._idle_since <= self.now
        asked, expected, embedded = loads_of(ask, self.task), idle, self._embedded
        if ask.work.window is not None:  # nobody waits for a client that computes on
            loads, seconds, expected = self.draws.in_window(round_, ask.work.window, asked)
            missing = np.maximum(self.held - self._embedded, 0) * ask.work.embeds
            if missing.any():  # a window begins when the points are embedded
                seconds = seconds + missing / self.clock.embedding_speed
                self._embedded = np.where(idle, self.held.astype(float), self._embedded)
            self.processed = np.where(idle, loads, self.processed)
        else:
            answer = self._in_round if ask.work.needs_model else self._once
            loads, seconds = answer(ask, round_, asked, idle)
        wanted = idle & (loads > 0)
        started = wanted & np.isfinite(seconds)
        remaining = np.where(started, seconds, np.inf)
        for job in self._jobs.values():
            remaining[job.client] = job.finished - self.now
        wait = self._limited(ask, loads, embedded, wanted & expected)
        if ask.work.window is not None and wait.deadline == inf and not (started & expected).any():
            wait = Until(ask.work.window.seconds)  # some may be done later
        came, length = arrivals(wait, remaining, started & expected)
        ask = replace(ask, wait=wait)
        outcome = outcome_of(wanted, remaining, came & started)
        part = self._setups if ask.setup else 0
        self._setups += ask.setup
        new = Arrivals(ask, round_, length, came & started, outcome, loads, remaining, part=part)
        if ask.server_work is not None:
            slowness = new.luck(self.clock.seed, "server").standard_exponential()
            new = replace(new, server_done=ask.server_work.seconds(slowness) <= length)
        if ask.keep_late:
            self._jobs |= {job.client: job for job in new.jobs(started, self.now)}
            self._idle_since[started] = np.inf
            new = replace(new, kept=[self._finish(j) for j in np.flatnonzero(came).tolist()])
        else:  # busy until it has answered, or is asked anew
            self._idle_since[started] = self.now + np.minimum(seconds[started], length)
        self.now += length
        return new

    def _limited(self, ask: Ask, loads: IntArray, embedded: FloatArray, asked: Mask) -> Wait:
        """Return what is waited for: up to a limit where a client that is asked may be absent.

        A server does not know who is absent. It waits for `patience` times the mean time of the
        slowest client.
        """
        model, work = self.clock.model, ask.work
        surely = (model.availability >= 1).all() or not (work.needs_model and asked.any())
        if surely or ask.wait.deadline < inf:
            return ask.wait
        cost, late_start = work.cost(self.task, loads), np.maximum(loads - embedded, 0)
        points = cost.macs / self.task.workload.point_macs if work.window is None else 0.0 * loads
        more = np.maximum(cost.packets(self.task.workload) - 1, 0)
        seconds = model.mean(points) + more * model.mean(0.0 * points)
        seconds = seconds + late_start / self.clock.embedding_speed
        slowest = seconds[asked & (model.availability > 0)].max(initial=0.0)
        open_ = 0.0 if work.window is None else work.window.seconds
        return Limited(ask.wait, open_ + self.clock.patience * float(slowest), int(asked.sum()))

    def _begin(self, ask: Ask) -> None:
        """Advance the clients to the moment of the ask."""
        if not ask.keep_late or ask.restarts:
            self._idle_since[list(self._jobs)] = self.now
            self._jobs.clear()
        if (self._embedded < self.held).any():
            idle = np.maximum(self.now - self._idle_since, 0.0)
            with np.errstate(over="ignore"):
                grown = self._embedded + idle * self.clock.embedding_speed
            self._embedded = np.minimum(grown, self.held)
            self._idle_since = np.maximum(self._idle_since, self.now)

    def _in_round(
        self, ask: Ask, round_: int, asked: IntArray, idle: Mask
    ) -> tuple[IntArray, FloatArray]:
        """Return loads and seconds of work on a model."""
        embedded = np.floor(self._embedded + 1e-9).astype(np.int64)
        loads = ask.work.load(asked, embedded, self._answered, self.held)
        if ask.setup:
            seconds = self.draws.in_setup(ask.work, loads)
        else:
            seconds = self.draws.in_round(round_, ask.work, loads)
        missing = np.maximum(loads - embedded, 0)
        if missing.any():
            seconds = seconds + missing / self.clock.embedding_speed
            self._embedded = np.where(idle, np.maximum(self._embedded, loads), self._embedded)
        self.processed = np.where(idle, self._points_in(ask.work, loads), self.processed)
        self._answered = np.where(idle & np.isfinite(seconds), loads, self._answered)
        return loads, seconds

    def _once(
        self, ask: Ask, round_: int, asked: IntArray, idle: Mask
    ) -> tuple[IntArray, FloatArray]:
        """Return loads and seconds of work that needs no model: embedding comes first."""
        work, task, clock = ask.work, self.task, self.clock
        paced = None
        if has_own_pace(work):
            deadline, done = ask.wait.deadline, self._embedded
            paced = work.points_by(deadline, task, clock.fleet, clock.slowness, done)
        if paced is not None:
            loads, compute = paced
            self._embedded = np.maximum(self._embedded, loads)
            upload = self.draws.upload(round_, work.cost(task, loads))
        else:
            loads, missing = asked, (self.held - self._embedded) * work.embeds
            embed = self.draws.embedding(round_, costs.embedding(missing, task.feature_macs))
            compute, upload = self.draws.once(round_, work, loads)
            compute = embed + compute
            self._embedded = np.maximum(self._embedded, self.held * work.embeds)
        if ask.setup:
            self.setup_compute = self.setup_compute + compute
            self.setup_upload = self.setup_upload + upload
        else:
            self.processed = self._points_in(work, loads)
        return loads, compute + upload

    def _points_in(self, work: Work, loads: IntArray) -> FloatArray:
        """Return how many points' gradients cost each client as much."""
        return np.asarray(work.cost(self.task, loads).macs / self.task.workload.point_macs)

    def _finish(self, client: int) -> Assignment:
        job = self._jobs.pop(client)
        self._idle_since[client] = job.finished
        return job
