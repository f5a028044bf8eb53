"""Networks on the clock: hours to three accuracies, each scheme at its best, all charged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.text import Text

from codedfedl.core.protocol import Scheme
from codedfedl.errors import InputError
from codedfedl.io.names import nearest
from codedfedl.report.comparison import three_digits, unit_for
from codedfedl.report.figures import BLUE, GREY, ORANGE, log_axis, new_figure
from codedfedl.report.outcome_tables import outcome_rows
from codedfedl.report.reading import Curve, curves
from codedfedl.report.results import Outcome, median_hours, written
from codedfedl.reproduce.reproduction import PAPER_DATASETS, Reproduction
from codedfedl.runs.config import Experiment
from codedfedl.schemes import make_scheme

TARGETS = {"mnist": (0.942, 0.97, 0.985), "fashion-mnist": (0.842, 0.86, 0.88)}
"""Accuracies whose hours are compared, by data set."""
FLEETS = ("paper", "phones")
LONGEST = 20.0
"""Rivals stop after this many times the hours of the fastest scheme at the second accuracy."""
_MARKS = ("o", "s", "D")  # of the three accuracies
_Case = tuple[str, str]  # a fleet and a data set


@dataclass(frozen=True, eq=False)
class _Setting:
    """One setting, and its outcome at each accuracy; the experiment's first scheme leads."""

    outcomes: Sequence[Outcome]
    leads: bool

    @cached_property
    def whole_scheme(self) -> Scheme:
        """The scheme, of all its phases."""
        return make_scheme(self.outcomes[0].scheme, self.outcomes[0].cell.scheme_settings)

    @property
    def scheme(self) -> Scheme:
        """The scheme, or that of the phase which trains a network."""
        return getattr(self.whole_scheme, "network_scheme", self.whole_scheme)

    @property
    def load(self) -> str:
        """How it is decided how much a client does."""
        if hasattr(self.scheme, "window"):
            return "window"
        if hasattr(self.scheme, "local_steps"):
            return "steps"
        return "all" if getattr(self.scheme, "load", None) is None else "equal"

    @property
    def least(self) -> int | None:
        """The fewest points behind an answer; None where it is over all that a client has."""
        names = {"window": "least", "steps": "points", "equal": "load"}
        return getattr(self.scheme, names.get(self.load, ""), None)

    @property
    def label(self) -> str:
        """What the picture calls it."""
        bits, least = self.scheme.message_bits, self.least
        words = [self.outcomes[0].scheme]
        words += [f"{bits} bits"] if bits < 32 else []
        words += [f"≥ {least} points"] if self.load == "window" and least and least > 1 else []
        return ", ".join(words)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for every accuracy."""
        facts = {"load": self.load, "bits": self.scheme.message_bits, "least": self.least}
        facts |= {"features": "tangent"} if self.scheme is not self.whole_scheme else {}
        return [
            row | {"model": outcome.cell.model} | facts
            for outcome, row in zip(self.outcomes, outcome_rows(self.outcomes), strict=True)
        ]


def deep(job: Reproduction) -> dict[str, Any]:
    """Run what is asked for, or everything; print the table and draw a picture for each fleet."""
    for name, given, known in (("fleet", job.fleet, FLEETS), ("dataset", job.dataset, TARGETS)):
        if given is not None and given not in known:
            raise InputError(f"--{name} {given}: {nearest(given, list(known))}")
    available = {name: name == job.dataset or job.has(name) for name in PAPER_DATASETS}
    cases = [
        (fleet, dataset)
        for fleet in ([job.fleet] if job.fleet else FLEETS)
        for dataset in ([job.dataset] if job.dataset else PAPER_DATASETS)
        if available[dataset]
    ]
    settings, rows = _played(job, cases), []
    for fleet, dataset in cases:
        rows += [row for setting in settings[fleet, dataset] for row in setting.rows()]
        job.show(Text(f"\n{dataset}, {fleet} fleet: hours, set-up charged", style="bold"))
        job.show(_table(settings[fleet, dataset]))
    for fleet in dict.fromkeys(fleet for fleet, _ in cases):
        panels = {dataset: known for (other, dataset), known in settings.items() if other == fleet}
        job.save_pictures(_figure(panels), f"deep-{fleet}")
    return {"rows": rows, "skipped": [name for name, known in available.items() if not known]}


def _played(job: Reproduction, cases: Sequence[_Case]) -> dict[_Case, list[_Setting]]:
    """Run the first scheme, then its rivals for as long as that says; each scheme by itself."""
    experiments = {case: job.built_in("deep-{1}-{0}".format(*case)) for case in cases}
    names = {case: _schemes(experiment) for case, experiment in experiments.items()}
    runs = _run(job, {case: {names[case][0]: experiments[case]} for case in cases})
    rivals = {}
    for case in cases:
        longest = _longest(experiments[case], runs[case], TARGETS[case[1]][1])
        rivals[case] = dict.fromkeys(names[case][1:], longest)
    others = _run(job, rivals)
    return {case: _compared(TARGETS[case[1]], runs[case], others[case]) for case in cases}


def _schemes(experiment: Experiment) -> list[str]:
    return list(dict.fromkeys(scheme.plain_name for scheme in experiment.schemes))


def _run(
    job: Reproduction, wanted: Mapping[_Case, Mapping[str, Experiment]]
) -> dict[_Case, list[list[Curve]]]:
    """Run the schemes of some experiments, every setting by itself; return its curves."""
    parts: dict[_Case, dict[str, Experiment]] = {}
    for (fleet, dataset), experiments in wanted.items():
        parts[fleet, dataset] = {
            f"deep-{dataset}-{fleet}-{name}" + (f"-{k}" if k else ""): experiment.model_copy(
                update={"schemes": [scheme]}
            )
            for name, experiment in experiments.items()
            for k, scheme in enumerate(s for s in experiment.schemes if s.plain_name == name)
        }
    done = job.run({folder: part for known in parts.values() for folder, part in known.items()})
    return {
        case: [seeds for folder in known for seeds in _by_setting(curves(done[folder]))]
        for case, known in parts.items()
    }


def _longest(experiment: Experiment, ours: Sequence[Sequence[Curve]], target: float) -> Experiment:
    """Return an experiment that ends after `LONGEST` times the soonest hours to a target."""
    hours = [
        max(met)
        for seeds in ours
        if None not in (met := [curve.clock_at(target, "total_hours") for curve in seeds])
    ]
    if not hours or experiment.training.hours is None:
        return experiment
    last = min(experiment.training.hours, LONGEST * min(hours))
    training = experiment.training.model_copy(update={"hours": last})
    return experiment.model_copy(update={"training": training})


def _compared(
    targets: Sequence[float], ours: Sequence[Sequence[Curve]], rivals: Sequence[Sequence[Curve]]
) -> list[_Setting]:
    """Return every setting, the soonest first; gains are over waiting for all."""
    every = [*ours, *rivals]
    reference = next((seeds for seeds in every if seeds[0].cell.baseline), every[0])
    settings = [
        _Setting([Outcome(target, seeds, reference) for target in targets], k < len(ours))
        for k, seeds in enumerate(every)
    ]
    return sorted(settings, key=_order)


def _by_setting(every: Sequence[Curve]) -> list[list[Curve]]:
    by_cell: dict[str, list[Curve]] = {}
    for curve in every:
        by_cell.setdefault(curve.cell.id, []).append(curve)
    return list(by_cell.values())


def _order(setting: _Setting) -> tuple[float, ...]:
    """Return the hours to the second accuracy, the first, and the last."""
    first, second, last = map(median_hours, setting.outcomes)
    return second, first, last


def _table(settings: Sequence[_Setting]) -> list[dict[str, Any]]:
    rows = []
    for setting in settings:
        row: dict[str, Any] = {
            "scheme": setting.label,
            "load": setting.load,
            "optimiser": setting.outcomes[0].cell.optimiser,
            "least": "" if setting.least is None else setting.least,
        }
        for outcome in setting.outcomes:
            hours = median_hours(outcome)
            row[written(outcome.metric, outcome.target)] = (
                "not met" if hours == np.inf else three_digits(hours)
            )
        final = setting.outcomes[0].final
        rows.append(row | {"final": written("accuracy", float(np.median(final)))})
    return rows


def _figure(panels: Mapping[str, Sequence[_Setting]]) -> Figure:
    """Draw every setting's hours to each accuracy, the soonest at the top; a panel per data set."""
    lines = max(len(settings) for settings in panels.values())
    with new_figure(6.4 * len(panels), 1.2 + 0.27 * lines) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for ax, (dataset, settings) in zip(axes, panels.items(), strict=True):
            _draw(ax, dataset, settings)
    return figure


