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
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile, ZipFile

import numpy as np
import numpy.typing as npt

from codedfedl.core.protocol import Inbox
from codedfedl.core.record import DROPPED, LATE, SETUP, Record
from codedfedl.errors import InputError
from codedfedl.fitting.traces import read_traces
from codedfedl.io.archives import read_arrays
from codedfedl.io.files import (
    digest,
    make_folder,
    read_json,
    write_durably,
    write_json,
)
from codedfedl.runs.exchange import ANSWERS, Exchange, StoredAnswers, record_in

Kept = TypeVar("Kept")


_FORMAT = 4
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
    table, words
        Names of the input columns, and of the classes, where the nodes have tables with them.
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
    table: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    format: int = _FORMAT

    @property
    def claimed(self) -> list[int]:
        """Points that each says it has."""
        return self.claims or self.points


class Journal:
    """The files of a federation in its run directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.exchanges_folder = folder / "exchanges"
        self.stored = StoredAnswers(folder / "parity")
        self.head = self.exchanges_folder / "head.json"
        self._last: tuple[int, str] | None = None  # how many exchanges, and the last one's hash
        self._in_head: tuple[int, str] = (0, "")

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
        if (path := self.stored.damaged()) is not None:
            raise InputError(f"{path} is not what the client sent: {_RESTORE}")

    def probed_seconds(self) -> dict[str, float]:
        """Return the longest time that each client took when it was measured, in seconds."""
        if not self.traces.is_file():
            return {}
        traces = read_traces(self.traces)
        came = np.isfinite(traces.seconds)
        clients, seconds = traces.client[came], traces.seconds[came]
        return {str(each): float(seconds[clients == each].max()) for each in np.unique(clients)}

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
        return self.with_later_facts(list(self._read(record_in, skip=ANSWERS)))

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

    def exchanges(self) -> Iterator[Exchange]:
        """Read all that was finished, in order."""
        return self._read(Exchange.of)

    def _read(
        self, decode: Callable[[dict[str, npt.NDArray[Any]]], Kept], skip: tuple[str, ...] = ()
    ) -> Iterator[Kept]:
        """Read all exchanges, in order; an error says which is lost, duplicated or changed."""
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
            remedy = self._remedy("restore it")
            arrays = read_arrays(path, skip=skip, content=content, remedy=remedy)
            try:
                exchange, round_ = decode(arrays), int(arrays["round"])
                link = int(arrays.get("number", number)), str(arrays.get("before", before))
            except (ValueError, KeyError, TypeError) as error:
                raise self._damaged(path, f"cannot be read ({error})") from None
            if link != (number, before):
                raise self._damaged(path, "does not follow from what is before it")
            if round_ not in (SETUP, rounds):
                raise self._damaged(path, f"is not of round {rounds + 1}")
            rounds += round_ != SETUP
            yield exchange
            before = digest(content)
            if number == count - 1 and last and before != last:
                raise self._damaged(path, "was changed since it was written")
        self._last, self._in_head = (len(paths), before), (count, last)

    def append(self, exchange: Exchange) -> None:
        """Keep an exchange: with this it is finished."""
        make_folder(self.exchanges_folder)
        if self._last is None:
            deque(self._read(record_in, ANSWERS), maxlen=0)
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

    # What a scheme receives.

    def inbox(self, exchange: Exchange, *, summed: bool) -> Inbox:
        """Return what a scheme receives from an exchange.

        Parameters
        ----------
        summed
            Whether stored answers are added up.
        """
        sums, replies = self.stored.combined(exchange.stored, summed=summed)
        revised = None
        if (counted := exchange.revised) is not None:
            arrived = np.isin(np.arange(len(exchange.record.loads)), list(counted))
            parts = self.stored.combined(counted, summed=summed)
            revised = Inbox(arrived, float(sum(counted.values())), *parts)
        return Inbox(
            exchange.record.arrived,
            exchange.points,
            sums or exchange.sums,
            replies + exchange.replies,
            loads=exchange.counted,
            timings=exchange.timings,
            revised=revised,
        )


def _is_whole(content: bytes) -> bool:
    """Say whether an exchange's file was written to its end, by its own checksums."""
    try:
        with ZipFile(io.BytesIO(content)) as archive:
            return archive.testzip() is None
    except (BadZipFile, EOFError, ValueError, zlib.error):
        return False
