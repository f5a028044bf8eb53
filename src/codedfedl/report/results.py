"""The results of a run: hours to the target, on both clocks, and the gain over the reference."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from codedfedl.core.columns import FACTS, RUN_FACTS
from codedfedl.fleet.built_in import paper_result
from codedfedl.report.reading import Curve, RunTables
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.grid import KnownCell
from codedfedl.schemes import SCHEMES

__all__ = ["Outcome", "median_of_all", "outcomes", "outcomes_of", "written"]

_NINE_IN_TEN_ERRORS = 1.645  # Nine in ten errors are smaller than so many standard errors.


@dataclass(frozen=True, eq=False)
class Outcome:
    """One setting over all seeds, against a reference; None stands for a target not met.

    Attributes
    ----------
    target
        ∞ without a target in the experiment, or exact ridge or a reference above chance to set one.
    target_source
        What set the target, in words; empty where somebody gave it.
    reference_baseline
        What the reference is called as a baseline; empty if it is not one.
    seeds, reference_seeds
        The curves of the setting, and of the one that gains are over.
    run
        The name of the run, where several are compared.
    known
        What the run directory says of the setting; None in some runs of earlier versions.
    """

    dataset: str
    target: float
    seeds: Sequence[Curve]
    reference_seeds: Sequence[Curve]
    run: str = ""
    known: KnownCell | None = None
    target_source: str = ""
    reference_baseline: str = ""

    @property
    def cell(self) -> str:
        """The setting's id."""
        return self.seeds[0].cell

    @property
    def setting(self) -> str:
        """What people call the setting."""
        return self._called(self.seeds[0])

    @property
    def scheme(self) -> str:
        """The scheme's name."""
        return self.seeds[0].scheme

    @property
    def features(self) -> str | None:
        """The kind of its feature map."""
        return None if self.known is None else self.known.features

    @property
    def fleet(self) -> str | None:
        """The fleet that it ran on."""
        return None if self.known is None else self.known.fleet

    @property
    def optimiser(self) -> str | None:
        """Its optimiser: the setting of that name, or the scheme's own."""
        return None if self.known is None else self.known.optimiser

    @property
    def disclosure(self) -> list[str]:
        """What leaves a client, the most telling first; nothing if it is not known."""
        return [] if self.known is None else self.known.disclosure

    @property
    def baseline(self) -> str:
        """What it is called as a baseline of gains; empty if it is not one."""
        return "" if self.known is None else self.known.baseline

    @cached_property
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
        places = [curve.reaches(self.target + sign * error) for sign in (-1, 1)]
        low, high = (None if at is None else float(curve.total_hours[at]) for at in places)
        return low, high

    @property
    def metric(self) -> str:
        """``accuracy`` or ``R²``."""
        return self.seeds[0].metric_name

    @property
    def reference(self) -> str:
        """What people call the setting that gains are over."""
        return self._called(self.reference_seeds[0])

    @property
    def reference_name(self) -> str:
        """What sentences about gains call the reference."""
        return self.reference_baseline or self.reference

    @property
    def is_reference(self) -> bool:
        """Whether its gains would be over itself."""
        return self.cell == self.reference_seeds[0].cell

    @cached_property
    def rounds(self) -> list[int | None]:
        """Rounds to the target, per seed."""
        return self._at_target("rounds")

    @cached_property
    def training_hours(self) -> list[float | None]:
        """Hours to the target without the set-up, per seed."""
        return self._at_target("training_hours")

    @cached_property
    def total_hours(self) -> list[float | None]:
        """Hours to the target with the set-up charged, per seed."""
        return self._at_target("total_hours")

    @property
    def final(self) -> list[float]:
        """The metric in the end, per seed."""
        return [float(curve.metric[-1]) for curve in self.seeds]

    @cached_property
    def gain(self) -> float | None:
        """How many times sooner than the reference, on the paper's clock."""
        return self._gain("training_hours")

    @cached_property
    def gain_total(self) -> float | None:
        """How many times sooner than the reference, with the set-up charged."""
        return self._gain("total_hours")

    @property
    def paper(self) -> tuple[float, float] | None:
        """Hours and gain in the paper's Table 1, where it has this setting."""
        first = self.seeds[0]
        if not first.as_in_paper:
            return None
        return paper_result(self.dataset, first.scheme, first.redundancy)

    @property
    def points_per_parity_row(self) -> float | None:
        """The fewest points behind a parity row, where there is parity."""
        mixing = [points for points in self.fact("points_per_parity_row") if points is not None]
        return min(mixing, default=None)

    @property
    def chance(self) -> float | None:
        """What a model without inputs would get."""
        return self.seeds[0].facts.get("chance")

    @cached_property
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
        """Facts that no other part of a report shows, per seed: all that an own scheme states."""
        shown = RUN_FACTS if self.scheme not in SCHEMES else (*FACTS, *RUN_FACTS)
        names = dict.fromkeys(name for curve in self.seeds for name in curve.facts)
        return {name: self.fact(name) for name in names if name not in shown}

    def _called(self, curve: Curve) -> str:
        return f'{curve.setting} (run "{self.run}")' if self.run else curve.setting

    def _at_target(self, clock: str) -> list[Any]:
        return [_time(curve, self.target, clock) for curve in self.seeds]

    def _gain(self, clock: str) -> float | None:
        """Return the median of the reference's hours over ours; None if a seed lacks either."""
        if not self.above_chance or not _above_chance(self.target, self.reference_seeds):
            return None
        references = {curve.seed: curve for curve in self.reference_seeds}
        ratios = []
        for ours in self.seeds:
            theirs = references.get(ours.seed)
            times = [
                None if curve is None else _time(curve, self.target, clock)
                for curve in (ours, theirs)
            ]
            if not times[0] or times[1] is None:  # without any training there is nothing to compare
                return None
            ratios.append(times[1] / times[0])
        return float(np.median(ratios))


