"""`paced`: windows, a deadline for the links, and weights that make the sum right on average.

Every client computes for a window, whatever it can, and answers; the server waits until a deadline.
An answer counts as the points of its classes (or of its client) are expected to arrive, so that
slow clients are neither waited for nor forgotten. A client that is still busy continues, and
answers late, for the model that it began with; that answer counts if it is not too old.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.core.client import Counts, WindowGradient
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import EACH, AnyLimits, Ask, Description, Inbox, Info, Rng, Scheme
from codedfedl.core.task import Descent, Task
from codedfedl.core.waiting import Everyone, Until
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel
from codedfedl.learning.optimisers import optimiser
from codedfedl.planning.windows import ADAPTIVE_POWER, NoiseScale, WindowPlan, plan_windows
from codedfedl.schemes.by_class import said_counts
from codedfedl.schemes.settings import check_positive

__all__ = ["Paced"]

WEIGHTS = ("class", "client")
PLAIN = ("gd", "sgd", "momentum", "nesterov")
"""Optimisers whose steps are as long as the gradient is."""
FIRST_REPLAN, REPLAN_GROWTH = 10, 1.25
"""Rounds before the plan follows the measured noise; then after this many times as many."""


@dataclass(frozen=True, eq=False)
class PacedState(Descent):
    """The plan of the rounds.

    Attributes
    ----------
    counts : array of shape (n, strata)
        Points of each client in each class, or a diagonal; None before clients have said it.
    blocks, deadline
        From the operator's limits.
    planned
        Rounds in which noise had been measured when the plan was made.
    """

    fleet: DelayModel = None  # type: ignore[assignment]
    counts: FloatArray | None = None
    plan: WindowPlan | None = None
    blocks: IntArray | int = 1
    deadline: float | None = None
    noise: NoiseScale = field(default_factory=NoiseScale)
    planned: int = 0

    @property
    def checkpointed(self) -> bool:
        """False: the optimiser and the plan have a memory."""
        return False


@dataclass(frozen=True)
class Paced(Scheme):
    """Gradients over what clients finish in a window, with inverse probabilities.

    Parameters
    ----------
    window, deadline : seconds, optional
        For how long a client computes, and how long a round lasts; by default planned.
    weights
        ``class``: a point of class c counts N_c / E[points of c that arrive], which is right where
        clients are alike within a class, and needs their label counts. ``client``: a client's mean
        counts like all its points, divided by how often it answers, which is always right.
    shrink
        Share of the weights by client among those by class.
    cap
        No point, and no client, counts more than this many times the average: a bias if it binds.
    least
        A client with fewer points finished computes on.
    oldest
        Answers that come so many rounds late still count.
    optimiser
        ``adam``, ``sgd`` or another one that needs no quadratic.
    noise
        How many points' noise is as large as the gradient, at first: what the plan begins with.
    replan
        Whether the plan follows the noise that is measured in rounds.
    """

    window: float | None = None
    deadline: float | None = None
    weights: str = "class"
    shrink: float = 0.0
    cap: float = 30.0
    least: int = 1
    oldest: int = 10
    optimiser: str = "adam"
    noise: float = 100.0
    replan: bool = True

    info: ClassVar[Info] = Info(
        "paced", frozenset({Disclosure.GRADIENTS, Disclosure.COUNTS}), any_delays=True
    )

    def __post_init__(self) -> None:
        name = self.info.name
        check_positive(self, "window", "deadline", "cap", "least", "noise")
        if self.weights not in WEIGHTS:
            raise InputError(f"{name}.weights is {self.weights!r}: must be 'class' or 'client'")
        if not 0 <= self.shrink <= 1:
            raise InputError(f"{name}.shrink is {self.shrink:g}: must be from 0 to 1")
        if self.cap < 1:
            raise InputError(f"{name}.cap is {self.cap:g}: must be at least 1")
        if self.window is not None and self.deadline is not None and self.deadline <= self.window:
            raise InputError(
                f"{name}.deadline is {self.deadline:g} s and the window {self.window:g} s: answers "
                "come after the window, so a deadline must be longer"
            )
        if self.secure and self.weights == "class":
            raise InputError(
                f"{name}.weights is 'class', which needs label counts that secure sums hide: "
                "choose 'client'"
            )
        optimiser(name, self.optimiser, same_points=False)

    @property
    def disclosure(self) -> Any:
        """Label counts leave a client for weights by class alone."""
        kinds = super().disclosure
        return kinds if self.weights == "class" else kinds - {Disclosure.COUNTS}

    def start(
        self, task: Task, fleet: DelayModel, model: Any, limits: AnyLimits = None, rng: Rng = None
    ) -> PacedState:
        """Plan, where label counts are not needed first."""
        chosen = optimiser(self.info.name, self.optimiser, same_points=False)
        state = PacedState(task, model, optimiser=chosen, fleet=fleet, deadline=self.deadline)
        if limits is not None:
            if self.weights == "class" and task.learner.quadratic:
                raise InputError(
                    "paced.weights is 'class', and nodes give no sums of a linear model in which "
                    "classes count differently, which would show fewer points: choose 'client'"
                )
            blocks, deadline = limits.blocks, self.deadline or limits.deadline
            state = replace(state, blocks=1 if blocks is None else blocks, deadline=deadline)
        if self.weights == "class":
            return state
        return self._planned(replace(state, counts=np.diag(task.held.astype(float))))

    def ask(self, state: PacedState) -> Ask | None:
        """Ask for label counts, then for what fits into the window."""
        if state.plan is None:
            return Ask(Counts(), Everyone(), combine=EACH, setup=True)
        if state.finished:
            return None
        batch, plan = state.task.batch(state.round), state.plan
        by_client, by_class = self._weights(state, batch)
        work = WindowGradient(
            batch, state.round, by_client, by_class, seconds=plan.window, least=self.least
        )
        keeps = not self.secure
        return Ask(work, Until(plan.deadline), keep_late=keeps, model=state.question)

    def receive(self, state: PacedState, inbox: Inbox) -> PacedState:
        """Take a step along the weighted sum, with late answers that are not too old."""
        if state.plan is None:
            return self._planned(replace(state, counts=_counts(state.task, inbox)))
        late = [
            reply.arrays["gradient"]
            for reply in inbox.replies
            if state.round - reply.round <= self.oldest
        ]
        if not inbox.arrived.any() and not late:
            return state.descended(0.0, 0)
        total = sum(late, start=inbox.total())
        points = float(state.task.points[state.task.batch(state.round)].sum())
        noise = state.noise.updated(total / points, state.plan.variance)
        state = replace(state.descended(total, points), noise=noise)
        due = noise.rounds >= max(FIRST_REPLAN, REPLAN_GROWTH * state.planned)
        return self._planned(state) if self.replan and due else state

    def describe(self, state: PacedState) -> Description:
        """Return window, deadline, effective batch and noise."""
        plan, is_given = state.plan, state.deadline is not None
        if plan is None:  # yet
            return Description(planned_deadline=None if is_given else np.inf)
        facts = {
            "round_deadline_s": plan.deadline,
            "window_s": plan.window,
            "effective_points": 1 / plan.variance,
            "noise_scale": plan.noise_scale,
        }
        return Description(facts=facts, planned_deadline=None if is_given else plan.deadline)

    def _planned(self, state: PacedState) -> PacedState:
        assert state.counts is not None
        before = self.noise if state.plan is None else state.plan.noise_scale
        plan = plan_windows(
            state.fleet,
            state.task.points[0],
            state.counts / state.task.batches,
            noise_scale=state.noise.value(before),
            power=1.0 if self.optimiser in PLAIN else ADAPTIVE_POWER,
            least=self.least,
            blocks=state.blocks,
            oldest=self.oldest,
            cap=self.cap,
            keeps=not self.secure,
            window=self.window,
            deadline=state.deadline,
        )
        return replace(state, plan=plan, planned=state.noise.rounds)

    def _weights(self, state: PacedState, batch: int) -> tuple[FloatArray, FloatArray | None]:
        """Return a_j and v_c: what a client's mean counts, and a point of a class."""
        assert state.plan is not None
        assert state.counts is not None
        held = state.task.points[batch].astype(float)
        answers, points = state.plan.rehearsal.answers, state.plan.rehearsal.points
        average = held.sum() / points.sum()
        most = self.cap * average * points / np.maximum(answers, 1e-300)
        by_client = np.minimum(held / np.maximum(answers, 1e-300), np.maximum(most, held))
        if self.weights == "client":
            return np.where(answers > 0, by_client, 0.0), None
        totals = state.counts.sum(0) / state.task.batches
        share = state.counts / np.maximum(state.counts.sum(1, keepdims=True), 1.0)
        arriving = share.T @ points
        by_class = np.minimum(totals / np.maximum(arriving, 1e-300), self.cap * average)
        return self.shrink * by_client, (1 - self.shrink) * by_class


def _counts(task: Task, inbox: Inbox) -> FloatArray:
    """Return the label counts; a client that did not say them has everybody's shares."""
    known = said_counts(inbox.replies, task)
    if not known:
        raise InputError("no client told its label counts: choose paced.weights = 'client'")
    together = np.sum(list(known.values()), axis=0)
    shares = together / max(together.sum(), 1.0)
    return np.array([known.get(j, shares * held) for j, held in enumerate(task.held.tolist())])
