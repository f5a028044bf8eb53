"""What server, helper and clients agree on before the first secure sum.

A mask is bound to the contract. So a server that told the helper of less noise than the clients, or
of other clients, would get nothing but noise: the masks of the two sides would differ.
"""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import isfinite, sqrt
from typing import Any

from codedfedl.errors import InputError
from codedfedl.privacy.accounting import Account, Release
from codedfedl.privacy.fixed_point import LEAST_SUMMED, MOST_NOISE, FixedPoint

__all__ = ["AnyContract", "Contract", "PlainContract", "contract_of", "digest_of_keys"]

_MOST_SUMS = 10**6


def digest_of_keys(keys: Mapping[str, str]) -> str:
    """Return a hash of who takes part: everybody's public key, in hexadecimal digits, by name."""
    return _digest(dict(keys))


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


class _Agreement(ABC):
    """The parties of a contract, and the hash that masks are bound to."""

    federation: str
    helper: str
    clients: str
    least: int

    def _check_parties(self) -> None:
        digits = {"federation": 32, "helper": 64, "clients": 64}
        for name, count in digits.items():
            value = getattr(self, name)
            if not isinstance(value, str) or not re.fullmatch(f"[0-9a-f]{{{count}}}", value):
                raise InputError(f"contract.{name} is {value!r}: must be {count} hex digits")
        if type(self.least) is not int or self.least < LEAST_SUMMED:
            raise InputError(
                f"contract.least is {self.least}: a sum over fewer than {LEAST_SUMMED} clients "
                "would be a single client's own answer"
            )

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """Return plain values."""

    @cached_property
    def digest(self) -> str:
        """A hash that no other contract has."""
        return _digest(self.document())

    @property
    def label(self) -> str:
        """What masks are bound to, as `Binding.federation`."""
        return f"{self.federation}:{self.digest}"


@dataclass(frozen=True)
class PlainContract(_Agreement):
    """Sums without noise: nobody sees a single answer, and no ε is promised.

    The attributes are those of `Contract`. There may be any number of sums, as there is no budget.
    """

    federation: str
    helper: str
    clients: str
    least: int = LEAST_SUMMED

    def __post_init__(self) -> None:
        self._check_parties()

    def noise_of(self, number: int) -> float:
        """Return 0 for every sum that there may be."""
        if not 0 <= number < _MOST_SUMS:
            raise InputError(f"sum number {number}: must lie between 0 and {_MOST_SUMS - 1:,}")
        return 0.0

    def document(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Contract(_Agreement):
    """All noisy sums of one federation, with their noise, and the parties.

    Attributes
    ----------
    federation
        Its own name, 32 hexadecimal digits.
    account
        Every release: sums are numbered through them, in their order.
    scale
        Of the fixed-point numbers.
    helper
        The helper's public key, in hexadecimal digits.
    clients
        From `digest_of_keys`.
    least
        Minimum number of clients in a sum.
    """

    federation: str
    account: Account
    scale: float
    helper: str
    clients: str
    least: int = LEAST_SUMMED

    def __post_init__(self) -> None:
        FixedPoint(self.scale)  # refuses what is not a scale
        self._check_parties()
        if self.account.sampled or self.account.unit != "record":
            raise InputError(
                "contract.releases are over sampled points, or for whole clients: a "
                "contract is for records that are in every sum"
            )
        if self.account.shares and self.least <= self.account.shares:
            raise InputError(
                f"contract.least is {self.least}: {self.account.shares} shares are the noise "
                "without any one client; sums must be over one client more"
            )
        for release in self.account.releases:
            _check_noise(release, self.scale, self.account.shares)
        if not 0 < self.sums <= _MOST_SUMS:
            raise InputError(f"contract.releases come to {self.sums} sums: must be 1 to 1,000,000")

    def sensitivity(self, number: int) -> float:
        """Return how far a record may move a sum, by the sum's number: what was paid for."""
        return float(self.release(number).sensitivity)  # type: ignore[arg-type]

    @property
    def sums(self) -> int:
        """How many sums there are."""
        return sum(release.count for release in self.account.releases)

    def release(self, number: int) -> Release:
        """Return what a sum is, by its number from 0 on, as a release of one."""
        left = number
        for release in self.account.releases:
            if 0 <= left < release.count:
                return replace(release, count=1)
            left -= release.count
        raise InputError(
            f"sum number {number}: the contract has {self.sums}, and no budget is left for another"
        )

    def given(self, sums: Collection[int]) -> list[Release]:
        """Return the releases with as many sums as were given out, by their numbers."""
        counts = Counter(self.release(number).what for number in sums)
        return [replace(release, count=counts[release.what]) for release in self.account.releases]

    def number(self, what: str, before: int) -> int:
        """Return the number of the next sum of a kind, of which `before` were given out."""
        start = 0
        for release in self.account.releases:
            if release.what == what and before < release.count:
                return start + before
            start += release.count
        raise InputError(f"no {what} is left of {self.sums} sums: the budget is spent")

    def noise_of(self, number: int) -> float:
        """Return the standard deviation of the helper's noise, in steps of the integers."""
        return 0.0 if self.account.shares else self.release(number).sigma * self.scale

    def share_of(self, number: int) -> float:
        """Return the standard deviation of each client's share of the noise, likewise."""
        shares = self.account.shares
        return self.release(number).sigma * self.scale / sqrt(shares) if shares else 0.0

    def document(self) -> dict[str, Any]:
        """Return plain values."""
        account = self.account
        return {
            **({"shares": account.shares} if account.shares else {}),
            "federation": self.federation,
            "delta": account.delta,
            "releases": [asdict(release) for release in account.releases],
            "scale": self.scale,
            "helper": self.helper,
            "clients": self.clients,
            "least": self.least,
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Contract":
        """Return the contract that `document` gave the values of; refuse anything else."""
        contract = contract_of(document)
        if not isinstance(contract, Contract):
            raise InputError("the contract has no releases: it is not for noisy sums")
        return contract


def _check_noise(release: Release, scale: float, shares: int) -> None:
    """Refuse a release that is not of whole sums, or whose noise the integers cannot hold."""
    if type(release.count) is not int or release.count < 1:
        raise InputError(
            f"contract.releases: {release.what!r} has count {release.count!r}: must be a whole "
            "number above 0"
        )
    if type(release.sensitivity) not in (int, float) or not isfinite(release.sensitivity):  # type: ignore[arg-type]
        raise InputError(
            f"contract.releases: {release.what!r} has sensitivity {release.sensitivity!r}: must be "
            "a finite number"
        )
    steps = release.sigma * scale
    if not isfinite(release.sigma) or steps > MOST_NOISE:
        raise InputError(
            f"contract.releases: {release.what!r} has sigma {release.sigma!r}, {steps:.3g} steps: "
            f"must be finite, and at most {MOST_NOISE:.3g} steps of the integers"
        )


AnyContract = Contract | PlainContract
"""For sums with noise, or without."""


def contract_of(document: Mapping[str, Any]) -> AnyContract:
    """Return the contract that `document` gave the values of; refuse anything else."""
    try:
        fields = dict(document)
        if "releases" not in fields:
            return PlainContract(**fields)
        releases = [Release(**release) for release in fields.pop("releases")]
        delta, shares = fields.pop("delta"), fields.pop("shares", 0)
        if type(shares) is not int or shares < 0:
            raise InputError(f"contract.shares is {shares!r}: must be a whole number, or 0")
        return Contract(account=Account(delta, releases, shares=shares), **fields)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"this is not a contract ({type(error).__name__}: {error})") from None
