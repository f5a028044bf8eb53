"""Several runs side by side: what differs in their configurations, and what that changed."""

from collections.abc import Mapping, Sequence
from typing import Any

from codedfedl.report.results import Outcome, median_of_all, written
from codedfedl.report.units import Unit
from codedfedl.report.verdict import best, races, span, three_digits
from codedfedl.runs.config import Experiment

__all__ = ["change", "changes_sentence", "configuration_diff"]

_SAME = 0.005  # relative: below it a time is called the same
_ABOUT = 0.05  # relative: below it a run is called about as fast


def configuration_diff(experiments: Sequence[Experiment]) -> list[dict[str, Any]]:
    """Return the keys whose values differ between runs, and the value of each run in words."""
    flat = [_flat(experiment) for experiment in experiments]
    keys = dict.fromkeys(key for one in flat for key in one)
    return [
        {"key": key, "values": [one.get(key, "–") for one in flat]}
        for key in keys
        if len({one.get(key, "–") for one in flat}) > 1
    ]


def _flat(experiment: Experiment) -> dict[str, str]:
    """Return an experiment by dotted keys, each scheme's settings under its own name."""
    document = experiment.model_dump(exclude={"title", "schemes"}, exclude_none=True)
    flat: dict[str, str] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": _written(below) for name, below in value.items()}
        else:
            flat[key] = _written(value)
    labels = [scheme.labelled(scheme.name) for scheme in experiment.schemes]
    return flat | {"schemes": ", ".join(labels)}


def _written(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_written(one) for one in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def change(first: Outcome | None, other: Outcome) -> str:
    """Say how much longer or shorter a setting takes to the target than in the first run."""
    if first is None:
        return "only here"
    before, after = median_of_all(first.total_hours), median_of_all(other.total_hours)
    if before is None:
        return "met in neither" if after is None else "met only here"
    return "no longer met" if after is None else _ratio(before, after, ("× longer", "× shorter"))


def changes_sentence(runs: Mapping[str, Sequence[Outcome]], unit: Unit | None = None) -> list[str]:
    """Say in a sentence per run how its fastest setting compares with the first run's.

    Parameters
    ----------
    runs
        The results of every run, by its name.
    unit
        Of all times; by default each has the unit that suits it.
    """
    (name, first), *others = runs.items()
    if len(races([o for outcomes in runs.values() for o in outcomes])) > 1:
        return ["The runs differ in data or target, so their times are not compared."]
    fastest = best(first, "total_hours")
    if fastest is None:
        return [f'No setting of run "{name}" met the target, so no time is compared with it.']
    before = median_of_all(fastest.total_hours) or 0.0
    target = f"{fastest.metric} {written(fastest.metric, fastest.target)}"
    sentences = []
    for run, outcomes in others:
        winner = best(outcomes, "total_hours")
        if winner is None:
            sentences.append(f'No setting of run "{run}" reached {target}.')
            continue
        after = median_of_all(winner.total_hours) or 0.0
        compared = _ratio(before, after, (" times slower than", " times faster than"))
        if abs(after - before) <= _ABOUT * max(before, after):
            compared = "about as fast as"
        then = "" if winner.setting == fastest.setting else f" of {fastest.setting}"
        sentences.append(
            f'Run "{run}" is {compared} run "{name}": with set-up charged, its fastest setting, '
            f"{winner.setting}, reaches {target} in {span(after, unit)} instead of "
            f"{span(before, unit)}{then}."
        )
    return sentences


def _ratio(before: float, after: float, words: tuple[str, str]) -> str:
    """Say how many times longer or shorter a time is than another, which may both be 0."""
    if abs(after - before) <= _SAME * max(before, after):
        return "same"
    longer, times = after > before, max(before, after) / (min(before, after) or 1e-12)
    return three_digits(times) + words[0 if longer else 1]
