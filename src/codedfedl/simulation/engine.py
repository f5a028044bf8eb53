"""The engine: many settings of one seed side by side, on one data set and one feature map.

Each setting has a driver (`core.loop`) and a time line. In every step all of them ask; the time
lines say who arrived; and sums of gradients are computed for all settings together.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import Array, asarray_like, to_host
from codedfedl.core.client import Gradient, Gram
from codedfedl.core.encoding import Parity
from codedfedl.core.loop import Driver, RunningSum
from codedfedl.core.protocol import SUM, Ask, Inbox, Reply, Task
from codedfedl.core.record import SETUP, SHOWN_ROUNDS, Record
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel
from codedfedl.privacy.fixed_point import noise_steps
from codedfedl.random import stream
from codedfedl.runs.tables import stated_facts
from codedfedl.simulation.clock import Clock
from codedfedl.simulation.evaluate import (
    Evaluator,
    Query,
    SimulatedClient,
)
from codedfedl.simulation.measuring import Measuring
from codedfedl.simulation.objective import Objective
from codedfedl.simulation.parities import composite_parities
from codedfedl.simulation.problem import Problem
from codedfedl.simulation.setting import Entry, Setting, entries
from codedfedl.simulation.timeline import Exchange, Timeline

__all__ = ["Entry", "Listener", "Setting", "Simulation", "entries"]


Listener = Callable[[Setting, Exchange, Inbox], None]
"""Called with every inbox before the scheme learns from it."""

_TOGETHER = 8  # set-ups at one time: the parity of all of them is in memory
_SPAN, _SECONDS = 32, 1.0  # rounds that are measured together, at most, and how long they may take


class Simulation:
    """Schemes that share data and features; those with the same fleet share its random delays too.

    Parameters
    ----------
    listener
        Sees what the server sees, as an audit needs.
    """

    def __init__(
        self,
        problem: Problem,
        entries: Sequence[Entry],
        seed: int,
        listener: Listener | None = None,
    ) -> None:
        self.problem, self.seed, self.listener = problem, seed, listener
        self.evaluator = Evaluator(problem.batches, len(entries))
        self.rounds = max(entry.task.rounds for entry in entries)
        self._objectives: dict[float, Objective] = {}
        features, targets = problem.batches[0].features, problem.batches[0].targets
        self.measuring = Measuring(problem)
        self._zero = features[:1].T @ targets[:1] * 0  # the model starts at 0, shape (q, c)
        clocks: dict[tuple[Task, DelayModel], Clock] = {}
        self.settings = []
        for entry in entries:
            key = (entry.task, entry.actual)
            if key not in clocks:
                clocks[key] = Clock(entry.actual, entry.task, seed)
            rng = stream(seed, "scheme")
            state = entry.scheme.start(entry.task, entry.fleet, self._zero, rng=rng)
            driver = Driver(entry.scheme, state, entry.task.rounds)
            followed = entry.scheme.info.solves if entry.followed is None else entry.followed
            setting = Setting(entry.label, driver, Timeline(clocks[key]), followed)
            self.settings.append(setting)
        for start in range(0, len(self.settings), _TOGETHER):
            self._set_up(self.settings[start : start + _TOGETHER])

    @property
    def round(self) -> int:
        """How many rounds the longest of the settings has played."""
        return max(setting.driver.played for setting in self.settings)

    def run(self) -> Iterator[int]:
        """Play round after round; yields how many the longest of the settings has played.

        It yields after every round, or after some quick ones that are measured together.
        """
        begun, since = self.round, time.monotonic()
        while asked := [(s, ask) for s in self.settings if (ask := s.driver.ask()) is not None]:
            # A step that is too large diverges: that is a result, not an error.
            with np.errstate(over="ignore", invalid="ignore"):
                self._play(asked)
            quick = self.round - begun < _SPAN and time.monotonic() - since < _SECONDS
            if self.measuring.waiting and quick:
                continue
            self.measuring.finish()
            yield self.round
            begun, since = self.round, time.monotonic()
        if self.measuring.waiting:
            self.measuring.finish()
            yield self.round

    def restore(
        self, setting: Setting, model: npt.NDArray[Any], state_round: int, records: list[Record]
    ) -> None:
        """Bring a setting to where it was, from a checkpoint or by playing its rounds again."""
        driver, rounds = setting.driver, [record for record in records if not record.is_setup]
        ask = driver.ask()
        if ask is not None and driver.state.checkpointed and not ask.keep_late:
            here = asarray_like(model, driver.state.model)
            driver.state = replace(driver.state, model=here, round=state_round)
            driver.played = len(rounds)
            for record in rounds:
                setting.loads_seen.again(record.loads)
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                while driver.played < len(rounds) and (ask := driver.ask()) is not None:
                    self._play([(setting, ask)], measured=False)
            if driver.played < len(rounds):
                raise InputError(
                    f"{setting.label}: the checkpoint has {len(rounds)} rounds, and the scheme now "
                    f"ends after {driver.played}: choose another --out"
                )
        setting.records = records

    def objective(self, task: Task) -> Objective:
        """Return the ridge objective over all points of all clients."""
        ridge = task.ridge * float(task.held.sum())
        if ridge not in self._objectives:
            targets = [to_host(batch.targets) for batch in self.problem.batches]
            self._objectives[ridge] = Objective.of(self.evaluator.gram(), targets, ridge)
        return self._objectives[ridge]

    def exact_metric(self, task: Task) -> float:
        """Return the accuracy or R² of exact ridge regression over all points of all clients."""
        exact = self.objective(task).best.astype(to_host(self._zero).dtype)
        return float(self.measuring.metrics([asarray_like(exact, self._zero)])[0])

    def _set_up(self, settings: Sequence[Setting]) -> None:
        """Play the set-ups; they are the same on every start, so no checkpoint holds them."""
        while asked := [
            (one, ask) for one in settings if (ask := one.driver.ask()) is not None and ask.setup
        ]:
            self._play(asked)
            for setting, _ in asked:
                setting.facts = stated_facts(setting.scheme, setting.state)
                if setting.followed and setting.records[-1].has_model:
                    task = setting.state.task
                    loss = self.objective(task).loss(setting.state.model, float(task.held.sum()))
                    setting.facts["start_loss"] = loss
        self.measuring.finish()

    def _play(self, asked: Sequence[tuple[Setting, Ask]], *, measured: bool = True) -> None:
        """Give some settings their answers, and record the results."""
        exchanges = []
        for setting, ask in asked:
            round_ = setting.driver.round
            exchanges.append(setting.timeline.exchange(ask, round_))
            if ask.keep_late:
                setting.models[round_] = setting.driver.question
        settings = [setting for setting, _ in asked]
        for setting, exchange, found in zip(
            settings, exchanges, self._inboxes(settings, exchanges), strict=True
        ):
            inbox = replace(found, timings=exchange.timings)
            if self.listener is not None:
                self.listener(setting, exchange, inbox)
            setting.driver.receive(inbox)
            if measured:
                setting.records.append(self._record(setting, exchange))
        if measured:
            self.measuring.add(settings)

    def _inboxes(self, settings: Sequence[Setting], exchanges: Sequence[Exchange]) -> list[Inbox]:
        """Compute what the clients that arrived have sent."""
        again = [
            not one.ask.setup and setting.loads_seen.again(one.loads)
            for setting, one in zip(settings, exchanges, strict=True)
        ]
        stacked = [place for place, one in enumerate(exchanges) if _is_sum_of_gradients(one)]
        queries = [
            Query(
                exchanges[place].ask.work.batch,  # type: ignore[attr-defined]
                exchanges[place].loads,
                exchanges[place].arrived,
                settings[place].driver.question,
                exchanges[place].ask.adds,
                again[place],
            )
            for place in stacked
        ]
        found = dict(zip(stacked, self.evaluator.inboxes(queries), strict=True))
        found |= self._composites(exchanges)
        inboxes = [
            found[place] if place in found else self._answers(setting, one)
            for place, (setting, one) in enumerate(zip(settings, exchanges, strict=True))
        ]
        return [
            inbox if one.server_done else replace(inbox, server_done=False)
            for inbox, one in zip(inboxes, exchanges, strict=True)
        ]

    def _composites(self, exchanges: Sequence[Exchange]) -> dict[int, Inbox]:
        """Return the sums of all clients' parity, by the place of the exchange."""
        works = {
            place: one.ask.work
            for place, one in enumerate(exchanges)
            if isinstance(one.ask.work, Parity) and one.ask.combine is SUM and one.arrived.all()
        }
        sums = composite_parities(list(works.values()), self.problem.batches, self.seed)
        found = {}
        for place, own in zip(works, sums, strict=True):
            one = exchanges[place]
            found[place] = Inbox(one.arrived, float(one.loads.sum()), own)
        return found

    def _answers(self, setting: Setting, exchange: Exchange) -> Inbox:
        """Let each client that arrived do its work."""
        ask, done = exchange.ask, exchange.done
        points = float(sum(job.load for job in done))
        if isinstance(ask.work, Gram) and ask.combine is SUM and exchange.arrived.all():
            gram = self.evaluator.gram()
            sums = {"hessian": gram.hessian, "moment": gram.moment}
            return Inbox(exchange.arrived, points, sums)
        total, replies = RunningSum(), []
        for job in self.evaluator.embedded_ahead(done):
            client = SimulatedClient(self.problem.batches, job.client, self.seed)
            model = setting.models[job.round] if ask.keep_late else setting.driver.question
            answer = job.work.for_client(job.client).answer(client, job.load, model)
            if ask.combine is SUM:
                total.add(answer.arrays)
            else:
                reply = Reply(job.client, job.round, answer.points, answer.arrays, model)
                replies.append(reply)
        awaited = {job.round for job in setting.timeline.pending}
        setting.models = {r: model for r, model in setting.models.items() if r in awaited}
        if ask.noise is None:
            return Inbox(exchange.arrived, points, total.result(), tuple(replies))
        sums = self._noisy(total.result(), ask.noise, exchange)
        loads = np.where(exchange.arrived, exchange.loads, 0)
        return Inbox(exchange.arrived, points, sums, loads=loads)

    def _noisy(
        self, sums: Mapping[str, Array], sigma: float, exchange: Exchange
    ) -> dict[str, Array]:
        """Do the helper's part; here noise comes from the seed, so that a run can be repeated."""
        for name, total in sums.items():
            if total.dtype != np.uint32:
                raise InputError(
                    f"{exchange.ask.work.kind} is asked for with noise, and its {name} is not in "
                    "integers modulo 2³²: ask for it as Masked"
                )
        if exchange.arrived.sum() < exchange.ask.least:
            return {}
        luck = exchange.luck(self.seed, "noise")
        return {
            name: total + noise_steps(sigma, luck.standard_normal(total.shape))
            for name, total in sums.items()
        }

    def _record(self, setting: Setting, exchange: Exchange) -> Record:
        excess = np.nan
        # A set-up may leave no model; a round leaves one even if nobody arrived.
        has_model = exchange.round != SETUP or setting.state.model is not self._zero
        if setting.followed and has_model:
            excess = self.objective(setting.state.task).excess(setting.state.model)
        shown = exchange.round < SHOWN_ROUNDS
        return Record(
            round=exchange.round,
            deadline=exchange.ask.wait.deadline,
            seconds=exchange.seconds,
            loads=exchange.loads,
            outcome=exchange.outcome,
            arrival_times=exchange.arrival_times if shown else None,
            has_model=has_model,
            excess=excess,
        )


def _is_sum_of_gradients(exchange: Exchange) -> bool:
    """Whether the stacked products can give it."""
    ask = exchange.ask
    plain = ask.noise is None and not ask.keep_late
    return type(ask.work) is Gradient and ask.combine is SUM and plain
