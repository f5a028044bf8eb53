"""Secure sums in a federation: the server sees masked integers, and what the helper lets it see.

A round asks the clients, adds up what came by the deadline, writes that down, and only then tells
the helper who arrived. So whatever dies on the way, the same list goes to the helper again, which
answers with the same bytes: no sum is given out twice, and none is lost.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import Array, to_host
from codedfedl.core.client import work_to
from codedfedl.core.protocol import Ask
from codedfedl.core.work import Work
from codedfedl.errors import InputError
from codedfedl.federate.job import MASKED, ask_digest, taken_apart
from codedfedl.federate.secure.helper import HelperLink
from codedfedl.federate.secure.terms import Noisy, Plain
from codedfedl.federate.server.asking import Asking, Pending
from codedfedl.federate.server.checks import RefusedError, whole
from codedfedl.federate.server.rounds import check_answered
from codedfedl.federate.transport import Arrival
from codedfedl.io.archives import read_arrays
from codedfedl.io.files import durable, make_folder, replacing
from codedfedl.io.names import count_of
from codedfedl.privacy.accounting import Account
from codedfedl.privacy.contract import Contract, digest_of_keys
from codedfedl.privacy.fixed_point import LEAST_SUMMED, Residues
from codedfedl.runs.exchange import Exchange

__all__ = ["Sums"]


class Sums:
    """Secure sums of a federation, with noise or without.

    Finds the helper, and learns everybody's key; on resuming, from the journal.

    Parameters
    ----------
    account
        What the sums spend; None for sums without noise.
    """

    def __init__(self, asking: Asking, account: Account | None) -> None:
        self.asking, self.members, self.journal = asking, asking.members, asking.journal
        self._terms = Plain() if account is None else Noisy(account)
        self._contract: Contract | None = None
        patience, clients = asking.config.ready_timeout, set(self.members.nodes)
        self._link = HelperLink(asking.transport, asking.job, clients, patience, asking.say)
        path = self.journal.folder / "helper.json"
        if not path.is_file():
            self._refuse_few()
            key = self._link.find(None)
            parties = {"key": key, "clients": self._paired(key)}
            with replacing(path) as partial:
                partial.write_text(json.dumps(parties, indent=1), "utf-8")
        self._parties: dict[str, Any] = json.loads(path.read_text("utf-8"))
        self._link.key = self._parties["key"]

    def recall(self, ask: Ask, exchange: Exchange) -> None:
        """Take an exchange from the journal, if what it says was spent adds up."""
        self._terms.pay(ask.work, given=bool(exchange.sums))
        spent = self._terms.spent
        if not math.isclose(spent, exchange.spent, rel_tol=1e-9, abs_tol=1e-12):
            raise InputError(
                f"{self.journal.exchanges_folder} does not add up: by round "
                f"{exchange.record.round + 1} mu² = {spent:.6g} was spent, and it says "
                f"{exchange.spent:.6g}; restore it from a copy, or start again with another --out"
            )

    def exchange(self, ask: Ask, model: Array, round_: int) -> Exchange:
        """Ask the clients, then the helper, and return the sum that both give."""
        work, contract = ask.work, self._agreed(ask.work)
        number = self._terms.number(ask, contract)
        facts = {"number": number, "attempt": round_}
        path = self.journal.folder / "sums" / f"{number:06d}.npz"
        kept = _kept(path, round_)
        masked = kept
        if masked is None:
            asked = facts | {"contract": contract.document()}
            masked = self._gathered(ask, model, round_, asked)
        self.asking.note_points(masked)
        if (few := int(masked.record.arrived.sum())) < contract.least:
            self._without_sum(ask, masked.record.deadline, few, contract.least)
            self._terms.pay(work, given=False)
            return replace(masked, sums={}, spent=self._terms.spent)
        if kept is None:
            _keep(path, masked)
        sent = to_host(model) if work.needs_model else None
        total = self._uncovered(work, masked, facts | {"ask": ask_digest(work, sent)})
        if sentence := self._terms.sentence(number):
            self.asking.say(sentence)
        return total

    def _without_sum(self, ask: Ask, deadline: float, few: int, least: int) -> None:
        """Say that too few arrived for a sum; end a run that waits for answers alone."""
        if not np.isfinite(ask.wait.deadline):
            raise InputError(
                f"{count_of(few, 'client')} answered within {deadline:g} s, and a sum is over "
                f"{least} or more: see that the nodes are up and run this again"
            )
        self.asking.say(f"no sum: {count_of(few, 'client')} arrived, fewer than {least}")

    def _uncovered(self, work: Work, masked: Exchange, facts: Mapping[str, Any]) -> Exchange:
        """Ask the helper for the masks of the arrivals, and remove them: this spends a sum."""
        began, total = self.asking.transport.now(), masked.sums[MASKED]
        names = [self.members.names[j] for j in np.flatnonzero(masked.record.arrived).tolist()]
        correction = self._correction({**facts, "arrived": names, "numbers": len(total)})
        self._terms.pay(work, given=True)
        seconds = masked.record.seconds + self.asking.transport.now() - began
        return replace(
            masked,
            record=replace(masked.record, seconds=seconds),
            sums=taken_apart(total - correction, self._shapes(work)),
            spent=self._terms.spent,
        )

    def end(self) -> None:
        """Tell the helper that the federation is over; one that is gone has nothing to lose."""
        self._link.part()

    # The clients.

    def _gathered(self, ask: Ask, model: Array, round_: int, facts: Mapping[str, Any]) -> Exchange:
        """Return the sum of the masked answers that came in time."""
        asking = self.asking
        tally = asking.tally(ask, round_)
        self._check_common(ask.work, np.flatnonzero(tally.loads).tolist())
        numbers = sum(math.prod(shape) for shape in self._shapes(ask.work).values())
        asked = asking.ask(ask, tally, model, sum=facts)
        total = np.zeros(numbers, dtype=np.uint32)
        counted = np.zeros(len(self.members.names), dtype=np.int64)

        def take(arrival: Arrival, pending: Pending) -> bool:
            points, residues = _checked(arrival, ask.work, round_, pending.load, numbers)
            if residues is not None:
                np.add(total, residues, out=total)
                counted[arrival.client] = points
                tally.arrived(arrival)
            return True

        asking.gather(ask, tally, asked, take)
        if asked and len(tally.problems) == len(asked):
            client, reason = next(iter(tally.problems.items()))
            raise InputError(
                f"no client takes part in this sum; {self.members.names[client]}: {reason}"
            )
        check_answered(asking, ask, tally)
        record = tally.record(asking.transport.now(), asking.gone())
        return Exchange(record, float(counted.sum()), {MASKED: total}, counted=counted)

    def _check_common(self, work: Work, clients: list[int]) -> None:
        """Refuse work whose masks would not cancel, as each client binds its own to another ask."""
        common = work_to(work.common)
        if any(work_to(work.for_client(j).common) != common for j in clients):
            raise InputError(
                f"{work.kind} is not the same for all clients without what for_client changes: "
                "let its `common` leave that out"
            )

    def _paired(self, helper: str) -> dict[str, str]:
        """Return everybody's public key; refuse whoever has pinned another helper."""
        asking = self.asking
        playing = [j for j in asking.everyone if j not in asking.excluded]
        patience = asking.config.probe_timeout
        asked = asking.question("pair", {j: {} for j in playing}, patience)
        keys: dict[str, str] = {}
        for arrival in asking.transport.gather(asked, asking.transport.now() + patience):
            name, facts = self.members.names[arrival.client], arrival.facts
            if arrival.status != "answer":
                raise InputError(f"{name} cannot take part in sums: {arrival.reason}")
            if facts.get("helper") != helper:
                raise InputError(
                    f"{name} has pinned the helper key {str(facts.get('helper'))[:16]}…, and the "
                    f"helper's is {helper[:16]}…: give it the masks.pub of the helper"
                )
            keys[name] = str(facts.get("key"))
        if missing := [self.members.names[j] for j in playing if self.members.names[j] not in keys]:
            raise InputError(
                f"no key from {', '.join(missing)} within {patience:g} s: see their logs, or leave "
                f"them out with federation.without={missing}"
            )
        return keys

    def _refuse_few(self) -> None:
        playing = len(self.asking.everyone) - len(self.asking.excluded)
        if playing < LEAST_SUMMED:
            raise InputError(
                f"federation.clients leaves {playing} client: a sum would be its own answer; have "
                f"{LEAST_SUMMED} or more"
            )

    # The helper.

    def _agreed(self, work: Work) -> Contract:
        """Return the contract, which the helper must have before the first sum of this process."""
        if self._contract is None:
            keys = self._parties["clients"]
            parties = self.members.key, self._parties["key"], digest_of_keys(keys)
            contract = self._terms.contract(work, *parties)
            facts = {"contract": contract.document(), "clients": keys}
            answer = self._link.ask("agree", facts, 0)
            if answer.facts.get("digest") != contract.digest:
                raise InputError(
                    "the helper has agreed to a different contract: use the same version there"
                )
            self._contract = contract
        return self._contract

    def _correction(self, facts: Mapping[str, Any]) -> Residues:
        """Return what the helper gives: the sum of the masks, less the noise."""
        numbers = int(facts["numbers"])
        answer = self._link.ask("sum", facts, 4 * numbers)
        correction = answer.arrays.get("sum")
        if correction is None or correction.dtype != np.uint32 or correction.shape != (numbers,):
            raise InputError("the helper's sum has the wrong form: use the same version there")
        return correction

    def _shapes(self, work: Work) -> Mapping[str, tuple[int, ...]]:
        shapes = work.shapes(self.asking.task, 1)
        if shapes is None:
            raise InputError(f"{work.kind} does not say what its answers look like: give it shapes")
        return shapes


