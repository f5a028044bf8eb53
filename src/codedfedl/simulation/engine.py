"""The engine: many settings of one seed side by side, on one data set and one feature map.

Each setting has a driver (`core.loop`) and a time line. In every step all of them ask; the time
lines say who arrived; and each of those clients answers, or the fast path sums for all of them.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf

import numpy as np

from codedfedl.arrays import Array, asarray_like
from codedfedl.core.loop import Driver, RunningSum, check_ask, is_secure, refuse_learner
from codedfedl.core.protocol import SUM, Ask, Inbox, Reply, Scheme, State, Task
from codedfedl.core.record import SETUP, SHOWN_ROUNDS, Record
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel
from codedfedl.fleet.devices import fleet_of
from codedfedl.privacy.fixed_point import noise_steps
from codedfedl.random import stream
from codedfedl.runs.tables import stated_facts
from codedfedl.simulation.assignments import Arrivals, Assignment
from codedfedl.simulation.client_data import Problem, Problems, SimulatedClient
from codedfedl.simulation.clock import OWN_PACE, Clock, Timeline, has_own_pace
from codedfedl.simulation.evaluation import Measuring
from codedfedl.simulation.fast import FastSums, Question
from codedfedl.simulation.networks import NetworkJob, answers, breakdown, is_broken
from codedfedl.simulation.quadratics import Objectives

_log = logging.getLogger(__name__)

SETUPS_AT_ONCE = 8  # The parity of so many settings is in memory at one time.
MAX_ROUNDS_TOGETHER = 32  # Metrics are computed together for at most so many rounds …
MAX_SECONDS_TOGETHER = 1.0  # … and no longer than this.


@dataclass(frozen=True, eq=False)
class Contender:
    """A scheme that takes part: its task, the fleet that it plans for, and the actual fleet.

    Either fleet is a `Fleet`, or any other delay model. With `followed`, the excess of its
    objective over the minimum is recorded, which needs the Gram matrix of all points; by default
    for a scheme that aims at the minimum. It stops after `hours` of virtual time. `patience` is
    `training.patience`.
    """

    label: str
    scheme: Scheme
    task: Task
    fleet: DelayModel
    actual: DelayModel
    followed: bool | None = None
    hours: float | None = None
    patience: float | None = None

    @property
    def is_followed(self) -> bool:
        """Whether the excess of its objective is recorded: its minimum must be known."""
        wanted = self.scheme.info.solves if self.followed is None else self.followed
        return wanted and self.task.learner.quadratic

    def check(self) -> None:
        """Plan without training, and refuse what cannot be simulated."""
        refuse_learner(self.scheme, self.task.learner)
        self.scheme.check(self.fleet)
        ask = self.scheme.ask(self.scheme.start(self.task, self.fleet, None))
        if ask is not None:
            check_ask(self.scheme, ask)
            is_secure(self.scheme, ask)  # refuses what a secure sum hides
        if ask is not None and has_own_pace(ask.work):
            fleet_of(self.actual, self.task.points[0], f"{self.scheme.info.name}: {OWN_PACE}")


def entries(task: Task, fleet: DelayModel, schemes: Mapping[str, Scheme]) -> list[Contender]:
    """Return schemes that share a task and a fleet, which is also the actual one."""
    return [Contender(label, scheme, task, fleet, fleet) for label, scheme in schemes.items()]


@dataclass(eq=False)
class Setting:
    """One scheme in a simulation, and what it has done so far.

    Attributes
    ----------
    first
        The model that it began with.
    seconds
        On the virtual clock, after which it stops.
    facts
        What the scheme states, as of the end of the set-up.
    models
        Models that clients may still answer for, by round.
    """

    label: str
    driver: Driver
    timeline: Timeline
    first: Array
    followed: bool = False
    seconds: float = inf
    records: list[Record] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)
    models: dict[int, Array] = field(default_factory=dict)

    @property
    def scheme(self) -> Scheme:
        """The scheme."""
        return self.driver.scheme

    @property
    def state(self) -> State:
        """What the scheme knows."""
        return self.driver.state

    def ask(self) -> Ask | None:
        """Return what it asks now; None where all is done, or its time is over."""
        return self.driver.ask() if self.timeline.now < self.seconds else None

    @property
    def rounds(self) -> list[Record]:
        """The records of the rounds."""
        return [record for record in self.records if not record.is_setup]


Listener = Callable[[Setting, Arrivals, Inbox], None]
"""Called with every inbox before the scheme learns from it."""


class Simulation:
    """Schemes that share data and features; those with the same fleet share its random delays too.

    Parameters
    ----------
    listener
        Sees what the server sees, as an audit needs.
    fast
        Whether sums over all clients take shortcuts (`simulation.fast`), and accuracies too.
    """

    def __init__(
        self,
        problem: Problem,
        entries: Sequence[Contender],
        seed: int,
        listener: Listener | None = None,
        *,
        fast: bool = True,
    ) -> None:
        self.problem, self.seed, self.listener = problem, seed, listener
        self.fast = FastSums(problem.batches, len(entries), seed) if fast else None
        self.rounds = max(entry.task.rounds for entry in entries)
        self.objectives = Objectives(problem.batches)
        self.problems = Problems(problem)
        self.measuring = Measuring(self.problems, problem, fast=fast)
        clocks: dict[tuple[Task, DelayModel, float | None], Clock] = {}
        self.settings = []
        for entry in entries:
            key = (entry.task, entry.actual, entry.patience)
            if key not in clocks:
                clocks[key] = Clock(entry.actual, entry.task, seed, entry.patience)
            start = entry.task.learner.start(stream(seed, "model"))
            first, rng = asarray_like(start, problem.batches[0].targets), stream(seed, "scheme")
            state = entry.scheme.start(entry.task, entry.fleet, first, rng=rng)
            driver = Driver(entry.scheme, state, entry.task.rounds)
            setting = Setting(
                entry.label,
                driver,
                Timeline(clocks[key]),
                first,
                entry.is_followed,
                inf if entry.hours is None else 3600 * entry.hours,
            )
            self.settings.append(setting)
        for start in range(0, len(self.settings), SETUPS_AT_ONCE):
            self._set_up(self.settings[start : start + SETUPS_AT_ONCE])

    @property
    def round(self) -> int:
        """How many rounds the longest of the settings has played."""
        return max(setting.driver.played for setting in self.settings)

    def run(self) -> Iterator[int]:
        """Play round after round; yields how many the longest of the settings has played.

        It yields after every round, or after some quick ones that are measured together.
        """
        begun, since = self.round, time.monotonic()
        while asked := [(s, ask) for s in self.settings if (ask := s.ask()) is not None]:
            self.play(asked)
            few = self.round - begun < MAX_ROUNDS_TOGETHER
            quick = time.monotonic() - since < MAX_SECONDS_TOGETHER
            if self.measuring.can_wait and few and quick:
                continue
            self.measuring.finish()
            yield self.round
            begun, since = self.round, time.monotonic()
        unmeasured = bool(self.measuring.waiting)
        self.measuring.complete(self.settings)
        self.measuring.finish()
        if unmeasured:
            yield self.round

    def _set_up(self, settings: Sequence[Setting]) -> None:
        """Play the set-ups; they are the same on every start, so no checkpoint holds them."""
        while asked := [(s, ask) for s in settings if (ask := s.ask()) is not None and ask.setup]:
            self.play(asked)
            for setting, _ in asked:
                setting.facts = stated_facts(setting.scheme, setting.state)
                if setting.followed and setting.records[-1].has_model:
                    task = setting.state.task
                    loss = self.objectives.of(task).loss(
                        setting.state.model, float(task.held.sum())
                    )
                    setting.facts["start_loss"] = loss
        self.measuring.finish()

    @np.errstate(over="ignore", invalid="ignore")  # what diverges is a result, not an error
    def play(self, asked: Sequence[tuple[Setting, Ask]], *, measured: bool = True) -> None:
        """Give some settings their answers, and record the results."""
        arrivals = []
        for setting, ask in asked:
            round_ = setting.driver.round
            setting.timeline.begin(setting.state.task)
            arrivals.append(setting.timeline.exchange(ask, round_))
            if ask.keep_late:
                setting.models[round_] = setting.driver.question
        settings = [setting for setting, _ in asked]
        inboxes = self._inboxes(settings, arrivals)
        for setting, arrival, inbox in zip(settings, arrivals, inboxes, strict=True):
            if self.listener is not None:
                self.listener(setting, arrival, inbox)
            question = setting.driver.question
            setting.driver.receive(inbox)
            if is_broken(setting.state):
                jobs = [self._job(setting, job, question) for job in arrival.done]
                names = [
                    str(setting.timeline.clock.model.client[job.client]) for job in arrival.done
                ]
                _log.warning(
                    "%s: %s", setting.label, breakdown(setting.scheme, setting.state, names, jobs)
                )
                setting.seconds = 0.0
            awaited = {job.round for job in setting.timeline.pending}
            setting.models = {r: model for r, model in setting.models.items() if r in awaited}
            if measured:
                setting.records.append(self._record(setting, arrival))
        if measured:
            self.measuring.add(settings)

    def _inboxes(
        self, settings: Sequence[Setting], arrivals: Sequence[Arrivals]
    ) -> Iterator[Inbox]:
        """Compute what the clients that arrived have sent."""
        pairs = list(zip(settings, arrivals, strict=True))
        summed: dict[int, Inbox] = {}
        if self.fast is not None:
            plain = [k for k, (s, _) in enumerate(pairs) if s.state.task.features is None]
            questions = [
                Question(
                    s.label, a.ask, a.loads, a.arrived, s.driver.question, s.state.task.learner
                )
                for s, a in (pairs[k] for k in plain)
            ]
            summed = {plain[k]: inbox for k, inbox in self.fast.inboxes(questions).items()}
        left = [
            (setting, job)
            for k, (setting, arrival) in enumerate(pairs)
            for job in arrival.done
            if k not in summed or job.round != arrival.round
        ]
        replies = self._replies(left)
        for k, (_, arrival) in enumerate(pairs):
            if k in summed:
                late = sum(job.round != arrival.round for job in arrival.done)
                inbox = replace(summed[k], replies=tuple(islice(replies, late)))
            else:
                inbox = self._answers(arrival, replies)
            yield replace(inbox, timings=arrival.timings, server_done=arrival.server_done)

    def _answers(self, arrivals: Arrivals, answers: Iterator[Reply]) -> Inbox:
        """Give the server what those who arrived answer, the next ones of some answers."""
        ask, total, replies = arrivals.ask, RunningSum(), []
        for job, reply in zip(arrivals.done, islice(answers, len(arrivals.done)), strict=True):
            if ask.combine is SUM and job.round == arrivals.round:
                total.add(reply.arrays)
            else:
                replies.append(reply)
        points = float(arrivals.loads[arrivals.arrived].sum())
        if ask.noise is None:
            return Inbox(arrivals.arrived, points, total.result(), tuple(replies))
        sums = self._noisy(total.result(), ask.noise, arrivals)
        loads = np.where(arrivals.arrived, arrivals.loads, 0)
        return Inbox(arrivals.arrived, points, sums, loads=loads)

    def _replies(self, left: Sequence[tuple[Setting, Assignment]]) -> Iterator[Reply]:
        """Let clients do their work: at once for networks, and else one when it is wanted."""
        jobs = [self._job(setting, job, setting.driver.question) for setting, job in left]
        together = iter(answers([job for job in jobs if not job.client.learner.quadratic]))
        for (_, given), (work, client, load, model) in zip(left, jobs, strict=True):
            alone = client.learner.quadratic
            answer = work.answer(client, load, model) if alone else next(together)
            yield Reply(given.client, given.round, answer.points, answer.arrays, model)

    def _job(self, setting: Setting, job: Assignment, question: Array) -> NetworkJob:
        """Return what a client is to do, with the model that it is asked about."""
        task = setting.state.task
        data = self.problems.of(task).batches
        client = SimulatedClient(data, job.client, self.seed, learner=task.learner)
        model = setting.models.get(job.round, question)
        return NetworkJob(job.work.for_client(job.client), client, job.load, model)

    def _noisy(
        self, sums: Mapping[str, Array], sigma: float, arrivals: Arrivals
    ) -> dict[str, Array]:
        """Do the helper's part; here noise comes from the seed, so that a run can be repeated."""
        for name, total in sums.items():
            if total.dtype != np.uint32:
                raise InputError(
                    f"{arrivals.ask.work.kind} is asked for with noise, and its {name} is not in "
                    "integers modulo 2³²: ask for it as Masked"
                )
        if arrivals.arrived.sum() < arrivals.ask.least:
            return {}
        luck = arrivals.luck(self.seed, "noise")
        return {
            name: total + noise_steps(sigma, luck.standard_normal(total.shape))
            for name, total in sums.items()
        }

    def _record(self, setting: Setting, arrivals: Arrivals) -> Record:
        excess = np.nan
        # A set-up may leave no model; a round leaves one even if nobody arrived.
        has_model = arrivals.round != SETUP or setting.state.model is not setting.first
        if setting.followed and has_model:
            excess = self.objectives.of(setting.state.task).excess(setting.state.model)
        shown = arrivals.round < SHOWN_ROUNDS
        return Record(
            round=arrivals.round,
            deadline=arrivals.ask.wait.deadline,
            seconds=arrivals.seconds,
            loads=arrivals.loads,
            outcome=arrivals.outcome,
            arrival_times=arrivals.arrival_times if shown else None,
            has_model=has_model,
            excess=excess,
        )
