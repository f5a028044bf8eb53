"""Who won, by how much, and on which clock, in sentences."""

from collections.abc import Sequence

import numpy as np

from codedfedl.report.results import Outcome, median_of_all, written
from codedfedl.report.units import UNITS, Unit

__all__ = ["CLOCKS", "best", "races", "span", "three_digits", "verdict"]

CLOCKS = {"training_hours": "training alone", "total_hours": "set-up charged"}
"""The two clocks, and what each of them counts."""


def best(outcomes: Sequence[Outcome], clock: str) -> Outcome | None:
    """Return the setting with the smallest median time that met the target on every seed, or None.

    A setting that is not above chance does not count.
    """
    hours = {id(o): median_of_all(getattr(o, clock)) for o in outcomes}
    met = [o for o in outcomes if hours[id(o)] is not None and o.above_chance]
    return min(met, key=lambda o: hours[id(o)] or 0.0, default=None)


def races(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Group outcomes by their data and target: others cannot be compared."""
    groups: dict[tuple[str, float], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.dataset, outcome.target), []).append(outcome)
    return list(groups.values())


def verdict(outcomes: Sequence[Outcome], unit: Unit | None = None) -> list[str]:
    """Say on each clock which setting is best, and how much sooner it is than waiting for all.

    Parameters
    ----------
    unit
        Of all times; by default each has the unit that suits it.
    """
    told = []
    every = races(outcomes)
    for race in every:
        target = race[0].target
        aim = f", to {written(race[0].metric, target)}" if np.isfinite(target) else ""
        goal = f"On {race[0].dataset}{aim}: "
        told += [(goal if len(every) > 1 else "") + sentence for sentence in _verdict(race, unit)]
    return told


def _verdict(race: Sequence[Outcome], unit: Unit | None) -> list[str]:
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
        hours = median_of_all(getattr(first, clock)) or 0.0
        took = f"in {span(hours, unit)}" if hours else "before any round, with its first model"
        gain = first.gain if clock == "training_hours" else first.gain_total
        if len(race) == 1:
            reached = written(first.metric, first.target)
            sentences.append(
                f"With {name}, {first.setting} reaches {first.metric} {reached} {took}."
            )
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
            "Every setting diverged, so no setting is called first: lower training.step, or leave "
            'it at "auto".'
        )
    guess = "the most frequent class" if metric == "accuracy" else "the mean"
    return (
        f"No setting is clearly above chance: the best {metric} is {written(metric, max(finals))}, "
        f"and always answering {guess} gives {written(metric, chance)}. No setting is called "
        'first: leave training.step and features.sigma at "auto", train for more epochs, or check '
        "that the inputs say something about the label."
    )


def _times(gain: float) -> str:
    much, word = (gain, "sooner") if gain >= 1 else (1 / gain, "later")
    return f"{much:,.{0 if much >= 100 else 1}f} times {word} than"


def three_digits(value: float) -> str:
    """Write a number as briefly as its reader needs it."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def span(hours: float, unit: Unit | None = None) -> str:
    """Write a time in a unit, by default in the one that people would take."""
    if unit is None:
        unit = next((one for one in UNITS if hours * one.per_hour >= 1), UNITS[-1])
    return f"{three_digits(hours * unit.per_hour)} {unit.sign}"
