"""The frontier: hours to the target against what leaves a client, every scheme at its best."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from codedfedl.core.disclosure import discloses_no_more
from codedfedl.learning.metrics import telling_excess
from codedfedl.report.results import Outcome, median_of_all
from codedfedl.report.rows import outcome_rows

__all__ = ["Place", "at_their_best", "frontier_rows", "places"]

_TRAINED = 0.2  # relative excess of the training objective, by which knobs are compared


@dataclass(frozen=True)
class Place:
    """A setting on the frontier, and the best rival that discloses the same or less."""

    fleet: str
    outcome: Outcome
    rival: Outcome | None = None

    @property
    def hours(self) -> float | None:
        """Charged hours to the target: the median over seeds, None where one does not meet it."""
        return median_of_all(self.outcome.total_hours)

    @property
    def gain(self) -> float | None:
        """How many times sooner than the rival: the median over seeds, with the same delays."""
        if self.rival is None:
            return None
        pairs = zip(self.rival.total_hours, self.outcome.total_hours, strict=True)
        return median_of_all([None if not b or a is None else a / b for a, b in pairs])


def at_their_best(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Keep of each scheme, optimiser and mixing the setting that trains fastest.

    It is the first to bring the *training* objective within 20% of its minimum, or closer where the
    minimum explains little, in the median over seeds; or the one that comes closest to it. Test
    points play no part.
    """
    kept: dict[tuple[Any, ...], Outcome] = {}
    for one in outcomes:
        key = (one.scheme, one.optimiser, one.points_per_parity_row)
        if key not in kept or _slowness(one) < _slowness(kept[key]):
            kept[key] = one
    return list(kept.values())


def _slowness(outcome: Outcome) -> tuple[float, float]:
    hours, lowest = [], []
    for curve in outcome.seeds:
        excess = np.where(np.isnan(curve.excess), np.inf, curve.excess)
        explained = np.nan_to_num(curve.facts.get("explained", np.nan), nan=np.inf)  # if unknown
        goal = telling_excess(_TRAINED, float(explained))
        there = np.flatnonzero(excess <= goal)
        hours.append(float(curve.total_hours[there[0]]) if len(there) else np.inf)
        lowest.append(float(excess.min(initial=np.inf)))
    return float(np.median(hours)), float(np.median(lowest))


def places(fleet: str, outcomes: Sequence[Outcome]) -> list[Place]:
    """Find for each the soonest other scheme that discloses the same or less."""
    every = [Place(fleet, one) for one in at_their_best(outcomes)]
    found = []
    for place in every:
        mine = place.outcome
        rivals = [
            other
            for other in every
            if other.outcome.scheme != mine.scheme
            and other.hours is not None
            and discloses_no_more(other.outcome.disclosure, mine.disclosure)
        ]
        best = min(rivals, key=lambda other: other.hours or np.inf, default=None)
        found.append(replace(place, rival=None if best is None else best.outcome))
    return found


def frontier_rows(found: Sequence[Place]) -> list[dict[str, Any]]:
    """Return the rows of the contract, with the rival and the gain over it."""
    rows = outcome_rows([place.outcome for place in found])
    return [
        row
        | {
            "fleet": place.fleet,
            "rival": None if place.rival is None else place.rival.setting,
            "gain_over_rival": place.gain,
            "hours_interval": [list(pair) for pair in place.outcome.hours_interval],
        }
        for row, place in zip(rows, found, strict=True)
    ]
