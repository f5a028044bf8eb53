"""`coded-newton`: Newton's method on parity, corrected by the gradients that arrive.

The server keeps a quadratic model Q_j of each client's loss: at first that of its parity, with
Hessian H̃_j. Once the client has answered with its exact gradient g_j(a_j) at some model a_j, now or
long ago, Q_j is anchored there:

    ∇Q_j(β) = g_j(a_j) + (H̃_j + ρ_j)(β − a_j)

A step minimises the sum of all Q_j and the ridge. No return probability is used. The sum is exact
at a fixed point, where every a_j is β; and as long as H̃_j + ρ_j bounds the true curvature, which
the answers themselves reveal, old anchors cannot make it diverge.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from codedfedl.arrays import Array
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
from codedfedl.fleet.devices import Fleet, fleet_of
from codedfedl.learning.codes import LEAST_MIXING, Code, warn_of_thin_rows
from codedfedl.learning.metrics import telling_excess
from codedfedl.learning.sketch import Sketch, damping
from codedfedl.planning.cold_start import ColdStart, best_cold_start
from codedfedl.random import stream
from codedfedl.schemes.newton_on_sums import PlannedSums, SummedState, ask_changes, with_sum
from codedfedl.schemes.newton_pace import (
    Pace,
    PlannedNewton,
    extension,
    replanned,
    with_extension,
)
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
    ) -> PlannedNewton:
        """Plan the set-up and the rounds, of which there are at most as many as the task has."""
        warn_of_thin_rows(self.info.name, self.mixing)
        fleet = fleet_of(fleet, task.points[0], self.info.name)
        settings = self._within(limits)
        earlier = None if limits is None else limits.first_deadline
        first = replace(settings, deadline=_first(settings.deadline, earlier))
        plan, parity = first._planned(task, fleet)
        state = PlannedNewton(
            task,
            model,
            settings=settings,
            plan=plan,
            first_plan=plan,
            last_round=self._last_round(plan, task),
            parity=parity,
        )
        if self.secure:
            return PlannedSums.of(state, fleet, self.mixing)
        return replace(state, pace=Pace.planned(fleet)) if self.replan else state

    def _planned(
        self, task: Task, fleet: Fleet, rounds: int | None = None
    ) -> tuple[ColdStart, BlockParity]:
        """Plan, with no more rounds than the task allows."""
        setup = self.parity(_first(self.nonzeros, 1)).setup(task)
        plan, chosen = best_cold_start(
            fleet,
            task.held,
            setup.ways() if self.nonzeros is None else [setup],
            self.excess,
            setup_deadline=self.setup_deadline,
            deadline=self.deadline,
            rounds=_first(rounds, self.rounds),
            summed=self.secure,
        )
        if self.rounds is None and plan.rounds > task.rounds:
            return self._planned(task, fleet, task.rounds)
        return plan, self.parity(chosen.operations)

    def _last_round(self, plan: ColdStart, task: Task) -> int:
        """Return the number of rounds: the plan's, or as many as the hours leave time for."""
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
        return last

    def ask(self, state: PlannedNewton) -> Ask | None:
        """Ask for parity first, then for gradients; busy clients answer later."""
        parity = state.parity
        if not isinstance(state, NewtonState):
            wait = Until(state.plan.setup_deadline)
            return Ask(parity, wait, combine=EACH, keep_late=not self.secure, setup=True)
        if state.extension:
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

    def receive(self, state: PlannedNewton, inbox: Inbox) -> NewtonState:
        """Solve on parity, or use the answers and take a step."""
        blocks = blocks_of(inbox.replies, state.task)
        if not isinstance(state, NewtonState):
            started = self._start_from_parity(self._decomposed(state, blocks))
            started = self._followed(started, state.setup_timings(inbox.timings))
            if not state.settings.extended:
                return started
            return replace(started, extension=extension(started, self._plans(state)))
        if blocks:
            state = self._with_parity(state, blocks)
        if inbox.revised is not None:
            counted = blocks_of(inbox.revised.replies, state.task)
            others = state.without_clients(state.blocks.keys() - counted)
            state = self._decomposed(others, counted)
        if state.extension:
            state = self._start_from_parity(with_extension(state))
            return self._followed(state, None)
        if isinstance(state, SummedState):
            state = with_sum(state, inbox, damped=self.damped)
        else:
            answers = [reply for reply in inbox.replies if reply.round != SETUP]
            state = anchored(state, answers, damped=self.damped)
        step, decrement = newton_step(state)
        state = state.with_model(double(state.model) - step)
        spent = state.spent + state.plan.round_deadline
        state = self._followed(replace(state, round=state.round + 1, spent=spent), inbox.timings)
        return state.judged(decrement) if self._needs_evidence(state) else state

    def _needs_evidence(self, state: NewtonState) -> bool:
        """Return whether the answers decide when training ends."""
        return state.settings.rounds is None and self.hours is None

    def describe(self, state: PlannedNewton) -> Description:
        """Return the plan, updated once parity has arrived, with the facts about both."""
        plan, first = state.plan, state.first_plan
        facts = block_facts(state.blocks, state.task, state.parity.code) | {
            "planned_hours": first.seconds / 3600,
            "planned_excess": first.excess,
            "setup_deadline_s": plan.setup_deadline,
            "round_deadline_s": plan.round_deadline,
            "planned_rounds": float(plan.rounds),
            "predicted_hours": plan.seconds / 3600,
            "predicted_excess": plan.excess,
        }
        if isinstance(state, NewtonState):
            facts |= {
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
        return replanned(state, self._plans(state), self.hours)

    @staticmethod
    def _plans(state: PlannedNewton) -> Callable[[Fleet], ColdStart]:
        return lambda fleet: state.settings._planned(state.task, fleet)[0]

    def _with_parity(self, state: NewtonState, blocks: Mapping[int, Block]) -> NewtonState:
        """Decompose the parity so far, or update its decomposition with that of further clients."""
        again = bool(state.extension) or not blocks.keys().isdisjoint(state.blocks)
        rows = sum(block.parity.features.shape[0] for block in blocks.values())
        late = state.sketch.late_rows + rows
        if not again and late < MAX_LATE_SHARE * (state.sketch.rows + rows - late):
            return state.with_late(blocks)
        return self._decomposed(state, {**state.blocks, **joined(state.blocks, blocks)})

    def _decomposed(self, state: PlannedNewton, blocks: Mapping[int, Block]) -> NewtonState:
        """Return the state with the parity of these clients, and its damping."""
        blocks = {client: blocks[client] for client in sorted(blocks)}
        sketch = Sketch.of(*stacked(blocks))
        before = state if isinstance(state, NewtonState) else None
        first = SummedState.first if self.secure else NewtonState.first
        new = before.with_sketch(blocks, sketch) if before else first(state, blocks, sketch)
        if not self.damped:
            return new
        ridge, rng = total_ridge(new), stream(0, "code")  # no secret: the parity is the server's
        needed = damping(sketch, ridge, rng) - ridge
        if before is not None and not before.extension:  # once rounds have begun it does not fall
            needed = max(needed, before.damping)
        return replace(new, damping=needed)

    def _start_from_parity(self, state: NewtonState) -> NewtonState:
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
        state = state.with_model(sketch.ridge_regression(start))
        state = replace(state, plan=plan, last_round=last, start_loss=loss, start_excess=excess)
        state = replace(state, spent=plan.setup_deadline)
        return state.judged(0.0) if self._needs_evidence(state) else state

    def _wanted(self, sketch: Sketch, ridge: float) -> float:
        """Return the wanted excess over the optimum, now that parity shows what is explained."""
        smallest = max(sketch.smallest_objective(ridge), np.finfo(float).tiny)
        explained = max(float((sketch.targets**2).sum()) / 2 - smallest, 0.0)
        return telling_excess(self.excess, explained / smallest)


def _first(given: Any, other: Any) -> Any:
    return other if given is None else given
