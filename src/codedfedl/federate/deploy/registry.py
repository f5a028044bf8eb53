"""Which name and role belong to which node: a small file beside the SuperLink's data base.

The engine knows a node by its key and gives it a number. What a node is called is bound to that
number when the operator registers the key, and so is whether it is a helper: greetings under
another name or in another role are refused (`BoundTransport`). A node could otherwise answer as
another, take the helper's place, or block secure sums by being a second helper. The file is the
operator's own, and nobody else can read it.
"""

import base64
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from codedfedl.errors import InputError
from codedfedl.federate.job import HELPER
from codedfedl.federate.transport import Arrival, Transport, printable
from codedfedl.io.files import locked, replacing

REGISTRY = "nodes.json"
"""The registry's name in the home of a server."""

NODE = "node"
"""The role of a key that answers for points."""

ROLES = (NODE, HELPER)
"""What a key may be registered for."""


@dataclass(frozen=True)
class RegisteredKey:
    """A registered key.

    Attributes
    ----------
    node
        The engine's number of the node.
    key
        The fingerprint of its public key.
    revoked
        Whether the key was ended; it cannot be registered again.
    role
        What it greets the server as, one of `ROLES`.
    """

    name: str
    node: int
    key: str
    revoked: bool = False
    role: str = NODE

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"the role of {self.name} is {self.role!r}: must be node or helper")


class Registry:
    """All keys that were registered with one SuperLink."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> list[RegisteredKey]:
        """Return every entry, revoked ones too."""
        if not self.path.is_file():
            return []
        try:
            return [RegisteredKey(**entry) for entry in json.loads(self.path.read_text("utf-8"))]
        except (ValueError, TypeError) as error:
            raise InputError(f"cannot read {self.path}: {error}; restore it from a copy") from None

    def check_new(self, name: str, key: str) -> RegisteredKey | None:
        """Return the entry of a key that is registered under this name; refuse any conflict."""
        for entry in self.entries():
            if entry.key == key and entry.revoked:
                raise InputError(f"the key of {entry.name} was revoked: make a new one on {name}")
            if entry.key == key and entry.name != name:
                raise InputError(
                    f"this key is registered as {entry.name}, not {name}: one key has one name"
                )
            if entry.name == name and entry.key != key and not entry.revoked:
                raise InputError(
                    f"{name} is registered with another key: revoke it with codedfedl federate "
                    f"revoke {name}, or choose another --name"
                )
            if entry.key == key:
                return entry
        return None

    def begin(self) -> None:
        """Write a file without keys, unless there is one: nobody may answer who is not in it."""
        with self._changing():
            pass

    def add(self, entry: RegisteredKey) -> None:
        """Remember a key."""
        with self._changing() as entries:
            entries.append(entry)

    def find(self, name_or_key: str) -> RegisteredKey:
        """Return the entry of a name or a fingerprint that is not revoked."""
        for entry in self.entries():
            if name_or_key in (entry.name, entry.key) and not entry.revoked:
                return entry
        known = ", ".join(entry.name for entry in self.entries() if not entry.revoked)
        raise InputError(f"{name_or_key} is not registered: there are {known or 'no nodes yet'}")

    def revoke(self, ended: RegisteredKey) -> None:
        """Mark a key as ended."""
        self._change(ended, replace(ended, revoked=True))

    def assign(self, entry: RegisteredKey, role: str) -> None:
        """Give a key another role."""
        self._change(entry, replace(entry, role=role))

    def _change(self, before: RegisteredKey, after: RegisteredKey) -> None:
        with self._changing() as entries:
            entries[entries.index(before)] = after

    @contextmanager
    def _changing(self) -> Iterator[list[RegisteredKey]]:
        """Yield the entries, and write the changed ones; two commands at once take turns."""
        with locked(self.path.with_suffix(".lock")):
            entries = self.entries()
            yield entries
            text = json.dumps([asdict(entry) for entry in entries], indent=1)
            with replacing(self.path) as partial:
                descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "w", encoding="utf-8") as written:
                    written.write(text)


def fingerprint_of(public_key: Path) -> str:
    """Return the SHA-256 of a public key, as ``ssh-keygen -l`` prints it."""
    try:
        kind, body = public_key.read_text("ascii").split()[:2]
        digest = hashlib.sha256(base64.b64decode(body, validate=True)).digest()
    except (OSError, ValueError) as error:
        raise InputError(f"{public_key} is not a public key: {error}") from None
    if not kind.startswith("ecdsa-sha2-"):
        raise InputError(
            f"{public_key} is a key of kind {kind}: make it with codedfedl federate key"
        )
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


class BoundTransport:
    """A transport that refuses greetings of keys that are not registered for them.

    The registry is read at every greeting, so that keys which are registered while a run waits for
    its nodes are bound too.
    """

    def __init__(self, transport: Transport, registry: Registry) -> None:
        self._transport, self._registry = transport, registry
        self._greetings: dict[int, int] = {}  # the node of every greeting's number
        self.now, self.remaining = transport.now, transport.remaining
        self.sleep, self.nodes = transport.sleep, transport.nodes

    def called(self, node: int) -> str:
        """Return the name that a node's key is registered for."""
        names = {entry.node: entry.name for entry in self._registry.entries()}
        return names.get(node) or self._transport.called(node)

    def ask(
        self,
        kind: str,
        questions: Mapping[int, tuple[int, dict[str, Any]]],
        *rest: Any,
        **options: Any,
    ) -> dict[int, int]:
        """Send a question, and note whom it greets."""
        asked = self._transport.ask(kind, questions, *rest, **options)
        if kind == "hello":
            self._greetings |= {number: questions[client][0] for number, client in asked.items()}
        return asked

    def gather(self, wanted: Collection[int], until: float) -> Iterator[Arrival]:
        """Yield answers; a greeting that is not its key's own is a problem of its node."""
        for arrival in self._transport.gather(wanted, until):
            node = self._greetings.pop(arrival.question, None)
            is_greeting = node is not None and arrival.status == "answer"
            reason = self._misfit(node, arrival.facts) if is_greeting else ""
            if reason:
                yield replace(arrival, status="problem", facts={}, arrays={}, reason=reason)
            else:
                yield arrival
            del arrival  # it may be large

    def _misfit(self, node: int | None, greeting: Mapping[str, Any]) -> str:
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
