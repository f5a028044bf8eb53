"""What a client has released about each of its data sets, in all federations together.

The sums of different runs compose as those of one run do: μ² adds up (`privacy.accounting`). The
ledger keeps every contract that the client has answered under and the numbers of the sums that it
had a part in, so that whoever reads it can add up again; one that does not add up is refused.

A data set is known by the name that its owner gives it, not by its content: nearly all records stay
when one is added or changed, and so does what was released about them.
"""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import inf, isclose
from pathlib import Path
from typing import Any

from codedfedl.errors import InputError
from codedfedl.io.files import durable, locked
from codedfedl.privacy.accounting import Account, Release, check_budget
from codedfedl.privacy.contract import Contract, contract_of

__all__ = ["Ledger", "LedgerEntry"]

_FORMAT = 2
_WITHOUT_NAMES = 1  # the format whose entries were known by a hash of the content
_ROUNDING = 1e-9


@dataclass(frozen=True)
class LedgerEntry:
    """What one federation got of one data set.

    Attributes
    ----------
    data
        Name of the data set; empty in a ledger from before there were names. Such an entry may be
        about any data set of the owner, and counts for each.
    sums
        Numbers of the sums that an answer was sent for, in order.
    closed
        Whether the federation is over: nothing more is answered.
    content
        Hash of the data at the last answer, for information: nothing depends on it.
    """

    data: str
    contract: Contract
    sums: tuple[int, ...] = ()
    closed: bool = False
    content: str = ""

    @property
    def spent(self) -> float:
        """μ² of the sums."""
        return sum(self.contract.release(number).mu ** 2 for number in self.sums)

    def document(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "data": self.data,
            "content": self.content,
            "contract": self.contract.document(),
            "digest": self.contract.digest,
            "sums": list(self.sums),
            "spent": _plain(self.spent),
            "closed": self.closed,
        }

    @classmethod
    def of(cls, document: dict[str, Any], *, named: bool = True) -> "LedgerEntry":
        """Return the entry, if it adds up; `named` says whether its data are known by a name."""
        contract = contract_of(document["contract"])
        if contract.account is None:
            raise ValueError(f"{contract.federation} has no releases: it is not for noisy sums")
        sums = tuple(document["sums"])
        data, content = (document["data"], document["content"]) if named else ("", document["data"])
        entry = cls(str(data), contract, sums, bool(document["closed"]), str(content))
        right = contract.digest == document["digest"] and len(set(sums)) == len(sums)
        if not right or not _same(entry.spent, document["spent"]):
            raise ValueError(f"what was spent in {contract.federation} does not add up")
        return entry


