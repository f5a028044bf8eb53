"""Whether enough nodes are there for the next round; if not, the run pauses until they are."""

from collections.abc import Callable, Collection

import numpy as np

from codedfedl.core.record import Record
from codedfedl.errors import InputError
from codedfedl.federate.server.asking import Asking
from codedfedl.federate.server.meeting import GREETING_SECONDS, LOOK_SECONDS
from codedfedl.runs.federation_sections import DEFAULT_QUORUM
from codedfedl.runs.watching import listed


class Presence:
    """Who of the members is there.

    Parameters
    ----------
    least
        Nodes that a round needs at least, such as those of a secure sum.
    stopped
        Says whether the operator wants the run to end.
    """

    def __init__(self, asking: Asking, least: int, stopped: Callable[[], bool]) -> None:
        self.asking, self.stopped = asking, stopped
        playing = len(asking.everyone) - len(asking.without)
        quorum = asking.config.quorum or min(DEFAULT_QUORUM, playing)
        self.quorum = max(quorum, least)
        if self.quorum > playing:
            raise InputError(
                f"{self.quorum} of {playing} nodes would have to be there: lower federation.quorum"
            )

    def hold(self, last: Record | None) -> bool:
        """Pause the run while too few members are there; return whether it may continue.

        Parameters
        ----------
        last
            The round that has ended; None before the first.
        """
        playing = set(self.asking.everyone) - self.asking.excluded
        if last is None:
            if len(playing - set(self.asking.gone())) >= min(self.quorum, len(playing)):
                return True
            return self._waited(set(), playing)
        asked = int(np.count_nonzero(last.loads))
        if last.is_setup or last.had_enough or len(last.answered) >= min(self.quorum, asked):
            return True
        return self._waited(last.answered, playing)

    def _waited(self, present: set[int], playing: Collection[int]) -> bool:
        """Greet those who were not heard of, until there are enough."""
        asking, transport, names = self.asking, self.asking.transport, self.asking.members.names
        until, shown = transport.now() + asking.config.patience, set[int]({-1})
        greetings: dict[int, int] = {}
        while len(present := present - set(asking.gone())) < min(self.quorum, len(playing)):
            missing = [names[j] for j in playing if j not in present]
            state = f"{len(present)} of {len(playing)} nodes answer, and {self.quorum} must"
            if present != shown:
                asking.say(f"paused: {state}; waiting for {listed(missing)}")
                shown = present
            if self.stopped():
                return False
            if transport.now() >= until:
                raise InputError(
                    f"{state}, after federation.patience = {asking.config.patience:g} s: finished "
                    f"rounds are kept; start {listed(missing)} and run this again"
                )
            silent = set(playing) - present - set(greetings.values()) - set(asking.gone())
            greetings |= asking.question("hello", {j: {} for j in silent}, GREETING_SECONDS)
            present |= self._answered(greetings)
        if shown != {-1}:
            asking.say(f"continuing with {len(present)} of {len(playing)} nodes")
        return True

    def _answered(self, greetings: dict[int, int]) -> set[int]:
        """Return who answers soon; late answers to the last rounds are kept for the next."""
        asking, transport = self.asking, self.asking.transport
        until, present = transport.now() + LOOK_SECONDS, set[int]()
        held = {arrival.question for arrival in asking.held}
        wanted = (set(asking.pending) | set(greetings)) - held
        for arrival in transport.gather(wanted, until):
            is_greeting = greetings.pop(arrival.question, None) is not None
            if arrival.status == "answer":
                present.add(arrival.client)
                asking.held += [] if is_greeting else [arrival]
            elif not is_greeting:  # no answer will come: the client is asked again
                del asking.pending[arrival.question]
        transport.sleep(max(0.0, until - transport.now()))
        return present
