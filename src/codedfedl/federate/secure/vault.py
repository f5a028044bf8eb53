"""A node's side of secure sums: what it checks, writes down and hides before anything leaves it.

A node with a vault answers in sums alone: whatever would show its own answer is refused, and sums
without noise too, unless its operator allows any ε. Beside its key for masks the vault holds the
ledger (`privacy.ledger`), and what was sent under masks.
"""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf, isclose
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.core.client import work_to
from codedfedl.core.clipped import PrivateSum
from codedfedl.core.encoding import BlockParity, Parity
from codedfedl.core.masked import Anchor, GradientDelta, Masked
from codedfedl.core.work import Work
from codedfedl.errors import InputError
from codedfedl.federate.job import MASKED, ask_digest, in_one_row
from codedfedl.federate.node.schema import Sizes
from codedfedl.federate.transport import Answered
from codedfedl.io.archives import read_arrays
from codedfedl.io.files import Files
from codedfedl.privacy.contract import Contract, contract_of
from codedfedl.privacy.fixed_point import LEAST_SHARE, FixedPoint, Residues
from codedfedl.privacy.ledger import Ledger
from codedfedl.privacy.masks import (
    Binding,
    Sender,
    own_key,
    own_noise,
    public_digits,
    shared_seed,
)

__all__ = ["DELTA", "EPSILON_CAP", "Answers", "SumQuestion", "Vault"]

EPSILON_CAP, DELTA = 10.0, 1e-5
"""Default limit on the ε that a node spends per data set."""

Make = Callable[[Callable[[], None]], Answered]
"""Computes an answer, after it has called what it is given: what charges for it."""


