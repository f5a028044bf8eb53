"""Experiments side by side: a process of this machine for each, which shares out its cores."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty
from typing import Any

from codedfedl.io.files import memory
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.simulation.progress import Progress, Watch, on_host
from codedfedl.simulation.run import simulate
from codedfedl.simulation.threads import usable_threads
from codedfedl.simulation.workers import SECONDS_BETWEEN_MESSAGES, here, processes

__all__ = ["Job", "simulate_all"]

_NEEDED = 4 * 2**30  # bytes of memory that every process should find
_PATIENCE = 0.2  # seconds


@dataclass(frozen=True, eq=False)
class Job:
    """An experiment and where it runs; a finished one is not run again."""

    experiment: Experiment
    directory: RunDirectory


@dataclass(frozen=True, eq=False)
class _Order:
    """What every process needs."""

    jobs: Sequence[Job]
    data: str | None
    device: str
    threads: int | None


def simulate_all(jobs: Sequence[Job], watch: Watch, *, data: str | None, device: str) -> None:
    """Run experiments, or continue them: at the same time where there are cores and memory.

    Small products gain little from a second core, and whole experiments gain all of it.

    Parameters
    ----------
    watch
        Is told of all of them; what it is told begins with the name of the experiment's folder.
    """
    cores = usable_threads() or 1
    at_once = int(min(len(jobs), cores, max(1, memory() // _NEEDED))) if device == "cpu" else 1
    order = _Order(jobs, data, device, cores // max(at_once, 1))
    if at_once <= 1:
        for job in jobs:
            _run(order, job, partial(_tell, watch, job))
        return
    with processes(order, at_once, "run the same command again to continue") as (executor, queue):
        running = {executor.submit(_run_here, place) for place in range(len(jobs))}
        while running:
            _pass_on(queue, watch)
            ended = {future for future in running if future.done()}
            for future in ended:
                future.result()
            running -= ended
        while _pass_on(queue, watch):
            pass


def _pass_on(queue: Any, watch: Watch) -> bool:
    """Tell what a process has sent, if anything comes before long."""
    try:
        told = queue.get(timeout=_PATIENCE)
    except Empty:
        return False
    for what, progress in told:
        watch(what, progress)
    return True


def _run(order: _Order, job: Job, watch: Watch) -> None:
    simulate(
        job.experiment,
        job.directory,
        data=order.data,
        device=order.device,
        resume=True,
        watch=watch,
    )


def _run_here(place: int) -> None:
    """Run an experiment in a process, as long as somebody waits for it."""
    order, queue, stop = here()
    waiting: list[tuple[str, Progress | None]] = []
    sent = 0.0

    def keep(what: str, progress: Progress | None) -> None:
        nonlocal sent
        if stop.is_set():  # the first process was interrupted, and so is this
            raise KeyboardInterrupt
        waiting.append((what, None if progress is None else on_host(progress)))
        if progress is None or time.monotonic() - sent > SECONDS_BETWEEN_MESSAGES:
            queue.put(tuple(waiting))
            waiting.clear()
            sent = time.monotonic()

    with suppress(KeyboardInterrupt):
        _run(order, order.jobs[place], partial(_tell, keep, order.jobs[place]))
        queue.put(tuple(waiting))


def _tell(watch: Watch, job: Job, what: str, progress: Progress | None) -> None:
    """Tell of an experiment by the name of its folder."""
    watch(f"{job.directory.path.name}, {what}", progress)
