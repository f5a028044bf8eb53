"""Greetings count only under the name and in the role that a node's key is registered for.

A node could otherwise answer as another, take the helper's place, or block secure sums by being a
second helper; and a helper's key is not for points. The registry is read at every greeting, so
that keys which are registered while a run waits for its nodes are bound too.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from codedfedl.federate.flower.registry import NODE, Registry
from codedfedl.federate.job import HELPER
from codedfedl.federate.transport import Arrays, Arrival, Transport, printable

__all__ = ["BoundTransport"]


class BoundTransport:
    """A transport that refuses greetings of keys that are not registered for them."""

    def __init__(self, transport: Transport, registry: Registry) -> None:
        self._transport, self._registry = transport, registry
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
        """Yield answers; a greeting that is not its key's own is a problem of its node."""
        for arrival in self._transport.gather(wanted, until):
            node = self._greetings.pop(arrival.question, None)
            greeting = arrival.facts if arrival.status == "answer" else None
            if node is None or greeting is None:
                yield arrival
            elif reason := self._misfit(node, greeting):
                yield replace(arrival, status="problem", facts={}, arrays={}, reason=reason)
            else:
                yield arrival
            del arrival  # it may be large

    def _misfit(self, node: int, greeting: Mapping[str, Any]) -> str:
        """Return why a greeting is not what the node's key is registered for, or nothing."""
        entries = [entry for entry in self._registry.entries() if entry.node == node]
        if not entries or entries[-1].revoked:
            return f"the key of node {node} is not registered: use codedfedl federate register"
        name, role = entries[-1].name, entries[-1].role
        if greeting.get("name") != name:
            claimed = printable(greeting.get("name", ""), 80)
            return (
                f"{claimed} has the key of {name}: start it with --name {name}, or let the "
                "operator register a key of its own"
            )
        claimed = HELPER if greeting.get("role") == HELPER else NODE
        if claimed == role:
            return ""
        return (
            f"{name} greets as a {claimed}, and its key is registered as a {role}: start it with "
            f"codedfedl federate {role}, or let the operator register its key again with --role "
            f"{claimed}"
        )
