"""`coded-newton` on secure sums: the server sees parity, and of gradients only their sum.

A step needs Σ g_j(a_j) + (H̃_j + ρ_j)(β − a_j). The server knows all of this but the gradients: it
has the parity, and it knows which clients were counted in which round, hence every a_j. So it keeps
the sum of the gradients, and each client adds the change of its own since it was last counted
(`core.masked`). Differences from the plain scheme:

- A late answer is lost, since its mask is bound to one round. So rounds have the length at which
  the most points per second are answered for, and no client is asked for more points than it
  finishes in every second round.
- Too little damping is noticed from all answers together, and ρ is raised for all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.core.client import Embedded
from codedfedl.core.masked import Anchor, GradientDelta, masked
from codedfedl.core.protocol import Ask, Inbox
from codedfedl.core.waiting import Wait
from codedfedl.fleet.devices import Fleet
from codedfedl.planning.secure_rounds import in_time, with_helper
from codedfedl.privacy.fixed_point import FixedPoint, Residues
from codedfedl.schemes.newton_pace import PlannedNewton
from codedfedl.schemes.newton_state import NewtonState
from codedfedl.schemes.newton_step import (
    assumed_curvature,
    client_share,
    double,
    needed_damping,
)

__all__ = ["PlannedSums", "SummedState", "ask_changes", "with_sum"]

MIN_SHARE_IN_TIME = 0.5
"""Share of the rounds in which a client must finish the points that it is asked for."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PlannedSums(PlannedNewton):
    """What is known before any parity is there.

    Attributes
    ----------
    work
        What a round asks for, before anybody was counted.
    loads : array of shape (n,)
        The most points that each client is asked for.
    """

    work: GradientDelta
    loads: IntArray

    @classmethod
    def of(cls, state: PlannedNewton, fleet: Fleet, mixing: int) -> Self:
        """Plan the points that each client finishes in time."""
        task, plain = state.task, masked(Embedded(least=mixing), state.task)
        loads = in_time(with_helper(fleet), state.plan.round_deadline, task.held, MIN_SHARE_IN_TIME)
        few = loads < np.minimum(mixing, task.held)
        work = GradientDelta(plain.work, plain.scale, {})
        return cls(**vars(state), work=work, loads=np.where(few, 0, loads))


@dataclass(frozen=True, eq=False, kw_only=True)
class SummedState(NewtonState, PlannedSums):
    """What the server remembers, without any client's gradient.

    Attributes
    ----------
    total : array of shape (q, c)
        Σ g_j(a_j) in integers modulo 2³².
    """

    total: Residues = field(default_factory=lambda: np.zeros((), np.uint32))

    @property
    def numbers(self) -> FixedPoint:
        """The fixed-point numbers of the sums."""
        return FixedPoint(self.work.scale)

    @property
    def gradient(self) -> FloatArray:
        """Σ g_j(a_j)."""
        return self.numbers.decode(self.total) + np.zeros(self.task.model_shape)


def ask_changes(state: SummedState, wait: Wait) -> Ask:
    """Ask for the change of every client's gradient."""
    return Ask(replace(state.work, counted=state.anchors), wait, state.loads, noise=0.0)


def with_sum(state: SummedState, inbox: Inbox, *, damped: bool) -> SummedState:
    """Add the changes; a sum that was not released changes nothing."""
    if not inbox.sums:
        return state
    assert inbox.loads is not None
    model = double(state.model)
    clients = np.flatnonzero(inbox.arrived).tolist()
    anchors = {j: Anchor(model, int(inbox.loads[j]), state.round) for j in clients}
    damping = state.damping
    if damped:
        before = {j: state.anchors[j] for j in clients if j in state.anchors}
        same = {j: anchor for j, anchor in before.items() if anchor.points == anchors[j].points}
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
