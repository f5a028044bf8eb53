"""The random delays of one seed: how long every client takes, in every round and in the set-up.

Two clocks run side by side. The paper's counts training rounds alone; the other also charges what
the clients do before the first round, on the same stochastic model.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.core.protocol import Task
from codedfedl.core.record import SETUP
from codedfedl.core.work import Work
from codedfedl.errors import InputError
from codedfedl.fleet.costs import Cost
from codedfedl.fleet.delays import DelayModel, DelayParameters
from codedfedl.fleet.devices import Fleet
from codedfedl.random import stream

__all__ = ["NEEDS_A_FLEET", "Clock", "Draws", "Message"]

NEEDS_A_FLEET = (
    "clients that embed until a deadline need a fleet: measured delays do not say how fast they "
    "embed, mix and send; give a fleet file, such as `codedfedl fit --out` writes, or use coded"
)
_EMBED, _SLOWNESS, _LOSSES, _OTHER, _MORE_PACKETS, _WITH_MODEL = 0, 3, 4, 5, 6, 7
_ONCE = {"parity": 1, "gram": 2}  # each kind of work has its own stream


class Clock:
    """The random draws of all rounds of one seed, made before the first: the same for every scheme.

    Parameters
    ----------
    delays
        A `Fleet`, or any other delay model.
    """

    def __init__(self, delays: DelayModel, task: Task, seed: int) -> None:
        self.task, self.seed = task, seed
        self.model = delays
        self.chance = self.model.draw(task.rounds, stream(seed, "delays"))

    @cached_property
    def fleet(self) -> Fleet:
        """The fleet, where the delays are the formula's."""
        if not isinstance(self.model, DelayParameters):
            raise InputError(NEEDS_A_FLEET)
        model = self.model
        return model if isinstance(model, Fleet) else Fleet.of(model, self.task.points[0])

    @cached_property
    def slowness(self) -> FloatArray:
        """Of each client's processor while it embeds at its own pace."""
        return stream(self.seed, "setup", _SLOWNESS).standard_exponential(self.task.clients)

    def seconds_of_round(self, round_: int, cost: Cost) -> FloatArray:
        """Return when each answer arrives, of one packet, in a round."""
        points = cost.macs / self.task.workload.point_macs
        return np.asarray(self.model.seconds(points, self.chance[round_]))

    def embedding_speed(self) -> FloatArray:
        """Return how many points each client embeds in a second, at its own pace."""
        return self._embedding_speed

    @cached_property
    def _embedding_speed(self) -> FloatArray:
        task = self.task  # with the formula, the luck is that of `slowness`
        a_point = Cost(np.full(task.clients, float(task.feature_macs)), np.zeros(task.clients))
        luck = stream(self.seed, "setup", _SLOWNESS)
        seconds, _ = a_point.sample_seconds(self.model, task.workload, luck)
        return 1 / np.maximum(seconds, 1e-300)


@dataclass(frozen=True, eq=False)
class Message:
    """What work costs, and what it would cost without protection: both see the same luck."""

    cost: Cost
    plain: Cost

    @classmethod
    def of(cls, work: Work, task: Task, loads: IntArray) -> "Message":
        """Return the costs of work on some loads."""
        return cls(work.cost(task, loads), work.plain.cost(task, loads))


class Draws:
    """The delays of one setting that are drawn when it asks: no two of its exchanges share them.

    The first exchange that needs a stream of the set-up has it as it is, and later ones have
    numbered ones. Those of rounds after the first go by the round, so that a run that is resumed
    draws the same.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock, self.task = clock, clock.task
        self._counts: Counter[int] = Counter()

    def in_round(self, round_: int, message: Message) -> FloatArray:
        """Return when each answer of a round arrives; ∞ for a client that is absent."""
        seconds = self.clock.seconds_of_round(round_, message.cost)
        luck = stream(self.clock.seed, "setup", _MORE_PACKETS, round_)
        return seconds + self._more_packets(message, 1, luck)

    def in_setup(self, message: Message) -> FloatArray:
        """Return when each answer on a model arrives before the first round."""
        luck, model = self._stream(_WITH_MODEL, SETUP), self.clock.model
        points = message.cost.macs / self.task.workload.point_macs
        seconds = model.seconds(points, model.draw(1, luck)[0])
        return np.asarray(seconds + self._more_packets(message, 1, luck))

    def embedding(self, round_: int, cost: Cost) -> FloatArray:
        """Draw the processors' seconds of embedding."""
        luck = self._stream(_EMBED, round_)
        return cost.sample_seconds(self.clock.model, self.task.workload, luck)[0]

    def once(self, round_: int, kind: str, message: Message) -> tuple[FloatArray, FloatArray]:
        """Draw the processor's and the link's seconds of work without a model."""
        luck, workload = self._stream(_ONCE.get(kind, _OTHER), round_), self.task.workload
        compute, upload = message.plain.sample_seconds(self.clock.model, workload, luck)
        sent = message.plain.packets(workload)
        return compute, upload + self._more_packets(message, sent, luck)

    def upload(self, round_: int, cost: Cost) -> FloatArray:
        """Draw the seconds of uploading block parity."""
        packets = cost.packets(self.task.workload)
        return self.clock.model.upload(packets, self._stream(_LOSSES, round_))

    def _more_packets(
        self, message: Message, sent: int | IntArray, luck: np.random.Generator
    ) -> FloatArray:
        """Draw the seconds of packets beyond those sent; those of protection come last."""
        workload, seconds = self.task.workload, np.zeros(self.task.clients)
        plain, whole = message.plain.packets(workload), message.cost.packets(workload)
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
