"""Who arrived, and when: the fleet's chances in every round, and what the set-up takes.

Two clocks run side by side. The paper's counts training rounds alone; the honest one also charges
what the clients do before the first round, on the same stochastic model.
"""

from dataclasses import dataclass

import numpy as np

from codedfedl._types import FloatArray, IntArray
from codedfedl.fleet import costs
from codedfedl.fleet.delays import Chance, FleetDelays
from codedfedl.fleet.devices import Fleet
from codedfedl.schemes.base import AskGram, AskParity, Task
from codedfedl.streams import stream

__all__ = ["Clock", "SetupTime"]


@dataclass(frozen=True)
class SetupTime:
    """Seconds that each client spends once, shape (n,): processor and link.

    `ends` says when the server goes on, if not when the last client is done.
    """

    compute: FloatArray
    upload: FloatArray
    ends: float | None = None

    @property
    def seconds(self) -> float:
        """When the set-up ends."""
        return float((self.compute + self.upload).max()) if self.ends is None else self.ends


class Clock:
    """All chances of one seed, drawn before the first round: every scheme meets the same luck."""

    def __init__(self, fleet: Fleet, task: Task, seed: int) -> None:
        self.model, self.task, self.seed = FleetDelays(fleet), task, seed
        self.chance: Chance = self.model.draw(task.rounds, stream(seed, "delays"))
        self._seconds: dict[bytes, FloatArray] = {}

    def seconds(self, round_: int, loads: IntArray) -> FloatArray:
        """Say when each reply of a round is there; ∞ for a client that is not asked.

        Parameters
        ----------
        loads
            Points that each client processes, all local steps counted.
        """
        key = loads.tobytes()
        if key not in self._seconds:  # all rounds at once: a scheme's loads seldom change
            seconds = self.model.seconds(loads, self.chance)
            self._seconds[key] = np.where(loads > 0, seconds, np.inf)
        return np.asarray(self._seconds[key][round_])

    def embedding(self) -> SetupTime:
        """Draw what the features take: every scheme needs them."""
        return self._draw(0, costs.embedding(self.task.points.sum(0), self.task.feature_macs))

    def answer(self, ask: AskParity | AskGram) -> SetupTime:
        """Draw what parity or Gram matrices take, after the features."""
        if isinstance(ask, AskParity):
            each = [ask.code.operations(rows) for rows in ask.rows]
            cost = costs.parity(self.task.points, ask.rows, self.task.workload, each)
            return self._draw(1, cost)
        return self._draw(2, costs.gram(self.task.points.sum(0), self.task.workload))

    def _draw(self, step: int, cost: costs.Cost) -> SetupTime:
        rng = stream(self.seed, "setup", step)
        return SetupTime(*cost.sample_seconds(self.model.fleet, self.task.workload, rng))
