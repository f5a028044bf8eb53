"""One unit, from its beginning or its checkpoint to its end, in whatever process."""

import time
from typing import Protocol

import numpy as np

from codedfedl.core.record import metric_name
from codedfedl.runs.directory import Checkpoint
from codedfedl.simulation.engine import Simulation
from codedfedl.simulation.models import endings
from codedfedl.simulation.problem import Problem, embedded
from codedfedl.simulation.progress import Played, Progress, Teller, all_played, end_of
from codedfedl.simulation.records import restore, snapshot, stored_records, stories
from codedfedl.simulation.units import Unit, deal, entries_of

__all__ = ["Sink", "done", "is_done", "play", "played_before"]

_SECONDS_BETWEEN_CHECKPOINTS = 5.0


class Sink(Protocol):
    """Where the news of a unit go."""

    def tell(self, what: str, progress: Progress | None) -> None:
        """Say what is being done, and what has been played."""

    def keep(self, arrays: Checkpoint) -> None:
        """Keep what the unit can be continued from, or its results."""


def done(place: int) -> str:
    """Return the key that a finished unit has in a checkpoint."""
    return f"{place}/done"


def _metric(unit: Unit) -> str:
    return metric_name(unit.dataset.is_classification)


def played_before(unit: Unit, place: int, checkpoint: Checkpoint) -> Progress:
    """Return what was played of a finished unit."""
    found: list[Played] = []
    for cell, records in zip(unit.cells, stored_records(checkpoint, unit, place), strict=True):
        found += all_played(cell.label, unit.seed, _metric(unit), records)
    rounds = max((one.round for one in found), default=0)
    return Progress(rounds, rounds, found)


def is_done(checkpoint: Checkpoint, place: int) -> bool:
    """Whether a unit is finished."""
    return done(place) in checkpoint


def play(
    unit: Unit,
    place: int,
    checkpoint: Checkpoint,
    device: str,
    sink: Sink,
    problem: Problem | None = None,
) -> Problem:
    """Play the rounds of a unit, and keep its results.

    Parameters
    ----------
    place
        Of the unit among all of its run.
    problem
        What the unit trains on, if it is embedded already.

    Returns
    -------
    Problem
        For a unit with the same data and features.
    """
    sink.tell(f"{unit.title}: features and parity", None)
    parts = deal(unit)
    if problem is None:
        problem = embedded(unit.dataset, parts, unit.features, device)
    simulation = Simulation(problem, entries_of(unit, parts), unit.seed)
    restore(simulation, checkpoint, place)
    teller, saved = Teller(simulation, _metric(unit)), time.monotonic()
    for _ in simulation.run():
        sink.tell(unit.title, teller.progress())
        if time.monotonic() - saved > _SECONDS_BETWEEN_CHECKPOINTS:
            sink.keep(snapshot(simulation, place))
            saved = time.monotonic()
    if (last := teller.progress()).played:  # of settings without rounds
        sink.tell(unit.title, last)
    results = stories(simulation, unit, place) | endings(simulation, place)
    sink.tell(end_of(unit.title), None)
    sink.keep(snapshot(simulation, place) | results | {done(place): np.array(True)})
    return problem
