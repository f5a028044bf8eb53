"""What a federation's server remembers: enough to continue after a kill at any moment.

A scheme's state is a pure function of what it received. So the journal keeps, in files that are
never changed: who takes part (`members.json`), how they were measured (`traces.parquet`), their
parity, and one numbered file for every exchange that was finished. To resume is to read them again.
Anything lost, duplicated or changed since it was written is an error, never a shorter history.

Each exchange holds its number and the hash of the file before it; the first holds the hash of the
members and their measurements. `head.json` holds the number and hash of the last file, and is
written after it: a kill between the two leaves one file more than it says, never one less. That
file is adopted if it is whole, and the head is written again before the next file; if it is torn,
it never was.
"""

import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import numpy.typing as npt

from codedfedl.core.loop import RunningSum
from codedfedl.core.protocol import Inbox, Reply
from codedfedl.core.record import DROPPED, LATE, REFUSED, SETUP, Record, record_arrays, record_of
from codedfedl.errors import InputError
from codedfedl.fitting.drift import Timings
from codedfedl.fitting.traces import read_traces
from codedfedl.io.archives import read_arrays
from codedfedl.io.files import (
    HashedFile,
    digest,
    durable,
    make_folder,
    read_json,
    write_durably,
    write_json,
)
from codedfedl.learning.parity import ParityRows


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


_FORMAT = 3
_RESTORE = "restore it from a copy, or choose another --out"


