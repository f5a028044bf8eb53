"""What is told of a simulation while it runs: to a progress bar, the status file and trackers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from codedfedl.core.record import Record
from codedfedl.simulation.engine import Simulation
from codedfedl.tracking import finite

__all__ = [
    "Played",
    "Progress",
    "Teller",
    "Watch",
    "all_played",
    "end_of",
    "is_end",
    "on_host",
    "silent",
    "unit_of",
]


@dataclass(frozen=True, eq=False)
class Played:
    """A round of one setting as it ended, or the end of its set-up where that left a model.

    Attributes
    ----------
    metric
        What the model is measured by, ``accuracy`` or ``R²``.
    training_hours, total_hours
        On the virtual clock after this round, without the set-up and with it.
    """

    setting: str
    seed: int
    metric: str
    record: Record
    training_hours: float
    total_hours: float

    @property
    def round(self) -> int:
        """Counted from 1; 0 for the end of the set-up."""
        return self.record.round + 1

    @property
    def values(self) -> dict[str, float]:
        """What is known of the round, for trackers."""
        record = self.record
        told = {
            "metric": record.metric,
            "excess": record.excess,
            "seconds": 0.0 if record.is_setup else record.seconds,
            "training_hours": self.training_hours,
            "total_hours": self.total_hours,
            **record.counts(),
        }
        return finite(self.metric, told)


@dataclass(frozen=True, eq=False)
class Progress:
    """What a watcher may show after a round.

    Attributes
    ----------
    round, rounds
        Of the longest setting: played, and at most.
    played
        What has ended since the last time, in order.
    """

    round: int
    rounds: int
    played: Sequence[Played]


Watch = Callable[[str, Progress | None], None]
"""Is called with what is being done, and after every round with its results.

What is being done begins with the unit, such as ``seed 0``; several may be told of in turns. When a
run is resumed, what was played before is told too, at the end of its unit or with its first round.
"""

_END = ": done"


def unit_of(what: str) -> str:
    """Return the unit that something is said of."""
    return what.partition(":")[0]


def end_of(unit: str) -> str:
    """Say that a unit is done."""
    return f"{unit}{_END}"


def is_end(what: str) -> bool:
    """Whether a unit is done."""
    return what.endswith(_END)


def silent(_what: str, _progress: Progress | None) -> None:
    """Watch without a word."""


class Teller:
    """Remembers what has been told of each setting of a simulation."""

    def __init__(self, simulation: Simulation, metric: str) -> None:
        self.simulation, self.metric = simulation, metric
        self._told = [0] * len(simulation.settings)
        self._hours = [(0.0, 0.0)] * len(simulation.settings)

    def progress(self) -> Progress:
        """Return what is new: the first time everything, also what a checkpoint held."""
        found: list[Played] = []
        for s, setting in enumerate(self.simulation.settings):
            fresh = setting.records[self._told[s] :]
            found += all_played(
                setting.label, self.simulation.seed, self.metric, fresh, self._hours[s]
            )
            self._told[s] = len(setting.records)
            self._hours[s] = _after(fresh, self._hours[s])
        return Progress(self.simulation.round, self.simulation.rounds, found)


def all_played(
    setting: str,
    seed: int,
    metric: str,
    records: Sequence[Record],
    hours: tuple[float, float] = (0.0, 0.0),
) -> list[Played]:
    """Return what is told of records, the hours before the first of which are given."""
    found = []
    for record in records:
        hours = _after([record], hours)
        if not record.is_setup or record.has_model:
            found.append(Played(setting, seed, metric, record, *hours))
    return found


def _after(records: Sequence[Record], hours: tuple[float, float]) -> tuple[float, float]:
    """Return training and total hours after some more records."""
    training, total = hours
    for record in records:
        training += 0.0 if record.is_setup else record.seconds / 3600
        total += record.seconds / 3600
    return training, total


def on_host(progress: Progress) -> Progress:
    """Return progress that another process can read: metrics leave the device."""
    moved = [
        replace(one, record=replace(one.record, metric=float(one.record.metric)))
        for one in progress.played
    ]
    return replace(progress, played=moved)
