"""The clients of a real federation: ask them, wait until a deadline, check what they send.

Whatever a client answers is checked before it counts, and what is wrong with one answer does not
hold the others up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from codedfedl.arrays import Array, to_host
from codedfedl.core.loop import RunningSum
from codedfedl.core.protocol import SUM, Ask, Inbox, Reply
from codedfedl.core.record import ARRIVED, REFUSED, SETUP
from codedfedl.core.work import Work
from codedfedl.errors import InputError
from codedfedl.federate.server.asking import Asking, Pending, Tally
from codedfedl.federate.server.checks import NormBounds, RefusedError, checked_answer
from codedfedl.federate.server.evidence import (
    Evidence,
    Expected,
    Expecting,
    Measured,
)
from codedfedl.federate.server.judging import Judge, coherent, intolerable
from codedfedl.federate.transport import Arrival
from codedfedl.runs.exchange import Exchange

if TYPE_CHECKING:
    from codedfedl.federate.secure.sums import Sums


class Recalled:
    """The questions of a journal that are not answered yet, one per client at most.

    A client is asked again only once its last question is answered or over. So an answer is to
    the client's last question, however many rounds ago that was.

    Parameters
    ----------
    names
        Of the clients.
    folder
        Of the journal's exchanges, for errors.
    """

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self._names, self._folder = names, folder
        self._open: dict[int, tuple[int, Array]] = {}  # round and model, by client

    def __len__(self) -> int:
        """Return how many clients have a question that is not answered."""
        return len(self._open)

    def with_models(self, exchange: Exchange, ask: Ask, model: Array, round_: int) -> Exchange:
        """Return the next exchange of the journal, its replies with their models."""
        record = exchange.record
        if not ask.keep_late or ask.restarts:
            self._open.clear()
        asked = set(np.flatnonzero(record.loads).tolist()) - set(record.busy)
        self._open |= dict.fromkeys(asked, (round_, model))
        replies = tuple(replace(reply, model=self._model(reply)) for reply in exchange.replies)
        for j in (*record.answered, *exchange.stored):
            self._open.pop(j, None)
        return replace(exchange, replies=replies)

    def _model(self, reply: Reply) -> Array:
        asked, model = self._open.get(reply.client, (None, None))
        if asked != reply.round:
            raise InputError(
                f"{self._folder} does not add up: {self._names[reply.client]} answers round "
                f"{reply.round + 1}, which it was not asked for; restore it from a copy, or start "
                "again with another --out"
            )
        return model


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
        linear = self.task.learner.quadratic  # there is no bound on a network's gradient
        largest = self.task.largest_square if linear else np.inf
        self.bounds = NormBounds.of(largest, self.members.classes)
        self.evidence = Evidence(self.task, self.journal.stored)
        self.judge = Judge.of(self.task.held.tolist())
        self.last: Exchange | None = None
        self._recalled = Recalled(self.members.names, self.journal.exchanges_folder)
        self._setup: tuple[Ask, Array] | None = None
        self._delivered: set[int] = set()
        self._contradicting: frozenset[int] = frozenset()  # their parity does not count

    # From the journal.

    def recall(self, ask: Ask, model: Array, round_: int, exchange: Exchange) -> Inbox:
        """Take an exchange from the journal: what the server itself knew, and the answers."""
        if ask.secure and self.sums is not None:
            self.sums.recall(ask, exchange)
        self._remember(ask, model)
        self.asking.excluded |= set(exchange.excluded)
        self.judge.recall(*exchange.record.known_distances)
        if ask.work.needs_model:
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
        if ask.secure:
            if self.sums is None:
                raise InputError(
                    f"{ask.work.kind} is for secure sums, and the scheme discloses neither sums "
                    "nor dp: name what it discloses"
                )
            self.last = self.sums.exchange(ask, model, round_)
            return self._inbox(ask, self.last)
        asking, tally = self.asking, self.asking.tally(ask, round_)
        asked = asking.ask(ask, tally, model)
        questions = {j: asking.pending[number] for number, j in asked.items()}
        replies: list[Reply] = []
        measured: dict[int, Measured] = {}

        def take(arrival: Arrival, pending: Pending) -> bool:
            fresh = arrival.question in asked
            try:
                right = expected[pending.client] if fresh else self._expects(pending)
            except TimeoutError:  # no time is left to judge it: it stays late
                return False
            reply = self._reply(arrival, pending)
            if reply is None:
                return True
            if right is not None:
                measured[reply.client] = right.measure(reply.arrays["gradient"])
            replies.append(self._kept(reply, pending.work))
            if fresh and arrival.when <= tally.until:
                tally.arrived(arrival)
            return True

        with Expecting(
            lambda j: self._expects(questions[j]),
            questions,
            lambda: asking.transport.remaining(tally.until),
        ) as expected:
            asking.gather(ask, tally, asked, take)
        if not ask.keep_late:
            asking.pending.clear()  # whoever is late with this need not answer it
        refused = self._refused(measured, tally)
        replies = [reply for reply in replies if reply.client not in refused]
        check_answered(asking, ask, tally)
        self.last = self._closed(ask, tally, replies)
        return self._inbox(ask, self.last)

    def _closed(self, ask: Ask, tally: Tally, taken: list[Reply]) -> Exchange:
        now = self.asking.transport.now()
        total, replies = RunningSum(), []
        for reply in taken:
            if reply.arrays and ask.combine is SUM and reply.round == tally.round:
                arrays = reply.arrays.items()
                total.add({name: array.astype(np.float64) for name, array in arrays})
            elif reply.arrays:
                replies.append(reply)
        points, timings, counted = float(sum(reply.points for reply in taken)), None, None
        if ask.work.window is not None:  # late answers are no part of the sum
            fresh = {reply.client: reply.points for reply in taken if reply.round == tally.round}
            counted = np.array([fresh.get(j, 0) for j in self.asking.everyone])
            points = float(counted.sum())
        if not ask.setup and ask.work.elastic:
            timings = tally.timings_of_all(replies, self.task.held)
        elif not ask.setup:
            timings = tally.timings(min(tally.deadline, now - tally.began))
        kept = self.journal.stored.points
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
            counted=counted,
            timings=timings,
            revised=revised,
        )

    def _refused(self, measured: Mapping[int, Measured], tally: Tally) -> dict[int, str]:
        """Pass all answers of a round to the judge; note those that it refuses, and return why."""
        distances = self.judge.distances(measured)
        refused = coherent(measured, self.evidence.overlap) | self.judge.hear(distances)
        refused |= intolerable(measured, self.asking.config.tolerance)
        for j, distance in distances.items():
            tally.distances[:, j] = distance, measured[j].error
        tally.suspects = tuple(self.judge.close_to_refused)
        for client in measured:
            if client in refused:
                self.asking.refuse(tally, client, refused[client])
        return refused

    def _inbox(self, ask: Ask, exchange: Exchange) -> Inbox:
        """Return what the scheme receives."""
        self._delivered |= set(exchange.stored)
        if exchange.revised is not None:
            self._contradicting = frozenset(self._delivered - set(exchange.revised))
        return self.journal.inbox(exchange, summed=ask.combine is SUM)

    def _reply(self, arrival: Arrival, pending: Pending) -> Reply | None:
        """Return an answer as a reply once it is checked; None where a client has nothing yet."""
        client, work = pending.client, pending.work
        about = (pending.round, pending.load, pending.model)
        arrays, points = checked_answer(arrival, work, self.task, *about)
        if points == 0:
            return None
        weight = work.most_weight(client, points, float(self.task.held[client]))
        if weight is not None:
            self.bounds.check_gradient(arrays["gradient"], to_host(pending.model), weight)
        squares = work.for_client(client).squared_weights(self.task.points[:, client])
        if squares is not None:
            self.bounds.check_parity(arrays, squares, self.asking.config.tolerance)
        return Reply(client, pending.round, points, arrays, pending.model)

    def _kept(self, reply: Reply, work: Work) -> Reply:
        """Return a reply without what is on the disk now: what is sent once may be large."""
        client = reply.client
        if work.needs_model:
            self.asking.answered[client] = reply.points
        if not work.once:
            return reply
        if client in self.journal.stored.points:
            raise RefusedError("parity arrived a second time")
        self.journal.stored.keep(client, reply.arrays, reply.points)
        return replace(reply, arrays={})

    def _expects(self, pending: Pending) -> Expected | None:
        if not pending.work.needs_model:
            return None
        model = to_host(pending.model)
        return self.evidence.expects(pending.work, pending.client, pending.load, model)

    def _remember(self, ask: Ask, model: Array) -> None:
        """Remember what is asked for in the set-up: answers are judged by it, and may be late."""
        if ask.setup:
            self._setup = (ask, model) if ask.work.discloses else self._setup
            self.evidence.setup = ask.work


def check_answered(asking: Asking, ask: Ask, tally: Tally) -> None:
    """End a run that cannot continue without answers that did not come."""
    if np.isfinite(ask.wait.deadline) or not ask.work.discloses:  # nothing is sent
        return
    if ask.setup:
        _check_setup(asking, ask, tally)
    elif not ask.keep_late and not ask.secure and not (tally.outcome == ARRIVED).any():
        raise InputError(
            f"no client answered in round {tally.round + 1} within {tally.deadline:g} s: see "
            "that the nodes are up and run this again, or start again with a larger "
            f"federation.deadline{asking.probes_took()}"
        )


def _check_setup(asking: Asking, ask: Ask, tally: Tally) -> None:
    """Refuse to begin without what the scheme waits for from everybody."""
    playing = np.flatnonzero(tally.loads).tolist()
    silent = [j for j in playing if tally.outcome[j] not in (ARRIVED, REFUSED)]
    kind, member = ask.work.plain.kind.replace("_", " "), asking.members.names
    if silent:
        names = [member[j] for j in silent]
        why = [f"{member[j]}: {tally.problems[j]}" for j in silent if j in tally.problems]
        seconds = f"within {asking.transport.now() - tally.began:.3g} s"
        cause = f"({'; '.join(why[:3])})" if why else seconds
        remedy = "fix that" if why else "look at their logs, raise federation.setup_timeout"
        raise InputError(
            f"no {kind} from {', '.join(names)} {cause}: {remedy} and run this again, or with "
            f"federation.without={names} to continue without them"
        )
    if (tally.outcome[playing] == REFUSED).all():
        raise InputError(f"all {kind} was refused: see the log for the reasons")
