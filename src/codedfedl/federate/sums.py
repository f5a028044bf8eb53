"""Noisy sums in a federation: the server sees masked integers, and what the helper lets it see.

A round asks the clients, adds up what came by the deadline, writes that down, and only then tells
the helper who arrived. So whatever dies on the way, the same list goes to the helper again, which
answers with the same bytes: no sum is given out twice, and none is lost.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import Array, to_host
from codedfedl.core.clipped import PrivateSum
from codedfedl.core.protocol import Ask, Inbox
from codedfedl.errors import InputError
from codedfedl.federate.asks import MASKED, ask_digest
from codedfedl.federate.checks import RefusedError
from codedfedl.federate.failures import refusals_noted
from codedfedl.federate.helper_link import HelperLink
from codedfedl.federate.runtime import Federation
from codedfedl.federate.transport import Arrival
from codedfedl.io.files import durable, make_folder, replacing
from codedfedl.privacy.accounting import ADJACENCY, Account, Release
from codedfedl.privacy.contract import Contract, digest_of_keys
from codedfedl.privacy.fixed_point import LEAST_SUMMED, Residues
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.grid import cells
from codedfedl.runs.journal import Exchange

__all__ = ["SummedFederation", "keep_account"]

_HOLDS = (
    "against the server, the clients and the public, while server and helper do not collude; "
    "not against a helper that also sees the models: it knows the noise"
)


def keep_account(directory: RunDirectory, experiment: Experiment, account: Account) -> None:
    """Write `privacy.json` before the first round; refuse to continue a run under another one."""
    (cell,) = cells(experiment)
    which = {"cell": cell.id, "setting": cell.label, "seed": experiment.seeds[0]}
    document = {"holds": _HOLDS, "runs": [which | account.document()]}
    text, path = json.dumps(document, indent=2) + "\n", directory.path / "privacy.json"
    if path.is_file() and path.read_text("utf-8") != text:
        raise InputError(
            f"{path} says what this run gives away, and it was planned otherwise now: resume it "
            "with its own federation.rounds, or choose another --out"
        )
    directory.write_text("privacy.json", text)


class SummedFederation(Federation):
    """A federation of which the server sees noisy sums alone."""

    _account: Account
    _contract: Contract | None = None

    def begin(self, account: Account | None) -> None:
        """Find the helper, and learn everybody's key; on resuming, from the journal."""
        if account is None:
            raise InputError("the scheme does not declare what it releases: give it a privacy()")
        self._account = account
        self._given: Counter[str] = Counter()
        self._spent = 0.0
        patience, others = self.config.ready_timeout, set(self.members.nodes)
        self._link = HelperLink(self.transport, self.job, others, patience, self.say)
        path = self.journal.folder / "helper.json"
        if not path.is_file():
            self._refuse_few()
            key = self._link.find(None)
            parties = {"key": key, "clients": self._paired(key)}
            with replacing(path) as partial:
                partial.write_text(json.dumps(parties, indent=1), "utf-8")
        self._parties: dict[str, Any] = json.loads(path.read_text("utf-8"))
        self._link.key = self._parties["key"]

    def recall(self, ask: Ask, model: Array, round_: int, exchange: Exchange) -> Inbox:
        """Take an exchange from the journal, if what it says was spent adds up."""
        if ask.noise is not None:
            if exchange.sums:
                self._pay(ask.work.name)  # type: ignore[attr-defined]
            if not math.isclose(self._spent, exchange.spent, rel_tol=1e-9, abs_tol=1e-12):
                raise InputError(
                    f"{self.journal.exchanges_folder} does not add up: by round {round_ + 1} "
                    f"mu² = {self._spent:.6g} was spent, and it says {exchange.spent:.6g}; restore "
                    "it from a copy, or start again with another --out"
                )
        return super().recall(ask, model, round_, exchange)

    def exchange(self, ask: Ask, model: Array, round_: int) -> Inbox:
        """Ask the clients, then the helper, and return the sum that both give."""
        if ask.noise is None:
            return super().exchange(ask, model, round_)
        work = ask.work
        if not isinstance(work, PrivateSum):
            raise InputError(f"{work.kind} does not support noisy sums: ask for a PrivateSum")
        contract = self._agreed(work)
        number = contract.number(work.name, self._given[work.name])
        _check_noise(ask.noise, contract, number)
        place = {"number": number, "attempt": round_}
        self._remember(ask, model, round_)
        path = self.journal.folder / "sums" / f"{number:06d}.npz"
        masked = _kept(path, round_)
        if masked is None:
            facts = {**place, "contract": contract.document()}
            masked = self._gathered(ask, work, model, round_, facts)
            if (few := int(masked.record.arrived.sum())) < contract.least:
                self.say(f"no sum: {few} clients arrived, fewer than {contract.least}")
                self.last = replace(masked, sums={}, spent=self._spent)
                return self._inbox(ask, self.last)
            _keep(path, masked)
        self.last = self._uncovered(work, masked, place | {"ask": ask_digest(work, to_host(model))})
        self._say_spent(number, contract)
        return self._inbox(ask, self.last)

    def _uncovered(self, work: PrivateSum, masked: Exchange, facts: Mapping[str, Any]) -> Exchange:
        """Ask the helper about those who arrived, and take their masks off: this spends a sum."""
        began, total = self.transport.now(), masked.sums[MASKED]
        names = [self.members.names[j] for j in np.flatnonzero(masked.record.arrived).tolist()]
        correction = self._correction({**facts, "arrived": names, "numbers": len(total)})
        self._pay(work.name)
        (shape,) = self._shapes(work).values()
        seconds = masked.record.seconds + self.transport.now() - began
        return replace(
            masked,
            record=replace(masked.record, seconds=seconds),
            sums={work.name: (total - correction).reshape(shape)},
            spent=self._spent,
        )

    def end(self) -> None:
        """Tell the helper that the federation is over; one that is gone has nothing to lose."""
        self._link.part()

    # The clients.

    def _gathered(
        self, ask: Ask, work: PrivateSum, model: Array, round_: int, facts: Mapping[str, Any]
    ) -> Exchange:
        """Return the sum of the masked answers that came in time."""
        deadline, tally = self._longest(ask), self._tally(ask)
        self._pending.clear()
        (shape,) = self._shapes(work).values()
        numbers = math.prod(shape)
        self.extra = {"sum": facts}
        try:
            asked = self._ask(ask, tally, round_, deadline, model)
        finally:
            self.extra = {}
        total, points, fresh = np.zeros(numbers, dtype=np.uint32), 0, 0
        problems = []
        for arrival in self.transport.gather(asked, tally.began + deadline):
            pending = self._pending.pop(arrival.question)
            if arrival.when > tally.began + deadline:
                continue
            name = self.members.names[arrival.client]
            problems += [f"{name}: {arrival.reason}"] if arrival.status == "problem" else []
            with refusals_noted(tally, arrival, name, self.say) as usable:
                if usable:
                    count, residues = _checked(arrival, round_, pending.load, numbers)
                    if residues is not None:
                        total += residues
                        points += count
                        tally.arrived(arrival)
                    fresh += 1
            if ask.wait.enough(fresh=fresh, late=0, expected=len(asked)):
                break
        if problems and len(problems) == len(asked):
            raise InputError(f"no client takes part in this sum; {problems[0]}")
        here = self.transport.nodes()
        gone = [j for j in self.everyone if self.members.nodes[j] not in here]
        record = tally.record(round_, deadline, self.transport.now(), gone)
        return Exchange(record, points, {MASKED: total})

    def _paired(self, helper: str) -> dict[str, str]:
        """Return everybody's public key; refuse whoever has pinned another helper."""
        playing = [j for j in self.everyone if j not in self.excluded]
        patience = self.config.probe_timeout
        asked = self.question("pair", {j: {} for j in playing}, patience)
        keys: dict[str, str] = {}
        for arrival in self.transport.gather(asked, self.transport.now() + patience):
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
        playing = len(self.everyone) - len(self.excluded)
        if playing < LEAST_SUMMED:
            raise InputError(
                f"federation.clients leaves {playing} client: a sum would be its own answer; have "
                f"{LEAST_SUMMED} or more"
            )

    # The helper.

    def _agreed(self, work: PrivateSum) -> Contract:
        """Return the contract, which the helper must have before the first sum of this process."""
        if self._contract is None:
            keys = self._parties["clients"]
            contract = Contract(
                self.members.key,
                self._account,
                work.scale,
                self._parties["key"],
                digest_of_keys(keys),
            )
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
        found = answer.arrays.get("sum")
        if found is None or found.dtype != np.uint32 or found.shape != (numbers,):
            raise InputError("the helper's sum has the wrong form: use the same version there")
        return found

    # What is spent.

    def _release(self, what: str) -> Release:
        found = next(one for one in self._account.releases if one.what == what)
        return replace(found, count=1)

    def _pay(self, what: str) -> None:
        self._given[what] += 1
        self._spent += self._release(what).mu ** 2

    def _say_spent(self, number: int, contract: Contract) -> None:
        delta, releases = self._account.delta, self._account.releases
        given = [replace(one, count=self._given[one.what]) for one in releases]
        spent = replace(self._account, releases=given).epsilon
        self.say(
            f"sum {number + 1} of {contract.sums}: epsilon {spent:.4g} of "
            f"{self._account.epsilon:.4g} is spent, at delta {delta:g}, {ADJACENCY}, while server "
            "and helper do not collude"
        )

    def _shapes(self, work: PrivateSum) -> Mapping[str, tuple[int, ...]]:
        found = work.shapes(self.task, 1)
        assert found is not None
        return found


