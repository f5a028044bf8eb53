"""`coded`: the paper's scheme. A gradient on parity replaces the gradients that did not arrive."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from codedfedl.arrays import Array, IntArray
from codedfedl.core.client import Gradient, Parity, WeightedGradient
from codedfedl.core.disclosure import Disclosure, needs_helper
from codedfedl.core.protocol import (
    EACH,
    SUM,
    AnyLimits,
    Ask,
    Description,
    Inbox,
    Info,
    Rng,
    Scheme,
    Task,
)
from codedfedl.core.waiting import Everyone, Until
from codedfedl.errors import InputError
from codedfedl.fitting.drift import Drift, check_replan
from codedfedl.fleet.costs import Server, ServerWork
from codedfedl.fleet.delays import DelayModel
from codedfedl.fleet.devices import Fleet, fleet_of
from codedfedl.learning.codes import LEAST_MIXING, Code, warn_of_thin_rows
from codedfedl.learning.features import Identity
from codedfedl.learning.least_squares import Quadratic
from codedfedl.learning.optimisers import optimiser
from codedfedl.planning.hours import HoursPlan, Training, cheapest_plan
from codedfedl.planning.plan import Plan, answer_weights, plan, replanned, rows_of
from codedfedl.schemes.coded_state import CodedState, StandIns, check_stand_in, encoded_chances
from codedfedl.schemes.settings import check_positive

MAX_DEADLINE_GROWTH = 2.0  # A deadline that follows the clients grows no faster each time.


@dataclass(frozen=True)
class Coded(Scheme):
    """CodedFedL (sections 3.2 to 3.5).

    Parameters
    ----------
    redundancy
        Parity rows per point, in (0, 1); with `server_rate`, the most that the server takes.
    code
        How parity mixes points: ``gaussian``, ``sign`` or ``sparse``.
    nonzeros
        Rows that a point goes into, for a sparse code.
    deadline : seconds
        Deadline of every round; by default the smallest that the parity allows.
    planned
        ``rule``: the paper's rule, where the deadline follows from the redundancy. ``hours``:
        choose both, and `nonzeros` of a sparse code, to minimise the time with the set-up charged.
    excess
        Relative excess that code and arrivals may leave, for ``hours``. It is a loose upper bound:
        the measured excess is a fraction of it.
    optimiser
        ``gd`` or ``nesterov``.
    server_rate : rows per second
        The server as a node (last remark of section 3.3): how many parity rows it processes, which
        also chooses their number. A coded gradient that is not done by the deadline is missing, and
        one that is done is divided by the probability of that. By default it takes no time.
    server_alpha
        The server's α.
    replan
        Rounds after which the delays are fitted again to how long clients took; then deadline and
        weights follow (`planning.plan.replanned`). 0 keeps the plan.
    stand_in
        Whether each client's parity is kept apart, to stand in for all points of a client that
        misses a round (`schemes.coded_state`). By default in federations, where a client may be
        gone for good, and not in simulations, where clients come back and the composite is the
        paper's.
    """

    redundancy: float = 0.1
    code: str = "gaussian"
    nonzeros: int = 8
    deadline: float | None = None
    optimiser: str = "gd"
    planned: str = "rule"
    excess: float = 1.0
    server_rate: float | None = None
    server_alpha: float = 2.0
    replan: int = 0
    stand_in: bool | None = None

    info: ClassVar[Info] = Info(
        "coded",
        frozenset({Disclosure.MIXED, Disclosure.GRADIENTS}),
        any_delays=True,
        featured=True,
        quadratic=True,
    )

    def __post_init__(self) -> None:
        name = self.info.name
        if not 0 < self.redundancy < 1:
            raise InputError(
                f"coded.redundancy is {self.redundancy:g}: must lie between 0 and 1, both excluded"
            )
        if Code(self.code, self.nonzeros).name == "dealt":
            raise InputError(
                "coded.code is 'dealt', which has no more rows than a client has points: "
                "use 'sparse'"
            )
        optimiser(name, self.optimiser, same_points=False)
        if self.planned not in ("rule", "hours"):
            raise InputError(f"{name}.planned is {self.planned!r}: must be 'rule' or 'hours'")
        check_replan(name, self.replan)
        check_stand_in(name, self.stand_in, self.disclosure, self.server_rate)
        self._check_server()

    def _check_server(self) -> None:
        name = self.info.name
        check_positive(self, "server_rate", "server_alpha")
        rivals = {"deadline": None, "planned": "rule", "replan": 0}
        for key, default in rivals.items():
            if self.server_rate is not None and getattr(self, key) != default:
                raise InputError(
                    f"{name}.server_rate is {self.server_rate:g} and {name}.{key} is "
                    f"{getattr(self, key)!r}: both set the deadline; leave one out"
                )

    def check(self, fleet: DelayModel | None = None, limits: AnyLimits = None) -> None:
        """Refuse a federation whose server is a node, or in which no deadline could be planned."""
        if limits is None:
            return
        name = self.info.name
        if self.server_rate is not None:
            raise InputError(
                f"{name}.server_rate is {self.server_rate:g}, which only a simulation plays: "
                "a real server computes the coded gradient when the round has ended, and it is "
                "never missing; leave server_rate out"
            )
        if self._deadline(limits) is None and self.redundancy <= 1 - limits.availability:
            raise InputError(
                f"coded.redundancy is {self.redundancy:g} where federation.availability is "
                f"{limits.availability:g}: no deadline brings so many points; raise either, or "
                "give a deadline"
            )

    def _deadline(self, limits: AnyLimits) -> float | None:
        """Return the deadline that is given, here or by the operator."""
        operators = None if limits is None else limits.deadline
        return operators if self.deadline is None else self.deadline

    def _stands_in(self, limits: AnyLimits) -> bool:
        """Return whether parity is kept apart, which a secure sum would hide."""
        if self.stand_in is None:
            return limits is not None and not needs_helper(self.disclosure)
        return self.stand_in

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> CodedState:
        """Plan every mini-batch, for a fleet or for measured delays."""
        deadline, stand_in = self._deadline(limits), self._stands_in(limits)
        planned = limits.first_deadline if limits is not None and deadline is None else deadline
        chosen = optimiser(self.info.name, self.optimiser, same_points=False)
        code, promised = Code(self.code, self.nonzeros), (np.nan, np.nan)
        if self.planned == "hours":
            by_hours = task.each_batch(lambda points: self._for_hours(task, fleet, points))
            plans = tuple(by_hour.plan for by_hour in by_hours)
            code = Code(self.code, max(by_hour.nonzeros for by_hour in by_hours))
            promised = (by_hours[0].seconds / 3600, by_hours[0].excess)
        else:
            plans = task.each_batch(lambda points: self._by_rule(fleet, points, planned))
        rows = max(p.parity_rows for p in plans)
        warn_of_thin_rows(self.info.name, code.points_per_row(int(task.points.min()), rows))
        state = CodedState(task, model, optimiser=chosen, plans=plans, code=code, promised=promised)
        state = replace(state, current=plans, deadline=deadline, stand_in=stand_in)
        if not self.replan:
            return state
        return replace(state, drift=Drift.unknown(fleet))

    def _server(self, points: IntArray) -> Server | None:
        """Return the server as a node, which takes `redundancy` of these points at most."""
        if self.server_rate is None:
            return None
        most = rows_of(self.redundancy, int(points.sum()))
        return Server(self.server_rate, most, self.server_alpha)

    def _by_rule(self, fleet: DelayModel, points: IntArray, deadline: float | None) -> Plan:
        server, name = self._server(points), self.info.name
        if server is None:
            return plan(fleet, self.redundancy, points=points, deadline=deadline)
        fleet = fleet_of(fleet, points, f"{name}.server_rate is {self.server_rate:g}, which")
        chosen = plan(fleet, points=points, server=server)
        if chosen.parity_rows == 0:
            raise InputError(
                f"{name}.server_rate is {self.server_rate:g}: so slow that the best plan has "
                "no parity at all; raise it, or use uncoded"
            )
        return chosen

    def _for_hours(self, task: Task, fleet: DelayModel, points: IntArray) -> HoursPlan:
        known = fleet_of(fleet, points, f"{self.info.name}.planned is 'hours', which")
        rounds = task.rounds / 2
        if self.optimiser == "nesterov":  # accelerated: the square root, up to a factor
            rounds = 3 * rounds**0.5
        training = Training(
            task.workload,
            task.feature_macs,
            task.batches,
            round(rounds),
            task.schedule.step,
            LEAST_MIXING if self.code == "sparse" else 0,
        )
        return cheapest_plan(Fleet.of(known, points), training, self.excess)

    def ask(self, state: CodedState) -> Ask | None:
        """Ask for parity first, then for gradients until the deadline."""
        if state.finished:
            return None
        if not state.set_up:
            return self._ask_parity(state)
        batch = state.task.batch(state.round)
        made, chosen = state.plans[batch], state.current[batch]
        gradient = Gradient(batch)
        if state.stand_in:
            gradient = state.stand_ins[batch].work(batch)
        elif chosen is not made:
            gradient = WeightedGradient(batch, answer_weights(made, chosen))
        server = self._server(state.task.points[batch])
        return Ask(
            gradient,
            Until(chosen.deadline),
            chosen.loads,
            combine=EACH if state.stand_in else SUM,
            model=state.question,
            server_work=None if server is None else ServerWork(server, chosen.parity_rows),
        )

    def _ask_parity(self, state: CodedState) -> Ask:
        plans = state.plans
        chances = [encoded_chances(p) if state.stand_in else p.return_probabilities for p in plans]
        rows, loads = [p.parity_rows for p in plans], np.array([p.loads for p in plans])
        work = Parity(rows, loads, np.array(chances), state.code)
        return Ask(work, Everyone(), combine=EACH if state.stand_in else SUM, setup=True)

    def receive(self, state: CodedState, inbox: Inbox) -> CodedState:
        """Keep the parity, or take a step along g_M = (g_C + g_U)/m (section 3.5).

        Where the server is a node, g_C is 1{T_C ≤ t*}·g_C/P(T_C ≤ t*), whose expectation is g_C.
        """
        task = state.task
        if not state.set_up:
            return self._with_parity(state, inbox)
        if inbox.revised is not None:
            state = replace(state, counted=inbox.revised.arrived)
            state = state if state.stand_in else self._with_parity(state, inbox.revised)
        batch = task.batch(state.round)
        if state.stand_in:
            known = list(state.stand_ins)
            known[batch] = known[batch].after(inbox.replies, state.asked)
            total = known[batch].gradient(state.asked, state.counted)
            state = replace(state, stand_ins=tuple(known))
        elif inbox.server_done:
            total = inbox.plus(state.parity[batch], state.asked)
        else:
            total = inbox.total()
        held = task.points[batch]  # parity stands in for the points that are missing
        points = float(held.sum() if state.counted is None else held[state.counted].sum())
        state = state.descended(total, points)
        return state if state.drift is None else self._followed(state, state.drift, inbox)

    def _with_parity(self, state: CodedState, inbox: Inbox) -> CodedState:
        """Return the state with the parity of some clients: each by itself, or their composite."""
        if state.stand_in:
            return replace(state, stand_ins=StandIns.of(state.plans, inbox.replies))
        names = [(f"features{b}", f"targets{b}") for b in range(state.task.batches)]
        made = (Quadratic.of(inbox.total(x), inbox.total(y)) for x, y in names)
        sure = [p.server_return_probability for p in state.plans]
        parity = tuple(part if p == 1 else part / p for part, p in zip(made, sure, strict=True))
        return replace(state, parity=parity)

    def _followed(self, state: CodedState, drift: Drift, inbox: Inbox) -> CodedState:
        """Learn how long clients took; every so many rounds, let the plans follow."""
        drift = drift.after(inbox.timings)
        state = replace(state, drift=drift)
        if state.round % self.replan:
            return state
        if drift.as_planned:
            return replace(state, current=state.plans)
        delays, plans = drift.delays, {}
        for made, current in zip(state.plans, state.current, strict=True):
            longest = MAX_DEADLINE_GROWTH * current.deadline
            plans[id(made)] = replanned(made, delays, deadline=state.deadline, longest=longest)
        return replace(state, current=tuple(plans[id(made)] for made in state.plans))

    def describe(self, state: CodedState) -> Description:
        """Return the plan of the first mini-batch, and the facts about the parity."""
        made = state.plans[0]
        rows = [p.parity_rows for p in state.plans]
        fewest = int(state.task.points.min(initial=2**53))
        facts = {
            "parity_rows": float(sum(rows)),
            "points_per_parity_row": state.code.points_per_row(fewest, max(rows)),
            "planned_hours": state.promised[0],
            "planned_excess": state.promised[1],
            "round_deadline_s": made.deadline,
            "expected_return": made.expected_return,
            "server_return_probability": made.server_return_probability,
        }
        planned = made.deadline if state.deadline is None else None
        return Description(state.current[0], facts, planned_deadline=planned)


@dataclass(frozen=True)
class CFL(Coded):
    """Coded federated learning for linear regression, the paper's predecessor: raw points."""

    info: ClassVar[Info] = replace(Coded.info, name="cfl", features=Identity(), featured=False)
