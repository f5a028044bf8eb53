"""`coded-newton` on secure sums: the server sees parity, and of gradients only their sum.

A step needs Σ g_j(a_j) + (H̃_j + ρ_j)(β − a_j). The server knows all of this but the gradients: it
has the parity, and it knows which clients were counted in which round, hence every a_j. So it keeps
the sum of the gradients, and each client adds the change of its own since it was last counted
(`core.changed`). Differences from the plain scheme:

- A late answer is lost, since its mask is bound to one round. So rounds have the length at which
  the most points per second are answered for, and no client is asked for more points than it
  finishes in every second round.
- Too little damping is noticed from all answers together, and ρ is raised for all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

import numpy as np

from codedfedl.arrays import Array, FloatArray, IntArray
from codedfedl.core.changed import Anchor, Changed
from codedfedl.core.client import Embedded
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.masked import masked
from codedfedl.core.protocol import AnyLimits, Ask, Inbox, Info, Rng, Task
from codedfedl.fleet.delays import DelayModel
from codedfedl.fleet.devices import Fleet
from codedfedl.planning.in_time import in_time, with_helper
from codedfedl.privacy.fixed_point import FixedPoint, Residues
from codedfedl.schemes.coded_newton import CodedNewton
from codedfedl.schemes.newton_state import (
    NewtonState,
    assumed_curvature,
    client_share,
    double,
    needed_damping,
)

__all__: list[str] = []  # selected by the plain scheme's name, with `secure`

_OFTEN = 0.5  # share of the rounds in which a client must finish the points asked for


@dataclass(frozen=True, eq=False)
class SummedState(NewtonState):
    """What the server remembers, without any client's gradient.

    Attributes
    ----------
    total : array of shape (q, c)
        Σ g_j(a_j) in integers modulo 2³².
    work
        What a round asks for, before anybody was counted.
    loads : array of shape (n,)
        The most points that each client is asked for.
    """

    total: Residues = field(default_factory=lambda: np.zeros((), np.uint32))
    work: Changed | None = None
    loads: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def numbers(self) -> FixedPoint:
        """The fixed-point numbers of the sums."""
        assert self.work is not None
        return FixedPoint(self.work.scale)

    @property
    def gradient(self) -> FloatArray:
        """Σ g_j(a_j)."""
        return self.numbers.decode(self.total) + np.zeros(self.task.model_shape)


class NewtonOnSums(CodedNewton):
    """The scheme; its settings are those of `coded-newton`."""

    info: ClassVar[Info] = replace(
        CodedNewton.info, disclosure=frozenset({Disclosure.MIXED, Disclosure.SUMS})
    )
    summed: ClassVar[bool] = True

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> SummedState:
        """Plan, and compute how many points each client finishes in time."""
        plain = masked(Embedded(least=self.mixing), task)
        work = Changed(plain.work, plain.scale, {})
        state = super().start(task, fleet, model, limits)
        assert isinstance(fleet, Fleet)
        assert state.plan is not None
        delays = with_helper(fleet)
        loads = in_time(delays, state.plan.round_deadline, task.held, _OFTEN)
        few = loads < np.minimum(self.mixing, task.held)
        known = {one.name: getattr(state, one.name) for one in fields(state)}
        return SummedState(**known, work=work, loads=np.where(few, 0, loads))

    def ask(self, state: NewtonState) -> Ask | None:
        """Ask for parity first, then for the changes."""
        plain = super().ask(state)
        if plain is None:
            return None
        if plain.setup:
            return replace(plain, keep_late=False)
        assert isinstance(state, SummedState)
        assert state.work is not None
        work = replace(state.work, counted=state.anchors)
        return Ask(work, plain.wait, state.loads, noise=0.0)

    def _with_answers(self, state: NewtonState, inbox: Inbox) -> NewtonState:
        """Add the changes; a sum that was not released changes nothing."""
        assert isinstance(state, SummedState)
        if not inbox.sums:
            return state
        assert inbox.loads is not None
        model = double(state.model)
        clients = np.flatnonzero(inbox.arrived).tolist()
        anchors = {j: Anchor(model, int(inbox.loads[j]), state.round) for j in clients}
        damping = state.damping
        if self.damped:
            before = {j: state.anchors[j] for j in clients if j in state.anchors}
            same = {j: one for j, one in before.items() if one.points == anchors[j].points}
            shown = state.numbers.decode(inbox.total("curvature"))
            damping = max(damping, _damping(state, same, shown, len(clients)))
        total = np.asarray(state.total + inbox.total("gradient"))
        return replace(state.with_anchors(anchors), total=total, damping=damping)


def _damping(
    state: SummedState, before: Mapping[int, Anchor], shown: FloatArray, summands: int
) -> float:
    """Return the ρ that would bound the curvature that some clients showed together."""
    assumed, squares = np.zeros_like(shown), np.zeros_like(shown)
    state = state.with_models([Anchor(double(state.model), 0, state.round)])
    for client, anchor in before.items():
        along = state.in_basis[state.round] - state.in_basis[anchor.round]
        assumed += assumed_curvature(state, client, along)
        squares += client_share(state, client) * (along**2).sum(0)
    true = shown - state.numbers.rounding(summands)
    return needed_damping(true, assumed, squares, state.damping) if before else 0.0
