"""`private`: only noisy sums leave the clients, under an (ε, δ) known before training starts.

Every client embeds until a planned deadline, or until all its points are done. One sum, with 5% of
the budget, then gives the mean of the features, their length and the frequency of each label. Every
round after that is a sum of clipped gradients over points that each client samples afresh, and a
step of Nesterov's method. The direction of the mean is projected out of the gradients, so that the
model stays linear and starts from the labels' shares.
"""

from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import ClassVar

import numpy as np

from codedfedl._types import FloatArray
from codedfedl.arrays import Array, beside
from codedfedl.core.aggregate import LEAST_SUMMED
from codedfedl.core.client import Embed
from codedfedl.core.clipped import ClippedGradient, ClippedMoments
from codedfedl.core.descent import Descent
from codedfedl.core.disclosure import Disclosed, Disclosure
from codedfedl.core.protocol import Ask, Inbox, Limits, Scheme, Task
from codedfedl.core.waiting import EveryoneUntil
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayDistribution
from codedfedl.fleet.devices import Fleet
from codedfedl.io.names import nearest
from codedfedl.learning.optimisers import Nesterov
from codedfedl.planning.noisy_descent import RESIDUAL
from codedfedl.planning.private import CENTRE_SHARE, PrivatePlan, plan_private
from codedfedl.privacy.accounting import UNITS, Account, Release, check_budget, mu_of
from codedfedl.privacy.fixed_point import FixedPoint

__all__ = ["Private", "PrivateState"]

_FARTHEST = 8.3  # standard deviations: no noise is larger, see `privacy.helper.system_normal`
_MORE_NOISE = 1.005  # times as much, until the library finds the budget kept
_CLIENT_SHARE = 0.25  # of the mean number of points: longer sums of a client are clipped
_LEAST_SPREAD = 1 / 16  # of the mean squared length, where noise leaves less


@dataclass(frozen=True, eq=False)
class PrivateState(Descent):
    """A plan, its releases, and what the first sum has said.

    Attributes
    ----------
    direction : array of shape (q,), or None before the first sum
    radius
        R, the root mean square length of the features without that direction.
    released
        Sums of gradients that were given out.
    """

    planned: PrivatePlan | None = None
    account: Account | None = None
    set_up: bool = False
    direction: FloatArray | None = None
    radius: float = 1.0
    released: int = 0

    @property
    def checkpointed(self) -> bool:
        """The first sum and the momentum are remembered."""
        return False

    @property
    def finished(self) -> bool:
        """Whether all sums that were paid for are given out, or all rounds are played."""
        assert self.planned is not None
        return self.released >= self.planned.rounds or self.round >= self.task.rounds


