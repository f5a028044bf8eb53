"""What server, helper and clients agree on before the first secure sum.

A mask is bound to the contract. So a server that told the helper of less noise than the clients, or
of other clients, would get nothing but noise: the masks of the two sides would differ.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import isfinite, sqrt
from typing import Any

from codedfedl.errors import InputError
from codedfedl.privacy.accounting import Account, Release
from codedfedl.privacy.fixed_point import LEAST_SUMMED, MOST_NOISE, FixedPoint

__all__ = ["Contract", "contract_of", "digest_of_keys"]

_MOST_SUMS = 10**6
_PARTIES = ("federation", "helper", "clients", "least")


def digest_of_keys(keys: Mapping[str, str]) -> str:
    """Return a hash of who takes part: everybody's public key, in hexadecimal digits, by name."""
    return _digest(dict(keys))


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Contract:
    """All sums of one federation, with their noise, and the parties.

    Attributes
    ----------
    federation
        Its own name, 32 hexadecimal digits.
    helper
        The helper's public key, in hexadecimal digits.
    clients
        From `digest_of_keys`.
    least
        Minimum number of clients in a sum.
    account
        Every release: sums are numbered through them, in their order. None for sums without noise:
        nobody sees a single answer, and no ε is promised; as there is no budget, there may be any
        number of sums.
    scale
        Of the fixed-point numbers, for sums with noise.
    """

    federation: str
    helper: str
    clients: str
    least: int = LEAST_SUMMED
    account: Account | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        FixedPoint(self.scale)  # refuses what is not a scale
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
        if self.account is not None:
            self._check_account(self.account)

    def _check_account(self, account: Account) -> None:
        if account.sampled or account.unit != "record":
            raise InputError(
                "contract.releases are over sampled points, or for whole clients: a "
                "contract is for records that are in every sum"
            )
        if account.shares and self.least <= account.shares:
            raise InputError(
                f"contract.least is {self.least}: {account.shares} shares are the noise "
                "without any one client; sums must be over one client more"
            )
        for release in account.releases:
            _check_noise(release, self.scale)
        if not 0 < self.sums <= _MOST_SUMS:
            raise InputError(f"contract.releases come to {self.sums} sums: must be 1 to 1,000,000")

    @cached_property
    def digest(self) -> str:
        """A hash that no other contract has."""
        return _digest(self.document())

    @property
    def label(self) -> str:
        """What masks are bound to, as `Binding.federation`."""
        return f"{self.federation}:{self.digest}"

    @property
    def releases(self) -> Sequence[Release]:
        """The account's releases; none without noise."""
        return () if self.account is None else self.account.releases

    @property
    def shares(self) -> int:
        """Number of clients whose noise shares add up to the noise; 0 if the helper adds it."""
        return 0 if self.account is None else self.account.shares

    @property
    def sums(self) -> int:
        """How many sums with noise there are."""
        return sum(release.count for release in self.releases)

    def sensitivity(self, number: int) -> float:
        """Return how far a record may move a sum, by the sum's number: what was paid for."""
        return float(self.release(number).sensitivity)  # type: ignore[arg-type]

    def release(self, number: int) -> Release:
        """Return what a sum is, by its number from 0 on, as a release of one."""
        left = number
        for release in self.releases:
            if 0 <= left < release.count:
                return replace(release, count=1)
            left -= release.count
        raise InputError(
            f"sum number {number}: the contract has {self.sums}, and no budget is left for another"
        )

    def given(self, sums: Collection[int]) -> list[Release]:
        """Return the releases with as many sums as were given out, by their numbers."""
        counts = Counter(self.release(number).what for number in sums)
        return [replace(release, count=counts[release.what]) for release in self.releases]

    def number(self, what: str, before: int) -> int:
        """Return the number of the next sum of a kind, of which `before` were given out."""
        start = 0
        for release in self.releases:
            if release.what == what and before < release.count:
                return start + before
            start += release.count
        raise InputError(f"no {what} is left of {self.sums} sums: the budget is spent")

    def noise_of(self, number: int) -> float:
        """Return the standard deviation of the helper's noise, in steps of the integers."""
        if self.account is None:
            if not 0 <= number < _MOST_SUMS:
                raise InputError(f"sum number {number}: must lie between 0 and {_MOST_SUMS - 1:,}")
            return 0.0
        steps = self.release(number).sigma * self.scale
        return 0.0 if self.shares else steps

    def share_of(self, number: int) -> float:
        """Return the standard deviation of each client's share of the noise, likewise."""
        steps = self.release(number).sigma * self.scale
        return steps / sqrt(self.shares) if self.shares else 0.0

    def document(self) -> dict[str, Any]:
        """Return plain values."""
        parties = {name: getattr(self, name) for name in _PARTIES}
        if self.account is None:
            return parties
        return {
            **({"shares": self.shares} if self.shares else {}),
            **parties,
            "delta": self.account.delta,
            "releases": [asdict(release) for release in self.releases],
            "scale": self.scale,
        }


def _check_noise(release: Release, scale: float) -> None:
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


def contract_of(document: Mapping[str, Any]) -> Contract:
    """Return the contract that `document` gave the values of; refuse anything else."""
    try:
        fields = dict(document)
        parties = {name: fields.pop(name) for name in _PARTIES if name in fields}
        account, scale = None, 1.0
        if "releases" in fields:
            releases = [Release(**release) for release in fields.pop("releases")]
            delta, scale, shares = fields.pop("delta"), fields.pop("scale"), fields.pop("shares", 0)
            if type(shares) is not int or shares < 0:
                raise InputError(f"contract.shares is {shares!r}: must be a whole number, or 0")
            account = Account(delta, releases, shares=shares)
        if fields:
            raise ValueError(f"{str(min(fields))[:64]} is unknown")
        return Contract(**parties, account=account, scale=scale)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"this is not a contract ({type(error).__name__}: {error})") from None
