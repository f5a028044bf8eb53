"""What goes wrong in an exchange: answers that are refused, and silence that ends a run."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from codedfedl.arrays import IntArray, Mask
from codedfedl.core.client import Prepare
from codedfedl.core.masked import Masked
from codedfedl.core.protocol import Ask
from codedfedl.core.record import ARRIVED, LATE, Record
from codedfedl.errors import InputError
from codedfedl.federate.checks import RefusedError
from codedfedl.federate.meeting import Say
from codedfedl.federate.tally import Tally
from codedfedl.federate.transport import Arrival
from codedfedl.runs.journal import Journal, Members
from codedfedl.runs.watching import probed_seconds

__all__ = [
    "Watch",
    "check_ask",
    "check_setup",
    "check_somebody",
    "nobody_arrived",
    "refusals_noted",
]

_ROUNDS = 3  # in which accuracy must be low, one after the other


@contextmanager
def refusals_noted(tally: Tally, arrival: Arrival, name: str, say: Say) -> Iterator[bool]:
    """Say whether there is an answer to use; note why one is refused, and continue."""
    client = arrival.client
    if arrival.status in ("problem", "gone"):
        tally.dropped(client)
    if arrival.status == "problem":
        say(f"{name}: {arrival.reason}")
        tally.problems[client] = arrival.reason
    why = arrival.reason if arrival.status == "malformed" else ""
    try:
        yield arrival.status == "answer"
    except RefusedError as error:  # anything else is a defect of ours, and ends the run
        why = str(error)
    if why:
        say(f"refused: {name}: {why}")
        tally.refused(client, why)


def check_setup(ask: Ask, tally: Tally, members: Members, waited: float) -> None:
    """Refuse to begin without what the scheme waits for from everybody."""
    if np.isfinite(ask.wait.deadline) or isinstance(ask.work, Prepare):
        return
    refused = {client for client, _ in tally.refusals}
    playing = np.flatnonzero(tally.loads).tolist()
    silent = [j for j in playing if tally.outcome[j] != ARRIVED and j not in refused]
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
    if not set(playing) - refused:
        raise InputError(f"all {kind} was refused: see the log for the reasons")


def check_somebody(ask: Ask, tally: Tally, round_: int, deadline: float, journal: Journal) -> None:
    """End a run in which nobody answers a scheme that waits for answers alone."""
    waits_for_answers = not ask.setup and not np.isfinite(ask.wait.deadline)
    if waits_for_answers and not ask.keep_late and not (tally.outcome == ARRIVED).any():
        raise InputError(
            f"no client answered in round {round_ + 1} within {deadline:g} s: see that the "
            "nodes are up and run this again, or start again with a larger federation.deadline"
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


class Watch:
    """Stops a run whose accuracy on the test points falls, unless absent clients explain it.

    With shards sorted by class, a model forgets the classes of clients that do not answer. The
    accuracy may therefore fall further by the share of points that are missing since its best
    round. A liar gains little by staying away: its own share.

    Parameters
    ----------
    fall
        How far below its best the accuracy may stay for a few rounds while nobody is missing.
    points : array of shape (n,)
        Points of each client.
    """

    def __init__(self, fall: float, points: IntArray) -> None:
        self.fall, self.points = fall, points
        self.best, self.last, self.low = -np.inf, np.nan, 0
        self._heard = np.zeros(len(points), dtype=bool)  # in the best round
        self._missing: deque[float] = deque(maxlen=_ROUNDS)  # a model needs rounds to recover, too

    def fell(self, metric: float, arrived: Mask) -> bool:
        """Take in a round's metric, and say whether it has been too low for too long.

        An R² that was never above 0 has nothing to lose.
        """
        if np.isnan(metric):
            return False
        self.last = metric
        if metric >= self.best:
            self.best, self._heard = metric, arrived.copy()
        missing = self.points[self._heard & ~arrived].sum() / self.points.sum()
        self._missing.append(float(missing))
        allowed = self.fall + max(self._missing)
        self.low = self.low + 1 if 0 < self.best > metric + allowed else 0
        return self.low >= _ROUNDS

    def alarm(self, suspects: Sequence[int], names: Sequence[str]) -> str:
        """Say what fell, and who is suspected."""
        found = [names[j] for j in suspects]
        blame = "no client's answers are further from its parity than others'"
        if found:
            blame = f"the answers of {', '.join(found)} are furthest from their parity"
        remedy = f"start again with federation.without={found}" if found else "try a smaller step"
        return (
            f"accuracy on the test points fell from {self.best:.4f} to {self.last:.4f} and stayed "
            f"low for {_ROUNDS} rounds: a client is lying, or the step is too large; {blame}: "
            f"{remedy}, or continue with a larger federation.fall"
        )
