"""One record of an exchange, for every runtime, and how files keep it.

A new fact of an exchange is a field of `Record`: checkpoints and journals hold every field.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray, Mask
from codedfedl.io.names import count_of

NOT_ASKED, ARRIVED, LATE, DROPPED, REFUSED = range(5)
"""The outcome of a question to a client."""

PARTS: dict[str, tuple[int, ...]] = {
    "arrived": (ARRIVED,),
    "late": (LATE,),
    "dropped": (DROPPED, NOT_ASKED),
    "refused": (REFUSED,),
}
"""The parts of a round, and their outcomes: every client is in one of them.

Late is who may still answer; dropped, from whom no answer will come: it is gone, cannot answer, is
left out, or was asked for no points; refused, whose answer came and does not count.
"""

SETUP = -1
"""The round number of the set-up; the first round is 0."""

AT_DEADLINE = 0.999
"""The share of a deadline after which it counts as reached: clocks differ by less."""

SHOWN_ROUNDS = 8
"""Number of first rounds for which the arrival time of each answer is kept."""


@dataclass(frozen=True, eq=False)
class Record:
    """The outcome of an exchange; arrays have shape (n,).

    Attributes
    ----------
    round
        Counted from 0; -1 for the set-up.
    has_model
        Whether there was a model to evaluate: a set-up may leave none.
    deadline, seconds
        How long the server would have waited at most (∞: for all), and how long it did.
    loads
        Points that each client was asked for.
    outcome
        `NOT_ASKED`, `ARRIVED`, `LATE`, `DROPPED` (no answer will come) or `REFUSED`.
    arrival_times : seconds, optional
        When each answer arrived, or would have (∞: never); kept for the first rounds only.
    compute : seconds, optional
        Computing time that each client reports (NaN: unknown).
    refusals
        Client and reason, of every answer that does not count.
    distances : array of shape (2, n), optional
        Distance of each client's gradient from its parity, in expected errors (NaN: not judged),
        and the expected error.
    suspects
        Clients whose average distance is close to the limit of refusal.
    busy
        Clients that were not asked, since they had not answered an earlier question.
    late_answers
        Client and seconds since it was asked, for answers to earlier questions that arrived
        meanwhile.
    metric, excess
        Of the model after this exchange.
    """

    round: int
    deadline: float
    seconds: float
    loads: IntArray
    outcome: npt.NDArray[np.int8]
    arrival_times: FloatArray | None = None
    compute: FloatArray | None = None
    refusals: tuple[tuple[int, str], ...] = ()
    has_model: bool = True
    metric: Any = np.nan
    excess: float = np.nan
    distances: FloatArray | None = None
    suspects: tuple[int, ...] = ()
    busy: tuple[int, ...] = ()
    late_answers: tuple[tuple[int, float], ...] = ()

    @property
    def known_distances(self) -> tuple[dict[int, float], dict[int, float]]:
        """The distances and expected errors that are known, by client."""
        if self.distances is None:
            return {}, {}
        known = np.flatnonzero(~np.isnan(self.distances[0])).tolist()
        distances, errors = self.distances.tolist()
        return {j: distances[j] for j in known}, {j: errors[j] for j in known}

    @property
    def is_setup(self) -> bool:
        """Whether this is the set-up, not a round."""
        return self.round == SETUP

    @property
    def arrived(self) -> Mask:
        """Who answered in time."""
        return np.asarray(self.outcome == ARRIVED)

    @property
    def answered(self) -> set[int]:
        """Who sent an answer meanwhile, late and refused ones included."""
        others = (j for j, _ in (*self.late_answers, *self.refusals))
        return {*np.flatnonzero(self.arrived).tolist(), *others}

    @property
    def had_enough(self) -> bool:
        """Whether it ended before the deadline, though some could still have answered."""
        early = self.seconds < AT_DEADLINE * self.deadline
        return early and bool(set(self.part("late")) - set(self.busy))

    @property
    def ended(self) -> str:
        """Why the server waited no longer."""
        if self.seconds >= AT_DEADLINE * self.deadline:
            return "until the deadline"
        late = self.part("late")
        if self.had_enough:
            enough = len(self.part("arrived")) + len(self.late_answers)
            return f"ended early: {count_of(enough, 'answer')} sufficed"
        if late or np.isin(self.outcome, (DROPPED, REFUSED)).any():
            return "ended early: nobody else could answer"
        return "ended early: every answer was in"

    def part(self, name: str) -> list[int]:
        """Return the clients in one of the `PARTS` of a round."""
        return list(np.flatnonzero(np.isin(self.outcome, PARTS[name])).tolist())

    def counts(self) -> dict[str, int]:
        """Return how many clients are in each of the `PARTS`: together, all of them."""
        numbers = np.bincount(self.outcome, minlength=REFUSED + 1)
        return {name: int(numbers[list(kinds)].sum()) for name, kinds in PARTS.items()}


def metric_name(classes: bool) -> str:
    """Return the metric's name, for classes and for regression."""
    return "accuracy" if classes else "R²"


def record_arrays(record: Record) -> dict[str, npt.NDArray[Any]]:
    """Return a record as arrays, for a file; what is None has none."""
    values = {each.name: getattr(record, each.name) for each in fields(Record)}
    return {name: as_array(value) for name, value in values.items() if value is not None}


def as_array(value: Any) -> npt.NDArray[Any]:
    """Return a number, an array, a tuple, or numbers by whole numbers as an array, for a file."""
    if isinstance(value, tuple | Mapping):  # lengths differ from record to record
        return np.array(json.dumps(value))
    return np.asarray(value, None if isinstance(value, np.ndarray | int) else np.float64)


def record_of(arrays: Mapping[str, npt.NDArray[Any]]) -> Record:
    """Return the record from its `record_arrays`, among which others may lie."""
    names = [each.name for each in fields(Record) if each.name in arrays]
    return Record(**{name: as_value(arrays[name]) for name in names})


def as_value(array: npt.NDArray[Any]) -> Any:
    """Return what `as_array` stands for."""
    if array.dtype.kind == "U":
        known = json.loads(str(array))
        if isinstance(known, dict):
            return {int(key): value for key, value in known.items()}
        return tuple(tuple(v) if isinstance(v, list) else v for v in known)
    return array if array.ndim else array.item()


def packed(records: Sequence[Record]) -> dict[str, npt.NDArray[Any]]:
    """Return records as arrays, for a checkpoint; equal values are kept once.

    Beside the values of each field is which of them every record has; -1 for none.
    """
    every = [record_arrays(record) for record in records]
    stored = {}
    for name in dict.fromkeys(name for arrays in every for name in arrays):
        keys = [arrays[name].tobytes() if name in arrays else b"" for arrays in every]
        values = {key: arrays[name] for key, arrays in zip(keys, every, strict=True) if key}
        places = {b"": -1} | {key: row for row, key in enumerate(values)}
        stored[name] = np.array(list(values.values()))
        stored[f"{name}_of"] = np.array([places[key] for key in keys])
    return stored


def unpacked(stored: Mapping[str, npt.NDArray[Any]]) -> list[Record]:
    """Return the records from the arrays of `packed`."""
    names = [each.name for each in fields(Record) if each.name in stored]
    rows = zip(*(stored[f"{name}_of"].tolist() for name in names), strict=True)
    return [
        record_of({name: stored[name][at] for name, at in zip(names, row, strict=True) if at >= 0})
        for row in rows
    ]
