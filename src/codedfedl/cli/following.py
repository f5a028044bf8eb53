"""A federation on this machine, from when it is submitted to its end."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from codedfedl.cli.output import messages
from codedfedl.errors import InputError
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.journal import Journal

if TYPE_CHECKING:
    from codedfedl.federate.flower.local import LocalFederation

__all__ = ["ended_by_signals", "followed"]

_LOOK = 0.5  # seconds
_ASK_ENGINE = 5.0  # seconds
_FAILURES = 3


def followed(running: "LocalFederation", directory: RunDirectory, kill: int) -> list[int]:
    """Wait for the end of a federation; kill nodes after its first rounds, and return which."""
    journal = Journal(directory.path)
    run = running.submit(directory.path / "config.toml", directory.path)
    ended = _engine_check(running, run)
    killed: list[int] = []
    with _shown() as show:
        while True:
            time.sleep(_LOOK)
            if len(killed) < min(kill, journal.rounds()):
                last = len(running.nodes) - 1 - len(killed)
                running.signal_node(last, signal.SIGKILL)
                killed.append(last)
            status = directory.status.read()
            if status is not None:
                show(status.doing)
                if status.state == "failed":
                    raise InputError(str(status.error))
                if status.state == "done":  # what the engine says of it may differ
                    return killed
                if status.state == "stopped":  # by `federate stop`
                    raise KeyboardInterrupt
            if ended():
                return killed


def _engine_check(running: "LocalFederation", run: int) -> Callable[[], bool]:
    """Return a function that says now and then whether the engine thinks that a run is over."""
    asked, failures = time.monotonic(), 0

    def ended() -> bool:
        nonlocal asked, failures
        if time.monotonic() - asked <= _ASK_ENGINE:
            return False
        asked = time.monotonic()
        running.revive()
        try:
            over = running.finished(run)
        except InputError:
            failures += 1
            if failures == _FAILURES:  # a single one may be a hiccup of the engine
                raise
            return False
        failures = 0
        return over

    return ended


@contextmanager
def _shown() -> Iterator[Callable[[str], None]]:
    if not messages.is_terminal:
        yield _line_when_it_changes()
        return
    with messages.status("starting") as line:
        yield line.update


def _line_when_it_changes() -> Callable[[str], None]:
    """Return a function that prints what it is told, with the seconds so far, if that is new."""
    began, last = time.monotonic(), ""

    def show(sentence: str) -> None:
        nonlocal last
        if sentence != last:
            messages.print(f"{time.monotonic() - began:6.1f} s: {sentence}", soft_wrap=True)
            last = sentence

    return show


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, so that everything is ended."""

    def stop(number: int, _frame: Any) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
