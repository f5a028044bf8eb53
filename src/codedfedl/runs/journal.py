"""What a federation's server remembers: enough to go on after it was killed at any moment.

A scheme's state is a pure function of what it received. So the journal keeps, in files that are
never changed: who takes part (`members.json`), how they were measured (`traces.parquet`), their
parity, and one file for every exchange that was finished. To resume is to read them again.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from codedfedl._types import FloatArray, IntArray
from codedfedl.errors import InputError
from codedfedl.io.files import make_folder, replacing
from codedfedl.learning.parity import Parity, compose
from codedfedl.schemes.base import Block, Inbox, Reply

__all__ = [
    "ARRIVED",
    "DROPPED",
    "LATE",
    "NOT_ASKED",
    "SETUP",
    "Exchange",
    "Journal",
    "Members",
]

NOT_ASKED, ARRIVED, LATE, DROPPED = range(4)
"""What became of a question to a client."""

SETUP = -1
"""The round of what is asked before the first."""


@dataclass(frozen=True)
class Members:
    """Who takes part, in the order of the clients' names.

    Attributes
    ----------
    key
        The federation's own name.
    nodes
        The engine's number of each node.
    columns, classes
        Label columns, and whether they are classes.
    """

    key: str
    names: list[str]
    nodes: list[int]
    points: list[int]
    inputs: int
    columns: int
    classes: bool


@dataclass(frozen=True, eq=False)
class Exchange:
    """A question to the clients and what came of it; arrays have shape (n,).

    Attributes
    ----------
    round
        Counted from 0; -1 for the set-up.
    outcome
        `NOT_ASKED`, `ARRIVED`, `LATE` or `DROPPED`.
    when, compute : seconds
        Until the answer was there (∞: never), and what the client says it computed (NaN: unknown).
    total
        Sum of the gradients and the server's own, for a scheme that uses nothing else.
    replies
        Single gradients, for a scheme that does.
    blocks
        The points behind the parity of each client that sent some of its own.
    refusals
        Client and reason.
    metric
        Of the model after this exchange.
    """

    round: int
    batch: int
    deadline: float
    seconds: float
    loads: IntArray
    outcome: IntArray
    when: FloatArray
    compute: FloatArray
    total: npt.NDArray[np.float32] | None = None
    replies: tuple[Reply, ...] = ()
    blocks: Mapping[int, int] = field(default_factory=dict)
    refusals: tuple[tuple[int, str], ...] = ()
    metric: float = np.nan

    @property
    def arrived(self) -> npt.NDArray[np.bool_]:
        """Who answered in time."""
        return np.asarray(self.outcome == ARRIVED)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything as arrays, for a file."""
        special = ("replies", "blocks", "refusals", "total")
        stored = {
            f.name: np.asarray(getattr(self, f.name)) for f in fields(self) if f.name not in special
        }
        if self.total is not None:
            stored["total"] = self.total
        if self.replies:
            stored["reply_facts"] = np.array([(r.client, r.round, r.points) for r in self.replies])
            stored["reply_gradients"] = np.stack([r.gradient for r in self.replies])
        stored["blocks"] = np.array(list(self.blocks.items()), dtype=np.int64).reshape(-1, 2)
        stored["refusals"] = np.array(json.dumps(self.refusals))
        return stored

    @classmethod
    def of(cls, stored: Mapping[str, npt.NDArray[Any]]) -> "Exchange":
        """Return what `arrays` were made of."""
        numbers = {name: stored[name].item() for name in ("round", "batch", "deadline", "seconds")}
        replies: tuple[Reply, ...] = ()
        if "reply_facts" in stored:
            pairs = zip(stored["reply_facts"].tolist(), stored["reply_gradients"], strict=True)
            replies = tuple(Reply(j, r, points, gradient) for (j, r, points), gradient in pairs)
        return cls(
            **numbers,
            loads=stored["loads"],
            outcome=stored["outcome"],
            when=stored["when"],
            compute=stored["compute"],
            total=stored.get("total"),
            replies=replies,
            blocks=dict(stored["blocks"].tolist()),
            refusals=tuple((c, why) for c, why in json.loads(str(stored["refusals"]))),
            metric=stored["metric"].item(),
        )


