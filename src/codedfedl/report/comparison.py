"""Who won, by how much and on which clock, in sentences; and what several runs do differently."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from codedfedl.core.columns import POOLED
from codedfedl.report.results import Outcome, median_hours, median_of_all, written
from codedfedl.runs.config import Experiment, flattened

CLOCKS = {"training_hours": "training alone", "total_hours": "set-up charged"}
"""The two clocks, and what each of them counts."""

_SAME_TIME_SHARE = 0.005  # Times that differ by a smaller share are called the same.
_SIMILAR_TIME_SHARE = 0.05  # Runs that differ by a smaller share are called about as fast.


@dataclass(frozen=True)
class Unit:
    """A unit of time: its sign, its name, and how many of it are an hour."""

    sign: str
    name: str
    per_hour: float


UNITS = (Unit("h", "hours", 1.0), Unit("min", "minutes", 60.0), Unit("s", "seconds", 3600.0))
"""The longest first."""
_MIN_UNITS = 1.5  # With fewer of a unit, times are written in the next smaller one.


def unit_for(hours: Iterable[float]) -> Unit:
    """Choose the unit in which most of some times are neither tiny nor huge: by their middle.

    Examples
    --------
    >>> unit_for([0.01, 0.5, 2.6]).name
    'minutes'
    """
    known = [hour for hour in hours if 0 < hour < np.inf]
    if not known:
        return UNITS[0]
    middle = float(np.exp(np.median(np.log(known))))
    return next((unit for unit in UNITS if middle * unit.per_hour >= _MIN_UNITS), UNITS[-1])


def three_digits(value: float) -> str:
    """Write a number as briefly as its reader needs it."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def span(hours: float) -> str:
    """Write a time in the unit that people would take."""
    unit = next((unit for unit in UNITS if hours * unit.per_hour >= 1), UNITS[-1])
    return f"{three_digits(hours * unit.per_hour)} {unit.sign}"


def best(outcomes: Sequence[Outcome], clock: str) -> Outcome | None:
    """Return the setting with the smallest median time that met the target on every seed, or None.

    A setting that is not above chance does not count.
    """
    met = [o for o in outcomes if median_hours(o, clock) < np.inf and o.above_chance]
    return min(met, key=lambda o: median_hours(o, clock), default=None)


