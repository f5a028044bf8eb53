"""A transport without a network: nodes in this process, on a virtual clock.

It is for tests and for trying a scheme out: the server and the nodes are the real ones.
"""

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from codedfedl.errors import InputError
from codedfedl.federate.transport import Answered, Arrays, Arrival, printable

Respond = Callable[[str, dict[str, Any], Arrays], Answered]
"""How a node answers: the kind of question, its facts, its arrays."""

Delay = Callable[[int, str, dict[str, Any]], float]
"""Seconds until a node's answer is there (∞: never): node, kind, facts."""


@dataclass(frozen=True)
class _Question:
    number: int
    client: int
    node: int
    kind: str
    facts: dict[str, Any]
    arrays: Arrays
    until: float
    largest: int | None
    next: "deque[_Question]"  # which are asked once this one's answer has been processed


class MemoryTransport:
    """Nodes that answer when a script says so.

    Parameters
    ----------
    nodes
        How each node answers, by its number.
    delay
        How long that takes; a twentieth of a second by default.

    Attributes
    ----------
    online : set of int
        Connected nodes: one that is removed no longer answers.
    asked : list
        Every question so far: node, kind and facts.
    """

    def __init__(self, nodes: Mapping[int, Respond], delay: Delay = lambda *_: 0.05) -> None:
        self.responds, self.delay = dict(nodes), delay
        self.online = set(nodes)
        self.asked: list[tuple[int, str, dict[str, Any]]] = []
        self._now, self._questions = 0.0, 0
        self._coming: list[tuple[float, int, Arrival, deque[_Question]]] = []

    def now(self) -> float:
        """Return the virtual time."""
        return self._now

    def remaining(self, until: float) -> float:
        """Return ∞: computing takes no virtual time."""
        return inf

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        self._now += seconds

    def nodes(self) -> set[int]:
        """Return who is online."""
        return set(self.online)

    def called(self, node: int) -> str:
        """Return the node's number."""
        return f"node {node}"

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
        """Ask, and let the nodes answer in virtual time."""
        until, waiting = self._now + seconds, deque[_Question]()
        asked = {}
        for client, (node, facts) in questions.items():
            number, self._questions = self._questions, self._questions + 1
            question = _Question(number, client, node, kind, facts, arrays, until, largest, waiting)
            asked[number] = client
            waiting.append(question)
        for _ in range(min(len(waiting), at_once or len(waiting))):
            self._begin(waiting.popleft())
        return asked

    def gather(self, wanted: Collection[int], until: float) -> Iterator[Arrival]:
        """Yield what comes by then, in the order of virtual time."""
        missing = set(wanted)
        while missing and self._coming and self._coming[0][0] <= until:
            when, _, arrival, waiting = heapq.heappop(self._coming)
            self._now = max(self._now, when)
            if arrival.question in missing:
                missing.remove(arrival.question)
                yield arrival
            if waiting:
                self._begin(waiting.popleft())
        if missing and isfinite(until):
            self._now = max(self._now, until)

    def _begin(self, question: _Question) -> None:
        self.asked.append((question.node, question.kind, question.facts))
        seconds = inf
        if question.node in self.online:
            seconds = self.delay(question.node, question.kind, question.facts)
        when = self._now + seconds
        if when <= question.until:
            arrival = self._answered(question, when)
        else:
            when = question.until
            arrival = Arrival(question.number, question.client, "late", reason="no answer in time")
        heapq.heappush(self._coming, (when, question.number, arrival, question.next))

    def _answered(self, question: _Question, when: float) -> Arrival:
        number, client = question.number, question.client
        try:
            respond = self.responds[question.node]
            facts, arrays = respond(question.kind, question.facts, question.arrays)
        except InputError as error:
            facts, arrays = {"problem": error}, {}
        if "problem" in facts:
            return Arrival(number, client, "problem", when, reason=printable(facts["problem"]))
        size = sum(array.nbytes for array in arrays.values())
        if question.largest is not None and size > question.largest:
            return Arrival(
                number, client, "malformed", when, reason="malformed message (too large)"
            )
        return Arrival(number, client, "answer", when, facts, arrays)
