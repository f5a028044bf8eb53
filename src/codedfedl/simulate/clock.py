"""The luck of one seed: how long every client takes, in every round and for what comes once.

Two clocks run side by side. The paper's counts training rounds alone; the honest one also charges
what the clients do before the first round, on the same stochastic model.
"""

import numpy as np

from codedfedl._types import FloatArray
from codedfedl.core.protocol import Task
from codedfedl.fleet.costs import Cost
from codedfedl.fleet.delays import FleetDelays
from codedfedl.fleet.devices import Fleet
from codedfedl.streams import stream

__all__ = ["Clock"]

_EMBED, _SLOWNESS, _LOSSES, _OTHER, _MORE_PACKETS = 0, 3, 4, 5, 6
_ONCE = {"parity": 1, "gram": 2}  # each kind of work has its own luck


class Clock:
    """All chances of one seed, drawn before the first round: every scheme meets the same luck."""

    def __init__(self, fleet: Fleet, task: Task, seed: int) -> None:
        self.model, self.task, self.seed = FleetDelays(fleet), task, seed
        self.fleet = fleet
        self.chance = self.model.draw(task.rounds, stream(seed, "delays"))
        self.slowness = stream(seed, "setup", _SLOWNESS).standard_exponential(task.clients)
        """Of each client's processor while it embeds at its own pace."""

    def round_seconds(self, round_: int, cost: Cost) -> FloatArray:
        """Say when each answer of a round is there; ∞ for a client that is absent."""
        workload = self.task.workload
        seconds = self.model.seconds(cost.macs / workload.point_macs, self.chance.of_round(round_))
        more = cost.packets(workload) - 1  # the first is part of every round
        if (more > 0).any():
            seconds += self._upload(more, stream(self.seed, "setup", _MORE_PACKETS, round_))
        return np.asarray(seconds)

    def embedding(self, cost: Cost) -> FloatArray:
        """Draw what embedding takes the processors."""
        return self._draw(_EMBED, cost)[0]

    def once(self, kind: str, cost: Cost) -> tuple[FloatArray, FloatArray]:
        """Draw what work without a model takes: processor, and link."""
        return self._draw(_ONCE.get(kind, _OTHER), cost)

    def upload(self, cost: Cost) -> FloatArray:
        """Draw what the upload of block parity takes."""
        return self._upload(cost.packets(self.task.workload), stream(self.seed, "setup", _LOSSES))

    def embedding_speed(self) -> FloatArray:
        """Return how many points each client embeds in a second."""
        once = self.task.feature_macs / (self.task.workload.point_macs * self.fleet.rate)
        return 1 / np.maximum(once * (1 + self.slowness / self.fleet.alpha), 1e-300)

    def _upload(self, packets: np.ndarray, rng: np.random.Generator) -> FloatArray:
        losses = rng.negative_binomial(np.maximum(packets, 1), 1 - self.fleet.erasure_up)
        sent = np.where(packets > 0, packets + losses, 0)
        return np.asarray(sent * self.fleet.packet_time_up, dtype=np.float64)

    def _draw(self, step: int, cost: Cost) -> tuple[FloatArray, FloatArray]:
        rng = stream(self.seed, "setup", step)
        return cost.sample_seconds(self.model, self.task.workload, rng)
