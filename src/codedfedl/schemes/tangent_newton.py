"""`tangent-newton`: train a network briefly, linearise it where it stands, and solve.

The paper makes a nonlinear task linear with random features, and codes the linear task. Here the
features are learned: `paced` trains a network; its gradient by its parameters is then a feature map
(`learning.features.tangent`), which clients are sent as the network's parameters; and a scheme for
linear models, `coded-newton` by default, solves ridge regression on it. All of it is on one clock:
training, the message with the network, embedding, parity, rounds.

The linear model begins as the network itself, which is among those that it can be.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from codedfedl.arrays import Array, asarray_like, to_host
from codedfedl.core.client import Counts
from codedfedl.core.disclosure import Disclosed, Disclosure
from codedfedl.core.protocol import AnyLimits, Ask, Description, Inbox, Info, Rng, Scheme
from codedfedl.core.record import SETUP
from codedfedl.core.task import State, Task
from codedfedl.errors import InputError
from codedfedl.fleet.costs import seconds_to_embed
from codedfedl.fleet.delays import DelayModel
from codedfedl.fleet.devices import Fleet, fleet_of, with_workload
from codedfedl.learning.features.tangent import Tangent
from codedfedl.learning.messages import MODEL_BITS
from codedfedl.learning.optimisers import Schedule
from codedfedl.planning.cold_start import plan_embedding
from codedfedl.schemes.paced import Paced, PacedState
from codedfedl.schemes.settings import check_at_least_1, check_positive

__all__ = ["TangentNewton"]

TRAINED_SHARE = 0.5
"""Training lasts for so much of the planned set-up: neither is ever most of the hours."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TangentState(State):
    """Where the phase is that runs.

    Attributes
    ----------
    fleet
        The clients, for the network's workload.
    trained
        The state of training; the network where it was linearised last.
    phase, inner
        The scheme that runs, and its state.
    budget, spent : float, seconds
        For how long this turn trains, and has trained.
    seed
        Of the feature map's signs and sketch.
    parts
        Of the network, by which the gradient is taken.
    turn
        Counted from 1.
    first
        The round with which the phase began.
    setups
        Rounds that are the phase's own set-up.
    said
        Label counts, which clients are asked for once.
    """

    fleet: Fleet
    trained: PacedState
    phase: Scheme
    inner: State
    budget: float
    seed: int
    parts: str | int = "all"
    spent: float = 0.0
    turn: int = 1
    first: int = 0
    setups: frozenset[int] = frozenset()
    said: Inbox | None = None

    @property
    def is_linear(self) -> bool:
        """Whether the network is linearised."""
        return self.task.features is not None

    def of_phase(self, inbox: Inbox) -> Inbox:
        """Return answers with the rounds as the phase counts them."""
        replies = tuple(
            replace(reply, round=SETUP if reply.round in self.setups else reply.round - self.first)
            for reply in inbox.replies
        )
        return replace(inbox, replies=replies)