@dataclass(frozen=True)
class Private(Scheme):
    """Noise on secure sums, record by record: (ε, δ)-DP against the server and the public.

    Parameters
    ----------
    epsilon, delta
        Budget of the whole run, for one record replaced by nothing; an epsilon of ∞ means no noise.
    hours
        Planned end of the run.
    rounds
        Number of gradient sums; by default chosen by the plan.
    setup_deadline, deadline : seconds
        Deadlines of the set-up and of every round; by default chosen by the plan.
    cap
        Largest weight of a point that is in every sum; by default chosen by the plan. A point that
        is sampled rarely may have a larger weight.
    sampling
        Whether each client samples the points of a round from all that it has embedded; its noise
        is accounted for by dp-accounting.
    unit
        ``record``, or ``client``: then all records of a client together may be replaced by nothing,
        and its whole sum is clipped. That needs far more noise and many clients; no sampling.
    """

    epsilon: float = 3.0
    delta: float = 1e-5
    hours: float = 6.0
    rounds: int | None = None
    setup_deadline: float | None = None
    deadline: float | None = None
    cap: float | None = None
    sampling: bool = True
    unit: str = "record"

    name: ClassVar[str] = "private"
    disclosure: ClassVar[Disclosed] = frozenset({Disclosure.DP})
    descends: ClassVar[bool] = False
    solver: ClassVar[str] = "nesterov"

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta, "private.")
        for key in ("hours", "rounds", "setup_deadline", "deadline"):
            value = getattr(self, key)
            if value is not None and not 0 < value < inf:
                raise InputError(f"private.{key} is {value:g}: must be finite and above 0")
        if self.unit not in UNITS:
            raise InputError(f"private.unit is {self.unit!r}: {nearest(self.unit, UNITS)}")
        if self.cap is not None and not 1 <= self.cap < inf:
            raise InputError(f"private.cap is {self.cap:g}: must be finite and at least 1")

    def within(self, limits: Limits) -> "Private":
        """Take an operator's limits; one of the rounds is for the first sum."""
        if limits.rounds < 2:
            raise InputError(
                f"federation.rounds is {limits.rounds}: private needs one for its first sum and "
                "one more; raise it"
            )
        if self.unit != "record":
            raise InputError(
                f"private.unit is {self.unit!r}: a federation's contracts are for records; choose "
                "'record', or simulate"
            )
        return replace(
            self,
            sampling=False,  # a node has no proof of how others draw
            rounds=self.rounds or limits.rounds - 1,
            deadline=self.deadline or limits.deadline,
            setup_deadline=self.setup_deadline or limits.setup_deadline,
        )

    def start(self, task: Task, fleet: Fleet | DelayDistribution, model: Array) -> PrivateState:
        """Plan, and write down all that will be released."""
        if not isinstance(fleet, Fleet):
            raise InputError(
                "private plans with a Fleet: measured delays do not say how long embedding takes; "
                "give a fleet file"
            )
        if task.clients < LEAST_SUMMED:
            raise InputError(
                f"private has {task.clients} client: a sum would be its own answer; have "
                f"{LEAST_SUMMED} or more"
            )
        if not np.isfinite(task.largest_square):
            raise InputError(
                "private needs features with a bound on their length, which the raw points of "
                "'identity' do not have: choose 'patches', 'fourier' or 'structured'"
            )
        if task.rounds < 2 or (self.rounds is not None and self.rounds >= task.rounds):
            raise InputError(
                f"private.rounds is {self.rounds}: with the first sum that is more than the "
                f"{task.rounds} rounds of training.epochs; raise epochs"
            )
        chosen = plan_private(
            Fleet.of(fleet, task.held),
            task.workload,
            task.feature_macs,
            epsilon=self.epsilon,
            delta=self.delta,
            hours=self.hours,
            most_rounds=task.rounds - 1,
            rounds=None if self.rounds is None else int(self.rounds),
            setup_deadline=self.setup_deadline,
            deadline=self.deadline,
            cap=self.cap,
            sampling=self.sampling and self.unit == "record",
            longest=self._longest(task),
        )
        optimiser, account = Nesterov(measures=False), self._account(task, chosen)
        return PrivateState(task, model, optimiser=optimiser, planned=chosen, account=account)

    def _longest(self, task: Task) -> float | None:
        """Return to which length a client's sum is clipped, where clients are to be hidden."""
        return None if self.unit == "record" else _CLIENT_SHARE * float(task.held.mean())

    def _account(self, task: Task, plan: PrivatePlan) -> Account:
        """Return all sums, with the least noise that keeps the budget.

        σ is right for points that are in every sum; those that are drawn have weights that cost no
        more, but for a little that the library may find.
        """
        q, c = task.workload.features, task.workload.labels
        mu, asked, longest = mu_of(self.epsilon, self.delta), plan.loads > 0, self._longest(task)
        steps, hidden = self._numbers(task, plan), plan.cap if longest is None else longest
        first, rest = (_sensitivity(steps, hidden, size) for size in (q + 1 + c, q * c))
        each: float | tuple[float, ...] = rest
        if longest is None:
            each = _shortest([_sensitivity(steps, float(cap), q * c) for cap in plan.caps[asked]])
        rates = _shortest(plan.rates[asked].tolist())
        sigmas = first / sqrt(CENTRE_SHARE) / mu, rest * sqrt(plan.rounds / (1 - CENTRE_SHARE)) / mu
        more = 1.0
        while True:
            moments = Release("moments", 1, first, more * sigmas[0])
            gradients = Release("gradient", plan.rounds, each, more * sigmas[1], rates)
            account = Account(self.delta, [moments, gradients], self.unit)
            if account.keeps(self.epsilon):
                return account
            more *= _MORE_NOISE

    def _numbers(self, task: Task, plan: PrivatePlan) -> FixedPoint:
        """Return numbers of which no sum wraps around, the largest noise included."""
        hidden = self._longest(task) or plan.cap
        mu = mu_of(self.epsilon, self.delta)
        deviations = sqrt(max(plan.rounds / (1 - CENTRE_SHARE), 1 / CENTRE_SHARE)) / mu
        noise = 2 * _FARTHEST * hidden * deviations  # twice: rounding adds to the sensitivity
        return FixedPoint.for_sums(_largest_sum(task, plan) + noise, task.clients)

    def ask(self, state: PrivateState) -> Ask | None:
        """Let everybody embed; ask for the first sum, then for gradients."""
        plan, account = state.planned, state.account
        assert plan is not None
        assert account is not None
        if not state.set_up:
            return Ask(Embed(), EveryoneUntil(plan.setup_deadline), setup=True)
        if state.finished:
            return None
        numbers = self._numbers(state.task, plan)
        moments, gradient = (one.sigma * numbers.scale for one in account.releases)
        wait, longest = EveryoneUntil(plan.deadline), self._longest(state.task) or inf
        if state.direction is None:
            first = ClippedMoments(plan.chances, plan.cap, numbers.scale, longest=longest)
            return Ask(first, wait, plan.loads, noise=moments)
        work = ClippedGradient(
            plan.chances,
            plan.caps,
            numbers.scale,
            state.direction,
            state.radius,
            RESIDUAL,
            rates=plan.rates,
            draw=state.round,
            longest=longest,
        )
        return Ask(work, wait, plan.loads, noise=gradient, model=state.question)

    def receive(self, state: PrivateState, inbox: Inbox) -> PrivateState:
        """Learn from a sum, if enough clients were there for one."""
        if not state.set_up:
            return replace(state, set_up=True)
        if not inbox.sums:  # the helper gave nothing out
            return replace(state, round=state.round + 1)
        plan = state.planned
        assert plan is not None
        numbers = self._numbers(state.task, plan)
        if state.direction is None:
            points = float((_pool_weights(state.task, plan) * plan.loads)[inbox.arrived].sum())
            return self._centred(state, numbers.decode(inbox.total("moments")), points)
        points = float((plan.weights * plan.rates * plan.loads)[inbox.arrived].sum())
        unit = state.radius * RESIDUAL / points
        noisy = numbers.decode(inbox.total()) * unit
        # No gradient would ever undo noise in the direction that the clients leave out.
        across = noisy - np.outer(state.direction, state.direction @ noisy)
        gradient = beside(across.astype(np.float32), state.model)
        return _stepped(state, gradient, plan.step / state.radius**2)

    def _centred(self, state: PrivateState, sums: FloatArray, points: float) -> PrivateState:
        """Take the mean's direction, the radius and the labels' shares from the first sum."""
        q = state.task.workload.features
        assert state.account is not None
        means = sums * 3**0.5 / points
        noise = state.account.releases[0].sigma * 3**0.5 / points
        mean, square, labels = means[:q], float(means[q]), means[q + 1 :]
        square = min(max(square, 1e-4), 1.0)
        aside = max(float(mean @ mean) - q * noise**2, 0.0)
        radius = sqrt(max(square - aside, _LEAST_SPREAD * square))
        length = max(float(np.linalg.norm(mean)), 1e-12)
        # xᵀ·mean/‖mean‖² is 1 on average: the model starts as the labels' shares.
        start = np.outer(mean / length**2, labels) if aside > 0 else np.zeros((q, len(labels)))
        model = beside(start.astype(np.float32), state.model)
        return replace(
            state, model=model, round=state.round + 1, direction=mean / length, radius=radius
        )

    def plan(self, state: PrivateState) -> PrivatePlan | None:
        """Return the plan."""
        return state.planned

    def facts(self, state: PrivateState) -> dict[str, float]:
        """Say what was planned, and under which guarantee."""
        plan, account = state.planned, state.account
        assert plan is not None
        assert account is not None
        return {
            "setup_deadline_s": plan.setup_deadline,
            "round_deadline_s": plan.deadline,
            "planned_rounds": plan.rounds + 1,
            "planned_hours": plan.seconds / 3600,
            "epsilon": account.epsilon,
            "delta": account.delta,
        }

    def privacy(self, state: PrivateState) -> Account | None:
        """Return what the run gives away."""
        return state.account


