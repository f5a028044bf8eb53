"""The clients of a real federation: ask them, wait until a deadline, check what they send.

Whatever a client answers is checked before it counts, and what is wrong with one answer does not
hold the others up.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from codedfedl.arrays import Array, to_host
from codedfedl.core.client import BlockParity, Embedded, Gradient, Parity, Prepare
from codedfedl.core.loop import RunningSum
from codedfedl.core.protocol import SUM, Ask, Inbox, Reply
from codedfedl.core.record import SETUP
from codedfedl.core.work import Work
from codedfedl.errors import InputError
from codedfedl.federate.server.asking import Asking
from codedfedl.federate.server.checks import Bounds, RefusedError, checked_answer
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
from codedfedl.federate.transport import Arrival
from codedfedl.runs.exchange import Exchange

if TYPE_CHECKING:
    from codedfedl.federate.secure.sums import Sums

__all__ = ["Federation"]


class Federation:
    """The runtime of a federation: it asks the members, and checks and judges what they answer.

    Parameters
    ----------
    sums
        Asks for what only a sum over clients may show; None where the scheme discloses more.

    Attributes
    ----------
    last
        The last exchange, as the journal keeps it.
    """

    def __init__(self, asking: Asking, sums: "Sums | None" = None) -> None:
        self.asking, self.sums = asking, sums
        self.members, self.task, self.journal = asking.members, asking.task, asking.journal
        self.bounds = Bounds.of(self.task.largest_square, self.members.classes)
        self.evidence = Evidence(self.task, self.journal.parity, self.journal.points_behind)
        self.judge = Judge.of(self.task.held.tolist())
        self.last: Exchange | None = None
        self._recalled = Recalled(self.members.names, self.journal.exchanges_folder)
        self._setup: tuple[Ask, Array] | None = None
        self._delivered: set[int] = set()
        self._contradicting: frozenset[int] = frozenset()  # their parity does not count

    # From the journal.

    def recall(self, ask: Ask, model: Array, round_: int, exchange: Exchange) -> Inbox:
        """Take an exchange from the journal: what the server itself knew, and the answers."""
        if ask.noise is not None and self.sums is not None:
            self.sums.recall(ask, exchange)
        self._remember(ask, model)
        self.asking.excluded |= set(exchange.excluded)
        self.judge.recall(*exchange.record.known_distances)
        self.asking.note_points(exchange)
        return self._inbox(ask, self._recalled.with_models(exchange, ask, model, round_))

    def resume(self) -> None:
        """Ask again for what clients send once and may send late."""
        if self._setup is not None and self._setup[0].keep_late:
            ask, model = self._setup
            self.asking.ask(ask, self.asking.tally(ask, SETUP), model)

    # Live.

    def exchange(self, ask: Ask, model: Array, round_: int) -> Inbox:
        """Ask the clients, wait, and return their answers."""
        self._remember(ask, model)
        if ask.noise is not None:
            if self.sums is None:
                raise InputError(
                    f"{ask.work.kind} is for secure sums, and the scheme discloses neither sums "
                    "nor dp: name what it discloses"
                )
            self.last = self.sums.exchange(ask, model, round_)
            return self._inbox(ask, self.last)
        asking = self.asking
        if not ask.keep_late:
            asking.pending.clear()  # whoever is late with an earlier round need not answer it
        tally = asking.tally(ask, round_)
        check_ask(ask, tally, self.members, self.journal)
        before = set(asking.pending)
        asked = asking.ask(ask, tally, model)
        fresh = set(asked.values())
        taken: list[Taken] = []
        counts = {"fresh": int(tally.arrived_already), "late": 0}
        with Expecting(
            lambda j: self._expect(ask.work, j, model, int(tally.loads[j])),
            fresh,
            lambda: asking.transport.remaining(tally.until),
        ) as expected:
            for arrival, pending in asking.arrivals(ask, tally, {*asked, *before}):
                name = self.members.names[arrival.client]
                now = arrival.question in asked
                with refusals_noted(tally, arrival, name, asking.say) as usable:
                    if usable:
                        try:
                            right = expected[pending.client] if now else self._expects(pending)
                        except TimeoutError:  # no time is left to judge it: it stays late
                            continue
                        answer = self._taken(arrival, pending, right)
                        in_time = now and arrival.when <= tally.until
                        if answer is not None:  # without the arrays, which may be large
                            light = replace(arrival, arrays={}) if in_time else None
                            taken.append(replace(answer, arrival=light))
                        counts["fresh" if now else "late"] += 1
                        if not now and not pending.work.once:
                            tally.late_answers.append(
                                (arrival.client, arrival.when - pending.asked)
                            )
                if pending.work.once and tally.has_refused(pending.client):
                    asking.excluded.add(pending.client)  # its one-time answer is unusable
                if ask.wait.enough(**counts, expected=len(fresh) + tally.arrived_already):
                    break
        self._judged(taken, tally)
        if ask.setup:
            check_setup(ask, tally, self.members, asking.transport.now() - tally.began)
        check_somebody(ask, tally, self.journal)
        self.last = self._closed(ask, tally, taken)
        return self._inbox(ask, self.last)

    def _closed(self, ask: Ask, tally: Tally, taken: list[Taken]) -> Exchange:
        now = self.asking.transport.now()
        total, replies = RunningSum(), []
        for reply in (answer.reply for answer in taken):
            if reply.arrays and ask.combine is SUM:
                arrays = reply.arrays.items()
                total.add({name: array.astype(np.float64) for name, array in arrays})
            elif reply.arrays:
                replies.append(reply)
        points, timings = float(sum(answer.reply.points for answer in taken)), None
        if not ask.setup and ask.work.elastic:
            timings = tally.timings_of_all(replies, self.task.held)
        elif not ask.setup:
            timings = tally.timings(min(tally.deadline, now - tally.began))
        kept = self.journal.kept()
        stored = {j: n for j, n in kept.items() if j not in self._delivered}
        self._delivered |= set(stored)
        revised = None
        if self._contradicting != (liars := self.judge.contradicting):
            revised = {j: n for j, n in kept.items() if j in self._delivered - liars}
            names = ", ".join(self.members.names[j] for j in sorted(liars)) or "nobody any more"
            self.asking.say(f"gradients contradict the parity, which does not count, of {names}")
        return Exchange(
            tally.record(now, self.asking.gone()),
            points + sum(n for j, n in stored.items() if tally.when[j] == 0.0),
            {name: array.astype(np.float32) for name, array in total.result().items()},
            tuple(sorted(replies, key=lambda reply: (reply.client, reply.round))),
            stored,
            excluded=tuple(sorted(self.asking.excluded - self.asking.without)),
            timings=timings,
            revised=revised,
        )

    def _judged(self, taken: list[Taken], tally: Tally) -> None:
        """Pass all answers of a round to the judge, and leave out those that it refuses."""
        measured = {
            answer.reply.client: answer.measured for answer in taken if answer.measured is not None
        }
        distances = self.judge.distances(measured)
        refused = coherent(measured, self.evidence.overlap) | self.judge.hear(distances)
        refused |= intolerable(measured, self.asking.config.tolerance)
        for j, distance in distances.items():
            tally.distances[:, j] = distance, measured[j].error
        tally.suspects = tuple(self.judge.close_to_refused)
        for answer in list(taken):
            client = answer.reply.client
            if client in refused:
                self.asking.say(f"refused: {self.members.names[client]}: {refused[client]}")
                tally.refused(client, refused[client])
                taken.remove(answer)
            elif answer.arrival is not None:
                tally.arrived(answer.arrival)

    def _inbox(self, ask: Ask, exchange: Exchange) -> Inbox:
        """Return what the scheme receives."""
        self._delivered |= set(exchange.stored)
        if exchange.revised is not None:
            self._contradicting = frozenset(self._delivered - set(exchange.revised))
        return self.journal.inbox(exchange, summed=ask.combine is SUM)

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
            self.bounds.check_parity(arrays, weights, self.asking.config.tolerance)
        if work.needs_model:
            self.asking.answered[client] = points
        if work.once:  # on the disk: it may be large
            if self.journal.has_kept(client):
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
