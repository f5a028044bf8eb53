"""`coded-newton`: Newton's method on parity, corrected by the gradients that arrive.

The server keeps a quadratic model Q_j of each client's loss: at first that of its parity, with
Hessian H̃_j. Once the client has answered with its exact gradient g_j(a_j) at some model a_j, now or
long ago, Q_j is anchored there:

    ∇Q_j(β) = g_j(a_j) + (H̃_j + ρ_j)(β − a_j)

A step minimises the sum of all Q_j and the ridge. No return probability is used. The sum is exact
at a fixed point, where every a_j is β; and as long as H̃_j + ρ_j bounds the true curvature, which
the answers themselves reveal, old anchors cannot make it diverge.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from codedfedl.arrays import Array, FloatArray, asarray_like
from codedfedl.core.client import BlockParity, Embedded
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.encoding import MoreParity
from codedfedl.core.protocol import (
    EACH,
    AnyLimits,
    Ask,
    Description,
    Inbox,
    Info,
    Rng,
    Scheme,
    Task,
)
from codedfedl.core.record import SETUP
from codedfedl.core.waiting import Until
from codedfedl.errors import InputError
from codedfedl.fitting.drift import Timings, check_replan
from codedfedl.fleet.delays import DelayModel
from codedfedl.fleet.devices import Fleet
from codedfedl.learning.codes import LEAST_MIXING, Code, warn_of_thin_rows
from codedfedl.learning.metrics import telling_excess
from codedfedl.learning.sketch import Sketch, damping
from codedfedl.planning.cold_start import ColdStart, best_cold_start
from codedfedl.random import stream
from codedfedl.schemes.newton_on_sums import SummedState, ask_changes, with_sum, with_sums
from codedfedl.schemes.newton_pace import Pace, extension, replanned, with_extension
from codedfedl.schemes.newton_state import (
    NewtonState,
    anchored,
    double,
    newton_step,
    total_ridge,
)
from codedfedl.schemes.sketch_solve import (
    Block,
    block_facts,
    blocks_of,
    check_mixing,
    joined,
    stacked,
)

__all__ = ["CodedNewton"]

_LARGEST = 1e30  # what float32 holds with room to spare
MAX_LATE_SHARE = 1 / 12  # Of the rows decomposed: more late rows are decomposed, not updated.


@dataclass(frozen=True)
class CodedNewton(Scheme):
    """From a cold start to a ridge regression, with the set-up and every round on a deadline.

    Parameters
    ----------
    excess
        Target relative excess of the ridge objective over its optimum, for which the set-up is
        planned; or of a tenth of what the optimum explains, if that is less.
    mixing
        Points mixed into every parity row.
    nonzeros
        Rows that each point goes into; larger values give more rows. By default chosen by the plan.
    bits
        Bits per parity value, 16 or 32.
    setup_deadline, deadline : seconds
        Deadlines of the set-up and of every round; by default chosen by the plan.
    rounds
        Number of rounds; by default until the answers show that the excess is reached.
    hours
        Continue with rounds until this time, whatever the plan.
    replan
        Rounds after which the delays are fitted again to how long clients took; then the rounds'
        deadline follows, and who is slower embeds as many points as the plan would give it before
        it answers again. 0 keeps the plan.
    extended
        Whether the set-up is extended when the whole fleet turns out to be slower, so that clients
        send parity of further points. Never in a federation, where the plan comes from probes, nor
        with ``replan = 0``.
    damped
        False uses the parity's Hessian undamped, which diverges; for demonstration only.
    """

    excess: float = 0.2
    mixing: int = LEAST_MIXING
    nonzeros: int | None = None
    bits: int = 16
    setup_deadline: float | None = None
    deadline: float | None = None
    rounds: int | None = None
    hours: float | None = None
    replan: int = 10
    extended: bool = True
    damped: bool = True

    info: ClassVar[Info] = Info(
        "coded-newton",
        disclosure=frozenset({Disclosure.MIXED, Disclosure.GRADIENTS}),
        secure_disclosure=frozenset({Disclosure.MIXED, Disclosure.SUMS}),
        solver="newton",
        solves=True,
        quadratic=True,
        descends=False,
        featured=True,
    )

    def __post_init__(self) -> None:
        check_mixing(self.info.name, self.mixing, self.bits)
        check_replan(self.info.name, self.replan)
        _ = self.parity(_first(self.nonzeros, 1))  # raises InputError for an unknown code

    def parity(self, nonzeros: int) -> BlockParity:
        """Return what every client sends once."""
        return BlockParity(Code("dealt", nonzeros), self.mixing, self.bits)

    def _within(self, limits: AnyLimits) -> "CodedNewton":
        """Return the settings with the operator's deadlines and rounds where none are given."""
        if limits is None:
            return self
        return replace(
            self,
            deadline=_first(self.deadline, limits.deadline),
            setup_deadline=_first(self.setup_deadline, limits.setup_deadline),
            rounds=_first(self.rounds, limits.rounds),
            extended=False,
        )

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> NewtonState:
        """Plan the set-up and the rounds, of which there are at most as many as the task has."""
        warn_of_thin_rows(self.info.name, self.mixing)
        if not isinstance(fleet, Fleet):
            raise InputError(
                "coded-newton plans with a Fleet: measured delays do not say how long embedding "
                "takes; give a fleet file, or use coded"
            )
        settings = self._within(limits)
        first = settings
        if limits is not None and settings.deadline is None:
            first = replace(settings, deadline=limits.first_deadline)
        plan, parity = first._planned(task, fleet)
        last = plan.rounds
        if self.hours is not None:
            left = 3600 * self.hours - plan.setup_deadline
            if not 0 <= left < np.inf:
                raise InputError(
                    f"coded-newton.hours is {self.hours:g}: the set-up alone takes "
                    f"{plan.setup_deadline / 3600:.2g} h; raise it or lower setup_deadline"
                )
            last = int(left // plan.round_deadline)
        if last > task.rounds:
            raise InputError(
                f"coded-newton would need {last} rounds where training.epochs allows "
                f"{task.rounds}: raise it, or lower rounds or hours"
            )
        state = NewtonState(
            task,
            model,
            settings=settings,
            plan=plan,
            first_plan=plan,
            last_round=last,
            parity=parity,
        )
        if self.secure:
            return with_sums(state, fleet, self.mixing)
        if not self.replan:
            return state
        return replace(state, pace=Pace.planned(fleet))

    def _planned(self, task: Task, fleet: Fleet) -> tuple[ColdStart, BlockParity]:
        plan, parity = self._planned_for(task, fleet, self.rounds)
        if self.rounds is None and plan.rounds > task.rounds:
            return self._planned_for(task, fleet, task.rounds)
        return plan, parity

    def _plan_for(self, task: Task, fleet: Fleet) -> ColdStart:
        return self._planned(task, fleet)[0]

    def _planned_for(
        self, task: Task, fleet: Fleet, rounds: int | None
    ) -> tuple[ColdStart, BlockParity]:
        setup = self.parity(_first(self.nonzeros, 1)).setup(task)
        plan, chosen = best_cold_start(
            fleet,
            task.held,
            setup.ways() if self.nonzeros is None else [setup],
            self.excess,
            setup_deadline=self.setup_deadline,
            deadline=self.deadline,
            rounds=rounds,
            summed=self.secure,
        )
        return plan, self.parity(chosen.operations)

    def ask(self, state: NewtonState) -> Ask | None:
        """Ask for parity first, then for gradients; busy clients answer later."""
        assert state.plan is not None
        assert state.parity is not None
        if state.sketch is None:
            wait = Until(state.plan.setup_deadline)
            return Ask(state.parity, wait, combine=EACH, keep_late=not self.secure, setup=True)
        if state.extension:
            parity = state.parity
            work = MoreParity(parity.code, parity.mixing, parity.bits, state.mixed_points)
            return Ask(work, Until(state.extension), combine=EACH, keep_late=True, setup=True)
        if state.round >= state.last_round or state.good_enough:
            return None
        wait = Until(state.plan.round_deadline)
        if isinstance(state, SummedState):
            return ask_changes(state, wait)
        least: Any = self.mixing
        if state.least is not None:
            least = np.maximum(least, state.least)
        return Ask(Embedded(least), wait, combine=EACH, keep_late=True)

    def receive(self, state: NewtonState, inbox: Inbox) -> NewtonState:
        """Solve on parity, or use the answers and take a step."""
        started = state.sketch is not None
        if blocks := blocks_of(inbox.replies, state.task):
            state = self._with_parity(state, blocks)
        if inbox.revised is not None:
            counted = blocks_of(inbox.revised.replies, state.task)
            state = self._with_parity(state.without_clients(state.blocks.keys() - counted), counted)
        if not started:
            state = self._start_from_parity(state)
            state = self._followed(state, state.setup_timings(inbox.timings))
            if not state.settings.extended or state.pace is None:
                return state
            longer = extension(state, partial(state.settings._plan_for, state.task))
            return replace(state, extension=longer)
        if state.extension:
            state = self._start_from_parity(with_extension(state))
            return self._followed(state, None)
        if isinstance(state, SummedState):
            state = with_sum(state, inbox, damped=self.damped)
        else:
            answers = [reply for reply in inbox.replies if reply.round != SETUP]
            state = anchored(state, answers, damped=self.damped)
        step, decrement = newton_step(state)
        state = self._with_model(state, double(state.model) - step)
        assert state.plan is not None
        spent = state.spent + state.plan.round_deadline
        state = replace(state, round=state.round + 1, spent=spent)
        state = self._followed(state, inbox.timings)
        if state.settings.rounds is not None or self.hours is not None:
            return state
        return state.judged(decrement)

    def describe(self, state: NewtonState) -> Description:
        """Return the plan, updated once parity has arrived, with the facts about both."""
        plan, first = state.plan, state.first_plan
        assert plan is not None
        assert first is not None
        assert state.parity is not None
        facts = block_facts(state.blocks, state.task, state.parity.code) | {
            "planned_hours": first.seconds / 3600,
            "planned_excess": first.excess,
            "setup_deadline_s": plan.setup_deadline,
            "round_deadline_s": plan.round_deadline,
            "planned_rounds": float(plan.rounds),
            "predicted_hours": plan.seconds / 3600,
            "predicted_excess": plan.excess,
            "predicted_start_loss": state.start_loss,
            "predicted_start_excess": state.start_excess,
            "damping": state.damping,
        }
        planned = first.round_deadline if state.settings.deadline is None else None
        return Description(plan, facts, planned_deadline=planned)

    def _followed(self, state: NewtonState, seen: Timings | None) -> NewtonState:
        """Learn how long clients took; every so many rounds, let the plan follow."""
        if state.pace is None:
            return state
        state = replace(state, pace=state.pace.after(seen))
        if state.round % self.replan:
            return state
        return replanned(state, partial(state.settings._plan_for, state.task), self.hours)

    def _with_parity(self, state: NewtonState, blocks: Mapping[int, Block]) -> NewtonState:
        """Decompose the parity so far, or update its decomposition with that of further clients."""
        again = bool(state.extension) or not blocks.keys().isdisjoint(state.blocks)
        if state.sketch is not None and not again:
            rows = sum(block.parity.features.shape[0] for block in blocks.values())
            late = state.sketch.late_rows + rows
            if late < MAX_LATE_SHARE * (state.sketch.rows + rows - late):
                return state.with_late(blocks)
        blocks = {**state.blocks, **joined(state.blocks, blocks)}
        blocks = {client: blocks[client] for client in sorted(blocks)}
        sketch = Sketch.of(*stacked(blocks))
        state = state.with_sketch(blocks, sketch)
        if not self.damped:
            return state
        ridge, rng = total_ridge(state), stream(0, "code")  # no secret: the parity is the server's
        needed = damping(sketch, ridge, rng) - ridge
        if not state.extension:  # once rounds have begun it does not fall
            needed = max(needed, state.damping)
        return replace(state, damping=needed)

    def _start_from_parity(self, state: NewtonState) -> NewtonState:
        if state.sketch is None:
            raise InputError("no client sent parity by the deadline: give the set-up more time")
        assert state.plan is not None
        sketch, ridge = state.sketch, total_ridge(state)
        start = sketch.best_ridge(ridge)
        loss = sketch.leave_one_out(start) / (2 * state.represented_points)
        theta = sketch.effective_dimension(ridge) / sketch.rows
        excess = sketch.excess(start, ridge)
        plan, last = replace(state.plan, wanted=self._wanted(sketch, ridge)), state.last_round
        if state.settings.rounds is not None:
            plan = plan.after_start(excess, theta, state.settings.rounds, state.settings.rounds)
        else:
            plan = plan.after_start(excess, theta, 0, state.task.rounds)
            last = state.task.rounds if self.hours is None else last
        state = self._with_model(state, sketch.ridge_regression(start))
        state = replace(state, plan=plan, last_round=last, start_loss=loss, start_excess=excess)
        state = replace(state, spent=plan.setup_deadline)
        asks_evidence = state.settings.rounds is None and self.hours is None
        return state.judged(0.0) if asks_evidence else state

    def _wanted(self, sketch: Sketch, ridge: float) -> float:
        """Return the wanted excess over the optimum, now that parity shows what is explained."""
        smallest = max(sketch.smallest_objective(ridge), np.finfo(float).tiny)
        explained = max(float((sketch.targets**2).sum()) / 2 - smallest, 0.0)
        return telling_excess(self.excess, explained / smallest)

    @staticmethod
    def _with_model(state: NewtonState, model: FloatArray) -> NewtonState:
        """Set the model, rounded to the float32 that the clients receive."""
        if not np.abs(model).max() < _LARGEST:
            raise InputError(
                "coded-newton diverged: a client's gradient is not finite, or the step not damped"
            )
        return replace(state, model=asarray_like(model.astype(np.float32), state.model))


def _first(given: Any, other: Any) -> Any:
    return other if given is None else given
