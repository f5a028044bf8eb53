"""Clients with a time line of their own: they embed, send parity, answer, and embed on.

Where a set-up ends at a deadline, nobody starts from scratch in every round: a slow client is still
busy with an old question, an idle one goes on embedding. A crew keeps track of each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from codedfedl._types import IntArray, Mask
from codedfedl.arrays import Array
from codedfedl.learning.gradients import gradient
from codedfedl.learning.parity import encode
from codedfedl.schemes.base import AskBlockParity, AskEmbedded, Block, Inbox, Reply, Until
from codedfedl.simulate.clock import Clock, SetupTime
from codedfedl.simulate.evaluate import Batch
from codedfedl.streams import stream

__all__ = ["Crew"]

_GROWTH = 1.5


@dataclass(frozen=True)
class _Job:
    """A question that a client works on."""

    round: int
    points: int
    finished: float


class Crew:
    """All clients of one setting, from second 0 of the set-up on."""

    def __init__(self, clock: Clock, batches: Sequence[Batch]) -> None:
        self.clock, self.batches, self.held = clock, batches, clock.task.held
        clients = len(self.held)
        self.now = 0.0
        self.embedded = np.zeros(clients)
        self.answered = np.zeros(clients, dtype=np.int64)  # points of the last answer
        self.busy_for = np.full(clients, np.inf)  # from the last round's start to the answer
        self._least = np.ones(clients, dtype=np.int64)
        self._idle_since = np.zeros(clients)
        self._jobs: dict[int, _Job] = {}
        self._sent: dict[int, Array] = {}
        self._parity: dict[int, tuple[float, Block]] = {}  # under way: when it arrives
        self._slowness = stream(clock.seed, "setup", 3).standard_exponential(clients)

    def set_up(self, ask: AskBlockParity) -> tuple[Inbox, SetupTime]:
        """Embed, encode and send, each client as much as it can by the deadline."""
        self._least = np.minimum(ask.mixing, self.held)  # no answer is for fewer either
        fleet, setup = self.clock.model.fleet, self.clock.task.block_setup(ask.code, ask.mixing)
        per_point = setup.seconds_per_point(fleet, self._slowness)
        deadline = ask.wait.deadline if isinstance(ask.wait, Until) else np.inf
        points = setup.points_by(deadline, fleet, self.held, per_point)
        packets = setup.packets(points)
        losses = stream(self.clock.seed, "setup", 4).negative_binomial(
            np.maximum(packets, 1), 1 - fleet.erasure_up
        )
        upload = np.where(packets > 0, packets + losses, 0) * fleet.packet_time_up
        compute = points * per_point
        arrives = np.where(points > 0, compute + upload, np.inf)
        arrived, self.now = ask.wait.arrivals(arrives)
        self.embedded = points.astype(np.float64)
        self._idle_since = np.where(points > 0, arrives, 0.0)
        for j in np.flatnonzero(points):
            self._parity[int(j)] = (float(arrives[j]), self._encode(ask, int(j), int(points[j])))
        inbox = Inbox(arrived, float(points[arrived].sum()), blocks=self._delivered())
        return inbox, SetupTime(compute, upload, self.now)

    def play(self, ask: AskEmbedded, model: Array) -> tuple[Inbox, float]:
        """Play a round: who is idle gets the model; return all that arrives by the deadline."""
        self._sent[ask.round] = model
        self._embed_on()
        loads = self._loads()
        chance = self.clock.chance.of_round(ask.round)
        finished = self.now + self.clock.model.seconds(loads, chance)
        idle = (self._idle_since <= self.now) & (loads > 0) & np.isfinite(finished)
        self.answered = np.where(idle, loads, self.answered)
        for j in np.flatnonzero(idle):
            self._jobs[int(j)] = _Job(ask.round, int(loads[j]), float(finished[j]))
            self._idle_since[j] = np.inf
        self.busy_for = np.full(len(self.held), np.inf)
        for client, job in self._jobs.items():
            self.busy_for[client] = job.finished - self.now
        self.now += ask.wait.deadline
        replies = tuple(self._replies())
        arrived: Mask = np.zeros(len(self.held), dtype=bool)
        arrived[[reply.client for reply in replies if reply.round == ask.round]] = True
        points = float(sum(reply.points for reply in replies))
        inbox = Inbox(arrived, points, blocks=self._delivered(), replies=replies)
        return inbox, ask.wait.deadline

    def gradient(self, client: int, points: int, model: Array) -> Array:
        """Return what a client answers: over its first points, as heavy as all that it has."""
        total = sum(gradient(*part, model) for part in self._first(client, points))
        return total * (float(self.held[client]) / points)

    def _first(self, client: int, points: int) -> Iterator[tuple[Array, Array]]:
        """Yield the first points of a client in its own order, mini-batch after mini-batch."""
        for batch in self.batches:
            size = min(points, int(batch.offsets[client + 1] - batch.offsets[client]))
            if size > 0:
                yield batch.client(client, 0, size)
            points -= size

    def _encode(self, ask: AskBlockParity, client: int, points: int) -> Block:
        rows = points // ask.mixing
        parts = list(self._first(client, points))
        xp = array_namespace(parts[0][0])
        features, targets = (xp.concat(list(column), axis=0) for column in zip(*parts, strict=True))
        weights = np.full(points, np.sqrt(self.held[client] / points))
        rng = stream(self.clock.seed, "code", len(self.batches), client, rows, ask.code.nonzeros)
        return Block(encode(features, targets, weights, rows, rng, ask.code), points)

    def _delivered(self) -> dict[int, Block]:
        """Take the parity that is there by now."""
        there = [j for j, (when, _) in self._parity.items() if when <= self.now]
        return {j: self._parity.pop(j)[1] for j in there}

    def _embed_on(self) -> None:
        """Let every idle client embed until now."""
        fleet, task = self.clock.model.fleet, self.clock.task
        once = task.feature_macs / (task.workload.point_macs * fleet.rate)
        speed = 1 / np.maximum(once * (1 + self._slowness / fleet.alpha), 1e-300)
        idle = np.maximum(self.now - self._idle_since, 0.0)
        with np.errstate(over="ignore"):
            self.embedded = np.minimum(self.embedded + idle * speed, self.held)
        self._idle_since = np.maximum(self._idle_since, self.now)

    def _loads(self) -> IntArray:
        """Return for how many points each client would answer now.

        It takes new points in when they are half as many again, or all that it has: answers for
        the same points can be compared.
        """
        there = np.floor(self.embedded + 1e-9).astype(np.int64)
        grown = (there >= _GROWTH * self.answered) | (there == self.held)
        loads = np.where(grown, there, self.answered)
        return np.where(loads >= self._least, loads, 0)

    def _replies(self) -> Iterator[Reply]:
        done = [j for j, job in self._jobs.items() if job.finished <= self.now]
        for j in sorted(done):
            job = self._jobs.pop(j)
            self._idle_since[j] = job.finished
            answer = self.gradient(j, job.points, self._sent[job.round])
            yield Reply(j, job.round, job.points, answer)
