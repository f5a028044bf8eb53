"""The results of a run: hours to the target, on both clocks, and the gain over the reference."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp

from codedfedl.core.columns import FACTS, RUN_FACTS
from codedfedl.fleet.built_in import paper_result
from codedfedl.report.reading import Curve, RunTables
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.grid import RESULTS, KnownCell
from codedfedl.schemes import SCHEMES

_LEAST_PAIRS = 3  # seeds of which a test says something
_NINE_IN_TEN_ERRORS = 1.645  # Nine in ten errors are smaller than so many standard errors.
_ONE_POINT = 1.001  # test points: accuracies are rounded


@dataclass(frozen=True, eq=False)
class Outcome:
    """One setting over all seeds, against a reference; None stands for a target not met.

    Attributes
    ----------
    target
        ∞ without a target in the experiment, or exact ridge or a reference above chance to set one.
    seeds, reference_seeds
        The curves of the setting, and of the one that gains are over.
    target_source
        What set the target, in words; empty where somebody gave it.
    run
        The name of the run, where several are compared.
    """

    target: float
    seeds: Sequence[Curve]
    reference_seeds: Sequence[Curve]
    target_source: str = ""
    run: str = ""

    @property
    def cell(self) -> KnownCell:
        """What the run directory says of the setting."""
        return self.seeds[0].cell

    @property
    def setting(self) -> str:
        """What people call the setting."""
        return self._called(self.cell.label)

    @property
    def dataset(self) -> str:
        """What it was trained on."""
        return self.cell.dataset

    @property
    def scheme(self) -> str:
        """The scheme's name."""
        return self.cell.scheme

    @property
    def hours_interval(self) -> list[tuple[float | None, float | None]]:
        """Charged hours at which the metric passes the target less and plus 1.64 standard errors.

        The errors are those of the test set: with other test points the whole curve would lie
        higher or lower, in nine cases of ten by less. (None, None) if the metric is not a share.
        """
        return [self._interval(curve) for curve in self.seeds]

    def _interval(self, curve: Curve) -> tuple[float | None, float | None]:
        tested = curve.facts.get("test_points")
        if self.metric != "accuracy" or not tested or not 0 < self.target < 1:
            return None, None
        error = _NINE_IN_TEN_ERRORS * float(np.sqrt(self.target * (1 - self.target) / tested))
        low, high = (curve.clock_at(self.target + sign * error, "total_hours") for sign in (-1, 1))
        return low, high

    @property
    def metric(self) -> str:
        """``accuracy`` or ``R²``."""
        return self.seeds[0].metric_name

    @property
    def reference(self) -> str:
        """What people call the setting that gains are over."""
        return self._called(self.reference_seeds[0].setting)

    @property
    def reference_name(self) -> str:
        """What sentences about gains call the reference."""
        return self.reference_seeds[0].cell.baseline or self.reference

    @property
    def is_reference(self) -> bool:
        """Whether its gains would be over itself."""
        return self.cell.id == self.reference_seeds[0].cell.id

    @property
    def rounds(self) -> list[Any]:
        """Rounds to the target, per seed."""
        return [curve.clock_at(self.target, "rounds") for curve in self.seeds]

    @property
    def training_hours(self) -> list[float | None]:
        """Hours to the target without the set-up, per seed."""
        return [curve.clock_at(self.target, "training_hours") for curve in self.seeds]

    @property
    def total_hours(self) -> list[float | None]:
        """Hours to the target with the set-up charged, per seed."""
        return [curve.clock_at(self.target, "total_hours") for curve in self.seeds]

    @property
    def final(self) -> list[float]:
        """The metric in the end, per seed."""
        return [float(curve.metric[-1]) for curve in self.seeds]

    @property
    def by_seed(self) -> list[dict[str, Any]]:
        """A row for each seed, by the names in `runs.grid.RESULTS`."""
        names, seeds = (self.setting, self.scheme), [curve.seed for curve in self.seeds]
        each = (seeds, self.rounds, self.training_hours, self.total_hours, self.final)
        rows = zip(*each, strict=True)
        return [dict(zip(RESULTS, (*names, *values), strict=True)) for values in rows]

    @property
    def gain(self) -> float | None:
        """How many times sooner than the reference, on the paper's clock."""
        return self._gain("training_hours")

    @property
    def gain_total(self) -> float | None:
        """How many times sooner than the reference, with the set-up charged."""
        return self._gain("total_hours")

    @property
    def p_value(self) -> float | None:
        """Of a paired t-test over seeds, on the logarithm of charged hours, against the reference.

        Seeds share their luck, so pairs say more than two averages. None where there are fewer
        than three seeds, or one of them misses the target.
        """
        before = [curve.clock_at(self.target, "total_hours") for curve in self.reference_seeds]
        pairs = list(zip(self.total_hours, before, strict=False))
        if self.is_reference or len(pairs) < _LEAST_PAIRS or not all(a and b for a, b in pairs):
            return None
        ratios = np.log([a / b for a, b in pairs])
        if np.ptp(ratios) == 0:
            return None
        return float(ttest_1samp(ratios, 0.0).pvalue)

    @property
    def paper(self) -> tuple[float, float] | None:
        """Hours and gain in the paper's Table 1, where it has this setting."""
        if not self.cell.as_in_paper:
            return None
        return paper_result(self.dataset, self.scheme, self.cell.redundancy)

    @property
    def points_per_parity_row(self) -> float | None:
        """The fewest points behind a parity row, where there is parity."""
        mixing = [points for points in self.fact("points_per_parity_row") if points is not None]
        return min(mixing, default=None)

    @property
    def chance(self) -> float | None:
        """What a model without inputs would get."""
        return self.seeds[0].facts.get("chance")

    @property
    def above_chance(self) -> bool:
        """Whether it learned anything: in the end, or when it met a target above chance."""
        return _above_chance(self.target, self.seeds)

    @property
    def diverged(self) -> bool:
        """Whether a model is not finite."""
        return any(curve.facts.get("diverged") == 1 for curve in self.seeds)

    def fact(self, name: str) -> list[float | None]:
        """Return a fact, per seed."""
        return [curve.facts.get(name) for curve in self.seeds]

    @property
    def scheme_facts(self) -> dict[str, list[float | None]]:
        """Facts that no other part of a report shows, per seed: all that a user's scheme states."""
        shown = RUN_FACTS if self.scheme not in SCHEMES else (*FACTS, *RUN_FACTS)
        names = dict.fromkeys(name for curve in self.seeds for name in curve.facts)
        return {name: self.fact(name) for name in names if name not in shown}

    def _called(self, label: str) -> str:
        return f'{label} (run "{self.run}")' if self.run else label

    def _gain(self, clock: str) -> float | None:
        """Return the median of the reference's hours over ours; None if a seed lacks either.

        Without any training there is nothing to compare.
        """
        if not self.above_chance or not _above_chance(self.target, self.reference_seeds):
            return None
        references = {c.seed: c.clock_at(self.target, clock) for c in self.reference_seeds}
        pairs = [(c.clock_at(self.target, clock), references.get(c.seed)) for c in self.seeds]
        return median_of_all([b / a if a and b is not None else None for a, b in pairs])


