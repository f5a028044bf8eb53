"""The settings of a simulation: who takes part, and what each has done so far."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from codedfedl.arrays import Array
from codedfedl.core.loop import Driver, check_ask
from codedfedl.core.protocol import Scheme, State, Task
from codedfedl.core.record import Record
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel, DelayParameters
from codedfedl.simulation.clock import NEEDS_A_FLEET
from codedfedl.simulation.grams import LoadsSeen
from codedfedl.simulation.timeline import Timeline, has_own_pace

__all__ = ["Entry", "Setting", "entries"]


@dataclass(frozen=True, eq=False)
class Entry:
    """A scheme that takes part: its task, the fleet that it plans for, and the actual fleet.

    Either fleet is a `Fleet`, or any other delay model. With `followed`, the excess of its
    objective over the minimum is recorded, which needs the Gram matrix of all points; by default
    for a scheme that aims at the minimum.
    """

    label: str
    scheme: Scheme
    task: Task
    fleet: DelayModel
    actual: DelayModel
    followed: bool | None = None

    def check(self) -> None:
        """Plan without training, and refuse what cannot be simulated."""
        self.scheme.check(self.fleet)
        ask = self.scheme.ask(self.scheme.start(self.task, self.fleet, None))
        if ask is not None:
            check_ask(self.scheme, ask)
        formula = isinstance(self.actual, DelayParameters)
        if ask is not None and has_own_pace(ask.work) and not formula:
            raise InputError(f"{self.scheme.info.name}: {NEEDS_A_FLEET}")


def entries(task: Task, fleet: DelayModel, schemes: Mapping[str, Scheme]) -> list[Entry]:
    """Return schemes that share a task and a fleet, which is also the actual one."""
    return [Entry(label, scheme, task, fleet, fleet) for label, scheme in schemes.items()]


@dataclass(eq=False)
class Setting:
    """One scheme in a simulation, and what it has done so far.

    Attributes
    ----------
    facts
        What the scheme states, as of the end of the set-up.
    models
        Models that clients may still answer for, by round.
    loads_seen
        Which loads its rounds have asked for.
    """

    label: str
    driver: Driver
    timeline: Timeline
    followed: bool = False
    records: list[Record] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)
    models: dict[int, Array] = field(default_factory=dict)
    loads_seen: LoadsSeen = field(default_factory=LoadsSeen)

    @property
    def scheme(self) -> Scheme:
        """The scheme."""
        return self.driver.scheme

    @property
    def state(self) -> State:
        """What the scheme knows."""
        return self.driver.state

    @property
    def rounds(self) -> list[Record]:
        """The records of the rounds."""
        return [record for record in self.records if not record.is_setup]

    @property
    def setup_seconds(self) -> float:
        """How long the set-up took."""
        return sum(record.seconds for record in self.records if record.is_setup)
