"""What became of the answers of an exchange, what is refused, and what silence ends a run."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import Array, IntArray
from codedfedl.core.client import Prepare
from codedfedl.core.masked import Masked
from codedfedl.core.protocol import Ask, Reply
from codedfedl.core.record import ARRIVED, DROPPED, LATE, NOT_ASKED, REFUSED, Record
from codedfedl.core.work import Work
from codedfedl.errors import InputError
from codedfedl.federate.transport import Arrival
from codedfedl.fitting.drift import Timings
from codedfedl.runs.exchange import Exchange
from codedfedl.runs.journal import Journal, Members
from codedfedl.runs.watching import probed_seconds


@dataclass(frozen=True, eq=False)
class Pending:
    """A question that is not answered yet, and the model that it is about."""

    client: int
    round: int
    model: Array | None
    work: Work
    load: int
    asked: float


@dataclass
class Tally:
    """What is known of an exchange while it is under way.

    Attributes
    ----------
    outcome
        What became of each client's answer: this alone decides, and the rest explains it.
    refusals
        Why answers were refused, by client.
    problems
        Why nodes could not answer, by client.
    """

    round: int
    began: float
    deadline: float
    loads: npt.NDArray[np.int64]
    when: npt.NDArray[np.float64]
    compute: npt.NDArray[np.float64]
    outcome: npt.NDArray[np.int8]
    distances: npt.NDArray[np.float64]
    refusals: dict[int, str] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    suspects: tuple[int, ...] = ()
    busy: tuple[int, ...] = ()
    late_answers: list[tuple[int, float]] = field(default_factory=list)

    @classmethod
    def start(
        cls, loads: npt.NDArray[np.int64], round_: int, began: float, deadline: float
    ) -> "Tally":
        """Begin: whoever is asked for points is late until it answers."""
        n = len(loads)
        outcome = np.where(loads > 0, LATE, NOT_ASKED).astype(np.int8)
        return cls(
            round_,
            began,
            deadline,
            loads,
            np.full(n, np.inf),
            np.full(n, np.nan),
            outcome,
            np.full((2, n), np.nan),
        )

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

    def answered_before(self, client: int) -> None:
        """Note an answer that was here before the ask."""
        self.outcome[client], self.when[client] = ARRIVED, 0.0

    @property
    def arrived_already(self) -> int:
        """How many answers were here before the ask."""
        return int(((self.outcome == ARRIVED) & (self.when == 0.0)).sum())

    def dropped(self, client: int) -> None:
        """Note a client from which nothing will come."""
        self.outcome[client] = DROPPED

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

    def refused(self, client: int, why: str) -> None:
        """Note an answer that does not count."""
        self.outcome[client] = REFUSED
        self.when[client], self.compute[client] = np.inf, np.nan
        self.refusals[client] = why

    def record(self, now: float, gone: Collection[int]) -> Record:
        """Close the exchange: late clients that are no longer connected count as dropped."""
        for j in gone:
            if self.outcome[j] == LATE:
                self.dropped(j)
        return Record(
            round=self.round,
            deadline=self.deadline,
            seconds=now - self.began,
            loads=self.loads,
            outcome=self.outcome,
            arrival_times=self.when,
            compute=self.compute,
            refusals=tuple(self.refusals.items()),
            distances=self.distances,
            suspects=self.suspects,
            busy=self.busy,
            late_answers=tuple(self.late_answers),
        )


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
        if not ask.keep_late:
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


def check_setup(ask: Ask, tally: Tally, members: Members, waited: float) -> None:
    """Refuse to begin without what the scheme waits for from everybody."""
    if np.isfinite(ask.wait.deadline) or isinstance(ask.work, Prepare):
        return
    playing = np.flatnonzero(tally.loads).tolist()
    silent = [j for j in playing if tally.outcome[j] not in (ARRIVED, REFUSED)]
    work = ask.work.work if isinstance(ask.work, Masked) else ask.work
    kind = work.kind.replace("_", " ")
    names = [members.names[j] for j in silent]
    if troubled := [j for j in silent if j in tally.problems]:
        trouble = "; ".join(f"{members.names[j]}: {tally.problems[j]}" for j in troubled[:3])
        raise InputError(
            f"no {kind} from {', '.join(names)} ({trouble}): fix that and run this again, or "
            f"with federation.without={names} to continue without them"
        )
    if silent:
        raise InputError(
            f"no {kind} from {', '.join(names)} within {waited:.3g} s: look at their logs and "
            "run this again, with a larger federation.setup_timeout, or with "
            f"federation.without={names} to continue without them"
        )
    if (tally.outcome[playing] == REFUSED).all():
        raise InputError(f"all {kind} was refused: see the log for the reasons")


def check_somebody(ask: Ask, tally: Tally, journal: Journal) -> None:
    """End a run in which nobody answers a scheme that waits for answers alone."""
    waits_for_answers = not ask.setup and not np.isfinite(ask.wait.deadline)
    if waits_for_answers and not ask.keep_late and not (tally.outcome == ARRIVED).any():
        raise InputError(
            f"no client answered in round {tally.round + 1} within {tally.deadline:g} s: see that "
            "the nodes are up and run this again, or start again with a larger federation.deadline"
            f"{_probes_took(journal)}"
        )


def check_ask(ask: Ask, tally: Tally, members: Members, journal: Journal) -> None:
    """Refuse what a federation cannot play, and a round in which nobody is asked for anything."""
    if ask.server_work is not None:
        raise InputError(
            "the scheme asks how long the server itself takes, which only a simulation plays: a "
            "real server computes when the round has ended; leave server_work out of the ask"
        )
    if not ask.setup and not tally.loads.any():
        raise InputError(
            f"none of {len(members.names)} clients is asked for any points: the plan found no "
            "client fast enough, or all are left out; start again with a larger "
            f"federation.deadline{_probes_took(journal)}, or see why their answers were refused"
        )


def _probes_took(journal: Journal) -> str:
    """Say what the measurements before the first round suggest."""
    probed = probed_seconds(journal)
    return f" (answers to the probes took up to {max(probed.values()):.3g} s)" if probed else ""


def nobody_arrived(records: Sequence[Record]) -> str:
    """Say what to change where no client answered in time in any round; nothing otherwise."""
    rounds = [record for record in records if not record.is_setup]
    if not rounds or any(record.arrived.any() for record in rounds):
        return ""
    late = any((record.outcome == LATE).any() for record in rounds)
    remedy = (
        "raise federation.deadline" if late else "check that the nodes are up, and see their logs"
    )
    return (
        f"no client answered in time in any of {len(rounds)} rounds, so the model knows only "
        f"parity at most: {remedy}, and start again"
    )
