"""A node's side of secure sums: what it checks, writes down and hides before anything leaves it.

A node with a vault answers in sums alone: whatever would show its own answer is refused. Beside its
key for masks the vault holds the ledger (`privacy.ledger`), and what was sent under masks.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.core.clipped import PrivateSum
from codedfedl.core.travel import work_to
from codedfedl.core.work import Work
from codedfedl.data.shards import Shard
from codedfedl.errors import InputError
from codedfedl.federate.asks import MASKED, ask_digest
from codedfedl.federate.transport import Answered
from codedfedl.io.files import durable, make_folder
from codedfedl.privacy.contract import Contract
from codedfedl.privacy.keys import own_key, public_digits
from codedfedl.privacy.ledger import Ledger
from codedfedl.privacy.masks import Binding, Sender, shared_seed

__all__ = ["DELTA", "EPSILON_CAP", "Files", "SumQuestion", "Vault"]

EPSILON_CAP, DELTA = 10.0, 1e-5
"""What a node spends of a data set at most, where it is not told otherwise."""

_ROWS_AT_ONCE = 4096


class Files(MutableMapping[str, bytes]):
    """Values in files of a folder, each on the disk before its assignment is over."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, key: str) -> bytes:
        try:
            return (self.folder / key).read_bytes()
        except FileNotFoundError:
            raise KeyError(key) from None

    def __setitem__(self, key: str, value: bytes) -> None:
        make_folder(self.folder)
        with durable(self.folder / key) as file:
            file.write(value)

    def __delitem__(self, key: str) -> None:
        (self.folder / key).unlink()

    def __iter__(self) -> Iterator[str]:
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        return iter([path.name for path in found if not path.name.startswith(".")])

    def __len__(self) -> int:
        return len(list(iter(self)))


@dataclass(frozen=True, eq=False)
class SumQuestion:
    """A question for a part of a sum.

    Attributes
    ----------
    federation
        The federation that asks.
    work, load, model
        What is asked for.
    sum
        Contract, number and attempt, as they travel; None where the server named none.
    """

    federation: str
    work: Work
    load: int
    model: npt.NDArray[np.float32] | None
    sum: Mapping[str, Any] | None

    def __bytes__(self) -> bytes:
        """Return all of it."""
        sent = b"" if self.model is None else self.model.tobytes()
        return json.dumps([work_to(self.work), self.load], sort_keys=True).encode() + sent


class Vault:
    """What a node keeps for itself, in a folder that outlives its caches.

    Parameters
    ----------
    pinned
        The public key of the only helper that is trusted, in hexadecimal digits.
    epsilon_cap, delta
        What a data set may spend, over all runs.
    """

    def __init__(
        self, folder: Path, pinned: str, *, epsilon_cap: float = EPSILON_CAP, delta: float = DELTA
    ) -> None:
        self.folder, self.pinned = folder, pinned
        self.ledger = Ledger(folder / "ledger.json", epsilon_cap, delta)
        self._key = own_key(folder / "masks.key")
        self._seed = shared_seed(self._key, bytes.fromhex(pinned), helper=bytes.fromhex(pinned))
        self._fingerprint: str | None = None

    def keys(self) -> dict[str, str]:
        """Return the node's public key, and the helper's that it has pinned."""
        return {"key": public_digits(self._key), "helper": self.pinned}

    def answer(
        self, asked: SumQuestion, load: Callable[[], Shard], make: Callable[[], Answered]
    ) -> Answered:
        """Return an answer under its mask, once everything is checked and written down."""
        work = asked.work
        if not isinstance(work, PrivateSum):
            facts, arrays = make()
            if arrays:
                raise InputError(
                    f"{work.kind} would show this node's own answer, and it answers in noisy sums "
                    "alone: choose the scheme private, or start it without --helper"
                )
            return facts, arrays
        contract, number, attempt = self._contract(asked, work)
        data = self._data(load)
        self.ledger.check(data, contract)

        def charged() -> tuple[bytes, npt.NDArray[np.uint32]]:
            facts, arrays = make()
            if not arrays:
                raise _NothingYet(facts)
            plain = arrays[work.name].ravel()
            self._refuse_sensitive(work, contract, number, len(plain))
            self.ledger.charge(data, contract, number)
            return json.dumps(facts).encode(), plain

        binding = Binding(contract.label, number, attempt, ask_digest(work, asked.model))
        sender = Sender(self._seed, Files(self._sent(asked.federation)))
        try:
            note, hidden = sender.masked(binding, bytes(asked), charged)
        except _NothingYet as nothing:
            return nothing.facts, {}
        return json.loads(note), {MASKED: hidden}

    def close(self, federation: str) -> None:
        """End a federation: nothing is answered in it any more, and what was sent is forgotten."""
        self.ledger.close(federation)
        sent = Files(self._sent(federation))
        for key in sent:
            del sent[key]
        if sent.folder.is_dir():
            sent.folder.rmdir()

    def _sent(self, federation: str) -> Path:
        return self.folder / "sent" / federation

    def _contract(self, asked: SumQuestion, work: PrivateSum) -> tuple[Contract, int, int]:
        """Return contract, number and attempt of a question, if all is as the proof needs it."""
        if asked.sum is None:
            raise InputError(f"{work.kind} is asked for without a contract: nobody would add noise")
        contract = Contract.of(asked.sum["contract"])
        number, attempt = int(asked.sum["number"]), int(asked.sum["attempt"])
        if contract.federation != asked.federation:
            raise InputError(f"the contract is of another federation, {contract.federation}")
        if contract.helper != self.pinned:
            raise InputError(
                f"the helper's key is {contract.helper[:16]}…, and the pinned one is "
                f"{self.pinned[:16]}…: ask the helper's operator which is right"
            )
        what = contract.release(number).what
        if what != work.name or work.scale != contract.scale:
            raise InputError(
                f"sum {number} is {what} with scale {contract.scale:g} in the contract, and "
                f"{work.name} with scale {work.scale:g} is asked for"
            )
        return contract, number, attempt

    @staticmethod
    def _refuse_sensitive(work: PrivateSum, contract: Contract, number: int, numbers: int) -> None:
        moved, paid = work.sensitivity(numbers), contract.sensitivity(number)
        if not moved <= paid * (1 + 1e-9):
            raise InputError(
                f"a record moves {work.kind} by {moved:.6g}, and the contract has noise for "
                f"{paid:.6g}"
            )

    def _data(self, load: Callable[[], Shard]) -> str:
        """Return the fingerprint of the node's data, which are read once for it."""
        if self._fingerprint is None:
            shard, found = load(), hashlib.sha256()
            for array in (shard.inputs, shard.labels):
                found.update(f"{array.dtype.str}{array.shape}".encode())
                for start in range(0, len(array), _ROWS_AT_ONCE):
                    rows = np.ascontiguousarray(array[start : start + _ROWS_AT_ONCE])
                    found.update(rows.tobytes())
            self._fingerprint = found.hexdigest()
        return self._fingerprint


class _NothingYet(Exception):  # noqa: N818
    """A client that has embedded nothing has nothing to hide."""

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__()
        self.facts = facts
