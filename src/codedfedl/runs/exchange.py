"""One exchange of a federation as the journal keeps it: a question, and what clients answered."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from codedfedl.core.protocol import Reply
from codedfedl.core.record import DROPPED, REFUSED, SETUP, Record, record_arrays, record_of
from codedfedl.fitting.drift import Timings

__all__ = ["Exchange", "exchange_columns"]


@dataclass(frozen=True, eq=False)
class Exchange:
    """A question to the clients and what they answered.

    Attributes
    ----------
    points
        Points behind the answers.
    sums
        What was added up, for a scheme that uses nothing else.
    replies
        Single answers, for a scheme that does; without the models that they are for.
    stored
        Clients whose answer is stored beside the journal, in its own folder, and its points:
        one-time answers may be large.
    spent
        μ² of all noisy sums that were given out, this one included.
    counted : array of shape (n,), optional
        Points of each client's part in a secure sum; 0 for clients that are not in it.
    excluded
        Clients that are left out from then on.
    timings
        How long clients took, for schemes that follow it.
    revised
        Clients whose stored answers count from now on, and their points, where that has changed.
    """

    record: Record
    points: float = 0.0
    sums: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    replies: tuple[Reply, ...] = ()
    stored: Mapping[int, int] = field(default_factory=dict)
    spent: float = 0.0
    excluded: tuple[int, ...] = ()
    counted: npt.NDArray[np.int64] | None = None
    timings: Timings | None = None
    revised: Mapping[int, int] | None = None

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything as arrays, for a file."""
        kept = record_arrays(self.record)
        kept["points"], kept["spent"] = np.asarray(self.points), np.asarray(self.spent)
        kept |= {f"sum/{name}": array for name, array in self.sums.items()}
        facts = [(r.client, r.round, r.points) for r in self.replies]
        kept["replies"] = np.array(facts, dtype=np.int64).reshape(-1, 3)
        for k, reply in enumerate(self.replies):
            kept |= {f"reply/{k}/{name}": array for name, array in reply.arrays.items()}
        kept["stored"] = np.array(list(self.stored.items()), dtype=np.int64).reshape(-1, 2)
        if self.revised is not None:
            kept["revised"] = np.array(list(self.revised.items()), np.int64).reshape(-1, 2)
        kept["excluded"] = np.array(self.excluded, dtype=np.int64)
        if self.counted is not None:
            kept["counted"] = self.counted
        if (seen := self.timings) is not None:
            kept["timings"] = np.array([seen.loads, seen.seconds, seen.answered], dtype=np.float64)
        return kept

    @classmethod
    def of(cls, kept: Mapping[str, npt.NDArray[Any]]) -> "Exchange":
        """Return the exchange from its `arrays`; from earlier versions, what a report needs."""
        replies = tuple(
            Reply(client, round_, points, _named(kept, f"reply/{k}/"))
            for k, (client, round_, points) in enumerate(kept.get("replies", np.empty(0)).tolist())
        )
        stored = kept.get("stored", kept.get("blocks", np.empty((0, 2))))
        points, spent = (kept.get(name, np.zeros(())).item() for name in ("points", "spent"))
        return cls(
            record_of(_upgraded(kept)),
            points,
            _named(kept, "sum/"),
            replies,
            dict(stored.tolist()),
            spent=spent,
            excluded=tuple(kept.get("excluded", np.empty(0, np.int64)).tolist()),
            counted=kept.get("counted"),
            timings=_timings(kept["timings"]) if "timings" in kept else None,
            revised=dict(kept["revised"].tolist()) if "revised" in kept else None,
        )


def exchange_columns(file: BinaryIO, *, gradients: bool) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of an exchange from its file; without gradients where nobody needs them."""
    large = () if gradients else ("sum/", "reply", "total")
    with np.load(file) as stored:
        return {name: stored[name] for name in stored.files if not name.startswith(large)}


def _upgraded(kept: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return a record's arrays as today's, whichever version wrote them.

    Once refused clients were dropped too, and what is now JSON was a table of numbers.
    """
    arrays = dict(kept)
    if "when" in arrays:
        arrays["arrival_times"] = arrays["when"]
    arrays.setdefault("has_model", np.asarray(arrays["round"] != SETUP))
    refused = np.array(
        [client for client, _ in json.loads(str(arrays["refusals"]))], dtype=np.int64
    )
    arrays["outcome"] = outcome = arrays["outcome"].copy()
    outcome[refused[outcome[refused] == DROPPED]] = REFUSED
    for name in ("suspects", "busy", "late_answers"):
        if name in arrays and arrays[name].dtype.kind != "U":
            rows = arrays[name].tolist()
            rows = [(int(row[0]), row[1]) for row in rows] if name == "late_answers" else rows
            arrays[name] = np.array(json.dumps(rows))
    return arrays


def _timings(columns: npt.NDArray[Any]) -> Timings:
    loads, seconds, answered = columns
    return Timings(loads.astype(np.int64), seconds, answered > 0)


def _named(kept: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {k.removeprefix(prefix): v for k, v in kept.items() if k.startswith(prefix)}