def _checked(
    arrival: Arrival, work: Work, round_: int, load: int, numbers: int
) -> tuple[int, npt.NDArray[np.uint32] | None]:
    """Return a masked answer and its points; there is nothing in it that could be judged."""
    given, points = whole(arrival.facts, "round"), whole(arrival.facts, "points")
    if given != round_:
        raise RefusedError(f"answers round {given}, not {round_}")
    least = 0 if work.elastic else load
    if not least <= points <= load:
        raise RefusedError(f"stands for {points} points where the client was asked for {load}")
    if points == 0:
        return 0, None
    if set(arrival.arrays) != {MASKED}:
        raise RefusedError(f"consists of {', '.join(sorted(arrival.arrays)[:5]) or 'nothing'}")
    residues = arrival.arrays[MASKED]
    if residues.dtype != np.uint32 or residues.shape != (numbers,):
        raise RefusedError(
            f"{MASKED} holds {residues.shape} of {residues.dtype}, not {numbers} of uint32"
        )
    return points, residues


def _keep(path: Path, masked: Exchange) -> None:
    make_folder(path.parent)
    with durable(path) as file:
        np.savez(file, **masked.arrays())  # type: ignore[arg-type]


def _kept(path: Path, round_: int) -> Exchange | None:
    """Return what the helper was, or may have been, asked about before a kill."""
    if not path.is_file():
        return None
    masked = Exchange.of(read_arrays(path, remedy="restore it from a copy"))
    if masked.record.round != round_:
        raise InputError(
            f"{path} is of round {masked.record.round + 1}, and round {round_ + 1} is next: the "
            "journal lacks rounds; restore it from a copy"
        )
    return masked
