"""The random delays of one seed: how long every client takes, in every round and in the set-up.

Two clocks run side by side. The paper's counts training rounds alone; the other also charges what
the clients do before the first round, on the same stochastic model.
"""

from functools import cached_property

import numpy as np

from codedfedl._types import FloatArray
from codedfedl.core.protocol import Task
from codedfedl.errors import InputError
from codedfedl.fleet.costs import Cost
from codedfedl.fleet.delays import DelayModel, FleetDelays
from codedfedl.fleet.devices import Fleet
from codedfedl.fleet.server import ServerWork
from codedfedl.streams import stream

__all__ = ["NEEDS_A_FLEET", "Clock"]

NEEDS_A_FLEET = (
    "clients that embed until a deadline need a fleet: measured delays do not say how fast they "
    "embed, mix and send; give a fleet file, such as `codedfedl fit --out` writes, or use coded"
)
_EMBED, _SLOWNESS, _LOSSES, _OTHER, _MORE_PACKETS = 0, 3, 4, 5, 6
_ONCE = {"parity": 1, "gram": 2}  # each kind of work has its own stream


class Clock:
    """All random draws of one seed, made before the first round: the same for every scheme.

    Parameters
    ----------
    delays
        A `Fleet`, or any other delay model.
    """

    def __init__(self, delays: Fleet | DelayModel, task: Task, seed: int) -> None:
        self.task, self.seed = task, seed
        self.model: DelayModel = FleetDelays(delays) if isinstance(delays, Fleet) else delays
        self.chance = self.model.draw(task.rounds, stream(seed, "delays"))

    @cached_property
    def fleet(self) -> Fleet:
        """The fleet, where the delays are the formula's."""
        if not isinstance(self.model, FleetDelays):
            raise InputError(NEEDS_A_FLEET)
        known = self.model.fleet
        return known if isinstance(known, Fleet) else Fleet.of(known, self.task.points[0])

    @cached_property
    def slowness(self) -> FloatArray:
        """Of each client's processor while it embeds at its own pace."""
        return stream(self.seed, "setup", _SLOWNESS).standard_exponential(self.task.clients)

    def round_seconds(self, round_: int, cost: Cost) -> FloatArray:
        """Return when each answer of a round arrives; ∞ for a client that is absent."""
        seconds = self.seconds_of_rounds(round_, cost)
        more = cost.packets(self.task.workload) - 1  # the first is part of every round
        if (more > 0).any():
            luck = stream(self.seed, "setup", _MORE_PACKETS, round_)
            seconds = seconds + self.model.upload(np.maximum(more, 0), luck)
        return np.asarray(seconds)

    def seconds_of_rounds(self, rounds: int | slice, cost: Cost) -> FloatArray:
        """Return when each answer arrives, of one packet, in one round or in several."""
        points = cost.macs / self.task.workload.point_macs
        return np.asarray(self.model.seconds(points, self.chance.of_round(rounds)))

    def server_seconds(self, round_: int, work: ServerWork) -> float:
        """Say when the server has finished its own work of a round."""
        return work.seconds(stream(self.seed, "server", round_ + 1).standard_exponential())

    def embedding(self, cost: Cost) -> FloatArray:
        """Draw the processors' seconds of embedding."""
        return self._draw(_EMBED, cost)[0]

    def once(self, kind: str, cost: Cost) -> tuple[FloatArray, FloatArray]:
        """Draw the processor's and the link's seconds of work without a model."""
        return self._draw(_ONCE.get(kind, _OTHER), cost)

    def upload(self, cost: Cost) -> FloatArray:
        """Draw the seconds of uploading block parity."""
        packets = cost.packets(self.task.workload)
        return self.model.upload(packets, stream(self.seed, "setup", _LOSSES))

    def embedding_speed(self) -> FloatArray:
        """Return how many points each client embeds in a second, at its own pace."""
        return self._embedding_speed

    @cached_property
    def _embedding_speed(self) -> FloatArray:
        task = self.task  # with the formula, the luck is that of `slowness`
        a_point = Cost(np.full(task.clients, float(task.feature_macs)), np.zeros(task.clients))
        return 1 / np.maximum(self._draw(_SLOWNESS, a_point)[0], 1e-300)

    def _draw(self, step: int, cost: Cost) -> tuple[FloatArray, FloatArray]:
        rng = stream(self.seed, "setup", step)
        return cost.sample_seconds(self.model, self.task.workload, rng)