class Ledger:
    """A file that says what was spent, and refuses to spend more than a cap.

    Parameters
    ----------
    epsilon, delta
        The cap for every data set, over all runs; an epsilon of ∞ for none.
    """

    def __init__(self, path: Path, epsilon: float, delta: float) -> None:
        check_budget(epsilon, delta, "the ledger's ")
        self.path, self.epsilon, self.delta = path, epsilon, delta

    def spent(self, data: str) -> float:
        """Return the ε that a data set has spent, at the ledger's δ."""
        return self._epsilon(_about(data, self._read()), [])

    def left(self, data: str) -> float | None:
        """Return the ε that a data set may still spend; None where there is no cap."""
        return max(0.0, self.epsilon - self.spent(data)) if self.epsilon < inf else None

    def data_sets(self) -> dict[str, list[LedgerEntry]]:
        """Return what every federation got, by the name of the data set; see `LedgerEntry.data`."""
        entries = self._read()
        return {data: [e for e in entries if e.data == data] for data in {e.data for e in entries}}

    def check(self, data: str, contract: Contract) -> None:
        """Refuse a federation whose whole contract does not fit under the cap, or that is over."""
        _check_name(data)
        entries = self._read()
        self._refuse_beyond(contract, self._others(entries, data, contract))
        if any(entry.closed for entry in entries if entry.contract.digest == contract.digest):
            raise InputError(f"federation {contract.federation} is over: begin a new one")

    def charge(self, data: str, contract: Contract, number: int, content: str = "") -> None:
        """Write a sum down before an answer for it leaves; the same sum is charged once.

        Where each answer has noise of its own, a second answer for a sum is refused.

        Parameters
        ----------
        data
            Name of the data set, as its owner gives it.
        content
            Hash of the data as they are now, which is written down for information.
        """
        _check_name(data)
        with self._locked():
            entries = self._read()
            self._refuse_beyond(contract, self._others(entries, data, contract))
            mine = [e for e in _about(data, entries) if e.contract.digest == contract.digest]
            entry = mine[0] if mine else LedgerEntry(data, contract)
            contract.release(number)  # refuses a sum beyond the contract
            if number in entry.sums and contract.shares:
                raise InputError(
                    f"sum {number} was already answered: a second answer would have noise of its "
                    "own, and is not paid for; ask for the next one"
                )
            if number not in entry.sums:
                sums = tuple(sorted({*entry.sums, number}))
                grown = replace(entry, sums=sums, content=content or entry.content)
                self._write([*(e for e in entries if e is not entry), grown])

    def close(self, federation: str) -> None:
        """Answer nothing more in a federation."""
        with self._locked():
            entries = self._read()
            if any(e.contract.federation == federation and not e.closed for e in entries):
                self._write(
                    [
                        replace(e, closed=e.closed or e.contract.federation == federation)
                        for e in entries
                    ]
                )

    def _refuse_beyond(self, contract: Contract, others: list[LedgerEntry]) -> None:
        after = self._epsilon(others, contract.releases)
        if not after <= self.epsilon * (1 + _ROUNDING):
            before = self._epsilon(others, [])
            raise InputError(
                f"epsilon of this data set would be {after:.4g} at delta {self.delta:g} after this "
                f"run ({before:.4g} before it), and the cap is {self.epsilon:g}: use other data, "
                "ask for a smaller epsilon, or raise --epsilon-cap"
            )

    @staticmethod
    def _others(entries: list[LedgerEntry], data: str, contract: Contract) -> list[LedgerEntry]:
        """Return what other federations got of a data set."""
        return [e for e in _about(data, entries) if e.contract.digest != contract.digest]

    def _epsilon(self, entries: list[LedgerEntry], more: Sequence[Release]) -> float:
        """Return ε of all that some federations got, and of more releases, at the ledger's δ."""
        given = [release for entry in entries for release in entry.contract.given(entry.sums)]
        return Account(self.delta, [*given, *more]).epsilon

    def _read(self) -> list[LedgerEntry]:
        if not self.path.is_file():
            return []
        try:
            document = json.loads(self.path.read_text("utf-8"))
            if document["format"] not in (_FORMAT, _WITHOUT_NAMES):
                raise ValueError(f"format {document['format']} is not {_FORMAT}")
            named = document["format"] != _WITHOUT_NAMES
            entries = [LedgerEntry.of(part, named=named) for part in document["entries"]]
            if not _same(sum(entry.spent for entry in entries), document["total"]):
                raise ValueError("the total does not add up")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"the ledger {self.path} cannot be trusted ({error}): restore it from a copy; "
                "nothing is answered until then"
            ) from None
        return entries

    def _write(self, entries: list[LedgerEntry]) -> None:
        document = {
            "format": _FORMAT,
            "entries": [entry.document() for entry in entries],
            "total": _plain(sum(entry.spent for entry in entries)),
        }
        with durable(self.path) as file:
            file.write(json.dumps(document, indent=1).encode())

    def _locked(self) -> AbstractContextManager[None]:
        return locked(self.path.with_suffix(".lock"))


def _about(data: str, entries: list[LedgerEntry]) -> list[LedgerEntry]:
    """Return the entries that may be about a data set: its own, and those without a name."""
    return [entry for entry in entries if entry.data in (data, "")]


def _check_name(data: str) -> None:
    if not data:
        raise InputError("the data set has no name, so its budget is unknown: give it one")


def _plain(value: float) -> float | None:
    return value if value < inf else None


def _same(value: float, stored: float | None) -> bool:
    return value == inf if stored is None else isclose(value, stored, rel_tol=_ROUNDING)