def races(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Group outcomes by their data and target: others cannot be compared."""
    groups: dict[tuple[str, float], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.dataset, outcome.target), []).append(outcome)
    return list(groups.values())


def verdict(outcomes: Sequence[Outcome]) -> list[str]:
    """Say on each clock which setting is best, and how much sooner it is than waiting for all."""
    sentences = []
    every = races(outcomes)
    for race in every:
        target = race[0].target
        aim = f", to {written(race[0].metric, target)}" if np.isfinite(target) else ""
        goal = f"On {race[0].dataset}{aim}: " if len(every) > 1 else ""
        said = (*_verdict(race), *_limit(race), *_pooled(race))
        sentences += [goal + sentence for sentence in said]
    return sentences


def _limit(race: Sequence[Outcome]) -> list[str]:
    """Say how long the reference waits in a round for clients that may be absent."""
    reference = race[0].reference_seeds[0]
    seconds = reference.facts.get("limit_s")
    if not seconds:
        return []
    return [f"Clients may be absent: {reference.setting} waits up to {seconds:.3g} s in a round."]


def _pooled(race: Sequence[Outcome]) -> list[str]:
    """Say what models reach on all points in one place, and what the best setting has."""
    first, metric = race[0], race[0].metric
    known = {name: median_of_all(first.fact(name)) for name in POOLED}
    words = [f"{POOLED[n]} has {written(metric, v)}" for n, v in known.items() if v is not None]
    if not words:
        return []
    leader = max(race, key=lambda outcome: float(np.median(outcome.final)))
    reached = written(metric, float(np.median(leader.final)))
    return [f"On all points in one place, {', '.join(words)}; {leader.setting} ends at {reached}."]


def _verdict(race: Sequence[Outcome]) -> list[str]:
    if not any(o.above_chance for o in race):
        return [_nothing_learned(race)]
    if not np.isfinite(race[0].target):
        return [
            f"There is no target: neither exact ridge regression nor {race[0].reference}, which "
            "set it by default, is above chance. Give training.target, or lower training.step."
        ]
    sentences = []
    for clock, name in CLOCKS.items():
        first = best(race, clock)
        if first is None:
            return ["No setting met the target on every seed."]
        hours = median_hours(first, clock)
        took = f"in {span(hours)}" if hours else "before any round, with its first model"
        gain = first.gain if clock == "training_hours" else first.gain_total
        goal = f"{first.metric} {written(first.metric, first.target)}"
        if len(race) == 1:
            sentences.append(f"With {name}, {first.setting} reaches {goal} {took}.")
            continue
        versus = ""
        if gain is not None and not first.is_reference:
            versus = f": {_times(gain)} {first.reference_name}"
        sentences.append(f"With {name}, {first.setting} reaches the target first, {took}{versus}.")
    return sentences


def _nothing_learned(race: Sequence[Outcome]) -> str:
    """Say that nobody is first, and what to try."""
    metric, chance = race[0].metric, race[0].chance or 0.0
    finals = [value for o in race for value in o.final if np.isfinite(value)]
    if all(o.diverged for o in race) or not finals:
        return (
            "Every setting diverged, so no winner is declared: lower training.step, or leave it at "
            '"auto".'
        )
    guess = "the most frequent class" if metric == "accuracy" else "the mean"
    return (
        f"No setting is clearly above chance: the best {metric} is {written(metric, max(finals))}, "
        f"and always answering {guess} gives {written(metric, chance)}. No winner is declared: "
        'leave training.step and features.sigma at "auto", train for more epochs, or check that '
        "the inputs say something about the label."
    )


def _times(gain: float) -> str:
    much, word = (gain, "sooner") if gain >= 1 else (1 / gain, "later")
    return f"{much:,.{0 if much >= 100 else 1}f} times {word} than"


def configuration_diff(experiments: Sequence[Experiment]) -> list[dict[str, Any]]:
    """Return the keys whose values differ between runs, and the value of each run in words."""
    flat = [_flat(experiment) for experiment in experiments]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    rows = [{"key": key, "values": [settings.get(key, "–") for settings in flat]} for key in keys]
    return [row for row in rows if len(set(row["values"])) > 1]


def _flat(experiment: Experiment) -> dict[str, str]:
    """Return an experiment by dotted keys, its schemes by their labels."""
    document = experiment.model_dump(exclude={"title", "schemes"}, exclude_none=True)
    labels = [scheme.labelled(scheme.name) for scheme in experiment.schemes]
    flat = {key: _in_words(value) for key, value in flattened(document).items()}
    return flat | {"schemes": ", ".join(labels)}


def _in_words(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_in_words(entry) for entry in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def change(first: Outcome | None, other: Outcome) -> str:
    """Say how much longer or shorter a setting takes to the target than in the first run."""
    if first is None:
        return "only here"
    before, after = median_hours(first), median_hours(other)
    if before == np.inf:
        return "met in neither" if after == np.inf else "met only here"
    return "no longer met" if after == np.inf else _ratio(before, after, ("× longer", "× shorter"))


def changes_sentence(runs: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """Say in a sentence per run, by its name, how its fastest setting compares with the first's."""
    (name, first), *others = runs.items()
    if len(races([o for outcomes in runs.values() for o in outcomes])) > 1:
        return ["The runs differ in data or target, so their times are not compared."]
    fastest = best(first, "total_hours")
    if fastest is None:
        return [f'No setting of run "{name}" met the target, so no time is compared with it.']
    before = median_hours(fastest)
    target = f"{fastest.metric} {written(fastest.metric, fastest.target)}"
    sentences = []
    for run, outcomes in others:
        winner = best(outcomes, "total_hours")
        if winner is None:
            sentences.append(f'No setting of run "{run}" reached {target}.')
            continue
        after = median_hours(winner)
        compared = _ratio(before, after, (" times slower than", " times faster than"))
        if abs(after - before) <= _SIMILAR_TIME_SHARE * max(before, after):
            compared = "about as fast as"
        then = "" if winner.setting == fastest.setting else f" of {fastest.setting}"
        sentences.append(
            f'Run "{run}" is {compared} run "{name}": with set-up charged, its fastest setting, '
            f"{winner.setting}, reaches {target} in {span(after)} instead of "
            f"{span(before)}{then}."
        )
    return sentences


def _ratio(before: float, after: float, words: tuple[str, str]) -> str:
    """Say how many times longer or shorter a time is than another, which may both be 0."""
    if abs(after - before) <= _SAME_TIME_SHARE * max(before, after):
        return "same"
    longer, times = after > before, max(before, after) / (min(before, after) or 1e-12)
    return three_digits(times) + words[0 if longer else 1]
