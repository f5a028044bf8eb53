"""An exchange of a federation, and the arrays that stand for it in a file.

A new fact of an exchange is a field of `Exchange`, or of its `Record`: files hold every field.
Answers that clients send once, such as parity, may be large: they lie on the server's disk, in a
folder of `StoredAnswers`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.core.loop import RunningSum
from codedfedl.core.protocol import Reply
from codedfedl.core.record import (
    DROPPED,
    REFUSED,
    SETUP,
    Record,
    as_array,
    as_value,
    record_arrays,
    record_of,
)
from codedfedl.fitting.drift import Timings
from codedfedl.io.files import HashedFile, digest, durable, make_folder, write_durably
from codedfedl.learning.least_squares import ParityRows

ANSWERS = ("sum/", "reply", "total")
"""How the names of arrays begin that a record does without."""

_PLAIN = ("points", "stored", "spent", "excluded", "counted", "revised")
_RENAMED = {"when": "arrival_times"}  # since version 0.2


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
        Points of each client's part in a secure sum, or in one of windows; 0 for clients that are
        not in it.
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
        facts = {name: getattr(self, name) for name in _PLAIN}
        facts["replies"] = tuple(
            (reply.client, reply.round, reply.points) for reply in self.replies
        )
        groups = {f"reply/{k}": reply.arrays for k, reply in enumerate(self.replies)}
        groups |= {"sum": self.sums, "timings": vars(self.timings) if self.timings else {}}
        plain = {name: as_array(value) for name, value in facts.items() if value is not None}
        for group, arrays in groups.items():
            plain |= {f"{group}/{name}": array for name, array in arrays.items()}
        return record_arrays(self.record) | plain

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "Exchange":
        """Return the exchange from its `arrays`, among which others may lie."""
        plain = {name: as_value(arrays[name]) for name in _PLAIN if name in arrays}
        timings = _group(arrays, "timings")
        return cls(
            record_of(arrays),
            sums=_group(arrays, "sum"),
            replies=tuple(
                Reply(client, round_, points, _group(arrays, f"reply/{k}"))
                for k, (client, round_, points) in enumerate(as_value(arrays["replies"]))
            ),
            timings=Timings(**timings) if timings else None,
            **plain,
        )


def _group(arrays: Mapping[str, npt.NDArray[Any]], group: str) -> dict[str, npt.NDArray[Any]]:
    prefix = f"{group}/"
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def record_in(kept: Mapping[str, npt.NDArray[Any]]) -> Record:
    """Return the record in the arrays of an exchange, whichever version wrote them.

    Once refused clients were dropped too, and what is now JSON was a table of numbers.
    """
    arrays = {_RENAMED.get(name, name): array for name, array in kept.items()}
    arrays.setdefault("has_model", np.asarray(arrays["round"] != SETUP))
    for name in ("suspects", "busy", "late_answers"):
        if name in arrays and arrays[name].dtype.kind != "U":
            rows = arrays[name].tolist()
            rows = [(int(row[0]), row[1]) for row in rows] if name == "late_answers" else rows
            arrays[name] = np.array(json.dumps(rows))
    record = record_of(arrays)
    refused = np.isin(np.arange(len(record.outcome)), [client for client, _ in record.refusals])
    record.outcome[refused & (record.outcome == DROPPED)] = REFUSED
    return record


class StoredAnswers:
    """A folder with one folder for each client: its arrays, and their hashes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def points(self) -> dict[int, int]:
        """For how many points each answer stands, by client."""
        paths = sorted(self.folder.glob("*/points"))
        return {int(path.parent.name): int(path.read_text().split()[0]) for path in paths}

    def keep(self, client: int, arrays: Mapping[str, npt.NDArray[Any]], points: int) -> None:
        """Write an answer to the disk: it need not stay in memory."""
        folder = self.folder / str(client)
        make_folder(folder)
        lines = [str(points)]
        for name, array in arrays.items():
            with durable(folder / f"{name}.npy") as file:
                hashed = HashedFile(file)
                np.save(hashed, array)
            lines.append(f"{hashed.digest} {name}.npy")
        write_durably(folder / "points", "\n".join(lines).encode())  # last: marks it as complete
        self.points[client] = points

    def damaged(self) -> Path | None:
        """Return the first file that is not what its client sent, or None."""
        for client in self.points:
            folder = self.folder / str(client)
            for line in (folder / "points").read_text("utf-8").splitlines()[1:]:
                expected, name = line.split(" ", 1)
                path = folder / name
                if not path.is_file() or digest(path.read_bytes()) != expected:
                    return path
        return None

    def answer(self, client: int) -> dict[str, npt.NDArray[Any]]:
        """Return a client's answer, memory-mapped."""
        paths = sorted((self.folder / str(client)).glob("*.npy"))
        return {path.stem: np.load(path, "r") for path in paths}

    def parity(self, client: int, batch: int = 0) -> ParityRows | None:
        """Return a client's parity of a mini-batch, memory-mapped, if all of it is here."""
        folder = self.folder / str(client)
        paths = [folder / f"{name}{batch}.npy" for name in ("features", "targets")]
        if client not in self.points or not all(path.is_file() for path in paths):
            return None
        return ParityRows(*(np.load(path, "r") for path in paths))

    def combined(
        self, clients: Mapping[int, int], *, summed: bool
    ) -> tuple[Mapping[str, Any], tuple[Reply, ...]]:
        """Return the sums of answers, one in memory at a time, or each of them.

        Parameters
        ----------
        clients
            Whose answers, and for how many points they stand.
        """
        each = sorted(clients.items())
        if not summed:
            return {}, tuple(Reply(j, SETUP, points, self.answer(j)) for j, points in each)
        total = RunningSum()
        for j, _ in each:
            total.add(self.answer(j))
        return total.result(), ()