class Answers:
    """The gradients that a node has sent in one federation, by round, on its own disk."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def filled(self, work: GradientDelta) -> GradientDelta:
        """Return the work with the last counted answer filled in, given its round."""
        return replace(
            work, counted={k: self._answer(work, anchor) for k, anchor in work.counted.items()}
        )

    def keep(
        self,
        work: GradientDelta,
        round_: int,
        points: int,
        model: npt.NDArray[np.float32],
        change: Residues,
    ) -> None:
        """Keep the gradient after a change, and drop all others but the last counted one."""
        content = io.BytesIO()
        np.savez(content, model=model, points=points, gradient=work.whole(change))
        self._files[str(round_)] = content.getvalue()
        needed = {str(round_), *(str(last.round) for last in work.counted.values())}
        for key in set(self._files) - needed:
            del self._files[key]

    def _answer(self, work: GradientDelta, anchor: Anchor) -> Anchor:
        key = str(anchor.round)
        if key not in self._files:
            raise InputError(
                f"round {anchor.round + 1} is said to have counted an answer that this node does "
                "not have: its vault was lost; begin a new federation"
            )
        kept = read_arrays(self._files.folder / key, remedy="begin a new federation")
        if int(kept["points"]) != anchor.points:
            raise InputError(
                f"the answer of round {anchor.round + 1} was for {int(kept['points'])} points, "
                f"and {anchor.points} are said to be counted"
            )
        gradient = FixedPoint(work.scale).decode(kept["gradient"])
        return replace(anchor, model=kept["model"].astype(np.float64), gradient=gradient)


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
        """Return the whole question as bytes."""
        sent = b"" if self.model is None else self.model.tobytes()
        return json.dumps([work_to(self.work), self.load], sort_keys=True).encode() + sent


class Vault:
    """What a node keeps for itself, in a folder that outlives its caches.

    Parameters
    ----------
    pinned
        The public key of the only helper that is trusted, in hexadecimal digits.
    epsilon_cap, delta
        What a data set may spend, over all runs; ∞ to take part in sums without noise too, which
        have no ε and are not in the ledger.
    parity
        Whether it sends parity of its own points as they are, which has no ε either.
    """

    def __init__(
        self,
        folder: Path,
        pinned: str,
        *,
        epsilon_cap: float = EPSILON_CAP,
        delta: float = DELTA,
        parity: bool = False,
    ) -> None:
        if parity and epsilon_cap < inf:
            raise InputError(
                f"--parity has no epsilon, and --epsilon-cap is {epsilon_cap:g}: give "
                "--epsilon-cap inf, or leave --parity out"
            )
        self.folder, self.pinned, self.parity = folder, pinned, parity
        self.ledger = Ledger(folder / "ledger.json", epsilon_cap, delta)
        self.left = self.ledger.left
        self._key = own_key(folder / "masks.key")
        self._seed = shared_seed(self._key, bytes.fromhex(pinned), helper=bytes.fromhex(pinned))

    def keys(self) -> dict[str, str]:
        """Return the node's public key, and the helper's that it has pinned."""
        return {"key": public_digits(self._key), "helper": self.pinned}

    def answer(
        self, asked: SumQuestion, data: tuple[str, str], sizes: Sizes, make: Make
    ) -> Answered:
        """Return an answer under its mask, once everything is checked and written down.

        Parameters
        ----------
        data
            Name of the node's data set, which is charged, and the hash of its content.
        """
        if isinstance(asked.work, PrivateSum):
            return self._noisy(asked, asked.work, data, sizes, make)
        if isinstance(asked.work, Masked):
            return self._plain(asked, make)
        is_parity = isinstance(asked.work, Parity | BlockParity)
        if is_parity and self.parity:
            return make(_no_charge)
        remedy = "start it with --parity" if is_parity else "start it without --helper"
        refusal = InputError(
            f"{asked.work.kind} would show this node's own answer, and it answers in sums alone: "
            f"choose the scheme private, or {remedy}"
        )
        if asked.work.discloses is not None:  # not even whether it can be computed is free
            raise refusal
        facts, arrays = make(_no_charge)
        if arrays:
            raise refusal
        return facts, arrays

    def _noisy(
        self,
        asked: SumQuestion,
        work: PrivateSum,
        data: tuple[str, str],
        sizes: Sizes,
        make: Make,
    ) -> Answered:
        """Return an answer for a sum with noise, which is charged before it is computed."""
        contract, number, attempt = self._contract(asked)
        if contract.account is None:
            raise InputError(
                f"{work.kind} is asked for under a contract without noise: ask for it with one "
                "that has releases"
            )
        size = work.numbers(sizes.features, sizes.columns)
        _check_release(work, contract, number)
        _refuse_sensitive(work, contract, number, size)
        name, content = data
        self.ledger.check(name, contract)

        def charged() -> Answered:
            facts, arrays = make(lambda: self.ledger.charge(name, contract, number, content))
            if arrays:
                arrays = {work.name: arrays[work.name].ravel() + own_noise(work.noise, size)}
            return facts, arrays

        return self._sent_under(contract, number, attempt, asked, charged)

    def _plain(self, asked: SumQuestion, make: Make) -> Answered:
        """Return an answer for a sum without noise, if the node's operator allows it."""
        contract, number, attempt = self._contract(asked)
        if contract.account is not None:
            raise InputError(
                f"{asked.work.kind} is asked for under a contract of noisy sums, which it is not in"
            )
        contract.noise_of(number)  # refuses what is not a sum
        if self.ledger.epsilon < inf:
            raise InputError(
                "a sum without noise has no epsilon, and this node's --epsilon-cap is "
                f"{self.ledger.epsilon:g}: choose the scheme private, or start it with "
                "--epsilon-cap inf"
            )

        def kept() -> Answered:
            facts, arrays = make(_no_charge)
            if arrays and isinstance(asked.work, GradientDelta):
                assert asked.model is not None
                change, points = arrays["gradient"], int(facts["points"])
                answers = self._answers(asked.federation)
                answers.keep(asked.work, attempt, points, asked.model, change)
            return facts, arrays

        return self._sent_under(contract, number, attempt, asked, kept)

    def filled(self, federation: str, work: GradientDelta) -> GradientDelta:
        """Return work with the answer that it is to be compared with."""
        return self._answers(federation).filled(work)

    def _sent_under(
        self,
        contract: Contract,
        number: int,
        attempt: int,
        asked: SumQuestion,
        make: Callable[[], Answered],
    ) -> Answered:
        """Return an answer under its mask: what was sent before, or a new one, written down."""

        def noted() -> tuple[bytes, npt.NDArray[np.uint32]]:
            facts, arrays = make()
            if not arrays:
                raise _NothingYet(facts)
            return json.dumps(facts).encode(), in_one_row(arrays)

        if asked.federation in self._ended:
            raise InputError(f"federation {asked.federation} is over: begin a new one")
        binding = Binding(contract.label, number, attempt, ask_digest(asked.work, asked.model))
        sender = Sender(self._seed, Files(self._sent(asked.federation)))
        try:
            note, hidden = sender.masked(binding, bytes(asked), noted)
        except _NothingYet as nothing:
            return nothing.facts, {}
        return json.loads(note), {MASKED: hidden}

    def close(self, federation: str) -> None:
        """End a federation: nothing is answered in it any more, and what was sent is forgotten."""
        self.ledger.close(federation)
        sent = Files(self._sent(federation))
        if len(sent):
            self._ended[federation] = b""  # before what was sent is forgotten
        sent.remove()
        Files(self.folder / "answers" / federation).remove()

    def _sent(self, federation: str) -> Path:
        return self.folder / "sent" / federation

    def _answers(self, federation: str) -> Answers:
        return Answers(Files(self.folder / "answers" / federation))

    @property
    def _ended(self) -> Files:
        return Files(self.folder / "ended")

    def _contract(self, asked: SumQuestion) -> tuple[Contract, int, int]:
        """Return contract, number and attempt of a question, if the parties are the right ones."""
        if asked.sum is None:
            raise InputError(
                f"{asked.work.kind} is asked for without a contract: nobody would take its mask off"
            )
        contract = contract_of(asked.sum["contract"])
        number, attempt = int(asked.sum["number"]), int(asked.sum["attempt"])
        if contract.federation != asked.federation:
            raise InputError(f"the contract is of another federation, {contract.federation}")
        if contract.helper != self.pinned:
            raise InputError(
                f"the helper's key is {contract.helper[:16]}…, and the pinned one is "
                f"{self.pinned[:16]}…: ask the helper's operator which is right"
            )
        return contract, number, attempt


