"""`anytime`: every client computes for some seconds, and the server waits for all links.

Anytime Minibatch (Ferdinand et al., ICLR 2019). Whoever has finished no point in time is not waited
for, and computes on; its answer comes late and is not counted, as published.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from codedfedl.arrays import Array
from codedfedl.core.client import WindowGradient
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import AnyLimits, Ask, Inbox, Info, Rng, Scheme, Task
from codedfedl.core.task import Descent
from codedfedl.core.waiting import Everyone
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel
from codedfedl.learning.optimisers import optimiser
from codedfedl.schemes.settings import check_positive

__all__ = ["Anytime"]


@dataclass(frozen=True)
class Anytime(Scheme):
    """Windows, and no deadline.

    Parameters
    ----------
    window : seconds
        How long a client computes, from when it has the model.
    weights
        ``points``, as published: every point counts alike, so that the model is biased towards the
        data of fast clients. ``client``: every client's mean counts like all its points.
    optimiser
        ``adam``, ``sgd`` or another one that needs no quadratic.
    least
        A client with fewer points finished computes on.
    """

    window: float = 10.0
    weights: str = "points"
    optimiser: str = "adam"
    least: int = 1

    info: ClassVar[Info] = Info("anytime", frozenset({Disclosure.GRADIENTS}))

    def __post_init__(self) -> None:
        check_positive(self, "window", "least")
        if self.weights not in ("points", "client"):
            raise InputError(f"anytime.weights is {self.weights!r}: must be 'points' or 'client'")
        optimiser(self.info.name, self.optimiser, same_points=False)

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> Descent:
        """Begin with the optimiser."""
        chosen = optimiser(self.info.name, self.optimiser, same_points=False)
        return Descent(task, model, optimiser=chosen)

    def ask(self, state: Descent) -> Ask | None:
        """Ask for as many points as fit into the window."""
        if state.finished:
            return None
        task, batch = state.task, state.task.batch(state.round)
        by_client, labels = self.weights == "client", task.workload.labels
        work = WindowGradient(
            batch,
            state.round,
            task.points[batch] if by_client else np.zeros(task.clients),
            None if by_client else np.ones(labels),
            seconds=self.window,
            least=self.least,
        )
        return Ask(work, Everyone(), keep_late=not self.secure, model=state.question)

    def receive(self, state: Descent, inbox: Inbox) -> Descent:
        """Take a step along the mean of what was answered in time."""
        points = inbox.points
        if self.weights == "client":
            batch = state.task.batch(state.round)
            points = float(state.task.points[batch][inbox.arrived].sum())
        return state.descended(inbox.total(), points)
