"""A federation as it happens, from its submission to its end."""

import math
import shlex
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from codedfedl.cli.output import messages, say, wrote
from codedfedl.core.disclosure import needs_helper
from codedfedl.errors import InputError
from codedfedl.federate.job import HELPER
from codedfedl.io.connections import own_or_superuser
from codedfedl.report.html import render_report
from codedfedl.report.live import LivePage, RoundSender
from codedfedl.runs.advice import advice, nobody_arrived
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.federation import federation_config, scheme_of
from codedfedl.runs.journal import Journal
from codedfedl.runs.watching import Sight, look
from codedfedl.tracking import open_tracker

if TYPE_CHECKING:
    from codedfedl.federate.deploy.local import LocalFederation
    from codedfedl.federate.flower.superlink import Superlink


LOCAL = "local"
"""The folder in a run directory in which `federate local` keeps its processes' files."""

WARNING = "warning: the model"
"""How a server begins to say what is wrong with the model."""

POLL_SECONDS = 0.5
"""Seconds between two looks at a run directory."""

ENGINE_POLL_SECONDS = 5.0
"""Seconds between two questions to the engine, which may take seconds to answer."""

MAX_ENGINE_FAILURES = 3
"""A single failure may be a hiccup of the engine; this many in a row end a command."""

START_SECONDS = 60.0
"""Seconds from the announcement of a run until its server must have the lock."""


def submit(link: "Superlink", experiment: Experiment, out: Path) -> int:
    """Start or continue a run, and return its number."""
    directory = RunDirectory(out)
    directory.open(experiment, resume=True)
    directory.announce("starting")  # from now on it can be followed
    _warn_of_keys(link, experiment)
    with directory.failures_noted():
        return link.submit(out / "config.toml", out)


def _warn_of_keys(link: "Superlink", experiment: Experiment) -> None:
    """Say at once that a run will wait for keys which are not registered."""
    from codedfedl.federate.deploy.registry import NODE

    config = federation_config(experiment)
    helpers = int(needs_helper(scheme_of(experiment).disclosure))
    roles = Counter(entry.role for entry in link.registry.entries() if not entry.revoked)
    for role, needed in ((NODE, config.clients), (HELPER, helpers)):
        if link.registry.path.is_file() and roles[role] < needed:
            say(
                f"warning: {roles[role]} keys are registered as {role}, of {needed} that the run "
                "waits for: "
                f"codedfedl federate register NAME.pub --role {role}"
            )


def run_and_follow(link: "Superlink", experiment: Experiment, out: Path, serve: int | None) -> None:
    """Start or continue a run, and show it until it ends."""
    directory = RunDirectory(out)
    with served(directory, serve):
        shown = len(look(directory).happened)
        number = submit(link, experiment, out)
        say(f"run {number} started")

        def finished() -> bool:
            status, details = link.status(number)
            if status.startswith("finished") and status != "finished:completed":
                log = directory.log if directory.log.is_file() else "the log of federate serve"
                raise InputError(f"the run failed ({details or status}): see {log}")
            return status.startswith("finished")

        ended, alive = engine_check(finished), server_check(directory)
        _follow(directory, lambda: alive() or ended(), shown)
    finish(directory)


def how_to_follow(run: Path) -> str:
    """Return the command that shows a run in progress."""
    return shlex.join(["codedfedl", "federate", "follow", str(run)])


def follow_run(run: Path, serve: int | None, track: Sequence[str]) -> None:
    """Show a run that another command started, until it ends, here and to trackers."""
    directory = RunDirectory(run)
    status = directory.status.read() if directory.is_run else None
    if status is None:
        raise InputError(f"{run} is not the directory of a run in progress: it has no status.json")
    if status.state != "running":
        raise InputError(f"{run} is {status}: see {shlex.join(['codedfedl', 'report', str(run)])}")
    sender = RoundSender(directory, [open_tracker(text, run) for text in track], messages.print)
    with sender.broadcast.finished(run / "report.html"):
        with served(directory, serve):
            _follow(directory, server_check(directory), 0, sender.send)
        sender.send()
        finish(directory)