def _draw(ax: Any, dataset: str, settings: Sequence[_Setting]) -> None:
    outcomes = [outcome for setting in settings for outcome in setting.outcomes]
    unit = unit_for(median_hours(outcome) for outcome in outcomes)
    small: dict[str, Any] = {"fontsize": 7, "va": "center"}
    longest = max(c.total_hours[-1] for s in settings for o in s.outcomes for c in o.seeds)
    for line, setting in enumerate(settings):
        colour = ORANGE if setting.leads else BLUE
        hours = [median_hours(outcome) * unit.per_hour for outcome in setting.outcomes]
        met = [t for t in hours if t < np.inf]
        ax.plot(met, [line] * len(met), color=colour, lw=2, alpha=0.35)
        for mark, time in zip(_MARKS, hours, strict=True):
            if time < np.inf:
                ax.plot([time], [line], mark, color=colour, ms=6, mec="white")
        if not met:
            limit = f"not within {three_digits(longest * unit.per_hour)} {unit.sign}"
            ax.text(0.98, line, limit, color=GREY, transform=_across(ax), ha="right", **small)
    for mark, target in zip(_MARKS, TARGETS[dataset], strict=True):
        ax.plot([], [], mark, color=GREY, label=f"{target:.1%}")
    ax.legend(title="accuracy", loc="lower left", fontsize=8)
    ax.set_yticks(range(len(settings)), [setting.label for setting in settings], fontsize=8)
    model = settings[0].outcomes[0].cell.model
    ax.set(
        ylim=(len(settings) - 0.4, -0.6),
        xlabel=f"{unit.name} to the accuracy, set-up charged",
        title=f"{dataset}, {model}: ours in orange",
    )
    ax.grid(axis="x", alpha=0.3)
    log_axis(ax)


def _across(ax: Any) -> Any:
    return ax.get_yaxis_transform()
