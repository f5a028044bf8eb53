"""One record of an exchange, for every runtime, and the tables that a run leaves.

| table | a row for each |
| --- | --- |
| `rounds` | cell, seed and round; round 0 is the end of the set-up, where a model is there |
| `clients` | cell, seed and client (`CLIENT_COLUMNS`) |
| `settings` | cell and seed: what is said once (`FACTS`, `RUN_FACTS`, a scheme's own facts) |
| `timeline` | cell, client and one of the first rounds: when its answer came |
| `refusals` | answer of a real client that was not taken, and why |
| `distances` | judged answer of a real client: its distance from parity in expected errors |

A cell is a setting by its id. `runs.tables` writes all but the last two.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray, Mask

__all__ = [
    "ARRIVED",
    "CLIENT_COLUMNS",
    "DROPPED",
    "FACTS",
    "LATE",
    "NOT_ASKED",
    "PARTS",
    "REFUSED",
    "RUN_FACTS",
    "SETUP",
    "SHOWN_ROUNDS",
    "Record",
    "metric_name",
    "packed",
    "round_columns",
    "timeline_columns",
    "unpacked",
]

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

SHOWN_ROUNDS = 8
"""Number of first rounds for which the arrival time of each answer is kept."""

FACTS = (
    "parity_rows",
    "expected_return",
    "server_return_probability",
    "points_per_parity_row",
    "embedded_points",
    "unrepresented_points",
    "setup_deadline_s",
    "round_deadline_s",
    "planned_hours",
    "planned_excess",
    "planned_rounds",
    "predicted_hours",
    "predicted_excess",
    "predicted_start_loss",
    "predicted_start_excess",
    "start_loss",
    "damping",
    "epsilon",
    "delta",
)
"""Facts of the package's schemes, once per setting and seed; NaN where one does not apply."""

RUN_FACTS = ("sigma", "step", "diverged", "chance", "test_points", "exact_metric", "explained")
"""What the runtime adds to a scheme's facts."""

CLIENT_COLUMNS = (
    "rate",
    "points",
    "load",
    "planned_share",
    "arrived_share",
    "compute_s",
    "link_s",
    "retransmission_s",
    "overhead_s",
    "setup_compute_s",
    "setup_upload_s",
)
"""The columns of a client: seconds are averages over rounds and include late clients."""


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
    arrival_times: FloatArray | None
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


def round_columns(records: Sequence[Record]) -> dict[str, Any]:
    """Return a row per round, and one for the set-up, or part of it, where that left a model.

    `training_hours` is the paper's clock; `total_hours` charges the set-up too.
    """
    told = [record for record in records if not record.is_setup or record.has_model]
    seconds = np.array([0.0 if one.is_setup else one.seconds for one in told])
    setup = np.cumsum([one.seconds if one.is_setup else 0.0 for one in records])
    setup = setup[[not one.is_setup or one.has_model for one in records]]
    hours = np.cumsum(seconds) / 3600
    counts = [one.counts() for one in told]
    return {
        "round": np.array([one.round + 1 for one in told], dtype=np.int64),
        "deadline_s": np.array([one.deadline for one in told], dtype=np.float64),
        "seconds": seconds,
        "training_hours": hours,
        "total_hours": hours + setup / 3600,
        **{name: np.array([each[name] for each in counts], dtype=np.int64) for name in PARTS},
        "excess": np.array([one.excess for one in told], dtype=np.float64),
        "metric": np.array([float(one.metric) for one in told], dtype=np.float64),
    }


def timeline_columns(records: Sequence[Record], clients: npt.NDArray[Any]) -> dict[str, Any]:
    """Return when each client's answer came in the first rounds, a row per client and round."""
    shown = [record for record in records if not record.is_setup][:SHOWN_ROUNDS]
    return {
        "round": np.repeat([one.round + 1 for one in shown], len(clients)).astype(np.int64),
        "client": np.tile(clients, len(shown)),
        "round_seconds": np.repeat([one.seconds for one in shown], len(clients)).astype(float),
        "deadline_s": np.repeat([one.deadline for one in shown], len(clients)).astype(float),
        "seconds": _joined([_times(one, len(clients)) for one in shown], np.float64),
        "arrived": _joined([one.arrived for one in shown], np.bool_),
    }


def _times(record: Record, clients: int) -> FloatArray:
    return np.full(clients, np.nan) if record.arrival_times is None else record.arrival_times


def packed(records: Sequence[Record]) -> dict[str, npt.NDArray[Any]]:
    """Return records as arrays, for a checkpoint; equal loads are kept once."""
    loads = {record.loads.tobytes(): record.loads for record in records}
    places = {key: place for place, key in enumerate(loads)}
    timed = [one for one in records if one.arrival_times is not None]
    clients = len(records[0].loads) if records else 0
    return {
        "round": np.array([one.round for one in records], dtype=np.int64),
        "deadline": np.array([one.deadline for one in records], dtype=np.float64),
        "seconds": np.array([one.seconds for one in records], dtype=np.float64),
        "has_model": np.array([one.has_model for one in records], dtype=bool),
        "metric": np.array([float(one.metric) for one in records], dtype=np.float64),
        "excess": np.array([one.excess for one in records], dtype=np.float64),
        "outcome": np.array([one.outcome for one in records], dtype=np.int8).reshape(-1, clients),
        "loads": np.array(list(loads.values()), dtype=np.int64).reshape(-1, clients),
        "loads_of": np.array([places[one.loads.tobytes()] for one in records], dtype=np.int64),
        "times": np.array([one.arrival_times for one in timed]).reshape(-1, clients),
        "timed": np.array([one.arrival_times is not None for one in records], dtype=bool),
    }


def unpacked(stored: Mapping[str, npt.NDArray[Any]]) -> list[Record]:
    """Return the records from the arrays of `packed`."""
    times = iter(stored["times"])
    loads = list(stored["loads"])
    return [
        Record(
            round=int(stored["round"][k]),
            deadline=float(stored["deadline"][k]),
            seconds=float(stored["seconds"][k]),
            loads=loads[stored["loads_of"][k]],
            outcome=stored["outcome"][k],
            arrival_times=next(times) if stored["timed"][k] else None,
            has_model=bool(stored["has_model"][k]),
            metric=float(stored["metric"][k]),
            excess=float(stored["excess"][k]),
        )
        for k in range(len(stored["round"]))
    ]


def _joined(parts: Sequence[npt.NDArray[Any]], dtype: Any) -> npt.NDArray[Any]:
    return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype)
