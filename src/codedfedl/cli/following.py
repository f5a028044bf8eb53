"""A federation as it happens, from when it is submitted to its end."""

import math
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from codedfedl.cli.output import messages
from codedfedl.errors import InputError
from codedfedl.io.connections import own_or_superuser
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.journal import Journal
from codedfedl.runs.watching import Sight, look

if TYPE_CHECKING:
    from codedfedl.federate.deploy.local import LocalFederation

__all__ = [
    "LOCAL",
    "check_somebody_arrived",
    "continue_hint",
    "ended_by_signals",
    "engine_check",
    "followed",
    "served",
    "server_check",
    "watch",
]

LOCAL = "local"
"""The folder in a run directory in which `federate local` keeps its processes' files."""

_LOOK = 0.5  # seconds
_ASK_ENGINE = 5.0  # seconds
_FAILURES = 3
_START = 60.0  # seconds from when a run is announced until its server has the lock


def followed(running: "LocalFederation", directory: RunDirectory, kill: int) -> dict[int, int]:
    """Wait for the end of a federation; kill nodes after its first rounds.

    Returns
    -------
    dict
        Which nodes were killed, and after which round.
    """
    journal, killed = Journal(directory.path), dict[int, int]()
    already = look(directory)
    run = running.submit(directory.path / "config.toml", directory.path)
    ended = engine_check(lambda: running.finished(run), running.revive)

    def look_after_nodes() -> bool:
        rounds = journal.rounds()
        if len(killed) < min(kill, rounds):
            last = len(running.shards) - 1 - len(killed)
            running.send(running.names[last], signal.SIGKILL)
            killed[last] = rounds
        return ended()

    watch(directory, look_after_nodes, len(already.records))
    return killed


def watch(
    directory: RunDirectory,
    ended: Callable[[], bool],
    told: int = 0,
    grown: Callable[[], None] = lambda: None,
) -> None:
    """Show a run, every exchange with names, until it is done; say why it failed or was stopped.

    Parameters
    ----------
    ended
        Called at every poll; returns whether the run is over, whatever its status says.
    told
        Number of exchanges that were shown before.
    grown
        Is called after exchanges that are.
    """
    said: set[str] = set()  # the status may still be that of an exchange before the last
    with _shown() as show:
        while True:
            time.sleep(_LOOK)
            over, sight = ended(), look(directory)
            for sentence in _sentences(sight, told):
                show(sentence, True)
                said.add(sentence)
            if len(sight.happened) > told:
                grown()
            told = len(sight.happened)
            status = sight.status
            if status is not None:
                if status.doing not in said:
                    show(status.doing, False)
                if status.is_bug:
                    raise RuntimeError(f"{status.error}; its traceback is in {directory.log}")
                if status.state == "failed":
                    raise InputError(str(status.error))
                if status.state == "stopped":  # by `federate stop`
                    raise KeyboardInterrupt
            if over or (status is not None and status.state == "done"):
                return


def _sentences(sight: Sight, told: int) -> list[str]:
    """Return a sentence for every exchange after the first `told`, as the server words it."""
    if len(sight.happened) <= told:
        return []
    settings = sight.directory.experiment().federation
    rounds = 0 if settings is None else settings.rounds
    return [one.sentence(rounds) for one in sight.named(told)]


def engine_check(
    finished: Callable[[], bool], look_after: Callable[[], None] = lambda: None
) -> Callable[[], bool]:
    """Return a function that polls now and then whether the engine considers a run over.

    It never blocks: the engine may take seconds to answer, and a later call returns the answer.

    Parameters
    ----------
    finished
        Asks the engine; is called in a thread.
    look_after
        Called just before the engine is asked.
    """
    ask, failures = ThreadPoolExecutor(1).submit, 0
    asked = time.monotonic()
    answer: Future[bool] | None = None

    def ended() -> bool:
        nonlocal asked, answer, failures
        if answer is None:
            if time.monotonic() - asked > _ASK_ENGINE:
                look_after()
                answer = ask(finished)
            return False
        if not answer.done():
            return False
        done, answer, asked = answer, None, time.monotonic()
        try:
            over = done.result()
        except InputError:
            failures += 1
            if failures == _FAILURES:  # a single one may be a hiccup of the engine
                raise
            return False
        failures = 0
        return over

    return ended


def server_check(directory: RunDirectory) -> Callable[[], bool]:
    """Return a function that raises `InputError` once a run's server is dead, and else says False.

    A server has the run's lock while it works, and writes how the run ended before it gives the
    lock back. A run that is unlocked and still says that it runs has lost its server, unless that
    is only about to start.
    """
    unlocked = math.inf  # since when, in seconds

    def check() -> bool:
        nonlocal unlocked
        if directory.is_worked_on:  # before the status is read: the end is written first
            unlocked = math.inf
            return False
        status, now = directory.status.read(), time.monotonic()
        if status is None or status.state != "running":
            return False
        unlocked = min(unlocked, now)
        if status.doing == "starting" and now - unlocked < _START:
            return False
        raise InputError(
            f"the server of {directory.path} is dead: no process works on the run any more, and it "
            f"has not ended ({status}); finished rounds are kept, {continue_hint(directory)}"
        )

    return check


def continue_hint(directory: RunDirectory) -> str:
    """Say how to continue a run that was stopped, or whose server is dead."""
    if (directory.path / LOCAL).is_dir():
        return "continue with the same federate local command and --resume"
    path = directory.path
    command = ["codedfedl", "federate", "run", str(path / "config.toml"), "--out", str(path)]
    return f"continue with {shlex.join(command)} (and the --home or --superlink of its server)"


def check_somebody_arrived(directory: RunDirectory) -> None:
    """Exit with 1 after a run in which no client was ever in time, and say what to change."""
    from codedfedl.federate.failures import nobody_arrived

    if nobody := nobody_arrived(Journal(directory.path).records()):
        messages.print(f"error: {nobody}", soft_wrap=True)
        raise typer.Exit(1)


@contextmanager
def served(directory: RunDirectory, port: int | None) -> Iterator[None]:
    """Serve a run's live page to this user, if a port is given."""
    if port is None:
        yield
        return
    from codedfedl.report.live import LivePage

    with LivePage(directory, port, own_or_superuser) as page:
        messages.print(f"live page: {page.address}", soft_wrap=True)
        yield


@contextmanager
def _shown() -> Iterator[Callable[[str, bool], None]]:
    """Yield a function that shows sentences: permanent ones, and the current activity."""
    if not messages.is_terminal:
        yield _line_when_it_changes()
        return
    with messages.status("starting") as line:

        def show(sentence: str, stays: bool) -> None:
            if stays:
                messages.print(sentence, soft_wrap=True)
                line.update("waiting for answers")
            else:
                line.update(sentence)

        yield show


def _line_when_it_changes() -> Callable[[str, bool], None]:
    """Return a function that prints a sentence with the elapsed seconds, unless it repeats."""
    began, last = time.monotonic(), ""

    def show(sentence: str, _stays: bool) -> None:
        nonlocal last
        if sentence != last:
            messages.print(f"{time.monotonic() - began:6.1f} s: {sentence}", soft_wrap=True)
            last = sentence

    return show


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, so that all processes are ended."""

    def stop(number: int, _frame: Any) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
