"""The tables that a run leaves, column by column.

| table | a row for each |
| --- | --- |
| `rounds` | cell, seed and round; round 0 is the end of the set-up, where a model is there |
| `clients` | cell, seed and client (`CLIENT_COLUMNS`) |
| `settings` | cell and seed: what is said once (`FACTS`, `RUN_FACTS`, a scheme's own facts) |
| `timeline` | cell, client and one of the first rounds: when its answer came |
| `refusals` | answer of a real client that was not taken, and why |
| `distances` | judged answer of a real client: its distance from parity in expected errors |

A cell is a setting by its id. `runs.tables` writes all but the last two. A new column is one entry
of `TABLES`: whatever writes, reads or checks a table follows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.core.record import SHOWN_ROUNDS, Record

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

POOLED = {
    "pooled_linear": "a linear model",
    "pooled_kernel": "a kernel machine",
    "pooled_trees": "gradient boosting",
}
"""What scikit-learn's models reach on all points in one place: what people call them, by fact."""

RUN_FACTS = (
    *("sigma", "step", "diverged", "chance", "test_points", "exact_metric", "explained"),
    *("limit_s", "ridge"),
    *POOLED,
)
"""What the runtime adds to a scheme's facts; `limit_s` is how long a baseline waits for all."""

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


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    holds
        `TEXT`, `WHOLE`, `NUMBER`, `FINITE` or `FLAG`.
    missing
        What stands for it in a run of an earlier version; None: every version has written it.
    value
        Of a record, in the table of rounds.
    """

    holds: str
    missing: Any = None
    value: Callable[[Record], Any] | None = None


TEXT, WHOLE, NUMBER, FINITE, FLAG = (
    "texts",
    "whole numbers",
    "numbers",
    "finite numbers",
    "true or false",
)
"""What a column may hold."""

COMMON = {
    "cell": Column(TEXT, ""),
    "setting": Column(TEXT),
    "group": Column(TEXT, ""),
    "scheme": Column(TEXT),
    "redundancy": Column(NUMBER),
    "as_in_paper": Column(FLAG, False),
    "seed": Column(WHOLE),
}
"""Columns of every table."""

ROUND_COLUMNS = {
    "round": Column(WHOLE, value=lambda record: record.round + 1),
    "deadline_s": Column(NUMBER, np.inf, lambda record: record.deadline),
    "seconds": Column(FINITE, value=lambda record: 0 if record.is_setup else record.seconds),
    "training_hours": Column(FINITE),
    "total_hours": Column(FINITE),
    "arrived": Column(WHOLE, value=lambda record: record.counts()["arrived"]),
    "late": Column(WHOLE, 0, lambda record: record.counts()["late"]),
    "dropped": Column(WHOLE, 0, lambda record: record.counts()["dropped"]),
    "refused": Column(WHOLE, 0, lambda record: record.counts()["refused"]),
    "excess": Column(NUMBER, np.nan, lambda record: record.excess),
    "metric": Column(NUMBER, value=lambda record: float(record.metric)),
}
"""`training_hours` is the paper's clock; `total_hours` charges the set-up too."""

TABLES = {
    "rounds": COMMON | {"metric_name": Column(TEXT, "accuracy")} | ROUND_COLUMNS,
    "clients": COMMON
    | {"client": Column(TEXT)}
    | dict.fromkeys(CLIENT_COLUMNS, Column(NUMBER, 0.0))
    | {"planned_share": Column(NUMBER, np.nan)},
    "settings": COMMON | dict.fromkeys((*FACTS, *RUN_FACTS), Column(NUMBER, np.nan)),
    "timeline": COMMON
    | {
        "round": Column(WHOLE),
        "client": Column(TEXT),
        "round_seconds": Column(FINITE),
        "deadline_s": Column(NUMBER, np.inf),
        "seconds": Column(NUMBER),
        "arrived": Column(FLAG),
    },
}
"""The columns of each table; any other column of a table holds numbers."""


def round_columns(records: Sequence[Record]) -> dict[str, Any]:
    """Return a row per round, and one for the set-up, or part of it, where that left a model."""
    rows = np.array([not record.is_setup or record.has_model for record in records], dtype=bool)
    in_setup = np.array([record.is_setup for record in records], dtype=bool)
    seconds = np.array([record.seconds for record in records], dtype=np.float64)
    training = np.cumsum(np.where(in_setup, 0.0, seconds)) / 3600
    setup = np.cumsum(np.where(in_setup, seconds, 0.0)) / 3600
    clocks = {"training_hours": training[rows], "total_hours": (training + setup)[rows]}
    shown = [record for record, is_shown in zip(records, rows, strict=True) if is_shown]
    return {
        name: clocks[name]
        if column.value is None
        else np.array(
            [column.value(record) for record in shown],
            np.int64 if column.holds == WHOLE else np.float64,
        )
        for name, column in ROUND_COLUMNS.items()
    }


def totals(records: Sequence[Record]) -> dict[str, Any]:
    """Return how many clients and rounds there were, and the hours on both clocks."""
    rounds = [record for record in records if not record.is_setup]
    training = sum(record.seconds for record in rounds)
    total = sum(record.seconds for record in records)
    return {
        "clients": len(records[-1].loads),
        "rounds": len(rounds),
        "training_hours": training / 3600,
        "total_hours": total / 3600,
    }


def timeline_columns(records: Sequence[Record], clients: npt.NDArray[Any]) -> dict[str, Any]:
    """Return when each client's answer came in the first rounds, a row per client and round."""
    shown = [record for record in records if not record.is_setup][:SHOWN_ROUNDS]
    unknown = np.full(len(clients), np.nan)
    times = [unknown if record.arrival_times is None else record.arrival_times for record in shown]

    def each(values: list[float], dtype: type = np.float64) -> npt.NDArray[Any]:
        return np.repeat(np.array(values, dtype=dtype), len(clients))

    return {
        "round": each([record.round + 1 for record in shown], np.int64),
        "client": np.tile(clients, len(shown)),
        "round_seconds": each([record.seconds for record in shown]),
        "deadline_s": each([record.deadline for record in shown]),
        "seconds": np.array(times, dtype=np.float64).ravel(),
        "arrived": np.array([record.arrived for record in shown], dtype=np.bool_).ravel(),
    }
