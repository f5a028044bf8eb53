"""`fedau`: local steps, and weights from how often each client has taken part.

Wang and Ji, ICLR 2024 (arXiv 2306.03401): what a client has moved counts as many times as the mean
number of rounds between two of its answers, so that who seldom answers is not forgotten. Intervals
are cut off after some rounds: that bounds the weights, and is a bias against slower clients.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from codedfedl.arrays import FloatArray, Mask
from codedfedl.core.protocol import EACH, AnyLimits, Ask, Inbox, Info, Rng, Task
from codedfedl.fleet.delays import DelayModel
from codedfedl.schemes.fedavg import AveragedState, FedAvg
from codedfedl.schemes.settings import check_at_least_1


@dataclass(frozen=True, eq=False)
class Intervals:
    """Rounds between the answers of each client: arrays of shape (n,).

    Attributes
    ----------
    mean, count
        Of those that have ended.
    since
        Rounds since the last one ended.
    """

    mean: FloatArray
    count: FloatArray
    since: FloatArray

    def after(self, arrived: Mask, longest: int) -> "Intervals":
        """Return them after a round."""
        since = self.since + 1
        ended = arrived | (since >= longest)
        mean = np.where(ended, (self.count * self.mean + since) / (self.count + 1), self.mean)
        return Intervals(mean, self.count + ended, np.where(ended, 0.0, since))


@dataclass(frozen=True, eq=False, kw_only=True)
class WeightedState(AveragedState):
    """Averaging, with what is known of the clients' intervals."""

    intervals: Intervals = field(default=None)  # type: ignore[assignment]

    @property
    def checkpointed(self) -> bool:
        """False: the intervals are a memory."""
        return False


@dataclass(frozen=True)
class FedAU(FedAvg):
    """Federated averaging with weights by the mean interval of participation.

    Parameters
    ----------
    longest
        K: an interval ends after so many rounds at the latest; 50 in its paper.
    local_steps, deadline, step, points, drop, proximal, optimiser
        As of `FedAvg`; without a deadline and with drop = 0, everybody takes part in every round.
    """

    longest: int = 50

    info: ClassVar[Info] = replace(FedAvg.info, name="fedau")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_1(self, "longest")

    def start(
        self, task: Task, fleet: DelayModel, model: Any, limits: AnyLimits = None, rng: Rng = None
    ) -> WeightedState:
        """Begin with weights of 1."""
        first = super().start(task, fleet, model, limits)
        ones, none = np.ones(task.clients), np.zeros(task.clients)
        return WeightedState(
            task,
            model,
            optimiser=first.optimiser,
            deadline=first.deadline,
            intervals=Intervals(ones, none, none),
        )

    def ask(self, state: WeightedState) -> Ask | None:
        """Ask for local steps; each answer has its own weight."""
        ask = super().ask(state)
        return None if ask is None else replace(ask, combine=EACH)

    def receive(self, state: WeightedState, inbox: Inbox) -> Any:
        """Move by the weighted sum of what the models that arrived have moved."""
        known, total = state.intervals.after(inbox.arrived, self.longest), 0.0
        points = float(state.task.points[state.task.batch(state.round)].sum())
        for reply in inbox.replies:
            moved = reply.arrays["model"] - reply.points * state.model
            total = total + float(known.mean[reply.client]) / points * moved
        return replace(state, intervals=known).towards(state.model + total)
