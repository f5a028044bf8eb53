"""The engine: many settings of one seed in lock-step, on one data set and one feature map."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl._types import FloatArray, Mask
from codedfedl.arrays import Array, to_host
from codedfedl.fleet.devices import Fleet
from codedfedl.learning.training import accuracy, r_squared
from codedfedl.schemes.base import (
    Ask,
    AskBlockParity,
    AskEmbedded,
    AskGradient,
    AskGram,
    AskLocalModel,
    AskParity,
    Inbox,
    Scheme,
    State,
    Task,
    Until,
)
from codedfedl.schemes.coded import CodedState
from codedfedl.schemes.coded_newton import NewtonState
from codedfedl.simulate.clock import Clock, SetupTime
from codedfedl.simulate.crew import Crew
from codedfedl.simulate.evaluate import Evaluator, stacked_predictions
from codedfedl.simulate.objective import Objective
from codedfedl.simulate.problem import Problem

__all__ = [
    "FACTS",
    "SHOWN_ROUNDS",
    "Entry",
    "Progress",
    "Setting",
    "Simulation",
    "entries",
    "first_round",
]

SHOWN_ROUNDS = 8
"""Of so many rounds it is kept when each answer came, or would have come."""

FACTS = (
    "parity_rows",
    "expected_return",
    "points_per_parity_row",
    "embedded_points",
    "unrepresented_points",
    "setup_deadline_s",
    "round_deadline_s",
    "planned_hours",
    "planned_excess",
    "planned_rounds",
    "predicted_hours",
    "predicted_excess",
    "predicted_start_loss",
    "predicted_start_excess",
    "start_loss",
    "damping",
)
"""What is said once of a setting and seed; NaN where it does not apply."""


@dataclass(frozen=True, eq=False)
class Entry:
    """A scheme that takes part: its task, the fleet it plans for, and that on which time passes."""

    label: str
    scheme: Scheme
    task: Task
    fleet: Fleet
    actual: Fleet


def entries(task: Task, fleet: Fleet, schemes: Mapping[str, Scheme]) -> list[Entry]:
    """Return schemes that have a task and a fleet in common, which is as they plan it."""
    return [Entry(label, scheme, task, fleet, fleet) for label, scheme in schemes.items()]


@dataclass(eq=False)
class Setting:
    """One scheme in a simulation: its state, and what it has done so far.

    A `crew` stands for clients with time lines of their own; `excess` is that of the objective,
    which is followed for those schemes only. `facts` are said once: what parity mixes, what was
    planned and predicted. `when` says for the first rounds when each answer came, or would have.
    """

    label: str
    scheme: Scheme
    state: State
    clock: Clock
    setup: SetupTime
    crew: Crew | None = None
    facts: dict[str, float] = field(default_factory=dict)
    follows_excess: bool = False
    excess: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    deadlines: list[float] = field(default_factory=list)
    arrived: list[Mask] = field(default_factory=list)
    when: list[FloatArray] = field(default_factory=list)
    metric: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Progress:
    """What a watcher may show after a round."""

    round: int
    rounds: int
    settings: Sequence[Setting]


class Simulation:
    """Schemes that share data and features; those with the same fleet share their luck too."""

    def __init__(self, problem: Problem, entries: Sequence[Entry], seed: int) -> None:
        self.problem, self.seed = problem, seed
        self.evaluator = Evaluator(problem.batches)
        self.round = 0
        self.rounds = max(entry.task.rounds for entry in entries)
        self._objectives: dict[float, Objective] = {}
        features, targets = problem.batches[0].features, problem.batches[0].targets
        zero = features[:1].T @ targets[:1] * 0  # the model starts at 0, shape (q, c)
        clocks: dict[tuple[int, int], Clock] = {}
        self.settings = []
        for entry in entries:
            key = (id(entry.task), id(entry.actual))
            if key not in clocks:
                clocks[key] = Clock(entry.actual, entry.task, seed)
            state = entry.scheme.start(entry.task, entry.fleet, zero)
            clock = clocks[key]
            setting = Setting(entry.label, entry.scheme, state, clock, clock.embedding())
            self._set_up(setting)
            self.settings.append(setting)

    def _set_up(self, setting: Setting) -> None:
        """Answer what is asked once; it is the same on every start, so no checkpoint holds it."""
        ask, clock, task = setting.scheme.ask(setting.state), setting.clock, setting.state.task
        everyone = np.ones(task.clients, dtype=bool)
        points = float(task.held.sum())
        setting.follows_excess = isinstance(ask, AskBlockParity | AskGram)
        if isinstance(ask, AskParity):
            extra = clock.answer(ask)
            before = setting.setup
            setting.setup = SetupTime(before.compute + extra.compute, extra.upload)
            inbox = Inbox(everyone, points, parity=self.evaluator.parity(ask, self.seed))
            fewest = int(task.points.min(initial=2**53))
            setting.facts = {
                "parity_rows": float(sum(ask.rows)),
                "points_per_parity_row": ask.code.points_per_row(fewest, max(ask.rows)),
            }
            if isinstance(setting.state, CodedState):
                plan = setting.state.plans[0]
                setting.facts["round_deadline_s"] = plan.deadline
                setting.facts["expected_return"] = plan.expected_return
            setting.state = setting.scheme.receive(setting.state, inbox)
        elif isinstance(ask, AskBlockParity):
            setting.crew = Crew(clock, self.problem.batches)
            inbox, setting.setup = setting.crew.set_up(ask)
            setting.state = setting.scheme.receive(setting.state, inbox)
            self._record(setting, 0.0, np.inf, inbox.arrived)  # the start, before any round
            setting.facts = self._start_facts(setting, ask, inbox)
            setting.metric.append(self._metrics([setting.state.model])[0])
        elif isinstance(ask, AskGram):
            inbox = Inbox(everyone, points, gram=self.evaluator.gram())
            setting.state = setting.scheme.receive(setting.state, inbox)
            # This is its training: on the paper's clock too.
            self._record(setting, clock.answer(ask).seconds, np.inf, everyone)
            setting.metric.append(self._metrics([setting.state.model])[0])

    def objective(self, task: Task) -> Objective:
        """Return the ridge objective over all points of all clients."""
        ridge = task.ridge * float(task.held.sum())
        if ridge not in self._objectives:
            targets = [to_host(batch.targets) for batch in self.problem.batches]
            self._objectives[ridge] = Objective.of(self.evaluator.gram(), targets, ridge)
        return self._objectives[ridge]

    def run(self) -> Iterator[Progress]:
        """Play round after round."""
        while self.round < self.rounds:
            # A step that is too large diverges: that is a result, not an error.
            with np.errstate(over="ignore", invalid="ignore"):
                self._play_round()
            self.round += 1
            yield Progress(self.round, self.rounds, self.settings)

    def _play_round(self) -> None:
        asked = [(s, s.scheme.ask(s.state)) for s in self.settings]
        playing: list[tuple[Setting, AskGradient, Mask]] = []
        active = [setting for setting, ask in asked if ask is not None]
        for setting, ask in asked:
            if isinstance(ask, AskGradient):
                playing.append((setting, ask, self._arrivals(setting, ask, ask.loads)))
            elif isinstance(ask, AskLocalModel):
                arrived = self._arrivals(setting, ask, ask.loads * ask.steps)
                total = self.evaluator.local_models(ask, setting.state.model, arrived)
                self._deliver(setting, ask, arrived, total)
            elif isinstance(ask, AskEmbedded):
                self._play_crew(setting, ask)
        if playing:
            settings, asks, arrived_masks = zip(*playing, strict=True)
            models = [setting.state.model for setting in settings]
            totals = self.evaluator.totals(asks, models, arrived_masks)
            for setting, ask, arrived, total in zip(
                settings, asks, arrived_masks, totals, strict=True
            ):
                self._deliver(setting, ask, arrived, total)
        if active:
            metrics = self._metrics([setting.state.model for setting in active])
            for place, setting in enumerate(active):
                setting.metric.append(metrics[place])

    def _start_facts(self, setting: Setting, ask: AskBlockParity, inbox: Inbox) -> dict[str, float]:
        """Say what stands for whom after a set-up with a deadline, and what was predicted of it."""
        sizes = [(b.points, b.parity.features.shape[0]) for b in inbox.blocks.values()]
        held, state = setting.state.task.held, setting.state
        facts = {
            "parity_rows": float(sum(rows for _, rows in sizes)),
            "points_per_parity_row": min(ask.code.points_per_row(*size) for size in sizes),
            "embedded_points": float(sum(points for points, _ in sizes)),
            "unrepresented_points": float(held.sum() - held[list(inbox.blocks)].sum()),
            "start_loss": self.objective(state.task).loss(state.model, float(held.sum())),
        }
        if isinstance(state, NewtonState):
            assert state.plan is not None
            assert state.first_plan is not None
            facts |= {
                "planned_hours": state.first_plan.seconds / 3600,
                "planned_excess": state.first_plan.excess,
                "setup_deadline_s": state.plan.setup_deadline,
                "round_deadline_s": state.plan.round_deadline,
                "planned_rounds": float(state.plan.rounds),
                "predicted_hours": state.plan.seconds / 3600,
                "predicted_excess": state.plan.excess,
                "predicted_start_loss": state.start_loss,
                "predicted_start_excess": state.start_excess,
                "damping": state.damping,
            }
        return facts

    def _play_crew(self, setting: Setting, ask: AskEmbedded) -> None:
        assert setting.crew is not None
        inbox, seconds = setting.crew.play(ask, setting.state.model)
        setting.state = setting.scheme.receive(setting.state, inbox)
        self._record(setting, seconds, seconds, inbox.arrived, setting.crew.busy_for)

    def replay(self, setting: Setting, rounds: int) -> None:
        """Play a crew's first rounds again: what it remembers is not in any checkpoint."""
        for _ in range(rounds):
            ask = setting.scheme.ask(setting.state)
            assert isinstance(ask, AskEmbedded)
            self._play_crew(setting, ask)

    def _arrivals(
        self, setting: Setting, ask: AskGradient | AskLocalModel, work: np.ndarray
    ) -> Mask:
        when = setting.clock.seconds(ask.round, work)
        arrived, seconds = ask.wait.arrivals(when)
        deadline = ask.wait.deadline if isinstance(ask.wait, Until) else np.inf
        self._record(setting, seconds, deadline, arrived, when)
        return arrived

    def _record(
        self,
        setting: Setting,
        seconds: float,
        deadline: float,
        arrived: Mask,
        when: FloatArray | None = None,
    ) -> None:
        excess = np.nan
        if setting.follows_excess:
            excess = self.objective(setting.state.task).excess(setting.state.model)
        setting.excess.append(excess)
        if when is not None and len(setting.when) < SHOWN_ROUNDS:
            setting.when.append(when)
        setting.seconds.append(seconds)
        setting.deadlines.append(deadline)
        setting.arrived.append(arrived)

    @staticmethod
    def _deliver(setting: Setting, ask: Ask, arrived: Mask, total: Array) -> None:
        assert isinstance(ask, AskGradient | AskLocalModel)
        points = float(ask.loads[arrived].sum())
        setting.state = setting.scheme.receive(setting.state, Inbox(arrived, points, total))

    def _metrics(self, models: Sequence[Array]) -> Array:
        """Return accuracy or R² on the test points of every model, on the device."""
        problem = self.problem
        predictions = stacked_predictions(problem.test_features, models)
        if problem.test_classes is not None:
            return accuracy(predictions, problem.test_classes)
        return r_squared(predictions, problem.test_targets)

    def client_story(self, setting: Setting) -> dict[str, npt.NDArray[Any]]:
        """Per client: load, how often it arrived, and where its time went, in the mean."""
        fleet, chance, task = setting.clock.model.fleet, setting.clock.chance, setting.state.task
        rounds, arrived = len(setting.arrived), setting.arrived
        points = task.points[0].astype(np.float64)
        loads = points
        if setting.crew is not None:  # what it has in all; its first record is the set-up
            points, loads = task.held.astype(np.float64), setting.crew.answered
            rounds, arrived = max(rounds - 1, 1), arrived[1:] or arrived
        ask = setting.scheme.ask(replace(setting.state, round=0))
        if isinstance(ask, AskGradient):
            loads = ask.loads
        elif isinstance(ask, AskLocalModel):
            loads = ask.loads * ask.steps
        compute = loads / fleet.rate * (1 + chance.slowness[:rounds].mean(0) / fleet.alpha)
        link = fleet.packet_time + fleet.packet_time_up
        sent = chance.down[:rounds] * fleet.packet_time + chance.up[:rounds] * fleet.packet_time_up
        asked = loads > 0
        return {
            "client": fleet.client,
            "rate": fleet.rate,
            "points": points,
            "load": np.asarray(loads, dtype=np.float64),
            "planned_share": _planned_share(setting.state),
            "arrived_share": np.mean(arrived, axis=0),
            "compute_s": compute,
            "link_s": np.where(asked, link, 0.0),
            "retransmission_s": np.where(asked, sent.mean(0) - link, 0.0),
            "overhead_s": np.where(asked, fleet.overhead, 0.0),
            "setup_compute_s": setting.setup.compute,
            "setup_upload_s": setting.setup.upload,
        }


def first_round(seconds: Sequence[float] | FloatArray) -> int:
    """Return the number of the first record: 0 where it is the end of the set-up, and no round."""
    return 0 if seconds[0] == 0 else 1


def _planned_share(state: State) -> FloatArray:
    """Return in which share of the rounds each client was planned to arrive; NaN if nobody did."""
    if isinstance(state, CodedState):
        return state.plans[0].return_probabilities
    return np.full(state.task.clients, np.nan)
