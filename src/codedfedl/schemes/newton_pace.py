"""What `coded-newton` learns of its clients' speed, and what follows for their loads.

A client that is slower than planned has embedded few of its points when the set-up ends. Whenever
it is asked it then spends its time on answers for those few, again and again, and never gets to
embed more. So it is left alone until it has as many as it would have by the end of the set-up that
would be planned now, at its own pace; the others continue meanwhile. If the whole fleet is slower,
the set-up is extended instead, and all clients send parity of further points.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.core.client import BlockParity
from codedfedl.core.protocol import State
from codedfedl.errors import InputError
from codedfedl.fitting.drift import Drift, Timings
from codedfedl.fleet.costs import BlockSetup
from codedfedl.fleet.devices import Fleet
from codedfedl.planning.cold_start import ColdStart
from codedfedl.schemes.by_class import ByClass
from codedfedl.schemes.sketch_solve import Block

if TYPE_CHECKING:
    from codedfedl.schemes.newton_state import NewtonState

__all__ = ["Pace", "PlannedNewton", "extension", "replanned", "with_extension"]

_LEAST_LEFT = 0.8  # of the planned set-up, once the label counts are there
_WORTH = 1.25  # times as long: a shorter one is not worth another message of every client


@dataclass(frozen=True, eq=False)
class Pace:
    """The fleet that a plan assumes, and what answers have shown since."""

    fleet: Fleet
    drift: Drift

    @classmethod
    def planned(cls, fleet: Fleet) -> "Pace":
        """Return that of a plan before anybody has answered."""
        return cls(fleet, Drift.unknown(fleet))

    def after(self, seen: Timings | None) -> "Pace":
        """Return what is known after some answers."""
        return replace(self, drift=self.drift.after(seen))

    @property
    def as_planned(self) -> bool:
        """Whether no client differs significantly from its plan."""
        return self.drift.as_planned

    @property
    def actual(self) -> Fleet:
        """The fleet as it is."""
        return self.fleet.slowed(self.drift.slowdowns)

    def setup_timings(self, seen: Timings, setup: BlockSetup) -> Timings:
        """Return the times of a set-up as those of rounds of as much work.

        Embedding and mixing become as many points of a gradient; the planned time of the parity's
        packets makes room for that of a model and a gradient.
        """
        fleet = self.fleet
        computing = seen.loads * setup.seconds_per_point(fleet, 0.0)
        sent = setup.packets(seen.loads) * fleet.packet_time_up / (1 - fleet.erasure_up)
        link = fleet.mean(np.zeros(len(fleet)))
        loads = np.round(computing * fleet.rate).astype(np.int64)
        return Timings(loads, np.maximum(seen.seconds - sent + link, 0.0), seen.answered)

    def least_points(
        self, planned: IntArray, embedded: Mapping[int, int], longer: float, held: IntArray
    ) -> IntArray:
        """Return how many points each client embeds before it answers; 0: as many as it has.

        Parameters
        ----------
        planned : array of shape (n,)
            Points by the end of the set-up that would be planned now.
        embedded
            Points that clients had when it ended, by client.
        longer
            How many times as long the set-up would be.
        """
        least = planned.copy()
        for client, points in embedded.items():
            least[client] = points * longer
        return np.where(self.drift.slowdowns > 1, np.minimum(least, held), 0)


@dataclass(frozen=True, eq=False, kw_only=True)
class PlannedNewton(State):
    """What is known before any parity is there.

    Attributes
    ----------
    settings
        Those of the scheme, within the limits of an operator.
    fleet, federated
        What the plan assumes, and whether its clients are real.
    parity
        What every client sends once.
    plan
        Deadlines and rounds, with the predictions for them.
    first_plan
        What was planned before any parity was there.
    last_round : int
        Number of rounds to run: the plan's, unless more are asked for.
    by_class : optional
        The clients' label counts; None until they are there, or if nobody is asked.
    ahead : array of shape (n,), seconds
        How long each client had embedded before it was asked for parity, others still counting.
    pace
        What answers have shown of the clients' delays, where the plan follows them.
    blocks
        The parity of each client that sent some.
    """

    settings: Any
    fleet: Fleet
    federated: bool
    parity: BlockParity
    plan: ColdStart
    first_plan: ColdStart
    last_round: int
    by_class: ByClass | None = None
    ahead: FloatArray = field(default_factory=lambda: np.zeros(1))
    pace: Pace | None = None
    blocks: Mapping[int, Block] = field(default_factory=dict)

    @property
    def parity_deadline(self) -> float:
        """Seconds from the question for parity on to the end of the set-up."""
        planned = self.plan.setup_deadline
        return max(planned - float(self.ahead.max()), _LEAST_LEFT * planned)

    def setup_timings(self, seen: Timings | None) -> Timings | None:
        """Return how long the set-up took as if it had been rounds of as much work."""
        if self.pace is None or seen is None:
            return None
        seen = replace(seen, seconds=seen.seconds + self.ahead)
        return self.pace.setup_timings(seen, self.parity.setup(self.task))


def extension(state: "NewtonState", plan: Callable[[Fleet], ColdStart]) -> float:
    """Return by how many seconds to extend the set-up, whose answers show how fast clients are.

    It is 0 unless the whole fleet is slower: nobody waits for a few slow clients.
    """
    pace = state.pace
    if pace is None:
        return 0.0
    slower = pace.drift.common
    if slower <= 1:
        return 0.0
    try:
        before, now = plan(pace.fleet), plan(pace.fleet.slowed(np.full(len(pace.fleet), slower)))
    except InputError:  # the clients as they are cannot be planned with
        return 0.0
    longer = now.setup_deadline / before.setup_deadline
    return (longer - 1) * state.plan.setup_deadline if longer > _WORTH else 0.0


def with_extension(state: "NewtonState") -> "NewtonState":
    """Return the state at the end of an extended set-up, with its whole length in the plan."""
    whole = state.plan.setup_deadline + state.extension
    return replace(state, plan=replace(state.plan, setup_deadline=whole), extension=0.0)


def replanned(state: "NewtonState", plan: Callable[[Fleet], ColdStart]) -> "NewtonState":
    """Return the state with the deadline and the loads that suit the clients as they are.

    The rounds' deadline grows in the ratio of two plans, for the clients as they are and as they
    were planned: a federation may have chosen a longer one, with a margin, which faster clients do
    not take away. Where the clients as they are cannot be planned with, the plan stays.
    """
    pace, first = state.pace, state.first_plan
    if pace is None:
        return state
    deadline, least = first.round_deadline, None
    if not pace.as_planned:
        try:
            before, now = plan(pace.fleet), plan(pace.actual)
        except InputError:
            return state
        deadline *= max(1.0, now.round_deadline / before.round_deadline)
        longer = now.setup_deadline / before.setup_deadline
        longer *= first.setup_deadline / state.plan.setup_deadline  # it may have been extended
        embedded = {client: block.points for client, block in state.blocks.items()}
        least = pace.least_points(now.points, embedded, longer, state.task.held)
    return replace(state, plan=replace(state.plan, round_deadline=deadline), least=least)
