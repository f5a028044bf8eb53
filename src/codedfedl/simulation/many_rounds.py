"""Several rounds of plain descent at once, for a GPU.

Where every round is a plain step on a mini-batch, who arrives in the rounds to come does not depend
on the models. So that is computed for some rounds ahead, and what they need goes to the device in
one copy. The device then steps through them with a dozen operations a round, whatever the number of
settings, and returns all test metrics in one copy. `Simulation._play` is the naive twin.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import array_namespace

from codedfedl.arrays import Array, FloatArray, asarray_like, to_host
from codedfedl.core.client import Gradient
from codedfedl.core.protocol import SUM, Ask
from codedfedl.core.record import Record
from codedfedl.learning.least_squares import Quadratic
from codedfedl.learning.metrics import accuracy, r_squared
from codedfedl.simulation.evaluate import Evaluator
from codedfedl.simulation.problem import Problem
from codedfedl.simulation.replayed import Replayed
from codedfedl.simulation.timeline import Exchanges

if TYPE_CHECKING:
    from codedfedl.simulation.setting import Setting

__all__ = ["ManyRounds", "Played"]

_EPOCHS, _PARTS = 10, 4  # epochs that are prepared together, and how often before metrics are read
_MODELS = 4000  # or fewer times, for so many models to be evaluated
_COLUMNS = 2048  # of predictions at a time


@dataclass(frozen=True, eq=False)
class Played:
    """Some rounds of a setting, and the metric after each."""

    setting: "Setting"
    exchanges: Sequence[Exchanges]
    metrics: Sequence[float]

    def records(self) -> Iterator[Record]:
        """Yield a record of each round."""
        metrics = iter(self.metrics)
        for some in self.exchanges:
            yield from some.records(metrics)


def is_steady(setting: "Setting", ask: Ask) -> bool:
    """Return whether rounds of a setting can be played ahead, of which this ask is the next."""
    work = type(ask.work) is Gradient and ask.combine is SUM and ask.server_work is None
    plain = work and not ask.setup and not ask.keep_late and ask.noise is None
    followed = setting.followed or not setting.timeline.has_embedded
    return plain and not followed and setting.scheme.is_steady(setting.state)


class ManyRounds:
    """Plays rounds ahead."""

    def __init__(self, problem: Problem, evaluator: Evaluator) -> None:
        self.problem, self.evaluator = problem, evaluator
        self._epochs: dict[tuple[Quadratic, ...], Replayed] = {}

    def of(self, asked: Sequence[tuple["Setting", Ask]]) -> list["Setting"]:
        """Return the settings that can go ahead together: all of them are at one round."""
        steady = [setting for setting, ask in asked if is_steady(setting, ask)]
        return [one for one in steady if _phase(one) == _phase(steady[0])]

    def play(self, settings: Sequence["Setting"]) -> list[Played]:
        """Play some rounds of all these settings.

        While the device works on some epochs, the host finds out who arrives in the next.
        """
        exchanges: list[list[Exchanges]] = []
        history: list[Array] = []
        cycles = [(setting.timeline, _cycle(setting)) for setting in settings]
        for rounds in _parts(settings):
            exchanges.append([timeline.exchanges(asks, rounds) for timeline, asks in cycles])
            before = history[-1][-1] if history else None
            history += self._models(settings, exchanges[-1], before)
        metrics, last = self._metrics(history), history[-1][-1]
        for s, setting in enumerate(settings):
            model = array_namespace(last).asarray(last[:, s, :], copy=True)
            setting.driver.advance(model, len(metrics))
        found = zip(settings, zip(*exchanges, strict=True), metrics.T.tolist(), strict=True)
        return [Played(setting, own, metric) for setting, own, metric in found]

    def _models(
        self, settings: Sequence["Setting"], exchanges: Sequence[Exchanges], before: Array
    ) -> Iterator[Array]:
        """Yield all models after each round of an epoch, shape (rounds, q, settings, c)."""
        first = [setting.state.model for setting in settings]
        xp = array_namespace(first[0])
        models = xp.stack(first, axis=1) if before is None else before
        cycle = [_batch(ask) for ask in exchanges[0].asks]
        missed = np.stack([own.missed for own in exchanges], axis=1)
        numbers = [cycle[k % len(cycle)] for k in range(len(missed))]
        missing = self.evaluator.stacked.missing(numbers, missed)
        steps = [_steps(setting, own) for setting, own in zip(settings, exchanges, strict=True)]
        kept, moved = (
            asarray_like(np.stack(part, axis=1)[:, :, None], models)
            for part in zip(*steps, strict=True)
        )
        epoch = self._epoch(cycle, exchanges)
        for k in range(0, len(numbers), len(cycle)):
            some = slice(k, k + len(cycle))
            parts = (*missing.of(some), kept[some], moved[some])
            history = xp.asarray(epoch(models, *parts), copy=True)
            yield history
            models = history[-1]

    def _epoch(self, cycle: Sequence[int], exchanges: Sequence[Exchanges]) -> Replayed:
        """Return the steps over an epoch, as a function of the models and of who is missing."""
        stacked = self.evaluator.stacked
        quadratics = tuple(
            stacked.quadratic([self._quadratic(own, k) for own in exchanges])
            for k in range(len(cycle))
        )

        def steps(models: Array, rows: Array, counted: Array, kept: Array, moved: Array) -> Array:
            found = []
            for k in range(rows.shape[0]):
                parts = (quadratics[k], cycle[k], models, rows[k], counted[k])
                models = kept[k] * models - moved[k] * stacked.gradient(*parts)
                found.append(models)
            return array_namespace(models).stack(found)

        if quadratics not in self._epochs:
            self._epochs[quadratics] = Replayed(steps)
        return self._epochs[quadratics]

    def _quadratic(self, exchanges: Exchanges, place: int) -> Quadratic:
        """Return that of all points that an ask is about."""
        ask, loads = exchanges.asks[place], exchanges.loads[place]
        return self.evaluator.grams.of(_batch(ask), loads, ask.adds)

    def _metrics(self, history: Sequence[Array]) -> FloatArray:
        """Return the metric of all models, shape (rounds, settings)."""
        problem, (_, q, settings, c) = self.problem, history[0].shape
        xp = array_namespace(history[0])
        models = xp.concat(list(history), axis=0)
        models = xp.reshape(xp.permute_dims(models, (1, 0, 2, 3)), (q, -1, c))
        at_once, found = max(1, _COLUMNS // c), []
        for k in range(0, models.shape[1], at_once):
            some = models[:, k : k + at_once, :]
            product = problem.test_features @ xp.reshape(some, (q, -1))
            predictions = xp.reshape(product, (-1, some.shape[1], c))
            if problem.test_classes is not None:
                found.append(accuracy(predictions, problem.test_classes))
            else:
                found.append(r_squared(predictions, problem.test_targets))
        return to_host(xp.concat(found)).astype(np.float64).reshape(-1, settings)


def _phase(setting: "Setting") -> tuple[int, int]:
    return setting.state.round, setting.state.task.batches


def _parts(settings: Sequence["Setting"]) -> Iterator[range]:
    """Yield the next rounds, some epochs at a time."""
    first, batches = settings[0].driver.played, settings[0].state.task.batches
    left = min(
        min(one.driver.rounds - one.driver.played, one.state.task.rounds - one.state.round)
        for one in settings
    )
    parts = max(min(_PARTS, _MODELS // (len(settings) * _EPOCHS * batches)), 1)
    end, part = first + min(left, parts * _EPOCHS * batches), _EPOCHS * batches
    for start in range(first, end, part):
        yield range(start, min(start + part, end))


def _cycle(setting: "Setting") -> list[Ask]:
    """Return the asks of the next epoch."""
    state = setting.state
    left = range(min(state.task.batches, state.task.rounds - state.round))
    asks = [setting.scheme.ask(replace(state, round=state.round + k)) for k in left]
    return [ask for ask in asks if ask is not None]


def _batch(ask: Ask) -> int:
    assert isinstance(ask.work, Gradient)
    return ask.work.batch


def _steps(setting: "Setting", exchanges: Exchanges) -> tuple[FloatArray, FloatArray]:
    """Return what `learning.optimisers.step` multiplies a model and a sum by, shape (rounds,)."""
    task, asks = setting.state.task, exchanges.asks
    rounds = np.array(exchanges.rounds) + setting.state.round - setting.driver.played
    epochs = rounds // task.batches
    sizes = np.array([task.schedule.at(epoch) for epoch in range(epochs[0], epochs[-1] + 1)])
    sizes = sizes[epochs - epochs[0]]
    points = exchanges.points.astype(np.float64)
    for k, ask in enumerate(asks):
        some = slice(k, None, len(asks))
        points[some] = setting.scheme.divisor(task, _batch(ask), points[some])
    there = points > 0  # otherwise nobody answered, and the model stays
    kept = np.where(there, 1 - sizes * task.ridge, 1.0)
    moved = np.where(there, sizes / np.maximum(points, 1.0), 0.0)
    return kept.astype(np.float32), moved.astype(np.float32)
