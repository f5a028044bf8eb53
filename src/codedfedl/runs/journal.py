"""What a federation's server remembers: enough to continue after a kill at any moment.

A scheme's state is a pure function of what it received. So the journal keeps, in files that are
never changed: who takes part (`members.json`), how they were measured (`traces.parquet`), their
parity, and one file for every exchange that was finished. To resume is to read them again. What was
lost, doubled or changed since it was written is an error (`chain.py`), never a shorter history.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from codedfedl.core.aggregate import RunningSum
from codedfedl.core.protocol import Inbox, Reply
from codedfedl.core.record import ARRIVED, DROPPED, LATE, SETUP, Record
from codedfedl.errors import InputError
from codedfedl.io.files import durable, make_folder
from codedfedl.learning.parity import Parity
from codedfedl.runs.chain import Chain, Hashing, digest

__all__ = ["Exchange", "Journal", "Members", "exchange_columns"]

_FORMAT = 3


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
    counted : array of shape (n,), optional
        Points of each client's part in a secure sum; 0 of those who have none in it.
    excluded
        Who is left out from then on.
    """

    record: Record
    points: float = 0.0
    sums: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    replies: tuple[Reply, ...] = ()
    stored: Mapping[int, int] = field(default_factory=dict)
    spent: float = 0.0
    excluded: tuple[int, ...] = ()
    counted: npt.NDArray[np.int64] | None = None

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything as arrays, for a file."""
        record = self.record
        numbers = ("round", "deadline", "seconds", "loads", "outcome", "arrival_times", "metric")
        kept = {name: np.asarray(getattr(record, name)) for name in numbers}
        unknown = np.full(len(record.loads), np.nan)
        kept["compute"] = unknown if record.compute is None else record.compute
        both = np.array([unknown, unknown])
        kept["distances"] = both if record.distances is None else record.distances
        kept["refusals"] = np.array(json.dumps(record.refusals))
        kept["suspects"] = np.array(record.suspects, dtype=np.int64)
        kept["busy"] = np.array(record.busy, dtype=np.int64)
        kept["late_answers"] = np.array(record.late_answers, dtype=np.float64).reshape(-1, 2)
        kept["points"], kept["spent"] = np.asarray(self.points), np.asarray(self.spent)
        kept["has_model"] = np.asarray(record.has_model)
        kept |= {f"sum/{name}": array for name, array in self.sums.items()}
        facts = [(r.client, r.round, r.points) for r in self.replies]
        kept["replies"] = np.array(facts, dtype=np.int64).reshape(-1, 3)
        for k, reply in enumerate(self.replies):
            kept |= {f"reply/{k}/{name}": array for name, array in reply.arrays.items()}
        kept["stored"] = np.array(list(self.stored.items()), dtype=np.int64).reshape(-1, 2)
        kept["excluded"] = np.array(self.excluded, dtype=np.int64)
        if self.counted is not None:
            kept["counted"] = self.counted
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
            distances=kept.get("distances"),
            suspects=tuple(kept.get("suspects", np.empty(0)).tolist()),
            busy=tuple(kept.get("busy", np.empty(0)).tolist()),
            late_answers=tuple(
                (int(j), seconds) for j, seconds in kept.get("late_answers", np.empty(0)).tolist()
            ),
        )
        replies = tuple(
            Reply(client, round_, points, _named(kept, f"reply/{k}/"))
            for k, (client, round_, points) in enumerate(kept.get("replies", np.empty(0)).tolist())
        )
        stored = kept.get("stored", kept.get("blocks", np.empty((0, 2))))
        points, spent = (kept.get(name, np.zeros(())).item() for name in ("points", "spent"))
        return cls(
            record,
            points,
            _named(kept, "sum/"),
            replies,
            dict(stored.tolist()),
            spent=spent,
            excluded=tuple(kept.get("excluded", np.empty(0, np.int64)).tolist()),
            counted=kept.get("counted"),
        )


def exchange_columns(file: BinaryIO, *, gradients: bool) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of an exchange from its file; without gradients where nobody needs them."""
    large = () if gradients else ("sum/", "reply", "total")
    with np.load(file) as stored:
        return {name: stored[name] for name in stored.files if not name.startswith(large)}


