"""`fedcompass`: local steps by speed, so that clients arrive in groups.

FedCompass (Li et al., ICLR 2024, arXiv 2309.14675). An interval is what the fastest client needs
for the most steps. Everybody else takes as many steps as fit into it, or, where the fewest do not,
into as few intervals as hold these. What a late client has moved counts in a later interval, less
with every interval that passed. The paper measures speeds as it goes; here the plan knows them, and
all groups share one clock.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from codedfedl.arrays import Array, FloatArray, IntArray
from codedfedl.core.protocol import EACH, AnyLimits, Ask, Inbox, Info, Rng, Task
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel
from codedfedl.schemes.fedavg import FedAvg
from codedfedl.schemes.fednova import FedNova, NovaState
from codedfedl.schemes.settings import check_positive


@dataclass(frozen=True)
class FedCompass(FedNova):
    """Semi-asynchronous averaging with steps by speed.

    Parameters
    ----------
    local_steps, most_steps
        The fewest and the most steps of any client (Q_min and Q_max).
    patience
        The server waits for so many intervals (λ), unless a deadline is given.
    staleness
        What is τ rounds late counts (1 + τ) to the power of minus this.
    deadline, step, points, proximal, optimiser
        As of `FedAvg`; drop is 0.
    """

    local_steps: int = 2
    patience: float = 1.2
    staleness: float = 0.5

    info: ClassVar[Info] = replace(FedAvg.info, name="fedcompass")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "patience")
        if self.drop:
            raise InputError(
                f"fedcompass.drop is {self.drop:g}: leave it out, since nobody is waited for"
            )
        if not self.staleness >= 0:
            raise InputError(f"fedcompass.staleness is {self.staleness:g}: must be 0 or more")

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> NovaState:
        """Choose steps and the deadline."""
        state = super().start(task, fleet, model, limits)
        _, _, interval = self._seconds(fleet, task.points[0])
        return replace(state, deadline=state.deadline or self.patience * interval)

    def _seconds(self, fleet: DelayModel, points: IntArray) -> tuple[FloatArray, FloatArray, float]:
        """Return the mean times of every client's link and of a step, and the interval."""
        each = points if self.points is None else np.minimum(points, self.points)
        link, whole = fleet.mean(np.zeros(len(points))), fleet.mean(each)
        a_step = np.maximum(whole - link, 1e-300)
        asked = (points > 0) & np.isfinite(whole)  # whoever never answers sets no interval
        return link, a_step, float((link + self.most_steps * a_step)[asked].min(initial=np.inf))

    def _steps(self, fleet: DelayModel, points: IntArray) -> IntArray:
        """Return as many steps as fit into the fewest intervals that hold the fewest steps."""
        link, a_step, interval = self._seconds(fleet, points)
        turns = np.ceil((link + self.local_steps * a_step) / interval)
        fitting = np.nan_to_num((turns * interval - link) / a_step * (1 + 1e-9))
        return np.asarray(np.clip(fitting, self.local_steps, self.most_steps), dtype=np.int64)

    def ask(self, state: NovaState) -> Ask | None:
        """Ask the idle clients; late ones continue."""
        ask = super().ask(state)
        return None if ask is None else replace(ask, combine=EACH, keep_late=True)

    def receive(self, state: NovaState, inbox: Inbox) -> NovaState:
        """Move by what each client has moved, by its share of the points and its age."""
        batch, total = state.task.batch(state.round), 0.0
        held = state.task.points[batch] / state.task.points[batch].sum()
        for reply in inbox.replies:
            fresh = (1.0 + state.round - reply.round) ** -self.staleness
            steps = float(state.steps[state.task.batch(reply.round)][reply.client])
            weight = float(held[reply.client]) * fresh * steps / reply.points
            total = total + weight * reply.arrays["direction"]
        moved: NovaState = state.towards(state.model - total)
        return moved
