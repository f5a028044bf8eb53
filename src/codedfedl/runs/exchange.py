"""One exchange of a federation as the journal keeps it: a question, and what clients answered."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.core.protocol import Reply
from codedfedl.core.record import DROPPED, REFUSED, SETUP, Record, record_arrays, record_of
from codedfedl.fitting.drift import Timings
from codedfedl.io.archives import read_arrays


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
        arrays = record_arrays(self.record) | {
            "points": np.asarray(self.points),
            "spent": np.asarray(self.spent),
            "excluded": np.array(self.excluded, dtype=np.int64),
            "replies": np.array(
                [(reply.client, reply.round, reply.points) for reply in self.replies],
                dtype=np.int64,
            ).reshape(-1, 3),
            "stored": _pairs(self.stored),
            **{f"sum/{name}": array for name, array in self.sums.items()},
        }
        for k, reply in enumerate(self.replies):
            arrays |= {f"reply/{k}/{name}": array for name, array in reply.arrays.items()}
        if self.revised is not None:
            arrays["revised"] = _pairs(self.revised)
        if self.counted is not None:
            arrays["counted"] = self.counted
        if (seen := self.timings) is not None:
            arrays["timings"] = np.array([seen.loads, seen.seconds, seen.answered], np.float64)
        return arrays

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "Exchange":
        """Return the exchange from its `arrays`; from earlier versions, what a report needs."""
        replies = tuple(
            Reply(client, round_, points, _named(arrays, f"reply/{k}/"))
            for k, (client, round_, points) in enumerate(
                arrays.get("replies", np.empty((0, 3))).tolist()
            )
        )
        stored = arrays.get("stored", arrays.get("blocks", np.empty((0, 2))))
        points, spent = (arrays.get(name, np.zeros(())).item() for name in ("points", "spent"))
        return cls(
            record_of(_upgraded(arrays)),
            points,
            _named(arrays, "sum/"),
            replies,
            dict(stored.tolist()),
            spent=spent,
            excluded=tuple(arrays.get("excluded", np.empty(0)).tolist()),
            counted=arrays.get("counted"),
            timings=_timings(arrays["timings"]) if "timings" in arrays else None,
            revised=dict(arrays["revised"].tolist()) if "revised" in arrays else None,
        )

    @staticmethod
    def read(
        path: Path,
        content: bytes | None = None,
        *,
        gradients: bool = True,
        remedy: str = "restore it from a copy",
    ) -> dict[str, npt.NDArray[Any]]:
        """Read the arrays of an exchange from its file, without gradients where nobody needs them.

        Parameters
        ----------
        content
            Of the file, where it was read already.
        """
        skip = () if gradients else ("sum/", "reply", "total")
        return read_arrays(path, skip=skip, content=content, remedy=remedy)


def _pairs(mapping: Mapping[int, int]) -> npt.NDArray[np.int64]:
    return np.array(list(mapping.items()), dtype=np.int64).reshape(-1, 2)


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