def median_of_all(values: Sequence[float | None]) -> float | None:
    """Return the median; None where a seed has no value."""
    met = [value for value in values if value is not None]
    return float(np.median(met)) if len(met) == len(values) and met else None


def median_hours(outcome: Outcome, clock: str = "total_hours") -> float:
    """Return the median time to the target; ∞ where it is not met on every seed."""
    hours = median_of_all(getattr(outcome, clock))
    return np.inf if hours is None else hours


def written(metric: str, value: float) -> str:
    """Write a metric as people do: an accuracy in percent, R² as it is."""
    return f"{value:.2%}" if metric == "accuracy" else f"{value:.4f}"


def outcomes(directory: RunDirectory, target: float | None = None) -> list[Outcome]:
    """Summarise a run: one outcome per setting, gains as medians over seeds."""
    return outcomes_of(RunTables(directory), target)


def outcomes_of(tables: RunTables, target: float | None = None) -> list[Outcome]:
    """Summarise the tables of a run."""
    by_cell: dict[str, list[Curve]] = {}
    for curve in tables.curves:
        by_cell.setdefault(curve.cell.id, []).append(curve)
    every = [seeds[0].cell for seeds in by_cell.values()]
    summary = []
    for seeds in by_cell.values():
        cell = seeds[0].cell
        reference = by_cell[_reference([rival for rival in every if rival.group == cell.group]).id]
        goal, source = cell.target if target is None else target, ""
        if goal is None:
            goal, source = _automatic_target(reference)
        summary.append(Outcome(goal, seeds, reference, source))
    return summary


def _reference(rivals: Sequence[KnownCell]) -> KnownCell:
    """Return the cell that gains are over: a baseline in its plainest setting, or the first."""
    baselines = [cell for cell in rivals if cell.baseline]
    return min(baselines, key=lambda cell: len(cell.scheme_settings), default=rivals[0])


def _automatic_target(reference: Sequence[Curve]) -> tuple[float, str]:
    """Return 99% of the way from chance to exact ridge regression, on every seed.

    An accuracy may be one test point lower than exact ridge regression's: fewer say nothing.
    If a run does not know that, or it is not above chance, the final value of the reference takes
    its place. If that is not above chance either, the result is ∞: there is no target.
    """
    bound = max(curve.chance_bound for curve in reference)
    exact = [curve.facts.get("exact_metric", np.nan) for curve in reference]
    final = [float(curve.metric[-1]) for curve in reference]
    for metrics, source in (
        (exact, "exact ridge regression"),
        (final, f"the final value of {reference[0].setting}"),
    ):
        least = float(np.min(metrics))
        if np.isfinite(least) and least > bound:
            chance = reference[0].facts.get("chance", 0.0)
            tested = reference[0].facts.get("test_points") or np.inf
            point = _ONE_POINT / tested if reference[0].metric_name == "accuracy" else 0.0
            target = max(least - max(0.01 * abs(least - chance), point), bound)
            return target, f"99% of the way from chance to {source}"
    return np.inf, ""


def _above_chance(target: float, seeds: Sequence[Curve]) -> bool:
    """Say whether a setting learned anything: in the end, or when it met a target above chance.

    One that diverged may have met it on its way, and learned nothing.
    """
    if any(curve.facts.get("diverged") == 1 for curve in seeds):
        return False
    bound = max(curve.chance_bound for curve in seeds)
    met = all(curve.reaches(target) is not None for curve in seeds)
    final = np.median([curve.metric[-1] for curve in seeds])
    return bool(final > bound or (target > bound and met))
