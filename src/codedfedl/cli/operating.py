"""A run on the operator's server, shown until it ends."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from codedfedl.cli.following import (
    check_somebody_arrived,
    continue_hint,
    engine_check,
    served,
    server_check,
    watch,
)
from codedfedl.cli.output import messages, wrote
from codedfedl.errors import InputError
from codedfedl.report.html import render_report
from codedfedl.report.sending import Sender
from codedfedl.runs.advice import advice
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import read_experiment
from codedfedl.runs.watching import look
from codedfedl.tracking import open_tracker

if TYPE_CHECKING:
    from codedfedl.federate.flower.superlink import Superlink

__all__ = ["finish", "follow_run", "how_to_follow", "run_and_follow", "submit"]


def submit(link: "Superlink", experiment: Path, out: Path) -> int:
    """Start or continue a run, and return its number."""
    directory = RunDirectory(out)
    directory.open(read_experiment(experiment), resume=True)
    directory.announce("starting")  # from now on it can be followed
    with directory.failures_noted():
        return link.submit(experiment, out)


def run_and_follow(link: "Superlink", experiment: Path, out: Path, serve: int | None) -> None:
    """Start or continue a run, and show it until it ends."""
    directory = RunDirectory(out)
    with served(directory, serve):
        told = len(look(directory).happened)
        number = submit(link, experiment, out)
        messages.print(f"run {number} started", soft_wrap=True)

        def finished() -> bool:
            status, details = link.status(number)
            if status.startswith("finished") and status != "finished:completed":
                raise InputError(f"the run failed ({details or status}): see {directory.log}")
            return status.startswith("finished")

        ended, alive = engine_check(finished), server_check(directory)
        _follow(directory, lambda: alive() or ended(), told)
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
    sender = Sender(directory, [open_tracker(text, run) for text in track], messages.print)
    with sender.broadcast.finished(run / "report.html"):
        with served(directory, serve):
            _follow(directory, server_check(directory), 0, sender.send)
        sender.send()
        finish(directory)


def _follow(
    directory: RunDirectory,
    ended: Callable[[], bool],
    told: int,
    grown: Callable[[], None] = lambda: None,
) -> None:
    try:
        watch(directory, ended, told, grown)
    except KeyboardInterrupt:
        status = directory.status.read()
        if status is not None and status.state == "stopped":
            sentence = f"stopped: {continue_hint(directory)}"
        else:
            sentence = f"the run goes on; show it again with {how_to_follow(directory.path)}"
        messages.print(sentence, soft_wrap=True)
        raise


def finish(directory: RunDirectory) -> None:
    """Say what to do better, and write the report; exit with 1 if no client was ever in time."""
    for sentence in advice(look(directory).conduct):
        messages.print(f"advice: {sentence}", soft_wrap=True)
    wrote(directory.write_text("report.html", render_report(directory)))
    check_somebody_arrived(directory)
