"""How the server asks the members of a federation, and what becomes of their answers."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import Array, FloatArray, IntArray, to_host
from codedfedl.core.client import work_to
from codedfedl.core.loop import loads_of
from codedfedl.core.protocol import Ask, Reply, Task
from codedfedl.core.record import ARRIVED, DROPPED, LATE, NOT_ASKED, REFUSED, Record
from codedfedl.core.work import Work
from codedfedl.errors import InputError
from codedfedl.federate.job import Job
from codedfedl.federate.server.checks import RefusedError, answer_bytes, check_sent
from codedfedl.federate.transport import Arrays, Arrival, Say, Transport
from codedfedl.fitting.drift import Timings
from codedfedl.runs.exchange import Exchange
from codedfedl.runs.federation_sections import FederationConfig
from codedfedl.runs.journal import Journal, Members

LIFE_IN_DEADLINES = 20
"""After so many deadlines a late answer is not waited for any more."""

EMBEDDING_SHARE, ENCODING_SHARE = 0.25, 0.5
"""Shares of a round, and of a set-up, in which a client may embed more points."""

SLACK, HEADER_BYTES = 4, 2**20
"""An answer may be this many times too large, beside its headers, and is refused by name."""


@dataclass(frozen=True, eq=False)
class Pending:
    """A question that is not answered yet, and the model that it is about."""

    client: int
    round: int
    model: Array | None
    work: Work
    load: int
    asked: float


Take = Callable[[Arrival, Pending], bool]
"""Takes an answer to a question; returns whether there was time to judge it."""


@dataclass
class Tally:
    """What is known of an exchange while it is under way.

    Attributes
    ----------
    loads : array of shape (n,)
        Points that each client is asked for.
    refusals
        Why answers were refused, by client.
    problems
        Why nodes could not answer, by client.
    outcome : array of shape (n,)
        The outcome for each client: this alone decides, and the rest explains it. Whoever
        is asked for points is late until it answers.
    """

    round: int
    began: float
    deadline: float
    loads: IntArray
    refusals: dict[int, str] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    suspects: tuple[int, ...] = ()
    busy: tuple[int, ...] = ()
    late_answers: list[tuple[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        n = len(self.loads)
        self.outcome = np.where(self.loads > 0, LATE, NOT_ASKED).astype(np.int8)
        self.when: FloatArray = np.full(n, np.inf)
        self.compute: FloatArray = np.full(n, np.nan)
        self.distances: FloatArray = np.full((2, n), np.nan)

    @property
    def until(self) -> float:
        """When the exchange ends, on the transport's clock."""
        return self.began + self.deadline

    def arrived(self, arrival: Arrival) -> None:
        """Note an answer that counts, unless it is refused later."""
        self.outcome[arrival.client] = ARRIVED
        self.when[arrival.client] = arrival.when - self.began
        seconds = arrival.facts.get("seconds")
        if isinstance(seconds, float) and 0 <= seconds < np.inf:
            self.compute[arrival.client] = seconds

    def refused(self, client: int, why: str) -> None:
        """Note an answer that does not count."""
        self.outcome[client] = REFUSED
        self.when[client], self.compute[client] = np.inf, np.nan
        self.refusals[client] = why

    def timings(self, length: float) -> Timings:
        """Return how long clients took in a round of some length, as far as it tells.

        Clients that were refused, or busy with an earlier round, tell nothing.
        """
        loads = np.where(np.isin(self.outcome, (NOT_ASKED, REFUSED)), 0, self.loads)
        loads[list(self.busy)] = 0
        return Timings.until(loads, self.when, self.outcome == ARRIVED, length)

    def timings_of_all(self, replies: Iterable[Reply], held: IntArray) -> Timings:
        """Return the same where clients choose their points, late answers included.

        Whoever may embed more points first takes longer for that, which is no delay. So only
        answers for all points of a client are timed.
        """
        loads, seconds = np.zeros_like(self.loads), self.when.copy()
        for reply in replies:
            whole = reply.points == held[reply.client]
            loads[reply.client] = reply.points if whole else 0
        for client, late in self.late_answers:
            seconds[client] = late
        loads[~np.isfinite(seconds)] = 0
        return Timings(loads, np.where(loads > 0, seconds, 0.0), loads > 0)

    def record(self, now: float, gone: Collection[int]) -> Record:
        """Close the exchange: late clients that are no longer connected count as dropped."""
        is_gone = np.isin(np.arange(len(self.loads)), list(gone))
        return Record(
            round=self.round,
            deadline=self.deadline,
            seconds=now - self.began,
            loads=self.loads,
            outcome=np.where(is_gone & (self.outcome == LATE), DROPPED, self.outcome),
            arrival_times=self.when,
            compute=self.compute,
            refusals=tuple(self.refusals.items()),
            distances=self.distances,
            suspects=self.suspects,
            busy=self.busy,
            late_answers=tuple(self.late_answers),
        )


