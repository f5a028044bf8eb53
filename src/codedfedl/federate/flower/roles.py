"""Greetings count only in the role that a node's key is registered for.

A node that calls itself a helper could otherwise take the helper's place, or block secure sums by
being a second one; and a helper's key is not for points.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from codedfedl.federate.asks import HELPER
from codedfedl.federate.flower.registry import NODE, Entry
from codedfedl.federate.transport import Arrays, Arrival, Transport

__all__ = ["BoundTransport"]


class BoundTransport:
    """A transport that refuses greetings in another role than that of the registry.

    Parameters
    ----------
    entries
        The registry's; a node that is not among them is a node, not a helper.
    """

    def __init__(self, transport: Transport, entries: Iterable[Entry]) -> None:
        self._transport = transport
        self._entries = {entry.node: entry for entry in entries if not entry.revoked}
        self._greetings: dict[int, int] = {}  # the node of every greeting's number
        self.now, self.remaining = transport.now, transport.remaining
        self.sleep, self.nodes = transport.sleep, transport.nodes

    def ask(
        self,
        kind: str,
        questions: Mapping[int, tuple[int, dict[str, Any]]],
        arrays: Arrays,
        seconds: float,
        *,
        at_once: int | None = None,
        largest: int | None = None,
    ) -> dict[int, int]:
        """Send a question, and note whom it greets."""
        asked = self._transport.ask(
            kind, questions, arrays, seconds, at_once=at_once, largest=largest
        )
        if kind == "hello":
            self._greetings |= {number: questions[client][0] for number, client in asked.items()}
        return asked

    def gather(self, wanted: Collection[int], until: float) -> Iterator[Arrival]:
        """Yield answers; a greeting in another role is a problem of its node."""
        for arrival in self._transport.gather(wanted, until):
            node = self._greetings.pop(arrival.question, None)
            yield arrival if node is None else self._bound(arrival, node)
            del arrival  # it may be large

    def _bound(self, arrival: Arrival, node: int) -> Arrival:
        role = self._entries[node].role if node in self._entries else NODE
        claimed = HELPER if arrival.facts.get("role") == HELPER else NODE
        if arrival.status != "answer" or claimed == role:
            return arrival
        name = self._entries[node].name if node in self._entries else f"node {node}"
        reason = (
            f"{name} greets as a {claimed}, and its key is registered as a {role}: start it with "
            f"codedfedl federate {role}, or let the operator register its key again with --role "
            f"{claimed}"
        )
        return replace(arrival, status="problem", facts={}, arrays={}, reason=reason)
