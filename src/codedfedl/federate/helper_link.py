"""How the server reaches the helper, which may restart meanwhile."""

from collections.abc import Collection, Mapping
from typing import Any

from codedfedl.errors import InputError
from codedfedl.federate.asks import HELPER
from codedfedl.federate.meeting import Say
from codedfedl.federate.transport import Arrival, Transport

__all__ = ["HelperLink"]

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
            found = {
                arrival.client: str(arrival.facts.get("key"))
                for arrival in arrivals
                if arrival.facts.get("role") == HELPER
            }
            right = [node for node, own in found.items() if key in (None, own)]
            if len(right) == 1:
                self._node = right[0]
                return found[right[0]]
            if self.transport.now() >= until:
                refused = [a.reason for a in arrivals if a.status == "problem"]
                raise InputError(_not_found(list(found.values()), refused, key, self.patience))
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


def _not_found(found: list[str], refused: list[str], key: str | None, waited: float) -> str:
    if len(found) > 1 and key is None:
        return f"{len(found)} helpers are connected: leave only one"
    if found:
        return (
            f"the helper's key is {found[0][:16]}…, and this run began with {str(key)[:16]}…: "
            "start the helper with the home that it had"
        )
    why = "".join(f"; {reason}" for reason in refused[:3])
    return (
        f"no helper has connected after {waited:g} s: start one with codedfedl federate helper{why}"
    )
