"""Random kills and stops of everything in a local federation, from a seed.

What must hold in the end, whatever was killed: every round was played exactly once, and the model
is that of the journal. The seed determines the faults; their timing relative to the processes
depends on the machine.
"""

import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from codedfedl.errors import InputError
from codedfedl.federate.deploy import guard
from codedfedl.federate.deploy.local import SUPERLINK, LocalFederation, node_name
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.journal import Journal

__all__ = ["Chaos"]

_BETWEEN = (3.0, 12.0)  # seconds between two faults
_PAUSE = (1.0, 15.0)  # seconds that something is stopped, or dead
_LOOK = 1.0
_FAULTS = ("kill a node", "stop a node", "kill the server app", "stop the server app", "kill link")


class Chaos:
    """A run under faults.

    Parameters
    ----------
    say
        Called with every fault.

    Attributes
    ----------
    faults
        How often each kind of fault struck.
    """

    def __init__(
        self, local: LocalFederation, directory: RunDirectory, seed: int, say: Callable[[str], None]
    ) -> None:
        self.local, self.directory, self.say = local, directory, say
        self.faults: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._run: int | None = None
        self._asked = 0.0

    def play(self, seconds: float, patience: float) -> None:
        """Inject faults for some seconds from the first round on, then wait for the run to end."""
        self._keep_running_until(self._begun, patience, "did not play a round")
        began = time.monotonic()
        following = began + self._random.uniform(*_BETWEEN)
        while time.monotonic() < began + seconds and not self._done():
            time.sleep(_LOOK)
            now = time.monotonic()
            self._mend(now)
            self._keep_running()
            if following <= now:
                self._strike(now)
                following = now + self._random.uniform(*_BETWEEN)
        self._mend(math.inf)
        self._keep_running_until(self._done, patience, "did not end")

    def _keep_running_until(self, there: Callable[[], bool], patience: float, what: str) -> None:
        until = time.monotonic() + patience
        while not there():
            if time.monotonic() > until:
                raise InputError(
                    f"the run {what} within {patience:g} s: see {self.directory.log} and the logs "
                    f"in {self.local.folder / 'logs'}"
                )
            self._keep_running()
            time.sleep(_LOOK)

    def _begun(self) -> bool:
        return Journal(self.directory.path).rounds() > 0

    def _strike(self, now: float) -> None:
        fault, pause = self._random.choice(_FAULTS), self._random.uniform(*_PAUSE)
        j = self._random.randrange(len(self.local.names))
        if fault == "kill link":
            self.local.send(SUPERLINK, signal.SIGKILL)
            self._run = None
            self._at(now + min(pause, 5.0), lambda: self.local.start(SUPERLINK))
        elif fault.endswith("a node") and node_name(j) in self.local.processes:
            if fault.startswith("kill"):
                self.local.send(node_name(j), signal.SIGKILL)
                self._at(now + pause, lambda: self.local.start(node_name(j)))
            else:
                self.local.send(node_name(j), signal.SIGSTOP)
                self._at(now + pause, lambda: self.local.send(node_name(j), signal.SIGCONT))
        elif fault.endswith("server app"):
            number = signal.SIGKILL if fault.startswith("kill") else signal.SIGSTOP
            processes = guard.marked(self.local.mark, "flwr-serverapp")
            if not processes:
                return
            _signal(processes, number)
            self._at(now + pause, lambda: _signal(processes, signal.SIGCONT))
        else:
            return
        self.faults[fault] += 1
        self.say(fault if fault.endswith(("app", "link")) else f"{fault}: {j}")

    def _at(self, when: float, mend: Callable[[], None]) -> None:
        self._later.append((when, mend))

    def _mend(self, now: float) -> None:
        due = [one for one in self._later if one[0] <= now]
        self._later = [one for one in self._later if one[0] > now]
        for _, mend in due:
            mend()

    def _done(self) -> bool:
        status = self.directory.status.read()
        return status is not None and status.state == "done"

    def _keep_running(self) -> None:
        """Submit the run, again where it failed, and start nodes again that ended."""
        if SUPERLINK not in self.local.processes or time.monotonic() - self._asked < 3 * _LOOK:
            return
        self._asked = time.monotonic()
        self.local.revive()
        try:
            if self._run is not None and not self.local.finished(self._run):
                return
        except InputError as error:
            self.say(str(error)[:100])
        with suppress(InputError):  # the engine may be busy: the next look tries again
            self._run = self.local.submit(self.directory.path / "config.toml", self.directory.path)


def _signal(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)
