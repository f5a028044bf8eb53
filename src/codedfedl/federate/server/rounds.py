"""The clients of a real federation: ask them, wait until a deadline, check what they send.

Whatever a client answers is checked before it counts, and what is wrong with one answer does not
hold the others up.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import Array, to_host
from codedfedl.core.client import BlockParity, Embedded, Gradient, Parity, Prepare, work_to
from codedfedl.core.loop import RunningSum, loads_of
from codedfedl.core.protocol import SUM, Ask, Inbox, Reply, Task
from codedfedl.core.record import SETUP
from codedfedl.core.work import Work
from codedfedl.errors import InputError
from codedfedl.federate.job import Job
from codedfedl.federate.server.checks import Bounds, RefusedError, answer_bytes, checked_answer
from codedfedl.federate.server.evidence import Evidence, Expected, Expecting, squared_weights
from codedfedl.federate.server.judging import Judge, coherent, intolerable
from codedfedl.federate.server.outcomes import (
    Pending,
    Recalled,
    Taken,
    Tally,
    check_ask,
    check_setup,
    check_somebody,
    refusals_noted,
)
from codedfedl.federate.transport import Arrays, Arrival, Say, Transport
from codedfedl.runs.config import FederationConfig
from codedfedl.runs.exchange import Exchange
from codedfedl.runs.journal import Journal, Members

if TYPE_CHECKING:
    from codedfedl.privacy.accounting import Account

__all__ = ["Federation"]

_LIFE = 20  # deadlines after which a late answer is not waited for any more
_EMBEDDING = 0.25  # share of a round in which a client may embed more points
_SLACK, _HEADERS = 4, 2**20  # an answer may be so many times too large, and is refused by name
_ENCODING = 0.5  # share of a set-up in which a client embeds, before it mixes and sends


class Federation:
    """The runtime of a federation: a transport, and the members that it reaches.

    Attributes
    ----------
    last
        The last exchange, as the journal keeps it.
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
        self.bounds = Bounds.of(task.largest_square, members.classes)
        self.evidence = Evidence(task, journal.parity, journal.points_behind)
        self._without = {j for j, name in enumerate(members.names) if name in config.without}
        self.excluded = set(self._without)
        self.judge = Judge.of(task.held.tolist())
        self.last: Exchange | None = None
        self.extra: dict[str, Any] = {}  # what else a question for work says
        self._pending: dict[int, Pending] = {}
        self._answered = np.zeros(len(members.names), dtype=np.int64)
        self._recalled = Recalled(members.names, journal.exchanges_folder)
        self._setup: tuple[Ask, Array] | None = None
        self._delivered: set[int] = set()
        self._contradicting: frozenset[int] = frozenset()  # their parity does not count

    @property
    def everyone(self) -> range:
        """All members, those that are left out too."""
        return range(len(self.members.names))

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
        """Ask some clients for `largest` bytes at most; return the client of every question."""
        nodes, points = self.members.nodes, self.members.points
        questions = {
            j: (nodes[j], {"job": {**self.job, "points": points[j]}, **own})
            for j, own in facts.items()
        }
        most = _SLACK * largest + _HEADERS
        return self.transport.ask(kind, questions, arrays, seconds, at_once=at_once, largest=most)

    def begin(self, account: "Account | None") -> None:
        """Receive the run's privacy account, if it has one, before its first exchange."""

    def end(self) -> None:
        """Tell parties other than clients that the federation is over."""

    # From the journal.

    def recall(self, ask: Ask, model: Array, round_: int, exchange: Exchange) -> Inbox:
        """Take an exchange from the journal: what the server itself knew, and the answers."""
        self._remember(ask, model)
        self.excluded |= set(exchange.excluded)
        self.judge.recall(*exchange.record.known_distances)
        for reply in exchange.replies:
            self._answered[reply.client] = reply.points
        self._note_points(exchange)
        return self._inbox(ask, self._recalled.with_models(exchange, ask, model, round_))

    def _note_points(self, exchange: Exchange) -> None:
        """Remember how many points each client's part in a secure sum was for."""
        if exchange.counted is not None:
            self._answered = np.where(exchange.counted > 0, exchange.counted, self._answered)

    def resume(self) -> None:
        """Ask again for what clients send once and may send late."""
        if self._setup is not None and self._setup[0].keep_late:
            ask, model = self._setup
            self._ask(ask, self._tally(ask), SETUP, self._longest(ask), model)

    # Live.

    def exchange(self, ask: Ask, model: Array, round_: int) -> Inbox:
        """Ask the clients, wait, and return their answers."""
        if ask.noise is not None:
            raise InputError(
                f"{ask.work.kind} is for secure sums, and the scheme discloses neither sums nor "
                "dp: name what it discloses"
            )
        self._remember(ask, model)
        if not ask.keep_late:
            self._pending.clear()  # whoever is late with an earlier round need not answer it
        deadline, tally = self._longest(ask), self._tally(ask)
        check_ask(ask, tally, self.members, self.journal)
        before = dict(self._pending)
        asked = self._ask(ask, tally, round_, deadline, model)
        fresh = {self._pending[number].client for number in asked}
        taken: list[Taken] = []
        counts = {"fresh": int(tally.arrived_already), "late": 0}
        expect = self._expect
        with Expecting(
            lambda j: expect(ask.work, j, model, int(tally.loads[j])),
            fresh,
            lambda: self.transport.remaining(tally.began + deadline),
        ) as expected:
            for arrival in self.transport.gather({*asked, *before}, tally.began + deadline):
                pending = self._pending.pop(arrival.question)
                name = self.members.names[arrival.client]
                now = arrival.question in asked
                if not ask.keep_late and tally.began + deadline < arrival.when < np.inf:
                    continue
                with refusals_noted(tally, arrival, name, self.say) as usable:
                    if usable:
                        try:
                            right = expected[pending.client] if now else self._expects(pending)
                        except TimeoutError:  # no time is left to judge it: it stays late
                            continue
                        found = self._taken(arrival, pending, right)
                        in_time = now and arrival.when <= tally.began + deadline
                        if found is not None:  # without the arrays, which may be large
                            light = replace(arrival, arrays={}) if in_time else None
                            taken.append(replace(found, arrival=light))
                        counts["fresh" if now else "late"] += 1
                        if not now and not pending.work.once:
                            tally.late_answers.append(
                                (arrival.client, arrival.when - pending.asked)
                            )
                if pending.work.once and tally.has_refused(pending.client):
                    self.excluded.add(pending.client)  # its one-time answer is unusable
                if ask.wait.enough(**counts, expected=len(fresh) + tally.arrived_already):
                    break
        self._judged(taken, tally)
        if ask.setup:
            check_setup(ask, tally, self.members, self.transport.now() - tally.began)
        check_somebody(ask, tally, round_, deadline, self.journal)
        return self._closed(ask, tally, round_, deadline, taken)

    def _closed(
        self,
        ask: Ask,
        tally: Tally,
        round_: int,
        deadline: float,
        taken: list[Taken],
    ) -> Inbox:
        total, replies = RunningSum(), []
        for one in taken:
            if one.reply.arrays and ask.combine is SUM:
                arrays = one.reply.arrays.items()
                total.add({name: array.astype(np.float64) for name, array in arrays})
            elif one.reply.arrays:
                replies.append(one.reply)
        points, timings = float(sum(one.reply.points for one in taken)), None
        if not ask.setup and ask.work.elastic:
            timings = tally.timings_of_all(replies, self.task.held)
        elif not ask.setup:
            timings = tally.timings(min(deadline, self.transport.now() - tally.began))
        here = self.transport.nodes()
        gone = [j for j in self.everyone if self.members.nodes[j] not in here]
        known = self._delivered
        kept = self.journal.kept()
        stored = {j: n for j, n in kept.items() if j not in known}
        self._delivered |= set(stored)
        revised = None
        if self._contradicting != (now := self.judge.contradicting):
            revised = {j: n for j, n in kept.items() if j in self._delivered - now}
            names = ", ".join(self.members.names[j] for j in sorted(now)) or "nobody any more"
            self.say(f"gradients contradict the parity, which does not count, of {names}")
        self.last = Exchange(
            tally.record(round_, deadline, self.transport.now(), gone),
            points + sum(n for j, n in stored.items() if tally.when[j] == 0.0),
            {name: array.astype(np.float32) for name, array in total.result().items()},
            tuple(sorted(replies, key=lambda reply: (reply.client, reply.round))),
            stored,
            excluded=tuple(sorted(self.excluded - self._without)),
            timings=timings,
            revised=revised,
        )
        return self._inbox(ask, self.last)

    def _judged(self, taken: list[Taken], tally: Tally) -> None:
        """Pass all answers of a round to the judge, and leave out those that it refuses."""
        measured = {one.reply.client: one.measured for one in taken if one.measured is not None}
        distances = self.judge.distances(measured)
        refused = coherent(measured, self.evidence.overlap) | self.judge.hear(distances)
        refused |= intolerable(measured, self.config.tolerance)
        for j, distance in distances.items():
            tally.distances[:, j] = distance, measured[j].error
        tally.suspects = tuple(self.judge.close_to_refused)
        for one in list(taken):
            client = one.reply.client
            if client in refused:
                self.say(f"refused: {self.members.names[client]}: {refused[client]}")
                tally.refused(client, refused[client])
                taken.remove(one)
            elif one.arrival is not None:
                tally.arrived(one.arrival)

    def _inbox(self, ask: Ask, exchange: Exchange) -> Inbox:
        """Return what the scheme receives."""
        self._delivered |= set(exchange.stored)
        if exchange.revised is not None:
            self._contradicting = frozenset(self._delivered - set(exchange.revised))
        return self.journal.inbox(exchange, summed=ask.combine is SUM)

    def _ask(
        self, ask: Ask, tally: Tally, round_: int, deadline: float, model: Array | None
    ) -> dict[int, int]:
        """Ask all who are wanted and idle; what was sent once is not asked for again."""
        busy = {pending.client for pending in self._pending.values()}
        here = self.journal.kept() if ask.work.once else {}
        for j in here:
            tally.answered_before(j)
        share = _ENCODING if ask.setup else _EMBEDDING
        wanted = [j for j in self.everyone if tally.loads[j] and j not in busy and j not in here]
        tally.busy = tuple(j for j in sorted(busy) if tally.loads[j] and j not in here)
        facts = {
            j: {
                "work": work_to(ask.work.for_client(j)),
                "round": round_,
                "load": int(tally.loads[j]),
                "answered": int(self._answered[j]),
                "seconds": share * deadline if ask.work.elastic else None,
                **self.extra,
            }
            for j in wanted
        }
        if not facts:
            return {}
        life = _LIFE * deadline if ask.keep_late else deadline
        arrays: Arrays = {}
        if ask.work.needs_model:
            arrays["model"] = np.asarray(to_host(model), dtype=np.float32)
        largest = answer_bytes(ask.work, self.task)
        at_once = max(1, int(self.config.in_flight * 1e6 / largest)) if ask.work.once else None
        asked = self.question("work", facts, life, at_once=at_once, largest=largest, **arrays)
        self._pending |= {
            number: Pending(j, round_, model, ask.work, int(tally.loads[j]), tally.began)
            for number, j in asked.items()
        }
        return asked

    def _taken(self, arrival: Arrival, pending: Pending, expected: Expected | None) -> Taken | None:
        """Return an answer as a reply once it is checked; None where a client has nothing yet."""
        client, work = pending.client, pending.work
        arrays, points = checked_answer(arrival, work, self.task, pending.round, pending.load)
        if points == 0:
            return None
        held, measured = int(self.task.held[client]), None
        if isinstance(work, Gradient | Embedded):
            model = to_host(pending.model)
            about: float = held
            if isinstance(work, Gradient):
                about = points * work.weight_of(client)
            self.bounds.check_gradient(arrays["gradient"], model, about)
            if expected is not None:
                measured = expected.measure(arrays["gradient"])
        elif isinstance(work, Parity | BlockParity):
            own = cast("Parity | BlockParity", work.for_client(client))
            weights = squared_weights(own, self.task.points[:, client])
            self.bounds.check_parity(arrays, weights, self.config.tolerance)
        if work.needs_model:
            self._answered[client] = points
        if work.once:  # on the disk: it may be large
            if client in self.journal.kept():
                raise RefusedError("parity arrived a second time")
            self.journal.keep(client, arrays, points)
            arrays = {}
        reply = Reply(client, pending.round, points, arrays, pending.model)
        return Taken(reply, measured)

    def _expect(self, work: Work, client: int, model: Array, load: int) -> Expected | None:
        if not work.needs_model:
            return None
        return self.evidence.expects(work, client, load, to_host(model))

    def _expects(self, pending: Pending) -> Expected | None:
        return self._expect(pending.work, pending.client, pending.model, pending.load)

    def _remember(self, ask: Ask, model: Array) -> None:
        """Remember what is asked for in the set-up: answers are judged by it, and may be late."""
        if ask.setup:
            self._setup = self._setup if isinstance(ask.work, Prepare) else (ask, model)
            self.evidence.setup = ask.work

    def _longest(self, ask: Ask) -> float:
        """Return how long this ask may wait: every wait is limited."""
        if np.isfinite(ask.wait.deadline):
            return ask.wait.deadline
        limit = None if ask.setup else self.config.deadline
        return limit or self.config.setup_timeout

    def _tally(self, ask: Ask) -> Tally:
        """Begin an exchange with all who are not left out."""
        loads = loads_of(ask, self.task)
        loads[list(self.excluded)] = 0
        return Tally.start(loads, self.transport.now())
