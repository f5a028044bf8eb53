"""Progress of a simulation: for a progress bar, the status file and trackers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from codedfedl.core.record import Record
from codedfedl.tracking import finite


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
        values = {
            "metric": record.metric,
            "excess": record.excess,
            "seconds": 0.0 if record.is_setup else record.seconds,
            "training_hours": self.training_hours,
            "total_hours": self.total_hours,
            **record.counts(),
        }
        return finite(self.metric, values)


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

What is being done begins with the unit, such as ``seed 0``; several may take turns. When a
run is resumed, what was played before is reported too, at the end of its unit or with its first
round.
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


def no_progress(_what: str, _progress: Progress | None) -> None:
    """Watch without showing anything."""


class ProgressReporter:
    """What is new of the settings of a simulation, or of their records."""

    def __init__(self, settings: Sequence[str], seed: int, metric: str) -> None:
        self.settings, self.seed, self.metric = settings, seed, metric
        self._reported = [0] * len(settings)
        self._hours = [(0.0, 0.0)] * len(settings)

    def played(self, records: Sequence[Sequence[Record]]) -> list[Played]:
        """Return what has ended since the last time; the first time everything.

        Parameters
        ----------
        records
            Of each setting, all so far.
        """
        ended = []
        for s, setting in enumerate(self.settings):
            for record in records[s][self._reported[s] :]:
                training, total = self._hours[s]
                hours = record.seconds / 3600
                self._hours[s] = (training + (0.0 if record.is_setup else hours), total + hours)
                if not record.is_setup or record.has_model:
                    played = Played(setting, self.seed, self.metric, record, *self._hours[s])
                    ended.append(played)
            self._reported[s] = len(records[s])
        return ended


def on_host(progress: Progress) -> Progress:
    """Return progress that another process can read: metrics leave the device."""
    moved = [
        replace(played, record=replace(played.record, metric=float(played.record.metric)))
        for played in progress.played
    ]
    return replace(progress, played=moved)
