"""What a federation's server remembers: enough to continue after a kill at any moment.

A scheme's state is a pure function of what it received. So the journal keeps, in files that are
never changed: who takes part (`members.json`), how they were measured (`traces.parquet`), their
parity, and one file for every exchange that was finished. To resume is to read them again.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from codedfedl.core.aggregate import RunningSum
from codedfedl.core.protocol import Inbox, Reply
from codedfedl.core.record import SETUP, Record
from codedfedl.errors import InputError
from codedfedl.io.files import durable, make_folder, replacing
from codedfedl.learning.parity import Parity

__all__ = ["Exchange", "Journal", "Members"]

_FORMAT = 2


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
    scaling
        The scale that they have agreed on, if any: `Scaling` as a mapping.
    """

    key: str
    names: list[str]
    nodes: list[int]
    points: list[int]
    inputs: int
    columns: int
    classes: bool
    scaling: Mapping[str, list[float]] = field(default_factory=dict)
    format: int = _FORMAT


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
        Whose answer lies beside the journal, in a folder of its own, and its points: what clients
        send once may be large.
    spent
        μ² of all noisy sums that were given out, this one included.
    """

    record: Record
    points: float = 0.0
    sums: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    replies: tuple[Reply, ...] = ()
    stored: Mapping[int, int] = field(default_factory=dict)
    spent: float = 0.0

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything as arrays, for a file."""
        record = self.record
        numbers = ("round", "deadline", "seconds", "loads", "outcome", "arrival_times", "metric")
        kept = {name: np.asarray(getattr(record, name)) for name in numbers}
        unknown = np.full(len(record.loads), np.nan)
        kept["compute"] = unknown if record.compute is None else record.compute
        kept["refusals"] = np.array(json.dumps(record.refusals))
        kept["points"], kept["spent"] = np.asarray(self.points), np.asarray(self.spent)
        kept["has_model"] = np.asarray(record.has_model)
        kept |= {f"sum/{name}": array for name, array in self.sums.items()}
        facts = [(r.client, r.round, r.points) for r in self.replies]
        kept["replies"] = np.array(facts, dtype=np.int64).reshape(-1, 3)
        for k, reply in enumerate(self.replies):
            kept |= {f"reply/{k}/{name}": array for name, array in reply.arrays.items()}
        kept["stored"] = np.array(list(self.stored.items()), dtype=np.int64).reshape(-1, 2)
        return kept

    @classmethod
    def of(cls, kept: Mapping[str, npt.NDArray[Any]]) -> "Exchange":
        """Return what `arrays` were made of; of earlier versions, what a report needs."""
        record = Record(
            round=kept["round"].item(),
            deadline=kept["deadline"].item(),
            seconds=kept["seconds"].item(),
            loads=kept["loads"],
            outcome=kept["outcome"],
            arrival_times=kept["arrival_times"] if "arrival_times" in kept else kept["when"],
            compute=kept["compute"],
            refusals=tuple((c, why) for c, why in json.loads(str(kept["refusals"]))),
            has_model=bool(kept.get("has_model", kept["round"] != SETUP)),
            metric=kept["metric"].item(),
        )
        replies = tuple(
            Reply(client, round_, points, _named(kept, f"reply/{k}/"))
            for k, (client, round_, points) in enumerate(kept.get("replies", np.empty(0)).tolist())
        )
        stored = kept.get("stored", kept.get("blocks", np.empty((0, 2))))
        points, spent = (kept.get(name, np.zeros(())).item() for name in ("points", "spent"))
        return cls(record, points, _named(kept, "sum/"), replies, dict(stored.tolist()), spent)


def _named(kept: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {k.removeprefix(prefix): v for k, v in kept.items() if k.startswith(prefix)}


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
        if not path.is_file():
            return None
        document = json.loads(path.read_text("utf-8"))
        if document.get("format") != _FORMAT:
            raise InputError(
                f"{self.folder} holds a federation of another version of codedfedl: it can be "
                "reported, not continued; choose another --out"
            )
        return Members(**document)

    def keep_members(self, members: Members) -> None:
        """Remember who takes part."""
        with replacing(self.folder / "members.json") as partial:
            partial.write_text(json.dumps(vars(members), indent=1), "utf-8")

    def keep(self, client: int, arrays: Mapping[str, npt.NDArray[Any]], points: int) -> None:
        """Write what a client sends once to the disk: it need not stay in memory."""
        folder = self.parity_folder / str(client)
        make_folder(folder)
        for name, array in arrays.items():
            with durable(folder / f"{name}.npy") as file:
                np.save(file, array)
        with replacing(folder / "points") as partial:  # last: with this it is whole
            partial.write_text(str(points))

    def kept(self) -> dict[int, int]:
        """Return who has sent such an answer, and for how many points it stands."""
        found = self.parity_folder.glob("*/points")
        return {int(path.parent.name): int(path.read_text()) for path in sorted(found)}

    def answer(self, client: int) -> dict[str, npt.NDArray[Any]]:
        """Return a client's answer, memory-mapped."""
        found = sorted((self.parity_folder / str(client)).glob("*.npy"))
        return {path.stem: np.load(path, "r") for path in found}

    def parity(self, client: int, batch: int = 0) -> Parity | None:
        """Return a client's parity of a mini-batch, memory-mapped, if it sent some."""
        paths = [
            self.parity_folder / str(client) / f"{name}{batch}.npy"
            for name in ("features", "targets")
        ]
        if not all(path.is_file() for path in paths):
            return None
        return Parity(*(np.load(path, "r") for path in paths))

    def append(self, exchange: Exchange) -> None:
        """Keep an exchange: with this it is finished."""
        make_folder(self.exchanges_folder)
        if self._count is None:
            self._count = sum(1 for _ in self._paths())
        kind = "setup" if exchange.record.is_setup else "round"
        with durable(self.exchanges_folder / f"{self._count:06d}-{kind}.npz") as file:
            np.savez(file, **exchange.arrays())  # type: ignore[arg-type]
        self._count += 1

    def rounds(self) -> int:
        """Return how many rounds are finished."""
        return sum(path.name.endswith("-round.npz") for path in self._paths())

    def exchanges(self, *, gradients: bool = True) -> Iterator[Exchange]:
        """Read all that was finished, in order; without gradients where nobody needs them."""
        large = () if gradients else ("sum/", "reply", "total")
        for path in self._paths():
            try:
                with np.load(path) as stored:
                    columns = {
                        name: stored[name] for name in stored.files if not name.startswith(large)
                    }
                yield Exchange.of(columns)
            except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
                raise InputError(
                    f"cannot read {path}: {error}; delete it, and what comes after it, to "
                    "continue from the round before"
                ) from None

    def inbox(self, exchange: Exchange, *, summed: bool) -> Inbox:
        """Return what a scheme receives from an exchange.

        Parameters
        ----------
        summed
            Whether answers that lie beside the journal are added up, one in memory at a time.
        """
        sums, replies = exchange.sums, exchange.replies
        if summed and exchange.stored:
            total = RunningSum()
            for client in sorted(exchange.stored):
                total.add(self.answer(client))
            sums = total.result()
        elif exchange.stored:
            replies = (
                tuple(
                    Reply(client, SETUP, points, self.answer(client))
                    for client, points in sorted(exchange.stored.items())
                )
                + replies
            )
        return Inbox(exchange.record.arrived, exchange.points, sums, replies)

    def count(self) -> int:
        """Return how many exchanges are finished."""
        return len(self._paths())

    def _paths(self) -> list[Path]:
        return sorted(self.exchanges_folder.glob("[0-9]*-*.npz"))
