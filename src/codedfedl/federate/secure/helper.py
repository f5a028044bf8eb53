"""The helper as a node with its own role, and how the server reaches it.

It holds no data, and answers only for masks. All that it has agreed to and answered is on disk in
its home folder before an answer leaves.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from codedfedl import __version__
from codedfedl.errors import InputError
from codedfedl.federate.job import HELPER
from codedfedl.federate.node.node import NAME
from codedfedl.federate.node.schema import checked_helper_question
from codedfedl.federate.transport import Answered, Arrays, Arrival, Say, Transport
from codedfedl.io.files import Files, locked
from codedfedl.io.names import nearest
from codedfedl.privacy.contract import Contract, contract_of, digest_of_keys
from codedfedl.privacy.masks import Binding, Helper, own_key, public_digits, read_public

__all__ = ["QUESTIONS", "HelperLink", "HelperNode"]

QUESTIONS = ("hello", "agree", "sum", "goodbye")
"""All that a server may ask of a helper."""


class HelperNode:
    """The helper's side of a federation, in place of a `Node`.

    Parameters
    ----------
    home
        Its folder: `masks.key` and `masks.pub`, and one folder for every federation.
    clients
        A folder with the public keys of the only clients that it adds masks for, ``NAME.pub``; by
        default whoever the server names when a federation begins.
    """

    def __init__(self, name: str, home: Path, clients: Path | None = None) -> None:
        self.name, self.home, self.clients = name, home, clients
        self.key = own_key(home / "masks.key")

    def load(self) -> None:
        """Do nothing: it holds no data."""

    def answer(self, kind: str, facts: Mapping[str, Any], arrays: Arrays) -> Answered:
        """Answer a question of the server, one of `QUESTIONS`."""
        if kind not in QUESTIONS:
            raise InputError(
                f"the question {kind!r} is not for a helper: {nearest(kind, QUESTIONS)}"
            )
        federation, asked = checked_helper_question(kind, facts)
        # One question at a time, also where each has a process of its own.
        with locked(self.home / "helper.lock"):
            answer: Answered = getattr(self, f"_{kind}")(federation, **asked)
        return answer

    def _hello(self, federation: str) -> Answered:
        """Return the helper's role, name, key and version."""
        key = public_digits(self.key)
        return {"role": HELPER, "name": self.name, "key": key, "version": __version__}, {}

    def _agree(
        self, federation: str, contract: Mapping[str, Any], clients: Mapping[str, str]
    ) -> Answered:
        """Accept a federation's contract once; accept the same again, and refuse any other."""
        self._refuse_ended(federation)
        agreed = contract_of(contract)
        if agreed.federation != federation:
            raise InputError(f"the contract is of another federation, {agreed.federation}")
        if agreed.helper != public_digits(self.key):
            raise InputError(f"the contract is with another helper, {agreed.helper[:16]}…")
        if agreed.clients != digest_of_keys(clients):
            raise InputError("the contract is with other clients than those that are named")
        for name, key in clients.items():
            self._check_client(name, key)
        self._summing(agreed, clients, {})  # refuses too few clients, and invalid keys
        text = json.dumps([agreed.document(), dict(clients)], sort_keys=True).encode()
        kept = self._files(federation)
        if kept.setdefault("contract", text) != text:
            raise InputError(
                f"federation {federation} has another contract already: what it gives away was "
                "fixed when it began"
            )
        return {"digest": agreed.digest}, {}

    def _sum(
        self,
        federation: str,
        number: int,
        attempt: int,
        ask: str,
        arrived: list[str],
        numbers: int,
    ) -> Answered:
        """Return the sum of the masks of those who arrived, less the noise."""
        self._refuse_ended(federation)
        kept = self._files(federation)
        if "contract" not in kept:
            raise InputError(f"federation {federation} has no contract with this helper")
        document, clients = json.loads(kept["contract"])
        contract = contract_of(document)
        binding = Binding(contract.label, number, attempt, ask)
        noise = {number: contract.noise_of(number)}
        helper = self._summing(contract, clients, noise)
        return {}, {"sum": helper.answer(binding, arrived, numbers)}

    def _goodbye(self, federation: str) -> Answered:
        """Delete the answers of a federation, which gets no others from now on."""
        kept, answers = self._files(federation), self._answers(federation)
        if "contract" in kept:
            kept["ended"] = b""
            for key in answers:
                del answers[key]
        return {}, {}

    def _summing(
        self, contract: Contract, clients: Mapping[str, str], noise: Mapping[int, float]
    ) -> Helper:
        return Helper(
            contract.label,
            self.key,
            {name: bytes.fromhex(key) for name, key in clients.items()},
            noise,
            self._answers(contract.federation),
            least=contract.least,
        )

    def _check_client(self, name: str, key: str) -> None:
        if not NAME.fullmatch(name):
            raise InputError(f"the client name {name[:64]!r} is invalid")
        if self.clients is None:
            return
        path = self.clients / f"{name}.pub"
        if not path.is_file():
            raise InputError(f"{name} is not a client of this helper: there is no {path.name}")
        if read_public(path) != key:
            raise InputError(f"the key of {name} is not the one in {path.name}")

    def _refuse_ended(self, federation: str) -> None:
        if "ended" in self._files(federation):
            raise InputError(f"federation {federation} is over: begin a new one")

    def _files(self, federation: str) -> Files:
        return Files(self.home / "federations" / federation)

    def _answers(self, federation: str) -> Files:
        return Files(self.home / "federations" / federation / "answers")


