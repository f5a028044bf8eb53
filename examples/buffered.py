"""A scheme of one's own: asynchronous, with its own memory, its own wait and its own work.

The server takes a step after every few answers, whoever sends them. Nobody is waited for: an answer
may be to an old model, and then counts less. It is the idea of FedBuff, on mean gradients that each
client clips itself.

Run it: `codedfedl simulate examples/buffered.toml`. Nothing in the package knows this file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from codedfedl import Answer, Array, Ask, Client, Cost, Inbox, Info, Scheme, State, Task, Work
from codedfedl.core.protocol import EACH, AnyLimits, Rng
from codedfedl.fleet import costs
from codedfedl.fleet.delays import DelayModel
from codedfedl.learning.least_squares import gradient


@dataclass(frozen=True)
class ClippedGradient(Work):
    """A kind of work: the mean gradient over a client's points, no longer than `clip`."""

    clip: float

    kind: ClassVar[str] = "clipped-gradient"

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return what the client sends."""
        mean = sum(gradient(*part, model) for part in client.first(load)) / load
        length = float((mean**2).sum()) ** 0.5
        return Answer(load, {"gradient": mean * min(1.0, self.clip / max(length, 1e-30))})

    def cost(self, task: Task, loads: np.ndarray) -> Cost:
        """Return what it costs: a gradient over the load, and one packet."""
        return costs.packet(task.workload, loads)

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]]:
        """Return what a server may expect."""
        return {"gradient": (task.workload.features, task.workload.labels)}


@dataclass(frozen=True)
class Soon:
    """A wait: until `count` answers are there, to this ask or to earlier ones, or `deadline`."""

    count: int
    deadline: float

    def enough(self, fresh: int, late: int, expected: int) -> bool:
        """Return whether the server may continue."""
        return fresh + late >= self.count


@dataclass(frozen=True, eq=False)
class BufferedState(State):
    """A memory: the direction of the last steps, and how stale answers were."""

    velocity: Array = 0.0
    staleness: float = 0.0


@dataclass(frozen=True)
class Buffered(Scheme):
    """A step after every `count` answers, the stale ones scaled by 1/√(1 + age).

    Parameters
    ----------
    count
        Answers that a step waits for.
    step
        Size of a step along the mean of the answers.
    momentum
        How much of the last direction is kept.
    clip
        The longest gradient that a client sends.
    patience : seconds
        The longest that a step waits.
    """

    count: int = 3
    step: float = 1.0
    momentum: float = 0.5
    clip: float = 10.0
    patience: float = 1e6

    info: ClassVar[Info] = Info("buffered")

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> BufferedState:
        """Return the state before the first ask."""
        return BufferedState(task, model)

    def ask(self, state: BufferedState) -> Ask | None:
        """Ask everybody who is idle; who is busy answers the model that it has."""
        if state.finished:
            return None
        wait = Soon(self.count, self.patience)
        return Ask(ClippedGradient(self.clip), wait, combine=EACH, keep_late=True)

    def receive(self, state: BufferedState, inbox: Inbox) -> BufferedState:
        """Step along the mean of the answers that came."""
        if not inbox.replies:
            return replace(state, round=state.round + 1)
        ages = np.array([state.round - reply.round for reply in inbox.replies])
        weights = 1 / np.sqrt(1 + ages)
        answers = [reply.arrays["gradient"] for reply in inbox.replies]
        mean = sum(float(w) * g for w, g in zip(weights, answers, strict=True)) / len(answers)
        velocity = self.momentum * state.velocity + mean
        model = (1 - self.step * state.task.ridge) * state.model - self.step * velocity
        return replace(
            state,
            model=model,
            velocity=velocity,
            staleness=state.staleness + float(ages.sum()),
            round=state.round + 1,
        )
