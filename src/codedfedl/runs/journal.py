"""What a federation's server remembers: enough to continue after a kill at any moment.

A scheme's state is a pure function of what it received. So the journal keeps, in files that are
never changed: who takes part (`members.json`), how they were measured (`traces.parquet`), their
parity, and one file for every exchange that was finished. To resume is to read them again. Anything
lost, duplicated or changed since it was written is an error (`chain.py`), never a shorter history.
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
from codedfedl.core.record import ARRIVED, DROPPED, LATE, SETUP, Record
from codedfedl.errors import InputError
from codedfedl.io.files import durable, make_folder
from codedfedl.learning.codes import Parity
from codedfedl.runs.chain import Chain, Hashing, digest
from codedfedl.runs.exchange import Exchange, exchange_columns

__all__ = ["Journal", "Members"]

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
        self._chain = Chain(self.exchanges_folder, self._beginning, _is_whole)
        self._points_behind: dict[int, int] = {}

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
        """Return the record of every exchange: the one source for tables, charts and sentences."""
        return self.told([exchange.record for exchange in self.exchanges(gradients=False)])

    def told(self, records: Sequence[Record]) -> list[Record]:
        """Return records with what was known later.

        A client that never came back and did not say goodbye was dropped, not late, since its last
        answer. Meeting and measuring are part of the first exchange's seconds.
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
        with durable(folder / "points") as file:  # last: marks it as complete
            file.write("\n".join([str(points), *hashes]).encode())

    def kept(self) -> dict[int, int]:
        """Return who has sent such an answer, and for how many points it stands."""
        clients = [int(path.parent.name) for path in sorted(self.parity_folder.glob("*/points"))]
        return {client: self.points_behind(client) for client in clients}

    def points_behind(self, client: int) -> int:
        """Return how many points a client's answer stands for; its file is read once."""
        if client not in self._points_behind:
            path = self.parity_folder / str(client) / "points"
            self._points_behind[client] = int(path.read_text().split()[0])
        return self._points_behind[client]

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
        """Return a client's parity of a mini-batch, memory-mapped, if all of it is here."""
        folder = self.parity_folder / str(client)
        paths = [folder / f"{name}{batch}.npy" for name in ("features", "targets")]
        if not all(path.is_file() for path in (*paths, folder / "points")):
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
        sums, replies = self._stored(exchange.stored, summed=summed)
        return Inbox(
            exchange.record.arrived,
            exchange.points,
            sums or exchange.sums,
            replies + exchange.replies,
            loads=exchange.counted,
            timings=exchange.timings,
            revised=self._revised(exchange, summed=summed),
        )

    def _revised(self, exchange: Exchange, *, summed: bool) -> Inbox | None:
        """Return the stored answers that count from an exchange on, where that has changed."""
        if (counted := exchange.revised) is None:
            return None
        clients = np.arange(len(exchange.record.loads))
        sums, replies = self._stored(counted, summed=summed)
        return Inbox(np.isin(clients, list(counted)), float(sum(counted.values())), sums, replies)

    def _stored(
        self, stored: Mapping[int, int], *, summed: bool
    ) -> tuple[Mapping[str, Any], tuple[Reply, ...]]:
        """Return the sums of stored answers, or each of them."""
        if summed:
            total = RunningSum()
            for client in sorted(stored):
                total.add(self.answer(client))
            return total.result(), ()
        each = sorted(stored.items())
        return {}, tuple(Reply(j, SETUP, points, self.answer(j)) for j, points in each)

    def count(self) -> int:
        """Return how many exchanges are finished."""
        return len(self._chain.paths())

    def _beginning(self) -> str:
        """Return the hash of what the exchanges depend on: the members, and their measurements."""
        paths = (self.folder / "members.json", self.traces)
        return digest(b"".join(path.read_bytes() for path in paths if path.is_file()))


def _is_whole(content: bytes) -> bool:
    """Say whether an exchange's file was written to its end, by its own checksums."""
    try:
        with ZipFile(io.BytesIO(content)) as archive:
            return archive.testzip() is None
    except (BadZipFile, EOFError, ValueError, zlib.error):
        return False
