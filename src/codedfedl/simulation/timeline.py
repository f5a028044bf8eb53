"""The clients of one setting on the virtual clock: each has a time line of its own.

A client embeds its points, works on what it is asked, may be late, and continues to embed while it
is idle. If all clients drop their work when a round begins, a time line reduces to the delays of
that round.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray, Mask
from codedfedl.core.loop import loads_of
from codedfedl.core.protocol import Ask
from codedfedl.core.record import ARRIVED, DROPPED, LATE, NOT_ASKED
from codedfedl.core.waiting import arrivals
from codedfedl.core.work import Work
from codedfedl.fitting.drift import Timings
from codedfedl.fleet import costs
from codedfedl.random import stream
from codedfedl.simulation.clock import Clock, Draws, Message

__all__ = ["Assignment", "Exchange", "Timeline", "has_own_pace"]


@dataclass(frozen=True)
class Assignment:
    """What a client works on: in which round and when it was asked, and when it is done."""

    client: int
    round: int
    work: Work
    load: int
    finished: float
    asked: float = 0.0


@dataclass(frozen=True, eq=False)
class Exchange:
    """Who arrived, and when: all that a virtual clock says of an ask.

    Attributes
    ----------
    arrived, outcome, loads, arrival_times : arrays of shape (n,)
    kept
        The jobs whose answers came, those to earlier asks too, where late ones are kept.
    server_done
        Whether the server finished its own work while it waited.
    part
        How many exchanges of the set-up came before; 0 in a round.
    """

    ask: Ask
    round: int
    seconds: float
    arrived: Mask
    outcome: npt.NDArray[np.int8]
    loads: IntArray
    arrival_times: FloatArray
    kept: Sequence[Assignment] | None = None
    server_done: bool = True
    part: int = 0

    def luck(self, seed: int, purpose: str) -> np.random.Generator:
        """Return the random stream that this exchange has for a purpose."""
        return stream(seed, purpose, self.round + 1, *([self.part] if self.part else []))

    def jobs(self, clients: Mask, now: float = 0.0) -> list[Assignment]:
        """Return this ask as the work of some clients."""
        return [
            Assignment(j, self.round, self.ask.work, int(self.loads[j]), now + float(seconds), now)
            for j, seconds in zip(
                np.flatnonzero(clients).tolist(), self.arrival_times[clients], strict=True
            )
        ]

    @property
    def done(self) -> Sequence[Assignment]:
        """The jobs whose answers came, by client."""
        return self.jobs(self.arrived) if self.kept is None else self.kept

    @property
    def timings(self) -> Timings:
        """How long clients took for such work, as the server sees it.

        Of those who are still busy with an earlier ask, nothing is said.
        """
        if self.kept is None:
            loads = np.where(self.outcome == NOT_ASKED, 0, self.loads)
            return Timings.until(loads, self.arrival_times, self.arrived, self.seconds)
        loads, seconds = np.zeros_like(self.loads), np.zeros(len(self.loads))
        for job in (one for one in self.kept if one.work.kind == self.ask.work.kind):
            loads[job.client], seconds[job.client] = job.load, job.finished - job.asked
        return Timings(loads, seconds, loads > 0)


def has_own_pace(work: Work) -> bool:
    """Return whether the time available decides how many points each client processes."""
    return type(work).points_by is not Work.points_by


def _outcome(wanted: Mask, seconds: FloatArray, arrived: Mask) -> npt.NDArray[np.int8]:
    """Say what became of the clients: `seconds` is ∞ for those from whom nothing will come."""
    coming = np.isfinite(seconds)
    others = np.where(coming, LATE, np.where(wanted, DROPPED, NOT_ASKED))
    return np.where(arrived, ARRIVED, others).astype(np.int8)


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

    def exchange(self, ask: Ask, round_: int) -> Exchange:
        """Ask the idle clients, and wait."""
        self._begin(ask)
        idle = self._idle_since <= self.now
        answer = self._in_round if ask.work.needs_model else self._once
        loads, seconds = answer(ask, round_, loads_of(ask, self.task), idle)
        wanted = idle & (loads > 0)
        started = wanted & np.isfinite(seconds)
        remaining = np.where(started, seconds, np.inf)
        for job in self._jobs.values():
            remaining[job.client] = job.finished - self.now
        came, length = arrivals(ask.wait, remaining, started)
        outcome = _outcome(wanted, remaining, came & started)
        part = self._setups if ask.setup else 0
        self._setups += ask.setup
        parts = (came & started, outcome, loads, remaining)
        new = Exchange(ask, round_, length, *parts, part=part)
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

    def _begin(self, ask: Ask) -> None:
        """Advance the clients to the moment of the ask."""
        if not ask.keep_late:
            self._idle_since[list(self._jobs)] = self.now
            self._jobs.clear()
        if (self._embedded < self.held).any():
            idle = np.maximum(self.now - self._idle_since, 0.0)
            with np.errstate(over="ignore"):
                grown = self._embedded + idle * self.clock.embedding_speed()
            self._embedded = np.minimum(grown, self.held)
            self._idle_since = np.maximum(self._idle_since, self.now)

    def _in_round(
        self, ask: Ask, round_: int, asked: IntArray, idle: Mask
    ) -> tuple[IntArray, FloatArray]:
        """Return loads and seconds of work on a model."""
        embedded = np.floor(self._embedded + 1e-9).astype(np.int64)
        loads = ask.work.load(asked, embedded, self._answered, self.held)
        message = Message.of(ask.work, self.task, loads)
        cost, draws = message.cost, self.draws
        seconds = draws.in_setup(message) if ask.setup else draws.in_round(round_, message)
        missing = np.maximum(loads - embedded, 0)
        if missing.any():
            seconds = seconds + missing / self.clock.embedding_speed()
            self._embedded = np.where(idle, np.maximum(self._embedded, loads), self._embedded)
        self.processed = np.where(idle, cost.macs / self.task.workload.point_macs, self.processed)
        self._answered = np.where(idle & np.isfinite(seconds), loads, self._answered)
        return loads, seconds

    def _once(
        self, ask: Ask, round_: int, asked: IntArray, idle: Mask
    ) -> tuple[IntArray, FloatArray]:
        """Return loads and seconds of work that needs no model: embedding comes first."""
        work, task, clock = ask.work, self.task, self.clock
        by = None
        if has_own_pace(work):
            by = work.points_by(ask.wait.deadline, task, clock.fleet, clock.slowness)
        if by is not None:
            loads, compute = by
            self._embedded = np.maximum(self._embedded, loads)
            upload = self.draws.upload(round_, work.cost(task, loads))
        else:
            loads, missing = asked, (self.held - self._embedded) * work.embeds
            embed = self.draws.embedding(round_, costs.embedding(missing, task.feature_macs))
            message = Message.of(work, task, loads)
            compute, upload = self.draws.once(round_, work.plain.kind, message)
            compute = embed + compute
            self._embedded = np.maximum(self._embedded, self.held * work.embeds)
        if ask.setup:
            self.setup_compute = self.setup_compute + compute
            self.setup_upload = self.setup_upload + upload
        else:
            self.processed = work.cost(task, loads).macs / task.workload.point_macs
        return loads, compute + upload

    def _finish(self, client: int) -> Assignment:
        job = self._jobs.pop(client)
        self._idle_since[client] = job.finished
        return job