_TRY = 30.0  # seconds until a question to the helper is taken to be lost
_SLOW = 1e6  # bytes a second: an answer of parity takes longer
_GREETING = 10.0  # seconds for a greeting
_PAUSE = 1.0  # seconds between two looks for the helper
_ANSWER = 2**20  # bytes that an answer may have besides its numbers


class HelperLink:
    """The helper of one federation.

    Parameters
    ----------
    job
        What every question says of the federation.
    clients
        The nodes that are not helpers.
    patience
        Seconds for which the helper is looked for, and asked again.

    Attributes
    ----------
    key
        The helper's public key, once it is known: no other helper is asked.
    """

    def __init__(
        self,
        transport: Transport,
        job: Mapping[str, Any],
        clients: Collection[int],
        patience: float,
        say: Say,
    ) -> None:
        self.transport, self.job, self.clients = transport, dict(job), set(clients)
        self.patience, self.say = patience, say
        self.key: str | None = None
        self._node: int | None = None

    def find(self, key: str | None) -> str:
        """Find the helper with a given key, or the only one; return its public key."""
        until = self.transport.now() + self.patience
        while True:
            others = self.transport.nodes() - self.clients
            arrivals = self._asked("hello", others, {}, 0, _GREETING)
            keys = {
                arrival.client: str(arrival.facts.get("key"))
                for arrival in arrivals
                if arrival.facts.get("role") == HELPER
            }
            right = [node for node, public_key in keys.items() if key in (None, public_key)]
            if len(right) == 1:
                self._node = right[0]
                return keys[right[0]]
            if self.transport.now() >= until:
                refused = [a.reason for a in arrivals if a.status == "problem"]
                raise InputError(_not_found(list(keys.values()), refused, key, self.patience))
            self.transport.sleep(_PAUSE)

    def ask(self, kind: str, facts: Mapping[str, Any], largest: int) -> Arrival:
        """Ask until there is an answer, of `largest` bytes at most."""
        until = self.transport.now() + self.patience
        while True:
            if self._node is None:
                self.find(self.key)
            assert self._node is not None
            for arrival in self._asked(kind, [self._node], facts, largest, _TRY + largest / _SLOW):
                if arrival.status == "answer":
                    return arrival
                if arrival.status == "problem":
                    raise InputError(f"the helper: {arrival.reason}")
            if self.transport.now() >= until:
                raise InputError(
                    f"the helper did not answer within {self.patience:g} s: start it again with "
                    "its home, and run this again; nothing is lost"
                )
            self.say("the helper does not answer: trying again")
            self._node = None  # it may be back under another number
            self.transport.sleep(_PAUSE)

    def part(self) -> None:
        """Say goodbye, if there was a question in this process."""
        if self._node is not None:
            self._asked("goodbye", [self._node], {}, 0, _GREETING)

    def _asked(
        self,
        kind: str,
        nodes: Collection[int],
        facts: Mapping[str, Any],
        largest: int,
        seconds: float,
    ) -> list[Arrival]:
        """Return the answers in time; none comes from a node that the engine no longer knows."""
        questions = {node: (node, {"job": self.job, **facts}) for node in nodes}
        until = self.transport.now() + seconds
        try:
            asked = self.transport.ask(kind, questions, {}, seconds, largest=largest + _ANSWER)
        except InputError as error:
            self.say(str(error))
            return []
        return list(self.transport.gather(asked, until))


def _not_found(keys: list[str], refused: list[str], key: str | None, waited: float) -> str:
    if len(keys) > 1 and key is None:
        return f"{len(keys)} helpers are connected: leave only one"
    if keys:
        return (
            f"the helper's key is {keys[0][:16]}…, and this run began with {str(key)[:16]}…: "
            "start the helper with the home that it had"
        )
    why = "".join(f"; {reason}" for reason in refused[:3])
    return (
        f"no helper has connected after {waited:g} s: start one with codedfedl federate helper{why}"
    )
