"""The engine: many settings of one seed in lock-step, on one data set and one feature map."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.features import Array
from codedfedl.fleet import Fleet
from codedfedl.schemes.base import (
    Ask,
    AskGradient,
    AskGram,
    AskLocalModel,
    AskParity,
    Inbox,
    Mask,
    Scheme,
    State,
    Task,
    Until,
)
from codedfedl.simulate.clock import Clock, SetupTime
from codedfedl.simulate.evaluate import Batch, Evaluator, stacked_predictions
from codedfedl.training import accuracy, r_squared

__all__ = ["Problem", "Progress", "Setting", "Simulation"]


@dataclass(frozen=True, eq=False)
class Problem:
    """Data on a device, ready to be trained on.

    Attributes
    ----------
    test_classes : array of shape (t,) or None
        None for regression, whose metric is R² on `test_targets`.
    """

    task: Task
    batches: Sequence[Batch]
    test_features: Array
    test_targets: Array
    test_classes: Array | None


@dataclass(eq=False)
class Setting:
    """One scheme in a simulation: its state, and what it has done so far."""

    label: str
    scheme: Scheme
    state: State
    setup: SetupTime
    seconds: list[float] = field(default_factory=list)
    deadlines: list[float] = field(default_factory=list)
    arrived: list[Mask] = field(default_factory=list)
    metric: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Progress:
    """What a watcher may show after a round."""

    round: int
    rounds: int
    settings: Sequence[Setting]


class Simulation:
    """Schemes that share data, features, fleet and luck."""

    def __init__(
        self, problem: Problem, fleet: Fleet, schemes: dict[str, Scheme], seed: int
    ) -> None:
        self.problem, self.seed = problem, seed
        self.clock = Clock(fleet, problem.task, seed)
        self.evaluator = Evaluator(problem.batches)
        self.round = 0
        features, targets = problem.batches[0].features, problem.batches[0].targets
        zero = features[:1].T @ targets[:1] * 0  # the model starts at 0, shape (q, c)
        embedding = self.clock.embedding()
        self.settings = [
            Setting(label, scheme, scheme.start(problem.task, fleet, zero), embedding)
            for label, scheme in schemes.items()
        ]
        for setting in self.settings:
            self._set_up(setting)

    def _set_up(self, setting: Setting) -> None:
        """Answer what is asked once; it is the same on every start, so no checkpoint holds it."""
        ask = setting.scheme.ask(setting.state)
        everyone = np.ones(len(self.clock.model.points), dtype=bool)
        points = float(self.problem.task.points.sum())
        if isinstance(ask, AskParity):
            extra = self.clock.answer(ask)
            before = setting.setup
            setting.setup = SetupTime(before.compute + extra.compute, extra.upload)
            inbox = Inbox(everyone, points, parity=self.evaluator.parity(ask, self.seed))
            setting.state = setting.scheme.receive(setting.state, inbox)
        elif isinstance(ask, AskGram):
            inbox = Inbox(everyone, points, gram=self.evaluator.gram())
            setting.state = setting.scheme.receive(setting.state, inbox)
            # This is its training: on the paper's clock too.
            self._record(setting, self.clock.answer(ask).seconds, np.inf, everyone)
            setting.metric.append(self._metrics([setting.state.model])[0])

    def run(self) -> Iterator[Progress]:
        """Play round after round."""
        while self.round < self.problem.task.rounds:
            # A step that is too large diverges: that is a result, not an error.
            with np.errstate(over="ignore", invalid="ignore"):
                self._play_round()
            self.round += 1
            yield Progress(self.round, self.problem.task.rounds, self.settings)

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

    def _arrivals(
        self, setting: Setting, ask: AskGradient | AskLocalModel, work: np.ndarray
    ) -> Mask:
        arrived, seconds = self.clock.round(ask.round, work, ask.wait)
        deadline = ask.wait.deadline if isinstance(ask.wait, Until) else np.inf
        self._record(setting, seconds, deadline, arrived)
        return arrived

    @staticmethod
    def _record(setting: Setting, seconds: float, deadline: float, arrived: Mask) -> None:
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
        fleet, chance = self.clock.model.fleet, self.clock.chance
        rounds = len(setting.arrived)
        points = self.problem.task.points[0].astype(np.float64)
        loads = points
        ask = setting.scheme.ask(replace(setting.state, round=0))
        if isinstance(ask, AskGradient):
            loads = ask.loads
        elif isinstance(ask, AskLocalModel):
            loads = ask.loads * ask.steps
        compute = loads / fleet.rate * (1 + chance.slowness[:rounds].mean(0) / fleet.alpha)
        link = fleet.packet_time + fleet.packet_time_up
        sent = chance.down[:rounds] * fleet.packet_time + chance.up[:rounds] * fleet.packet_time_up
        return {
            "client": fleet.client,
            "points": points,
            "load": np.asarray(loads, dtype=np.float64),
            "arrived_share": np.mean(setting.arrived, axis=0),
            "compute_s": compute,
            "link_s": link,
            "retransmission_s": sent.mean(0) - link,
            "setup_compute_s": setting.setup.compute,
            "setup_upload_s": setting.setup.upload,
        }