def _check_noise(noise: float, contract: Contract, number: int) -> None:
    if not math.isclose(noise, contract.noise[number], rel_tol=1e-9):
        raise InputError(
            f"a sum is asked for with noise {noise:.6g}, and the account has "
            f"{contract.noise[number]:.6g} steps: let ask and privacy() of the scheme agree"
        )


def _checked(
    arrival: Arrival, round_: int, load: int, numbers: int
) -> tuple[int, npt.NDArray[np.uint32] | None]:
    """Return a masked answer and its points; there is nothing in it that could be judged."""
    given, points = arrival.facts.get("round"), arrival.facts.get("points")
    if given != round_:
        raise RefusedError(f"answers round {given}, not {round_}")
    if type(points) is not int or not 0 <= points <= load:
        raise RefusedError(f"stands for {points} points where the client was asked for {load}")
    if points == 0:
        return 0, None
    if set(arrival.arrays) != {MASKED}:
        raise RefusedError(f"consists of {', '.join(sorted(arrival.arrays)[:5]) or 'nothing'}")
    found = arrival.arrays[MASKED]
    if found.dtype != np.uint32 or found.shape != (numbers,):
        raise RefusedError(
            f"{MASKED} holds {found.shape} of {found.dtype}, not {numbers} of uint32"
        )
    return points, found


def _keep(path: Path, masked: Exchange) -> None:
    make_folder(path.parent)
    with durable(path) as file:
        np.savez(file, **masked.arrays())  # type: ignore[arg-type]


def _kept(path: Path, round_: int) -> Exchange | None:
    """Return what the helper was, or may have been, asked about before a kill."""
    if not path.is_file():
        return None
    with np.load(path) as stored:
        found = Exchange.of(dict(stored))
    if found.record.round != round_:
        raise InputError(
            f"{path} is of round {found.record.round + 1}, and round {round_ + 1} is next: the "
            "journal lacks rounds; restore it from a copy"
        )
    return found
