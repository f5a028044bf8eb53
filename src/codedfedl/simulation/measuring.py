"""What the models are worth on the test points, after every round."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from codedfedl.arrays import Array
from codedfedl.learning.metrics import accuracy, r_squared
from codedfedl.simulation.evaluate import stacked_predictions
from codedfedl.simulation.problem import Problem
from codedfedl.simulation.scoring import Scores

if TYPE_CHECKING:
    from codedfedl.simulation.setting import Setting

__all__ = ["Measuring"]


class Measuring:
    """Gives records their metric: at once, or together with those of the next rounds.

    Attributes
    ----------
    waiting
        Settings with the place of a record that has no metric yet, and its model.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.waiting: list[tuple[Setting, int, Array]] = []
        self._scores = Scores.of(problem)

    def add(self, settings: Sequence["Setting"]) -> None:
        """Take the last records of some settings, where these have a model."""
        some = [setting for setting in settings if setting.records[-1].has_model]
        if self._scores is not None:
            self.waiting += [(one, len(one.records) - 1, one.state.model) for one in some]
        elif some:
            metrics = self.metrics([setting.state.model for setting in some])
            for setting, metric in zip(some, metrics, strict=True):
                setting.records[-1] = replace(setting.records[-1], metric=metric)

    def finish(self) -> None:
        """Give all records that wait their metric."""
        if self._scores is None:
            return
        models: dict[str, list[Array]] = {}
        for setting, _, model in self.waiting:
            models.setdefault(setting.label, []).append(model)
        found = {key: iter(own) for key, own in self._scores.accuracies(models).items()}
        for setting, place, _ in self.waiting:
            metric = next(found[setting.label])
            setting.records[place] = replace(setting.records[place], metric=metric)
        self.waiting = []

    def metrics(self, models: Sequence[Array]) -> Array:
        """Return the accuracy or R² of models, all in one product."""
        problem = self.problem
        predictions = stacked_predictions(problem.test_features, models)
        if problem.test_classes is not None:
            return accuracy(predictions, problem.test_classes)
        return r_squared(predictions, problem.test_targets)
