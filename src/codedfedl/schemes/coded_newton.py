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
from codedfedl.learning.sketch import Sketch, damping
from codedfedl.planning.cold_start import ColdStart, best_cold_start
from codedfedl.random import stream
from codedfedl.schemes.by_class import ByClass, ahead, ask_counts
from codedfedl.schemes.newton_on_sums import PlannedSums, SummedState, ask_changes, with_sum
from codedfedl.schemes.newton_pace import Pace, PlannedNewton, extension, replanned, with_extension
from codedfedl.schemes.newton_state import NewtonState, total_ridge
from codedfedl.schemes.newton_step import anchored, double, newton_step, started
from codedfedl.schemes.sketch_solve import (
    Block,
    block_facts,
    blocks_of,
    by_class_of,
    check_mixing,
    joined,
    stacked,
)

__all__ = ["CodedNewton"]

_PATIENCE_RATIO = 3.0  # To the mean time of the slowest link: so long label counts are waited for.
PLANNED_EXCESS = 0.2  # Before parity shows how much there is to explain.
_GROWTH = 1.25  # times the points that all clients have embedded: then weights are set anew
MAX_LATE_SHARE = 1 / 12  # Of the rows decomposed: more late rows are decomposed, not updated.


@dataclass(frozen=True)
class CodedNewton(Scheme):
    """From a cold start to a ridge regression, with the set-up and every round on a deadline.

    Parameters
    ----------
    excess
        Target relative excess of the ridge objective over its optimum, for which the set-up is
        planned; or of a tenth of what the optimum explains, if that is less. By default the set-up
        is planned for 0.2, and rounds continue until 99% of what the optimum explains is reached,
        as parity and answers show.
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

    excess: float | None = None
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
        disclosure=frozenset({Disclosure.MIXED, Disclosure.GRADIENTS, Disclosure.COUNTS}),
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

    @property
    def _seconds(self) -> float:
        """When training ends at the latest."""
        return np.inf if self.hours is None else 3600 * self.hours

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
        first = settings = self._within(limits)
        if limits is not None:
            first = replace(settings, deadline=_first(settings.deadline, limits.first_deadline))
        alike = None if self.secure else ByClass(task.held[:, None].astype(np.float64))
        plan, parity = first._planned(task, fleet, by_class=alike)  # the soonest, by any counts
        state = PlannedNewton(
            task,
            model,
            settings=settings,
            fleet=fleet,
            federated=limits is not None,
            plan=plan,
            first_plan=plan,
            last_round=self._last_round(plan, task),
            parity=parity,
        )
        if self.secure:
            return PlannedSums.of(state, fleet, self.mixing)
        return replace(state, pace=Pace.planned(fleet)) if self.replan else state

    def _with_counts(self, state: PlannedNewton, inbox: Inbox) -> PlannedNewton:
        """Plan again with the label counts; in a federation the rounds keep their deadline."""
        by_class = ByClass.of(inbox.replies, state.task, federated=state.federated)
        settings = state.settings
        if state.federated:
            settings = replace(settings, deadline=state.plan.round_deadline)
        plan, parity = settings._planned(state.task, state.fleet, by_class=by_class)
        planned = replace(state, plan=plan, first_plan=plan, parity=parity)
        last = self._last_round(plan, state.task)
        return replace(planned, last_round=last, by_class=by_class, ahead=ahead(inbox))

    def _planned(
        self, task: Task, fleet: Fleet, by_class: ByClass | None = None, rounds: int | None = None
    ) -> tuple[ColdStart, BlockParity]:
        """Plan, with no more rounds than the task allows."""
        setup = self.parity(_first(self.nonzeros, 1)).setup(task)
        plan, chosen = best_cold_start(
            fleet,
            task.held,
            setup.ways() if self.nonzeros is None else [setup],
            PLANNED_EXCESS if self.excess is None else self.excess,
            setup_deadline=self.setup_deadline,
            deadline=self.deadline,
            rounds=_first(rounds, self.rounds),
            summed=self.secure,
            sparing=not self.extended,  # few rows: their noise covers how unlike honest nodes are
            counts=None if by_class is None else by_class.counts,
        )
        if self.rounds is None and plan.rounds > task.rounds:
            return self._planned(task, fleet, by_class, task.rounds)
        return plan, self.parity(chosen.operations)

    def _last_round(self, plan: ColdStart, task: Task) -> int:
        """Return the number of rounds: the plan's, or as many as there may be in some hours."""
        if plan.setup_deadline > self._seconds:
            raise InputError(
                f"coded-newton.hours is {self.hours:g}: the set-up alone takes "
                f"{plan.setup_deadline / 3600:.2g} h; raise it or lower setup_deadline"
            )
        if self.hours is not None:
            return task.rounds
        if plan.rounds > task.rounds:
            raise InputError(
                f"coded-newton would need {plan.rounds} rounds where training.epochs allows "
                f"{task.rounds}: raise it, or lower rounds"
            )
        return plan.rounds

    def ask(self, state: PlannedNewton) -> Ask | None:
        """Ask for parity first, then for gradients; busy clients answer later."""
        parity = state.parity
        if not self.secure and state.by_class is None:
            links = state.fleet.mean(np.zeros(len(state.fleet)))
            return ask_counts(_PATIENCE_RATIO * float(links.max()))
        if not isinstance(state, NewtonState):
            wait = Until(state.parity_deadline)
            return Ask(parity, wait, combine=EACH, keep_late=not self.secure, setup=True)
        if state.extension:
            work = MoreParity(parity.code, parity.mixing, parity.bits, state.mixed_points)
            return Ask(work, Until(state.extension), combine=EACH, keep_late=True, setup=True)
        wait = Until(state.round_deadline)
        over = state.round >= state.last_round or state.spent + wait.deadline > self._seconds
        judging = state.settings.rounds is None and self.hours is None
        if over or (judging and state.good_enough):
            return None
        if isinstance(state, SummedState):
            return ask_changes(state, wait)
        least = np.maximum(state.least_points, self.mixing)
        return Ask(Embedded(least), wait, combine=EACH, keep_late=True)

    def receive(self, state: PlannedNewton, inbox: Inbox) -> Any:
        """Solve on parity, or use the answers and take a step."""
        if not self.secure and state.by_class is None:
            return self._with_counts(state, inbox)
        blocks = blocks_of(inbox.replies, state.task)
        if not isinstance(state, NewtonState):
            begun = started(self._decomposed(state, blocks))
            begun = self._followed(begun, state.setup_timings(inbox.timings))
            longer = extension(begun, self._plans(state)) if state.settings.extended else 0.0
            return replace(begun, extension=longer)
        if blocks:
            state = self._with_parity(state, blocks)
        if inbox.revised is not None:
            counted = blocks_of(inbox.revised.replies, state.task)
            others = state.without_clients(state.blocks.keys() - counted)
            state = self._decomposed(others, counted)
        if state.extension:
            state = started(with_extension(state))
            return self._followed(state, None)
        if isinstance(state, SummedState):
            answered = np.flatnonzero(inbox.arrived)
            state = with_sum(state, inbox, damped=self.damped)
        else:
            answers = [reply for reply in inbox.replies if reply.round != SETUP]
            current = [reply.client for reply in answers if reply.round == state.round]
            answered = np.asarray(current, np.int64)
            state = anchored(state, answers, damped=self.damped)
            if state.by_class and state.embedded_points.sum() > _GROWTH * state.weighted_points:
                state = self._decomposed(state, state.blocks)
        step, decrement = newton_step(state)
        state = state.with_model(double(state.model) - step)
        spent = state.spent + state.round_deadline
        state = self._followed(replace(state, round=state.round + 1, spent=spent), inbox.timings)
        held = state.task.held
        return state.judged(decrement, float(held[answered].sum() / held.sum()))

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
        return replanned(state, self._plans(state))

    @staticmethod
    def _plans(state: PlannedNewton) -> Callable[[Fleet], ColdStart]:
        settings, by_class = state.settings, state.by_class
        return lambda fleet: settings._planned(state.task, fleet, by_class=by_class)[0]

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
        before = state if isinstance(state, NewtonState) else None
        points = before.embedded_points if before else np.zeros_like(state.task.held)
        by_class, weights = by_class_of(state.by_class, blocks, state.task, points)
        sketch, state = Sketch.of(*stacked(blocks, weights)), replace(state, by_class=by_class)
        first = SummedState.first if self.secure else NewtonState.first
        if isinstance(state, NewtonState):
            new = state.with_sketch(blocks, sketch, weights)
        else:
            new = first(state, blocks, sketch, weights)
        if not self.damped:
            return new
        ridge, rng = total_ridge(new), stream(0, "code")  # no secret: the parity is the server's
        needed = damping(sketch, ridge, rng) - ridge
        if before is not None and not before.extension:  # once rounds have begun it does not fall
            needed = max(needed, before.damping)
        return replace(new, damping=needed)


def _first(given: Any, other: Any) -> Any:
    return other if given is None else given