def _no_charge() -> None:
    """Charge nothing: the answer has no ε."""


def _check_release(work: PrivateSum, contract: Contract, number: int) -> None:
    """Refuse work that is not this sum of the contract, or has another share of the noise."""
    what = contract.release(number).what
    if what != work.name or work.scale != contract.scale:
        raise InputError(
            f"sum {number} is {what} with scale {contract.scale:g} in the contract, and "
            f"{work.name} with scale {work.scale:g} is asked for"
        )
    share = contract.share_of(number)
    if not isclose(work.noise, share, rel_tol=1e-9):
        raise InputError(
            f"a share of {work.noise:.6g} steps of noise is asked for, and the contract has "
            f"{share:.6g}"
        )
    if 0 < share < LEAST_SHARE:
        raise InputError(
            f"a share of the noise is {share:.2g} steps of the integers, and the proof needs "
            f"{LEAST_SHARE:g}"
        )


def _refuse_sensitive(work: PrivateSum, contract: Contract, number: int, numbers: int) -> None:
    moved, paid = work.sensitivity(numbers), contract.sensitivity(number)
    if not moved <= paid * (1 + 1e-9):
        raise InputError(
            f"a record moves {work.kind} by {moved:.6g}, and the contract has noise for {paid:.6g}"
        )


class _NothingYet(Exception):  # noqa: N818
    """A client that has embedded nothing has nothing to hide."""

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__()
        self.facts = facts