def _pool_weights(task: Task, plan: PrivatePlan) -> FloatArray:
    """Return the weights of the first sum, which is over whole pools."""
    expected = np.maximum(plan.loads * plan.chances, 1e-300)
    return np.where(plan.loads > 0, np.minimum(task.held / expected, plan.cap), 0.0)


def _shortest(values: list[float]) -> float | tuple[float, ...]:
    """Return one number where all clients have the same."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def _sensitivity(steps: FixedPoint, weight: float, numbers: int) -> float:
    """Return how far a record of this weight moves a sum, with a step for rounding.

    Another step is for the clients' floating-point sums.
    """
    return steps.distance(steps.distance(weight, numbers), numbers)


def _largest_sum(task: Task, plan: PrivatePlan) -> float:
    """Return how large a sum may become; of draws eight standard deviations are allowed for."""
    mean = plan.loads * plan.rates
    drawn = np.minimum(mean + 8 * np.sqrt(mean) + 8, plan.loads)
    fair = task.held / np.maximum(plan.chances * mean, 1e-9)
    gradients = np.minimum(plan.caps, fair) * drawn
    moments = _pool_weights(task, plan) * plan.loads
    return max(float(gradients.sum()), float(moments.sum()))


def _stepped(state: PrivateState, gradient: Array, size: float) -> PrivateState:
    asked = state.asked
    made = state.optimiser.step(asked, gradient + state.task.ridge * asked, size, state.memory)
    return replace(state, **made._asdict(), round=state.round + 1, released=state.released + 1)
