"""What goes wrong in an exchange: answers that are refused, and silence that ends a run."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from codedfedl.core.client import Prepare
from codedfedl.core.protocol import Ask
from codedfedl.core.record import ARRIVED
from codedfedl.errors import InputError
from codedfedl.federate.checks import RefusedError
from codedfedl.federate.meeting import Say
from codedfedl.federate.tally import Tally
from codedfedl.federate.transport import Arrival
from codedfedl.runs.journal import Members

__all__ = ["check_setup", "check_somebody", "refusals_noted"]


@contextmanager
def refusals_noted(tally: Tally, arrival: Arrival, name: str, say: Say) -> Iterator[bool]:
    """Say whether there is an answer to use; note whatever is wrong with it, and continue."""
    client = arrival.client
    if arrival.status in ("problem", "gone"):
        tally.dropped(client)
    if arrival.status == "problem":
        say(f"{name}: {arrival.reason}")
    why = arrival.reason if arrival.status == "malformed" else ""
    try:
        yield arrival.status == "answer"
    except TimeoutError:  # there was no time left to judge it: it stays late
        return
    except Exception as error:  # whatever a client sends, the others continue
        why = str(error) if isinstance(error, RefusedError) else type(error).__name__
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
    kind = ask.work.kind.replace("_", " ")
    if silent:
        names = [members.names[j] for j in silent]
        raise InputError(
            f"no {kind} from {', '.join(names)} within {waited:.3g} s: look at their logs and "
            "run this again, with a larger federation.setup_timeout, or with "
            f"federation.without={names} to continue without them"
        )
    if not set(playing) - refused:
        raise InputError(f"all {kind} was refused: see what the log says of it")


def check_somebody(ask: Ask, tally: Tally, round_: int, deadline: float) -> None:
    """End a run in which nobody answers a scheme that waits for answers alone."""
    waits_for_answers = not ask.setup and not np.isfinite(ask.wait.deadline)
    if waits_for_answers and not ask.keep_late and not (tally.outcome == ARRIVED).any():
        raise InputError(
            f"no client answered in round {round_ + 1} within {deadline:g} s: see that the "
            "nodes are up and run this again, or begin anew with a larger federation.deadline"
        )
