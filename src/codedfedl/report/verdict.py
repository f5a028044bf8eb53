"""Who won, by how much, and on which clock, in sentences."""

from collections.abc import Sequence

from codedfedl.report.results import Outcome, median_of_all, written

__all__ = ["CLOCKS", "best", "races", "span", "three_digits", "verdict"]

CLOCKS = {"training_hours": "training alone", "total_hours": "set-up charged"}
"""The two clocks, and what each of them counts."""


def best(found: Sequence[Outcome], clock: str) -> Outcome | None:
    """Return who met the target first on every seed, by the median; nobody if nobody did."""
    hours = {id(o): median_of_all(getattr(o, clock)) for o in found}
    met = [o for o in found if hours[id(o)] is not None]
    return min(met, key=lambda o: hours[id(o)] or 0.0, default=None)


def races(found: Sequence[Outcome]) -> list[list[Outcome]]:
    """Group outcomes by their data and target: others cannot be compared."""
    groups: dict[tuple[str, float], list[Outcome]] = {}
    for outcome in found:
        groups.setdefault((outcome.dataset, outcome.target), []).append(outcome)
    return list(groups.values())


def verdict(found: Sequence[Outcome]) -> list[str]:
    """Say on each clock which setting is best, and how much sooner it is than waiting for all."""
    told = []
    every = races(found)
    for race in every:
        goal = f"On {race[0].dataset}, to {written(race[0].metric, race[0].target)}: "
        told += [(goal if len(every) > 1 else "") + sentence for sentence in _verdict(race)]
    return told


def _verdict(race: Sequence[Outcome]) -> list[str]:
    sentences = []
    for clock, name in CLOCKS.items():
        first = best(race, clock)
        if first is None:
            return ["No setting met the target on every seed."]
        hours = median_of_all(getattr(first, clock)) or 0.0
        took = span(hours) if hours else "its start meets the target, before any round"
        gain = first.gain if clock == "training_hours" else first.gain_total
        versus = ""
        if gain is not None and first.setting != first.reference:
            versus = f", {_times(gain)} {first.reference_name}"
        sentences.append(f"With {name}, {first.setting} is first: {took}{versus}.")
    return sentences


def _times(gain: float) -> str:
    much, word = (gain, "sooner") if gain >= 1 else (1 / gain, "later")
    return f"{much:,.{0 if much >= 100 else 1}f} times {word} than"


def three_digits(value: float) -> str:
    """Write a number as briefly as its reader needs it."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def span(hours: float) -> str:
    """Write a time in the unit that people would take."""
    for unit, name in ((1.0, "h"), (60.0, "min")):
        if hours * unit >= 1:
            return f"{three_digits(hours * unit)} {name}"
    return f"{three_digits(hours * 3600)} s"
