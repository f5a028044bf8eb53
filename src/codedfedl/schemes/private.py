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

from codedfedl.arrays import Array, FloatArray, asarray_like
from codedfedl.core.client import Embed
from codedfedl.core.clipped import ClippedGradient, ClippedMoments, PrivateSum
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import AnyLimits, Ask, Description, Inbox, Info, Rng, Scheme, Task
from codedfedl.core.task import Descent
from codedfedl.core.waiting import Everyone
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel
from codedfedl.fleet.devices import Fleet, fleet_of
from codedfedl.io.names import nearest
from codedfedl.learning.optimisers import Nesterov
from codedfedl.planning.private import PrivatePlan, plan_private
from codedfedl.planning.secure_rounds import RESIDUAL
from codedfedl.privacy.accounting import UNITS, Account, check_budget
from codedfedl.privacy.fixed_point import LEAST_SUMMED
from codedfedl.schemes.private_budget import NOISE, Budget, pool_weights
from codedfedl.schemes.settings import check_positive

__all__ = ["Private", "PrivateState"]

_LEAST_SPREAD = 1 / 16  # of the mean squared length, where noise leaves less


@dataclass(frozen=True, eq=False)
class PrivateState(Descent):
    """A plan, its releases, and the results of the first sum.

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
        """Whether all sums that were paid for are given out, or all rounds are played.

        With noise shares, an answer counts as released even if its sum is not.
        """
        assert self.planned is not None
        assert self.account is not None
        given = self.round - 1 if self.account.shares else self.released
        return given >= self.planned.rounds or self.round >= self.task.rounds


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
    noise
        Who adds it: the ``helper``, or all ``clients``, a share each, so that nobody knows it.
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
    noise: str = "helper"

    info: ClassVar[Info] = Info(
        "private",
        disclosure=frozenset({Disclosure.DP}),
        secure_disclosure=frozenset({Disclosure.DP}),
        solver="nesterov",
        descends=False,
        quadratic=True,
    )

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta, "private.")
        check_positive(self, "hours", "rounds", "setup_deadline", "deadline")
        if self.unit not in UNITS:
            raise InputError(f"private.unit is {self.unit!r}: {nearest(self.unit, UNITS)}")
        if self.noise not in NOISE:
            raise InputError(f"private.noise is {self.noise!r}: {nearest(self.noise, NOISE)}")
        if self.cap is not None and not 1 <= self.cap < inf:
            raise InputError(f"private.cap is {self.cap:g}: must be finite and at least 1")

    @property
    def _budget(self) -> Budget:
        return Budget(self.epsilon, self.delta, self.unit, self.noise)

    def check(self, fleet: DelayModel | None = None, limits: AnyLimits = None) -> None:
        """Refuse a federation with too few rounds, or whose contracts are for other units."""
        if limits is not None and limits.rounds < 2:
            raise InputError(
                f"federation.rounds is {limits.rounds}: private needs one for its first sum and "
                "one more; raise it"
            )
        if limits is not None and self.unit != "record":
            raise InputError(
                f"private.unit is {self.unit!r}: a federation's contracts are for records; choose "
                "'record', or simulate"
            )

    def _within(self, limits: AnyLimits) -> "Private":
        """Return the settings with an operator's limits; one of the rounds is for the first sum."""
        if limits is None:
            return self
        return replace(
            self,
            sampling=False,  # a node has no proof of how others draw
            rounds=self.rounds or limits.rounds - 1,
            deadline=self.deadline or limits.deadline,
            setup_deadline=self.setup_deadline or limits.setup_deadline,
        )

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> PrivateState:
        """Plan, and write down all that will be released."""
        fleet = fleet_of(fleet, task.points[0], self.info.name)
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
        given = self._within(limits)
        if task.rounds < 2 or (given.rounds is not None and given.rounds >= task.rounds):
            raise InputError(
                f"private.rounds is {given.rounds}: with the first sum that is more than the "
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
            rounds=None if given.rounds is None else int(given.rounds),
            setup_deadline=given.setup_deadline,
            deadline=given.deadline,
            cap=self.cap,
            sampling=given.sampling and self.unit == "record",
            longest=self._budget.longest(task),
        )
        optimiser, account = Nesterov(measures=False), self._budget.account(task, chosen)
        return PrivateState(task, model, optimiser=optimiser, planned=chosen, account=account)

    def ask(self, state: PrivateState) -> Ask | None:
        """Let everybody embed; ask for the first sum, then for gradients."""
        plan, account = state.planned, state.account
        assert plan is not None
        assert account is not None
        if not state.set_up:
            return Ask(Embed(), Everyone(plan.setup_deadline), setup=True)
        if state.finished:
            return None
        numbers, budget = self._budget.numbers(state.task, plan), self._budget
        wait, longest = Everyone(plan.deadline), budget.longest(state.task) or inf
        sigma = account.releases[0 if state.direction is None else 1].sigma
        helpers, clients = budget.split(sigma * numbers.scale, account.shares)
        work: PrivateSum = ClippedMoments(plan.chances, plan.cap, numbers.scale)
        if state.direction is not None:
            work = ClippedGradient(
                plan.chances,
                plan.caps,
                numbers.scale,
                state.direction,
                state.radius,
                RESIDUAL,
                rates=plan.rates,
            )
        return Ask(
            replace(work, draw=state.round, longest=longest, noise=clients),
            wait,
            plan.loads,
            model=None if state.direction is None else state.question,
            noise=helpers,
            least=max(LEAST_SUMMED, account.shares + 1),
        )

    def receive(self, state: PrivateState, inbox: Inbox) -> PrivateState:
        """Learn from a sum, if enough clients were there for one."""
        if not state.set_up:
            return replace(state, set_up=True)
        if not inbox.sums:  # the helper gave nothing out
            _refuse_again(state, int(inbox.arrived.sum()))
            return replace(state, round=state.round + 1)
        plan = state.planned
        assert plan is not None
        numbers = self._budget.numbers(state.task, plan)
        if state.direction is None:
            points = float((pool_weights(state.task, plan) * plan.loads)[inbox.arrived].sum())
            return self._centred(state, numbers.decode(inbox.total("moments")), points)
        points = float((plan.weights * plan.rates * plan.loads)[inbox.arrived].sum())
        unit = state.radius * RESIDUAL / points
        noisy = numbers.decode(inbox.total()) * unit
        # No gradient would ever undo noise in the direction that the clients leave out.
        across = noisy - np.outer(state.direction, state.direction @ noisy)
        gradient = asarray_like(across.astype(np.float32), state.model)
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
        model = asarray_like(start.astype(np.float32), state.model)
        return replace(
            state, model=model, round=state.round + 1, direction=mean / length, radius=radius
        )

    def describe(self, state: PrivateState) -> Description:
        """Say what was planned, and under which guarantee."""
        plan, account = state.planned, state.account
        assert plan is not None
        assert account is not None
        facts = {
            "setup_deadline_s": plan.setup_deadline,
            "round_deadline_s": plan.deadline,
            "planned_rounds": plan.rounds + 1,
            "planned_hours": plan.seconds / 3600,
            "epsilon": account.epsilon,
            "delta": account.delta,
        }
        return Description(plan, facts, account)


def _refuse_again(state: PrivateState, arrived: int) -> None:
    """Refuse to ask for the first sum twice where answers count as given out."""
    assert state.account is not None
    if state.account.shares and state.direction is None:
        raise InputError(
            f"private.noise is 'clients': {arrived} clients arrived for the first sum, whose noise "
            f"needs {state.account.shares + 1}, and a second one is not paid for; give "
            "private.deadline more seconds"
        )


def _stepped(state: PrivateState, gradient: Array, size: float) -> PrivateState:
    asked = state.asked
    made = state.optimiser.step(asked, gradient + state.task.ridge * asked, size, state.memory)
    return replace(state, **made._asdict(), round=state.round + 1, released=state.released + 1)
