"""What came of a run: hours to the target, on both clocks, and the gain over waiting for all."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet

from codedfedl.errors import InputError
from codedfedl.fleet.paper import paper_result
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.grid import cells

__all__ = [
    "Curve",
    "Outcome",
    "curves",
    "median_of_all",
    "outcomes",
    "read_columns",
    "written",
]


@dataclass(frozen=True, eq=False)
class Curve:
    """One setting of one seed, round after round; `group` says what it shares with its rivals."""

    setting: str
    group: str
    scheme: str
    redundancy: float | None
    seed: int
    rounds: npt.NDArray[np.int64]
    training_hours: npt.NDArray[np.float64]
    total_hours: npt.NDArray[np.float64]
    arrived: npt.NDArray[np.int64]
    metric: npt.NDArray[np.float64]
    metric_name: str
    excess: npt.NDArray[np.float64]
    as_in_paper: bool
    facts: dict[str, float]

    @property
    def chance_bound(self) -> float:
        """What is clearly above chance: more than chance and three standard errors of the test set.

        For R² that is 0; of a run that does not say what chance gives, everything is above it.
        """
        chance, tested = self.facts.get("chance"), self.facts.get("test_points")
        if chance is None or tested is None:
            return -np.inf
        return chance + 3 * float(np.sqrt(chance * (1 - chance) / tested))

    @property
    def excess_at_plan(self) -> float | None:
        """Excess of the objective when the plan said it would be done, or in the end."""
        planned = self.facts.get("predicted_hours", np.inf)
        there = np.flatnonzero(self.total_hours <= planned * (1 + 1e-9))
        value = self.excess[there[-1]] if len(there) else np.nan
        return None if np.isnan(value) else float(value)

    def at(self, hours: float) -> float | None:
        """Return the metric of the last model that is there after so many hours, set-up charged."""
        there = np.flatnonzero(self.total_hours <= hours * (1 + 1e-9))
        return float(self.metric[there[-1]]) if len(there) else None

    def reaches(self, target: float) -> int | None:
        """Return the place of the first round at which the target is met."""
        met = np.flatnonzero(self.metric >= target)
        return int(met[0]) if len(met) else None


@dataclass(frozen=True)
class Outcome:
    """One setting over all seeds; None stands for a target that was not met.

    Without a target in the experiment or a reference above chance to set one, `target` is ∞.
    """

    dataset: str
    setting: str
    scheme: str
    redundancy: float | None
    target: float
    metric: str
    rounds: list[int | None]
    training_hours: list[float | None]
    total_hours: list[float | None]
    final: list[float]
    gain: float | None
    gain_total: float | None
    reference: str
    paper_hours: float | None
    paper_gain: float | None
    points_per_parity_row: float | None
    unrepresented_points: list[float | None]
    excess: list[float | None]
    planned_excess: list[float | None]
    planned_hours: list[float | None]
    predicted_excess: list[float | None]
    predicted_hours: list[float | None]
    predicted_start_loss: list[float | None]
    start_loss: list[float | None]
    chance: float | None = None
    above_chance: bool = True
    diverged: bool = False

    @property
    def reference_name(self) -> str:
        """Whom the gain is over."""
        return "waiting for all" if self.reference.startswith("uncoded") else self.reference


def median_of_all(values: Sequence[float | None]) -> float | None:
    """Return the median; None where a seed has no value."""
    met = [value for value in values if value is not None]
    return float(np.median(met)) if len(met) == len(values) and met else None


def written(metric: str, value: float) -> str:
    """Write a metric as people do: an accuracy in percent, R² as it is."""
    return f"{value:.2%}" if metric == "accuracy" else f"{value:.4f}"


def read_columns(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read a table of a run directory."""
    if not path.is_file():
        raise InputError(f"{path} is not there: the run is not finished; go on with --resume")
    table = pyarrow.parquet.read_table(path)
    return {name: table[name].to_numpy() for name in table.column_names}


def curves(directory: RunDirectory) -> list[Curve]:
    """Read what happened in every round."""
    columns = read_columns(directory.path / "rounds.parquet")
    keys = list(zip(columns["setting"], columns["seed"], strict=True))
    facts = _facts(directory)
    found = []
    for setting, seed in dict.fromkeys(keys):
        rows = np.flatnonzero((columns["setting"] == setting) & (columns["seed"] == seed))
        redundancy = float(columns["redundancy"][rows[0]])
        found.append(
            Curve(
                setting=str(setting),
                group=str(columns["group"][rows[0]]) if "group" in columns else "",
                scheme=str(columns["scheme"][rows[0]]),
                redundancy=None if np.isnan(redundancy) else redundancy,
                seed=int(seed),
                rounds=columns["round"][rows],
                training_hours=columns["training_hours"][rows],
                total_hours=columns["total_hours"][rows],
                arrived=columns["arrived"][rows],
                metric=columns["metric"][rows],
                metric_name=str(columns["metric_name"][rows[0]]),
                excess=columns["excess"][rows],
                as_in_paper=bool(columns["as_in_paper"][rows[0]]),
                facts=facts[str(setting), int(seed)],
            )
        )
    return found


