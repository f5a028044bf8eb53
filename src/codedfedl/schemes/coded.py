"""`coded`: the paper's scheme. A gradient on parity stands in for what did not arrive."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from codedfedl.arrays import Array
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel, FleetDelays
from codedfedl.fleet.devices import Fleet
from codedfedl.learning.codes import Code, warn_of_thin_rows
from codedfedl.learning.gradients import Quadratic
from codedfedl.learning.training import step
from codedfedl.planning.plan import Plan, plan
from codedfedl.schemes.base import Ask, AskGradient, AskParity, Inbox, State, Task, Until

__all__ = ["Coded", "CodedState"]


@dataclass(frozen=True, eq=False)
class CodedState(State):
    """The plans of all mini-batches, and the parity as quadratics once it is there."""

    plans: tuple[Plan, ...] = ()
    own: tuple[Quadratic, ...] = ()


@dataclass(frozen=True)
class Coded:
    """CodedFedL (sections 3.2 to 3.5).

    Parameters
    ----------
    redundancy
        Parity rows per point, in (0, 1).
    code
        How parity mixes points: ``gaussian``, ``sign`` or ``sparse``.
    nonzeros
        Rows that a point goes into, for a sparse code.
    deadline : seconds
        Of every round; the smallest that the parity allows, if not given.
    """

    redundancy: float = 0.1
    code: str = "gaussian"
    nonzeros: int = 8
    deadline: float | None = None

    name: ClassVar[str] = "coded"

    def __post_init__(self) -> None:
        if not 0 < self.redundancy < 1:
            raise InputError(
                f"coded.redundancy is {self.redundancy:g}: must lie between 0 and 1, both excluded"
            )
        if Code(self.code, self.nonzeros).name == "balanced":
            raise InputError(
                "coded.code is 'balanced', which has no more rows than a client has points: "
                "use 'sparse'"
            )

    def start(self, task: Task, fleet: Fleet | DelayModel, model: Array) -> CodedState:
        """Plan every mini-batch, for a fleet or for delays that follow no formula."""
        rows = int(np.ceil(self.redundancy * task.points.sum(1).max()))
        mixed = Code(self.code, self.nonzeros).points_per_row(int(task.points.min()), rows)
        warn_of_thin_rows(self.name, mixed)
        held = {points.tobytes(): points for points in task.points}  # often the same in all
        delays = FleetDelays(fleet) if isinstance(fleet, Fleet) else fleet
        plans = {
            key: plan(delays.with_points(points), self.redundancy, deadline=self.deadline)
            for key, points in held.items()
        }
        return CodedState(task, model, plans=tuple(plans[p.tobytes()] for p in task.points))

    def ask(self, state: State) -> Ask | None:
        """Ask for parity first, then for gradients until the deadline."""
        assert isinstance(state, CodedState)
        if state.finished:
            return None
        if not state.own:
            return AskParity(
                [p.parity_rows for p in state.plans],
                np.array([p.loads for p in state.plans]),
                np.array([p.return_probabilities for p in state.plans]),
                Code(self.code, self.nonzeros),
            )
        batch = state.task.batch(state.round)
        chosen = state.plans[batch]
        wait = Until(chosen.deadline)
        return AskGradient(state.round, batch, chosen.loads, wait, state.own[batch])

    def receive(self, state: State, inbox: Inbox) -> CodedState:
        """Keep the parity, or take a step along g_M = (g_C + g_U)/m."""
        assert isinstance(state, CodedState)
        if not state.own:
            own = tuple(Quadratic.of(part.features, part.targets) for part in inbox.parity)
            return replace(state, own=own)
        task = state.task
        points = float(task.points[task.batch(state.round)].sum())
        size = task.step_size(state.round)
        model = step(state.model, inbox.total, points, size, task.ridge)
        return replace(state, model=model, round=state.round + 1)