class Asking:
    """The members of a federation, and the transport that reaches them.

    Attributes
    ----------
    excluded
        Members that are left out, by the operator or for a useless one-time answer.
    pending
        Questions that are not answered yet, by their numbers.
    held
        Answers that came between two exchanges.
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
        self.held: list[Arrival] = []
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
        self._check_ask(ask, loads)
        if not ask.keep_late or ask.restarts:
            self.pending.clear()  # whoever is late with an earlier round need not answer it
        deadline = ask.wait.deadline
        if not np.isfinite(deadline):
            limit = None if ask.setup else self.config.deadline
            deadline = limit or self.config.setup_timeout
        return Tally(round_, self.transport.now(), deadline, loads)

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
        here = self.journal.stored.points if ask.work.once else {}
        tally.outcome[list(here)], tally.when[list(here)] = ARRIVED, 0.0
        share = ENCODING_SHARE if ask.setup else EMBEDDING_SHARE
        grows = ask.work.elastic and ask.work.window is None  # a window begins once all is embedded
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
                "seconds": share * tally.deadline if grows else None,
                **facts,
            }
            for j in wanted
        }
        arrays: Arrays = {}
        if ask.work.needs_model:
            with np.errstate(over="ignore"):  # what became too large is refused
                arrays["model"] = np.asarray(to_host(model), dtype=np.float32)
            check_sent(arrays["model"], self.task, tally.round)
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
        already = int(((tally.outcome == ARRIVED) & (tally.when == 0.0)).sum())
        counts = {"fresh": already, "late": 0}
        held = [arrival for arrival in self.held if arrival.question in self.pending]
        missing, self.held = set(self.pending) - {arrival.question for arrival in held}, []
        for arrival in chain(held, self.transport.gather(missing, tally.until)):
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
            if ask.wait.enough(**counts, expected=len(asked) + already):
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
            tally.outcome[client] = DROPPED
        if arrival.status == "problem":
            self.say(f"{name}: {arrival.reason}")
            tally.problems[client] = arrival.reason
        if why:
            self.refuse(tally, client, why)
        return False

    def refuse(self, tally: Tally, client: int, why: str) -> None:
        """Refuse an answer, and say why."""
        self.say(f"refused: {self.members.names[client]}: {why}")
        tally.refused(client, why)

    def note_points(self, exchange: Exchange) -> None:
        """Remember how many points each member's answer was for."""
        for reply in exchange.replies:
            self.answered[reply.client] = reply.points
        if exchange.counted is not None:
            self.answered = np.where(exchange.counted > 0, exchange.counted, self.answered)

    def probes_took(self) -> str:
        """Say what the measurements before the first round suggest."""
        probed = self.journal.probed_seconds()
        return f" (answers to the probes took up to {max(probed.values()):.3g} s)" if probed else ""

    def _check_ask(self, ask: Ask, loads: IntArray) -> None:
        """Refuse what a federation cannot play, and a round in which nobody is asked."""
        if ask.server_work is not None:
            raise InputError(
                "the scheme asks how long the server itself takes, which only a simulation plays: "
                "a real server computes when the round has ended; leave server_work out of the ask"
            )
        if not ask.setup and not loads.any():
            raise InputError(
                f"none of {len(loads)} clients is asked for any points: the plan "
                "found no client fast enough, or all are left out; start again with a larger "
                f"federation.deadline{self.probes_took()}, or see why their answers were refused"
            )