def _facts(directory: RunDirectory) -> dict[tuple[str, int], dict[str, float]]:
    """Read what was planned and predicted for every setting and seed, where it applies."""
    columns = read_columns(directory.path / "settings.parquet")
    numbers = [name for name, values in columns.items() if values.dtype.kind == "f"]
    return {
        (str(setting), int(seed)): {
            name: float(columns[name][row]) for name in numbers if not np.isnan(columns[name][row])
        }
        for row, (setting, seed) in enumerate(zip(columns["setting"], columns["seed"], strict=True))
    }


def outcomes(directory: RunDirectory, target: float | None = None) -> list[Outcome]:
    """Summarise a run: one outcome per setting, gains as medians over seeds."""
    experiment = directory.experiment()
    own = {cell.label: cell.experiment for cell in cells(experiment)}
    by_setting: dict[str, list[Curve]] = {}
    groups: dict[str, list[Curve]] = {}
    for curve in curves(directory):
        by_setting.setdefault(curve.setting, []).append(curve)
        groups.setdefault(curve.group, []).append(curve)
    references = {group: _reference(rivals) for group, rivals in groups.items()}
    found = []
    for setting, seeds in by_setting.items():
        config = own.get(setting, experiment)
        reference = references[seeds[0].group]
        wanted = config.training.target if target is None else target
        wanted = _reached(reference) if wanted is None else wanted
        found.append(_outcome(config.data.name, wanted, seeds, reference))
    return found


def _reference(rivals: Sequence[Curve]) -> list[Curve]:
    """Return the curves of `uncoded`, or of the first setting where there is none."""
    group = rivals[0].group
    waiting = ", ".join(word for word in ("uncoded", group) if word)
    name = waiting if any(curve.setting == waiting for curve in rivals) else rivals[0].setting
    return [curve for curve in rivals if curve.setting == name]


def _reached(reference: Sequence[Curve]) -> float:
    """Return what the reference reaches in the end on every seed, less a little.

    It is ∞ where the reference diverged or is not above chance: that is no target.
    """
    final = float(min(curve.metric[-1] for curve in reference))
    bound = max(curve.chance_bound for curve in reference)
    if not np.isfinite(final) or final <= bound:
        return np.inf
    return max(final - 0.01 * abs(final), bound)


def _above_chance(target: float, seeds: Sequence[Curve]) -> bool:
    """Say whether a setting learned anything: in the end, or when it met a target above chance."""
    bound = max(curve.chance_bound for curve in seeds)
    met = all(curve.reaches(target) is not None for curve in seeds)
    return bool(
        np.median([curve.metric[-1] for curve in seeds]) > bound or (target > bound and met)
    )


def _outcome(
    dataset: str, target: float, seeds: Sequence[Curve], reference: Sequence[Curve]
) -> Outcome:
    first = seeds[0]
    met = [curve.reaches(target) for curve in seeds]

    def at(values: Sequence[npt.NDArray[Any]]) -> list[Any]:
        return [None if k is None else v[k].item() for v, k in zip(values, met, strict=True)]

    paper = None
    if first.as_in_paper:
        paper = paper_result(dataset, first.scheme, first.redundancy)

    def fact(name: str) -> list[float | None]:
        return [curve.facts.get(name) for curve in seeds]

    above = _above_chance(target, seeds)
    compared = above and _above_chance(target, reference)
    mixing = [points for points in fact("points_per_parity_row") if points is not None]
    return Outcome(
        dataset=dataset,
        setting=first.setting,
        scheme=first.scheme,
        redundancy=first.redundancy,
        target=target,
        metric=first.metric_name,
        rounds=at([curve.rounds for curve in seeds]),
        training_hours=at([curve.training_hours for curve in seeds]),
        total_hours=at([curve.total_hours for curve in seeds]),
        final=[float(curve.metric[-1]) for curve in seeds],
        gain=_gain(target, seeds, reference, "training_hours") if compared else None,
        gain_total=_gain(target, seeds, reference, "total_hours") if compared else None,
        reference=reference[0].setting,
        paper_hours=paper[0] if paper else None,
        paper_gain=paper[1] if paper else None,
        points_per_parity_row=min(mixing) if mixing else None,
        unrepresented_points=fact("unrepresented_points"),
        excess=[curve.excess_at_plan for curve in seeds],
        planned_excess=fact("planned_excess"),
        planned_hours=fact("planned_hours"),
        predicted_excess=fact("predicted_excess"),
        predicted_hours=fact("predicted_hours"),
        predicted_start_loss=fact("predicted_start_loss"),
        start_loss=fact("start_loss"),
        chance=first.facts.get("chance"),
        above_chance=above,
        diverged=any(curve.facts.get("diverged") == 1 for curve in seeds),
    )


def _gain(
    target: float, seeds: Sequence[Curve], reference: Sequence[Curve], clock: str
) -> float | None:
    """Median of the reference's hours over ours, of the same seed; None if a seed lacks either."""
    ratios = []
    for ours in seeds:
        theirs = next((curve for curve in reference if curve.seed == ours.seed), None)
        place = ours.reaches(target)
        reference_place = None if theirs is None else theirs.reaches(target)
        if theirs is None or place is None or reference_place is None:
            return None
        hours = float(getattr(ours, clock)[place])
        if hours == 0:  # no training at all: nothing to compare
            return None
        ratios.append(float(getattr(theirs, clock)[reference_place]) / hours)
    return float(np.median(ratios))
