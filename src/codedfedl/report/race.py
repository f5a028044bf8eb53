"""The table of results: every setting of every run, the soonest first."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from codedfedl.report.charts import LARGE, Line, line_key
from codedfedl.report.compare import change
from codedfedl.report.results import Outcome, median_of_all
from codedfedl.report.story import Story
from codedfedl.report.verdict import races

__all__ = ["RaceRow", "comparable", "race_rows"]


@dataclass(frozen=True)
class RaceRow:
    """A setting of a run: its results, and how the table shows them.

    Attributes
    ----------
    line
        How it is drawn in the charts, where it is.
    change
        In words, against the same setting of the first run; empty in that one.
    share
        The length of its bar.
    first
        Whether it is the soonest of several that can be compared.
    """

    run: str
    outcome: Outcome
    line: Line | None
    change: str
    share: float
    first: bool

    @property
    def hours(self) -> float:
        """The median time to the target; ∞ where it is not met on every seed."""
        return _hours(self.outcome)


def comparable(stories: Sequence[Story]) -> bool:
    """Whether all race on the same data to the same target, on a virtual clock."""
    outcomes = [outcome for story in stories for outcome in story.outcomes]
    return len(races(outcomes)) == 1 and not any(story.records for story in stories)


def race_rows(stories: Sequence[Story], lines: Sequence[Line]) -> list[RaceRow]:
    """Return the table; the same setting of several runs stands together."""
    shown = {line.key: line for line in lines}
    before = {o.setting: o for story in stories[:1] for o in story.outcomes}
    together, rows = comparable(stories), []
    every = [o for story in stories for o in story.outcomes]
    for place, story in enumerate(stories):
        for o in story.outcomes:
            rivals = [
                other
                for other in (every if together else story.outcomes)
                if (other.dataset, other.target) == (o.dataset, o.target)
            ]
            hours = [_hours(other) for other in rivals if other.above_chance]
            met = [hour for hour in hours if hour < np.inf]
            hour = _hours(o) if o.above_chance else np.inf
            row = RaceRow(
                run=story.name,
                outcome=o,
                line=shown.get(line_key(place, o)),
                change=change(before.get(o.setting), o) if place else "",
                share=0.0 if hour == np.inf else _share(hour, met),
                first=hour < np.inf and hour == min(met) and len(rivals) > 1,
            )
            rows.append(row)
    soonest: dict[str, float] = {}
    for row in rows:
        soonest[row.outcome.setting] = min(soonest.get(row.outcome.setting, np.inf), row.hours)
    return sorted(rows, key=lambda row: soonest[row.outcome.setting])


def _hours(outcome: Outcome) -> float:
    hour = median_of_all(outcome.total_hours)
    return np.inf if hour is None else hour


def _share(hour: float, rivals: Sequence[float]) -> float:
    """Return how long a bar is: of the longest time, by the logarithm where they differ much."""
    least, most = min(filter(None, rivals), default=1.0), max(rivals)
    if hour <= 0 or most <= LARGE * least:
        return hour / most if most else 0.0
    return 0.08 + 0.92 * float(np.log(hour / least) / np.log(most / least))