def _time(curve: Curve, target: float, clock: str) -> Any:
    """Return what a clock shows when the target is met, if it is."""
    round_ = curve.reaches(target)
    return None if round_ is None else getattr(curve, clock)[round_].item()


def median_of_all(values: Sequence[float | None]) -> float | None:
    """Return the median; None where a seed has no value."""
    met = [value for value in values if value is not None]
    return float(np.median(met)) if len(met) == len(values) and met else None


def written(metric: str, value: float) -> str:
    """Write a metric as people do: an accuracy in percent, R² as it is."""
    return f"{value:.2%}" if metric == "accuracy" else f"{value:.4f}"


def outcomes(directory: RunDirectory, target: float | None = None) -> list[Outcome]:
    """Summarise a run: one outcome per setting, gains as medians over seeds."""
    return outcomes_of(RunTables(directory), target)


def outcomes_of(tables: RunTables, target: float | None = None) -> list[Outcome]:
    """Summarise the tables of a run."""
    by_cell: dict[str, list[Curve]] = {}
    groups: dict[str, list[Curve]] = {}
    for curve in tables.curves():
        by_cell.setdefault(curve.cell, []).append(curve)
        groups.setdefault(curve.group, []).append(curve)
    references = {group: _reference(rivals, tables) for group, rivals in groups.items()}
    summary = []
    for cell, seeds in by_cell.items():
        known, where = tables.cells.get(cell), references[seeds[0].group]
        compared = tables.cells.get(where)
        planned = tables.experiment.training.target if known is None else known.target
        goal, source = planned if target is None else target, ""
        if goal is None:
            goal, source = _automatic_target(by_cell[where])
        outcome = Outcome(
            dataset=tables.experiment.data.name if known is None else known.dataset,
            target=goal,
            seeds=seeds,
            reference_seeds=by_cell[where],
            known=known,
            target_source=source,
            reference_baseline="" if compared is None else compared.baseline,
        )
        summary.append(outcome)
    return summary


def _reference(rivals: Sequence[Curve], tables: RunTables) -> str:
    """Return the cell that gains are over: a baseline in its plainest setting, or the first."""
    known = {curve.cell: tables.cells.get(curve.cell) for curve in rivals}
    baselines = [cell for cell in known.values() if cell is not None and cell.baseline]
    plainest = min(baselines, key=lambda cell: len(cell.scheme_settings), default=None)
    return rivals[0].cell if plainest is None else plainest.id


def _automatic_target(reference: Sequence[Curve]) -> tuple[float, str]:
    """Return 99% of the way from chance to exact ridge regression, on every seed.

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
            return max(
                least - 0.01 * abs(least - chance), bound
            ), f"99% of the way from chance to {source}"
    return np.inf, ""


def _above_chance(target: float, seeds: Sequence[Curve]) -> bool:
    """Say whether a setting learned anything: in the end, or when it met a target above chance.

    One that diverged may have met it on its way, and learned nothing.
    """
    if any(curve.facts.get("diverged") == 1 for curve in seeds):
        return False
    bound = max(curve.chance_bound for curve in seeds)
    met = all(curve.reaches(target) is not None for curve in seeds)
    return bool(
        np.median([curve.metric[-1] for curve in seeds]) > bound or (target > bound and met)
    )
