"""How the server asks the members of a federation, and what it asked that is not answered yet."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import Array, to_host
from codedfedl.core.client import work_to
from codedfedl.core.loop import loads_of
from codedfedl.core.protocol import Ask, Task
from codedfedl.core.record import REFUSED
from codedfedl.federate.job import Job
from codedfedl.federate.server.checks import RefusedError, answer_bytes
from codedfedl.federate.server.outcomes import Pending, Tally
from codedfedl.federate.transport import Arrays, Arrival, Say, Transport
from codedfedl.runs.config import FederationConfig
from codedfedl.runs.exchange import Exchange
from codedfedl.runs.journal import Journal, Members

Take = Callable[[Arrival, Pending], bool]
"""Takes an answer to a question; returns whether there was time to judge it."""

LIFE_IN_DEADLINES = 20
"""After so many deadlines a late answer is not waited for any more."""

EMBEDDING_SHARE, ENCODING_SHARE = 0.25, 0.5
"""Shares of a round, and of a set-up, in which a client may embed more points."""

SLACK, HEADER_BYTES = 4, 2**20
"""An answer may be so many times too large, beside its headers, and is refused by name."""


class Asking:
    """The members of a federation, and the transport that reaches them.

    Attributes
    ----------
    excluded
        Members that are left out, by the operator or for a useless one-time answer.
    pending
        Questions that are not answered yet, by their numbers.
    answered : array of shape (n,)
        Points of each member's last answer.
    """

    def __init__(
        self,
        transport: Transport,
        config: FederationConfig,
        members: Members,
        task: Task,
        job: Job,
        journal: Journal,
        say: Say,
    ) -> None:
        self.transport, self.config, self.members = transport, config, members
        self.task, self.journal, self.say = task, journal, say
        self.job = asdict(job)
        self.without = {j for j, name in enumerate(members.names) if name in config.without}
        self.excluded = set(self.without)
        self.pending: dict[int, Pending] = {}
        self.answered = np.zeros(len(members.names), dtype=np.int64)

    @property
    def everyone(self) -> range:
        """All members, those that are left out too."""
        return range(len(self.members.names))

    def gone(self) -> list[int]:
        """Return the members that are not connected."""
        here = self.transport.nodes()
        return [j for j in self.everyone if self.members.nodes[j] not in here]

    def question(
        self,
        kind: str,
        facts: Mapping[int, Mapping[str, Any]],
        seconds: float,
        *,
        at_once: int | None = None,
        largest: int = 0,
        **arrays: npt.NDArray[Any],
    ) -> dict[int, int]:
        """Ask some members for `largest` bytes at most; return the member of every question."""
        nodes, points = self.members.nodes, self.members.points
        questions = {
            j: (nodes[j], {"job": {**self.job, "points": points[j]}, **member_facts})
            for j, member_facts in facts.items()
        }
        most = SLACK * largest + HEADER_BYTES
        return self.transport.ask(kind, questions, arrays, seconds, at_once=at_once, largest=most)

    def tally(self, ask: Ask, round_: int) -> Tally:
        """Begin an exchange with all who are not left out; every wait is limited."""
        loads = loads_of(ask, self.task)
        loads[list(self.excluded)] = 0
        deadline = ask.wait.deadline
        if not np.isfinite(deadline):
            limit = None if ask.setup else self.config.deadline
            deadline = limit or self.config.setup_timeout
        return Tally.start(loads, round_, self.transport.now(), deadline)

    def ask(
        self, ask: Ask, tally: Tally, model: Array | None, **facts: Mapping[str, Any]
    ) -> dict[int, int]:
        """Ask all who are wanted and idle; what was sent once is not asked for again.

        Parameters
        ----------
        facts
            What else a question says.
        """
        busy = {pending.client for pending in self.pending.values()}
        here = self.journal.kept() if ask.work.once else {}
        for j in here:
            tally.answered_before(j)
        share = ENCODING_SHARE if ask.setup else EMBEDDING_SHARE
        wanted = [j for j in self.everyone if tally.loads[j] and j not in busy and j not in here]
        tally.busy = tuple(j for j in sorted(busy) if tally.loads[j] and j not in here)
        if not wanted:
            return {}
        questions = {
            j: {
                "work": work_to(ask.work.for_client(j)),
                "round": tally.round,
                "load": int(tally.loads[j]),
                "answered": int(self.answered[j]),
                "seconds": share * tally.deadline if ask.work.elastic else None,
                **facts,
            }
            for j in wanted
        }
        arrays: Arrays = {}
        if ask.work.needs_model:
            arrays["model"] = np.asarray(to_host(model), dtype=np.float32)
        life = LIFE_IN_DEADLINES * tally.deadline if ask.keep_late else tally.deadline
        largest = answer_bytes(ask.work, self.task)
        at_once = max(1, int(self.config.in_flight * 1e6 / largest)) if ask.work.once else None
        asked = self.question("work", questions, life, at_once=at_once, largest=largest, **arrays)
        self.pending |= {
            number: Pending(j, tally.round, model, ask.work, int(tally.loads[j]), tally.began)
            for number, j in asked.items()
        }
        return asked

    def gather(self, ask: Ask, tally: Tally, asked: Collection[int], take: Take) -> None:
        """Take what comes, until the deadline or until there is enough, and note what is refused.

        Parameters
        ----------
        asked
            The questions of this exchange; answers to others are late.
        """
        counts = {"fresh": tally.arrived_already, "late": 0}
        expected = len(asked) + tally.arrived_already
        for arrival in self.transport.gather(set(self.pending), tally.until):
            pending = self.pending.pop(arrival.question)
            if not ask.keep_late and tally.until < arrival.when < np.inf:
                continue
            if self._accept(tally, arrival, pending, take):
                fresh = arrival.question in asked
                counts["fresh" if fresh else "late"] += 1
                if not fresh and not pending.work.once:
                    tally.late_answers.append((arrival.client, arrival.when - pending.asked))
            if pending.work.once and not ask.secure and tally.outcome[pending.client] == REFUSED:
                self.excluded.add(pending.client)  # its one-time answer is unusable
            if ask.wait.enough(**counts, expected=expected):
                break

    def _accept(self, tally: Tally, arrival: Arrival, pending: Pending, take: Take) -> bool:
        """Take an answer, and return whether it counts; note why there is none or it is refused."""
        client, why = arrival.client, ""
        name = self.members.names[client]
        if arrival.status == "answer":
            try:
                return take(arrival, pending)
            except RefusedError as error:  # anything else is a defect of ours, and ends the run
                why = str(error)
        elif arrival.status == "malformed":
            why = arrival.reason
        elif arrival.status in ("problem", "gone"):
            tally.dropped(client)
        if arrival.status == "problem":
            self.say(f"{name}: {arrival.reason}")
            tally.problems[client] = arrival.reason
        if why:
            self.say(f"refused: {name}: {why}")
            tally.refused(client, why)
        return False

    def note_points(self, exchange: Exchange) -> None:
        """Remember how many points each member's answer was for."""
        for reply in exchange.replies:
            self.answered[reply.client] = reply.points
        if exchange.counted is not None:
            self.answered = np.where(exchange.counted > 0, exchange.counted, self.answered)