def _named(kept: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {k.removeprefix(prefix): v for k, v in kept.items() if k.startswith(prefix)}


class Journal:
    """The files of a federation in its run directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.exchanges_folder, self.parity_folder = folder / "exchanges", folder / "parity"
        self._chain = Chain(self.exchanges_folder, self._beginning)

    @property
    def traces(self) -> Path:
        """Where the measurements of all clients are."""
        return self.folder / "traces.parquet"

    def members(self) -> Members | None:
        """Return who takes part, once that is known."""
        path = self.folder / "members.json"
        if not path.is_file():
            if self.count():
                raise InputError(f"{path} is missing: restore it, or choose another --out")
            return None
        try:
            document = json.loads(path.read_text("utf-8"))
            known = {**document, "format": document.get("format", 0)}
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} is damaged ({error}): restore it from a copy, or choose another --out"
            ) from None
        if known["format"] != _FORMAT:
            raise InputError(
                f"{self.folder} holds a federation of another version of codedfedl: it can be "
                "reported, not continued; choose another --out"
            )
        try:
            return Members(**document)
        except TypeError as error:
            raise InputError(
                f"{path} is damaged ({error}): restore it from a copy, or choose another --out"
            ) from None

    def keep_members(self, members: Members) -> None:
        """Remember who takes part."""
        with durable(self.folder / "members.json") as file:
            file.write(json.dumps(vars(members), indent=1).encode())

    def keep_beginning(self, seconds: float) -> None:
        """Remember how long it took to meet and to measure all."""
        with durable(self.folder / "beginning.json") as file:
            file.write(json.dumps({"seconds": seconds}).encode())

    def keep_gone(self, clients: Sequence[int]) -> None:
        """Remember who did not say goodbye."""
        with durable(self.folder / "gone.json") as file:
            file.write(json.dumps(list(clients)).encode())

    def check_begun(self) -> None:
        """Refuse rounds without the measurements that they were planned by."""
        if self.count() and not self.traces.is_file():
            raise InputError(f"{self.traces} is missing: restore it, or choose another --out")

    def records(self) -> list[Record]:
        """Return what became of every exchange: one truth for tables, charts and sentences."""
        return self.told([exchange.record for exchange in self.exchanges(gradients=False)])

    def told(self, records: Sequence[Record]) -> list[Record]:
        """Return records with what was known later.

        Who never came back and said no goodbye was dropped, not late, since its last answer.
        Meeting and measuring are part of the first exchange's seconds.
        """
        records = list(records)
        left = set(self._small("gone.json", []))
        for place in reversed(range(len(records))):
            outcome = records[place].outcome.copy()
            left -= set(np.flatnonzero(outcome == ARRIVED).tolist())
            for client in left:
                outcome[client] = DROPPED if outcome[client] == LATE else outcome[client]
            records[place] = replace(records[place], outcome=outcome)
        if records:
            before = float(self._small("beginning.json", {}).get("seconds", 0.0))
            records[0] = replace(records[0], seconds=records[0].seconds + before)
        return records

    def _small(self, name: str, otherwise: Any) -> Any:
        path = self.folder / name
        if not path.is_file():
            return otherwise
        try:
            return json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise InputError(f"cannot read {path}: {error}; delete it") from None

    def keep(self, client: int, arrays: Mapping[str, npt.NDArray[Any]], points: int) -> None:
        """Write what a client sends once to the disk: it need not stay in memory."""
        folder = self.parity_folder / str(client)
        make_folder(folder)
        hashes = []
        for name, array in arrays.items():
            with durable(folder / f"{name}.npy") as file:
                hashing = Hashing(file)
                np.save(hashing, array)
            hashes.append(f"{hashing.digest} {name}.npy")
        with durable(folder / "points") as file:  # last: with this it is whole
            file.write("\n".join([str(points), *hashes]).encode())

    def kept(self) -> dict[int, int]:
        """Return who has sent such an answer, and for how many points it stands."""
        found = self.parity_folder.glob("*/points")
        return {int(path.parent.name): int(path.read_text().split()[0]) for path in sorted(found)}

    def check_kept(self) -> None:
        """Refuse parity that is not what the clients sent."""
        for client in self.kept():
            folder = self.parity_folder / str(client)
            for line in (folder / "points").read_text("utf-8").splitlines()[1:]:
                expected, name = line.split(" ", 1)
                path = folder / name
                if not path.is_file() or digest(path.read_bytes()) != expected:
                    raise InputError(
                        f"{path} is not what the client sent: restore it from a copy, or choose "
                        "another --out"
                    )

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
        kind = "setup" if exchange.record.is_setup else "round"

        def content(number: int, before: str) -> bytes:
            file = io.BytesIO()
            own = {"number": np.asarray(number), "before": np.array(before)}
            np.savez(file, **exchange.arrays(), **own)  # type: ignore[arg-type]
            return file.getvalue()

        self._chain.append(kind, content)

    def paths(self) -> list[Path]:
        """Return the files of the exchanges, unchecked."""
        return self._chain.paths()

    def rounds(self) -> int:
        """Return how many rounds are finished."""
        return sum(path.name.endswith("-round.npz") for path in self.paths())

    def exchanges(self, *, gradients: bool = True) -> Iterator[Exchange]:
        """Read all that was finished, in order; without gradients where nobody needs them."""
        rounds = 0
        for path, content, number, before in self._chain.links():
            try:
                columns = exchange_columns(io.BytesIO(content), gradients=gradients)
                exchange = Exchange.of(columns)
            except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
                raise self._chain.damaged(path, f"cannot be read ({error})") from None
            if "before" in columns:  # earlier versions had none
                if (int(columns["number"]), str(columns["before"])) != (number, before):
                    raise self._chain.damaged(path, "does not follow from what is before it")
                if not exchange.record.is_setup and exchange.record.round != rounds:
                    raise self._chain.damaged(path, f"is not of round {rounds + 1}")
            rounds += not exchange.record.is_setup
            yield exchange

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
        return Inbox(
            exchange.record.arrived, exchange.points, sums, replies, loads=exchange.counted
        )

    def count(self) -> int:
        """Return how many exchanges are finished."""
        return len(self._chain.paths())

    def _beginning(self) -> str:
        """Return the hash of what the exchanges depend on: the members, and their measurements."""
        paths = (self.folder / "members.json", self.traces)
        return digest(b"".join(path.read_bytes() for path in paths if path.is_file()))