def _follow(
    directory: RunDirectory,
    ended: Callable[[], bool],
    shown: int,
    grown: Callable[[], None] = lambda: None,
) -> None:
    try:
        watch(directory, ended, shown, grown)
    except KeyboardInterrupt:
        status = directory.status.read()
        if status is not None and status.state == "stopped":
            sentence = f"stopped: {continue_hint(directory)}"
        else:
            sentence = f"the run continues; show it again with {how_to_follow(directory.path)}"
        say(sentence)
        raise


def finish(directory: RunDirectory) -> None:
    """Say what to do better, and write the report; exit with 1 if no client was ever in time."""
    for sentence in advice(look(directory).conduct):
        say(f"advice: {sentence}")
    write_report(directory)


def write_report(directory: RunDirectory) -> None:
    """Write the report; exit with 1 if no client was ever in time, and say what to change."""
    wrote(directory.write_text("report.html", render_report(directory)))
    said = [event["text"] for event in directory.events() if event["event"] == "message"]
    if said and (warnings := [text for text in said if text.startswith(WARNING)]):
        say(warnings[-1])
    if nobody := nobody_arrived(Journal(directory.path).records()):
        say(f"error: {nobody}")
        raise typer.Exit(1)


def follow_local(running: "LocalFederation", directory: RunDirectory, kill: int) -> dict[int, int]:
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
    shown: int = 0,
    grown: Callable[[], None] = lambda: None,
) -> None:
    """Show a run, every exchange with names, until it is done; say why it failed or was stopped.

    Parameters
    ----------
    ended
        Called at every poll; returns whether the run is over, whatever its status says.
    shown
        Number of exchanges that were shown before.
    grown
        Called after further exchanges were shown.
    """
    said: set[str] = set()  # the status may still be that of an exchange before the last
    with _display() as display:
        while True:
            time.sleep(POLL_SECONDS)
            over, sight = ended(), look(directory)
            for sentence in _sentences(sight, shown):
                display(sentence, True)
                said.add(sentence)
            if len(sight.happened) > shown:
                grown()
            shown = len(sight.happened)
            status = sight.status
            if status is not None:
                if status.doing not in said:
                    display(status.doing, False)
                if status.is_bug:
                    raise RuntimeError(f"{status.error}; its traceback is in {directory.log}")
                if status.state == "failed":
                    raise InputError(str(status.error))
                if status.state == "stopped":  # by `federate stop`
                    raise KeyboardInterrupt
            if over or (status is not None and status.state == "done"):
                return


def _sentences(sight: Sight, shown: int) -> list[str]:
    """Return a sentence for every exchange after the first ones, as the server words it."""
    if len(sight.happened) <= shown:
        return []
    settings = sight.directory.experiment().federation
    rounds = 0 if settings is None else settings.rounds
    return [exchange.sentence(rounds) for exchange in sight.named(shown)]


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
            if time.monotonic() - asked > ENGINE_POLL_SECONDS:
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
            if failures == MAX_ENGINE_FAILURES:  # a single one may be a hiccup of the engine
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
        if status.doing == "starting" and now - unlocked < START_SECONDS:
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
    return f"continue with {shlex.join(command)}"


@contextmanager
def served(directory: RunDirectory, port: int | None) -> Iterator[None]:
    """Serve a run's live page to this user, if a port is given."""
    if port is None:
        yield
        return
    with LivePage(directory, port, own_or_superuser) as page:
        say(f"live page: {page.address}")
        yield


@contextmanager
def _display() -> Iterator[Callable[[str, bool], None]]:
    """Yield a function that shows sentences: permanent ones, and the current activity."""
    if messages.is_terminal:
        with messages.status("starting") as line:

            def display(sentence: str, is_permanent: bool) -> None:
                if is_permanent:
                    say(sentence)
                line.update("waiting for answers" if is_permanent else sentence)

            yield display
        return
    began, last = time.monotonic(), ""

    def print_changes(sentence: str, _is_permanent: bool) -> None:
        nonlocal last
        if sentence != last:
            say(f"{time.monotonic() - began:6.1f} s: {sentence}")
            last = sentence

    yield print_changes