class Journal:
    """The files of a federation in its run directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.exchanges_folder, self.parity_folder = folder / "exchanges", folder / "parity"
        self._count: int | None = None

    @property
    def traces(self) -> Path:
        """Where the measurements of all clients are."""
        return self.folder / "traces.parquet"

    def members(self) -> Members | None:
        """Return who takes part, once that is known."""
        path = self.folder / "members.json"
        return Members(**json.loads(path.read_text("utf-8"))) if path.is_file() else None

    def keep_members(self, members: Members) -> None:
        """Remember who takes part."""
        with replacing(self.folder / "members.json") as partial:
            partial.write_text(json.dumps(vars(members), indent=1), "utf-8")

    def keep_parity(self, client: int, arrays: Mapping[str, npt.NDArray[Any]], points: int) -> None:
        """Write parity that stands for some points to the disk: it need not stay in memory."""
        folder = self.parity_folder / str(client)
        make_folder(folder)
        for name, array in arrays.items():
            with _durable(folder / f"{name}.npy") as file:
                np.save(file, array)
        with replacing(folder / "points") as partial:  # last: with this the parity is whole
            partial.write_text(str(points))

    def parity_points(self) -> dict[int, int]:
        """Return for whom there is parity, and for how many points it stands."""
        found = self.parity_folder.glob("*/points")
        return {int(path.parent.name): int(path.read_text()) for path in sorted(found)}

    def parity(self, client: int, batch: int = 0) -> Parity:
        """Return a client's parity of a mini-batch, memory-mapped."""
        folder = self.parity_folder / str(client)
        return Parity(
            *(np.load(folder / f"{name}{batch}.npy", "r") for name in ("features", "targets"))
        )

    def composite_parity(self, clients: npt.ArrayLike, batch: int) -> Parity:
        """Return the sum over clients, of which one at a time is read."""
        return compose(self.parity(int(j), batch) for j in np.asarray(clients))

    def append(self, exchange: Exchange) -> None:
        """Keep an exchange: with this it is finished."""
        make_folder(self.exchanges_folder)
        if self._count is None:
            self._count = sum(1 for _ in self._paths())
        kind = "setup" if exchange.round == SETUP else "round"
        with _durable(self.exchanges_folder / f"{self._count:06d}-{kind}.npz") as file:
            np.savez(file, **exchange.arrays())  # type: ignore[arg-type]
        self._count += 1

    def rounds(self) -> int:
        """Return how many rounds are finished."""
        return sum(path.name.endswith("-round.npz") for path in self._paths())

    def exchanges(self, *, gradients: bool = True) -> Iterator[Exchange]:
        """Read all that was finished, in order; without gradients where nobody needs them."""
        large = () if gradients else ("total", "reply_facts", "reply_gradients")
        for path in self._paths():
            try:
                with np.load(path) as stored:
                    columns = {name: stored[name] for name in stored.files if name not in large}
                yield Exchange.of(columns)
            except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
                raise InputError(
                    f"cannot read {path}: {error}; delete it, and what comes after it, to go on "
                    "from the round before"
                ) from None

    def inbox(self, exchange: Exchange, batches: int) -> Inbox:
        """Return what a scheme receives from an exchange."""
        arrived = exchange.arrived
        composite: tuple[Parity, ...] = ()
        if exchange.round == SETUP and not exchange.blocks:
            who = np.flatnonzero(arrived)
            composite = tuple(self.composite_parity(who, b) for b in range(batches))
        points = sum(r.points for r in exchange.replies) or exchange.loads[arrived].sum()
        return Inbox(
            arrived,
            float(points),
            total=exchange.total,
            parity=composite,
            blocks={j: Block(self.parity(j), points) for j, points in exchange.blocks.items()},
            replies=exchange.replies,
        )

    def _paths(self) -> list[Path]:
        return sorted(self.exchanges_folder.glob("[0-9]*-*.npz"))


@contextmanager
def _durable(path: Path) -> Iterator[BinaryIO]:
    """Give a file that takes its name once it is on the disk, whatever happens to the power."""
    with replacing(path) as partial, partial.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