@dataclass(frozen=True)
class TangentNewton(Scheme):
    """Training with `paced`, then a linear model on the network's tangent features.

    Parameters
    ----------
    hours
        For how long each turn trains; by default half of the planned set-up.
    n_components
        Number of features, or fewer where the tangent has fewer.
    parts
        The gradient by ``all`` parameters, those of the ``last`` layer, or so many last tensors of
        the module; with ``auto`` by as few tensors as have ``n_components`` features.
    ridge
        λ of the linear model, whose features have unit length.
    excess
        Relative excess that sampling may cause after the set-up whose half training takes.
    turns
        How often it trains, linearises and solves; a turn begins with the last one's last layer.
    solver
        The scheme for the linear model, such as ``coded-newton``, ``balanced`` or ``one-shot``.
    training, solving
        Settings of `paced` and of the solver.
    """

    hours: float | None = None
    n_components: int = 1000
    parts: str | int = "auto"
    ridge: float = 1e-7
    excess: float = 0.2
    turns: int = 1
    solver: str = "coded-newton"
    training: dict[str, Any] = field(default_factory=dict)
    solving: dict[str, Any] = field(default_factory=dict)

    info: ClassVar[Info] = Info(
        "tangent-newton",
        frozenset({Disclosure.GRADIENTS, Disclosure.COUNTS, Disclosure.MIXED}),
        solver="adam, newton",
        only_simulated="changes its features in the course of a run, which nodes do not yet",
    )

    def __post_init__(self) -> None:
        check_positive(self, "hours", "excess")
        check_at_least_1(self, "n_components", "turns")
        if self.solver == self.info.name:
            raise InputError(
                f"tangent-newton.solver is {self.solver!r}: name a scheme for linear models"
            )
        if not 0 <= self.ridge < np.inf:
            raise InputError(
                f"tangent-newton.ridge is {self.ridge:g}: must be finite, and 0 or more"
            )
        if self.secure or self.message_bits != MODEL_BITS:
            raise InputError(
                "tangent-newton has secure sums, or messages of few bits, and not for both of its "
                "phases: leave secure and message_bits out"
            )
        _ = self.network_scheme, self.linear_scheme  # refuse their settings

    @property
    def network_scheme(self) -> Paced:
        """What trains the network."""
        scheme = _made("paced", self.training)
        assert isinstance(scheme, Paced)
        return scheme

    @property
    def linear_scheme(self) -> Scheme:
        """What trains the linear model."""
        return _made(self.solver, self.solving)

    @property
    def disclosure(self) -> Disclosed:
        """What both phases disclose."""
        trained: Disclosed = self.network_scheme.disclosure
        return trained | self.linear_scheme.disclosure

    def check(self, fleet: DelayModel | None = None, limits: AnyLimits = None) -> None:
        """Refuse what either phase refuses."""
        super().check(fleet, limits)
        self.network_scheme.check(fleet, limits)
        self.linear_scheme.check(fleet, limits)

    def start(
        self, task: Task, fleet: DelayModel, model: Any, limits: AnyLimits = None, rng: Rng = None
    ) -> TangentState:
        """Plan how long to train, and begin."""
        if task.learner.quadratic:
            raise InputError("tangent-newton trains a network first: set model.kind = 'torch'")
        known = fleet_of(fleet, task.points[0], self.info.name)
        seed = 0 if rng is None else int(rng.integers(2**31))
        trained = self.network_scheme.start(task, known, model)
        state = TangentState(
            task,
            model,
            fleet=known,
            trained=trained,
            phase=self.network_scheme,
            inner=trained,
            budget=0.0,
            seed=seed,
        )
        state = replace(state, parts=self._parts(state))
        return replace(state, budget=self._training_seconds(state))

    def ask(self, state: TangentState) -> Ask | None:
        """Ask what the phase asks; the solver's set-up takes time like any round."""
        ask = state.phase.ask(state.inner)
        if ask is None:
            return None
        model = state.inner.model if ask.model is None else ask.model
        return replace(ask, model=model, setup=ask.setup and not state.is_linear)

    def receive(self, state: TangentState, inbox: Inbox) -> TangentState:
        """Let the phase learn; when it is over, begin the next one."""
        asked = state.phase.ask(state.inner)
        assert asked is not None
        before = not state.is_linear and asked.setup
        if asked.setup and not before:
            state = replace(state, setups=state.setups | {state.round})
        if isinstance(asked.work, Counts):
            state = replace(state, said=replace(inbox, timings=None))
        inner = state.phase.receive(state.inner, state.of_phase(inbox))
        changed = inner.model is not state.inner.model
        state = replace(state, inner=inner, round=state.round + (not before))
        if changed:
            state = replace(state, model=inner.model)
        if state.is_linear:
            over = state.turn < self.turns and state.phase.ask(inner) is None
            return self._training_again(state) if over else state
        if before:
            return state
        spent = state.spent + float(asked.wait.deadline)
        state = replace(state, spent=spent)
        return self._linearised(state) if spent >= state.budget else state

    def describe(self, state: TangentState) -> Description:
        """Return what the phase says, and when the network was linearised."""
        described = state.phase.describe(state.inner)
        facts = {"trained_hours": state.spent / 3600, "planned_training_hours": state.budget / 3600}
        if state.is_linear:
            facts |= {"tangent_features": state.task.workload.features, "solved_from": state.first}
        return replace(described, facts={**described.facts, **facts})

    def _training_seconds(self, state: TangentState) -> float:
        """Return the time that is given, or half of what a set-up on such features would take."""
        if self.hours is not None:
            return 3600 * self.hours
        task, learner = state.task, state.task.learner
        start = learner.start(np.random.default_rng(0))  # which does not matter for the cost
        linear = self._linear_task(state, self._tangent(state, start))
        fleet = with_workload(state.fleet, task.workload, linear.workload)
        seconds = seconds_to_embed(linear.feature_macs, linear.workload, fleet)
        planned = plan_embedding(seconds, task.held, linear.workload.features, self.excess)
        return TRAINED_SHARE * planned

    def _tangent(self, state: TangentState, model: Array) -> Tangent:
        """Return the feature map of the network with these parameters."""
        network = state.trained.task.learner
        return Tangent(network, to_host(model), self.n_components, state.parts, state.seed)

    def _parts(self, state: TangentState) -> str | int:
        """Return what is asked for, or the fewest last tensors with as many features as wanted."""
        if self.parts != "auto":
            return self.parts
        learner = state.task.learner
        start = learner.start(np.random.default_rng(0))  # which does not matter for the size
        last = Tangent(learner, start, self.n_components, "last", state.seed)
        if last.copied >= self.n_components:
            return "last"
        each = (replace(last, parts=count) for count in range(1, len(learner.tensor_sizes)))
        enough = (made.parts for made in each if made.size(made.inputs) == self.n_components)
        return next(enough, "all")

    def _linear_task(self, state: TangentState, features: Tangent) -> Task:
        """Return ridge regression on the features, in the rounds that are left."""
        task = state.trained.task
        count = features.size(features.inputs)
        workload = replace(
            task.workload, features=count, parameters=None, gradient_macs=None, bits_up=None
        )
        return Task(
            workload=workload,
            feature_macs=features.macs(features.inputs),
            points=task.points,
            epochs=max(1, (task.rounds - state.round) // task.batches),
            schedule=Schedule(1 / (features.largest_square / 2 + self.ridge), 1.0, ()),
            ridge=self.ridge,
            raw_bits=task.raw_bits,
            largest_square=features.largest_square,
            features=features,
        )

    def _linearised(self, state: TangentState) -> TangentState:
        """Begin the linear phase: the model is the network until the solver has a better one."""
        assert isinstance(state.inner, PacedState)
        features = self._tangent(state, state.model)
        task = self._linear_task(state, features)
        fleet = with_workload(state.fleet, state.task.workload, task.workload)
        zeros = asarray_like(np.zeros(task.model_shape, np.float32), state.model)
        scheme = self.linear_scheme
        inner = scheme.start(task, fleet, zeros)
        first = scheme.ask(inner)
        if state.said is not None and first is not None and isinstance(first.work, Counts):
            inner = scheme.receive(inner, state.said)
        return replace(
            state,
            task=task,
            model=asarray_like(features.network_weights, state.model),
            trained=state.inner,
            phase=scheme,
            inner=inner,
            first=state.round,
            setups=frozenset(),
        )

    def _training_again(self, state: TangentState) -> TangentState:
        """Train on from the network with the last layer of the linear model."""
        features = state.task.features
        assert isinstance(features, Tangent)
        model = asarray_like(features.with_last_layer(to_host(state.model)), state.trained.model)
        inner = replace(state.trained, model=model, question=None, memory=None)
        return replace(
            state,
            task=inner.task,
            model=model,
            phase=self.network_scheme,
            inner=inner,
            spent=0.0,
            turn=state.turn + 1,
            first=state.round - inner.round,
            setups=frozenset(),
        )


def _made(name: str, settings: dict[str, Any]) -> Scheme:
    from codedfedl.schemes import make_scheme  # which imports every scheme

    return make_scheme(name, settings)