@dataclass(frozen=True)
class Members:
    """Who takes part, in the order of the clients' names.

    Attributes
    ----------
    key
        The federation's own name.
    nodes
        The engine's number of each node.
    points, claims
        Points of each that count, and that it says it has; empty if all count.
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
    claims: list[int] = field(default_factory=list)
    format: int = _FORMAT

    @property
    def claimed(self) -> list[int]:
        """Points that each says it has."""
        return self.claims or self.points


class Journal:
    """The files of a federation in its run directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.exchanges_folder, self.parity_folder = folder / "exchanges", folder / "parity"
        self.head = self.exchanges_folder / "head.json"
        self._last: tuple[int, str] | None = None  # how many exchanges, and the last one's hash
        self._in_head: tuple[int, str] = (0, "")
        self._kept: dict[int, int] | None = None

    @property
    def traces(self) -> Path:
        """Where the measurements of all clients are."""
        return self.folder / "traces.parquet"

    # The beginning and the end.

    def members(self) -> Members | None:
        """Return who takes part, once that is known."""
        path = self.folder / "members.json"
        if not path.is_file():
            if self.count():
                raise InputError(f"{path} is missing: {_RESTORE}")
            return None
        try:
            document = read_json(path, _RESTORE)
            if document.get("format", 0) != _FORMAT:
                raise InputError(
                    f"{self.folder} holds a federation of another version of codedfedl: it can be "
                    "reported, not continued; choose another --out"
                )
            return Members(**document)
        except (TypeError, AttributeError) as error:
            raise InputError(f"{path} is damaged ({error}): {_RESTORE}") from None

    def keep_members(self, members: Members) -> None:
        """Remember who takes part."""
        write_json(self.folder / "members.json", vars(members))

    def keep_beginning(self, seconds: float) -> None:
        """Remember how long it took to meet and to measure all."""
        write_json(self.folder / "beginning.json", {"seconds": seconds})

    def keep_gone(self, clients: Sequence[int]) -> None:
        """Remember who did not say goodbye."""
        write_json(self.folder / "gone.json", list(clients))

    def check(self) -> None:
        """Refuse rounds without the measurements that they were planned by, and changed parity."""
        if self.count() and not self.traces.is_file():
            raise InputError(f"{self.traces} is missing: {_RESTORE}")
        for client in self.kept():
            folder = self.parity_folder / str(client)
            for line in (folder / "points").read_text("utf-8").splitlines()[1:]:
                expected, name = line.split(" ", 1)
                path = folder / name
                if not path.is_file() or digest(path.read_bytes()) != expected:
                    raise InputError(f"{path} is not what the client sent: {_RESTORE}")

    def probed_seconds(self) -> dict[str, float]:
        """Return the longest time that each client took when it was measured, in seconds."""
        longest: dict[str, float] = {}
        if self.traces.is_file():
            traces = read_traces(self.traces)
            for client, seconds in zip(
                traces.client.tolist(), traces.seconds.tolist(), strict=True
            ):
                if np.isfinite(seconds):
                    longest[str(client)] = max(seconds, longest.get(str(client), 0.0))
        return longest

    # Exchanges.

    def paths(self) -> list[Path]:
        """Return the files of the exchanges, unchecked; without a last one that is torn."""
        return self._files()[0]

    def count(self) -> int:
        """Return how many exchanges are finished."""
        return len(self.paths())

    def rounds(self) -> int:
        """Return how many rounds are finished."""
        return sum(path.name.endswith("-round.npz") for path in self.paths())

    def records(self) -> list[Record]:
        """Return the record of every exchange: the one source for tables, charts and sentences."""
        return self.with_later_facts(
            [exchange.record for exchange in self.exchanges(gradients=False)]
        )

    def with_later_facts(self, records: Sequence[Record]) -> list[Record]:
        """Return records with what was known later.

        A client that never came back and did not say goodbye was dropped, not late, since its last
        answer. Meeting and measuring are part of the first exchange's seconds.
        """
        revised = []
        gone = set(self._small("gone.json", []))
        for record in reversed(records):
            gone -= set(np.flatnonzero(record.arrived).tolist())
            late = np.isin(np.arange(len(record.outcome)), list(gone)) & (record.outcome == LATE)
            revised.append(replace(record, outcome=np.where(late, DROPPED, record.outcome)))
        if revised:
            before = float(self._small("beginning.json", {}).get("seconds", 0.0))
            revised[-1] = replace(revised[-1], seconds=revised[-1].seconds + before)
        return revised[::-1]

    def _small(self, name: str, default: Any) -> Any:
        path = self.folder / name
        return read_json(path, "delete it") if path.is_file() else default

    def exchanges(self, *, gradients: bool = True) -> Iterator[Exchange]:
        """Read all that was finished, in order; without gradients where nobody needs them."""
        (paths, count, last), before, rounds = self._files(), self._beginning(), 0
        if len(paths) > 1 and not self.head.is_file():
            raise InputError(f"{self.head} is missing: {self._remedy('restore it')}")
        if len(paths) < count:
            raise InputError(
                f"{self.exchanges_folder} holds {len(paths)} exchanges where {self.head.name} says "
                f"{count}: {self._remedy('restore the others')}"
            )
        for number, path in enumerate(paths):
            if int(path.name.partition("-")[0]) != number:
                raise InputError(
                    f"{path} is in the place of number {number}: one is missing or "
                    f"duplicated; {self._remedy('restore it')}"
                )
            content = path.read_bytes()
            exchange, link = self._read(path, content, gradients)
            if link not in (None, (number, before)):
                raise self._damaged(path, "does not follow from what is before it")
            if link is not None and exchange.record.round not in (SETUP, rounds):
                raise self._damaged(path, f"is not of round {rounds + 1}")
            rounds += not exchange.record.is_setup
            yield exchange
            before = digest(content)
            if number == count - 1 and last and before != last:
                raise self._damaged(path, "was changed since it was written")
        self._last, self._in_head = (len(paths), before), (count, last)

    def _read(
        self, path: Path, content: bytes, gradients: bool
    ) -> tuple[Exchange, tuple[int, str] | None]:
        """Return an exchange, its number and the hash before it, which earlier versions had not."""
        remedy = self._remedy("restore it")
        arrays = Exchange.read(path, content, gradients=gradients, remedy=remedy)
        try:
            exchange = Exchange.of(arrays)
        except (ValueError, KeyError) as error:
            raise self._damaged(path, f"cannot be read ({error})") from None
        if "before" not in arrays:
            return exchange, None
        return exchange, (int(arrays["number"]), str(arrays["before"]))

    def append(self, exchange: Exchange) -> None:
        """Keep an exchange: with this it is finished."""
        make_folder(self.exchanges_folder)
        if self._last is None:
            for _ in self.exchanges(gradients=False):
                pass
        assert self._last is not None
        number, before = self._last
        if number and self._in_head != self._last:  # a kill came between the last file and it
            self._write_head()
        for torn in self.exchanges_folder.glob(f"{number:06d}-*.npz"):
            torn.unlink()
        content = io.BytesIO()
        link = {"number": np.asarray(number), "before": np.array(before)}
        np.savez(content, **exchange.arrays(), **link)  # type: ignore[arg-type]
        kind = "setup" if exchange.record.is_setup else "round"
        write_durably(self.exchanges_folder / f"{number:06d}-{kind}.npz", content.getvalue())
        self._last = number + 1, digest(content.getvalue())
        self._write_head()

    def _write_head(self) -> None:
        assert self._last is not None
        write_json(self.head, {"count": self._last[0], "last": self._last[1]})
        self._in_head = self._last

    def _files(self) -> tuple[list[Path], int, str]:
        """Return the files, how many the head counts, and the hash of the last of those."""
        count, last = 0, ""  # of a head that is not yet written, or was emptied by the operator
        text = self.head.read_text("utf-8", errors="replace") if self.head.is_file() else ""
        if text:  # before the files are listed: another process may be adding some
            try:
                document = json.loads(text)
                count, last = int(document["count"]), str(document["last"])
            except (ValueError, KeyError, TypeError):
                raise InputError(f"{self.head} is damaged: {self._remedy('restore it')}") from None
        files = sorted(self.exchanges_folder.glob("[0-9]*-*.npz"))
        if len(files) > count and not _is_whole(files[-1].read_bytes()):
            files.pop()
        return files, count, last

    def _beginning(self) -> str:
        """Return the hash of what the exchanges depend on: the members, and their measurements."""
        paths = (self.folder / "members.json", self.traces)
        return digest(b"".join(path.read_bytes() for path in paths if path.is_file()))

    def _damaged(self, path: Path, reason: str) -> InputError:
        return InputError(f"{path} {reason}: {self._remedy('restore it')}")

    def _remedy(self, mend: str) -> str:
        return (
            f"{mend} from a copy, or, to continue from an earlier round, delete it, and what comes "
            f"after it, and empty {self.head.name}"
        )

    # Answers that are sent once, such as parity.

    def keep(self, client: int, arrays: Mapping[str, npt.NDArray[Any]], points: int) -> None:
        """Write what a client sends once to the disk: it need not stay in memory."""
        folder = self.parity_folder / str(client)
        make_folder(folder)
        lines = [str(points)]
        for name, array in arrays.items():
            with durable(folder / f"{name}.npy") as file:
                hashed = HashedFile(file)
                np.save(hashed, array)
            lines.append(f"{hashed.digest} {name}.npy")
        write_durably(folder / "points", "\n".join(lines).encode())  # last: marks it as complete
        self.kept()[client] = points

    def kept(self) -> dict[int, int]:
        """Return who has sent such an answer, and for how many points it stands."""
        if self._kept is None:
            paths = sorted(self.parity_folder.glob("*/points"))
            self._kept = {int(path.parent.name): int(path.read_text().split()[0]) for path in paths}
        return self._kept

    def answer(self, client: int) -> dict[str, npt.NDArray[Any]]:
        """Return a client's answer, memory-mapped."""
        paths = sorted((self.parity_folder / str(client)).glob("*.npy"))
        return {path.stem: np.load(path, "r") for path in paths}

    def parity(self, client: int, batch: int = 0) -> ParityRows | None:
        """Return a client's parity of a mini-batch, memory-mapped, if all of it is here."""
        names, folder = (f"features{batch}", f"targets{batch}"), self.parity_folder / str(client)
        if client not in self.kept() or not all((folder / f"{n}.npy").is_file() for n in names):
            return None
        return ParityRows(*(np.load(folder / f"{name}.npy", "r") for name in names))

    # What a scheme receives.

    def inbox(self, exchange: Exchange, *, summed: bool) -> Inbox:
        """Return what a scheme receives from an exchange.

        Parameters
        ----------
        summed
            Whether answers that lie beside the journal are added up, one in memory at a time.
        """
        sums, replies = self._stored(exchange.stored, summed)
        revised = None
        if (counted := exchange.revised) is not None:
            arrived = np.isin(np.arange(len(exchange.record.loads)), list(counted))
            revised = Inbox(arrived, float(sum(counted.values())), *self._stored(counted, summed))
        return Inbox(
            exchange.record.arrived,
            exchange.points,
            sums or exchange.sums,
            replies + exchange.replies,
            loads=exchange.counted,
            timings=exchange.timings,
            revised=revised,
        )

    def _stored(
        self, stored: Mapping[int, int], summed: bool
    ) -> tuple[Mapping[str, Any], tuple[Reply, ...]]:
        """Return the sums of stored answers, or each of them."""
        if summed:
            total = RunningSum()
            for client in sorted(stored):
                total.add(self.answer(client))
            return total.result(), ()
        each = sorted(stored.items())
        return {}, tuple(Reply(j, SETUP, points, self.answer(j)) for j, points in each)


def _is_whole(content: bytes) -> bool:
    """Say whether an exchange's file was written to its end, by its own checksums."""
    try:
        with ZipFile(io.BytesIO(content)) as archive:
            return archive.testzip() is None
    except (BadZipFile, EOFError, ValueError, zlib.error):
        return False
