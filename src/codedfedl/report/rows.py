"""The JSON rows of `codedfedl simulate`, `sweep`, `report` and `reproduce`: a contract."""

import math
from collections.abc import Sequence
from typing import Any

from codedfedl.report.results import Outcome

__all__ = ["outcome_rows"]


def outcome_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return a row per setting. Scripts rely on every key; there is no NaN in JSON."""
    return [{key: _plain(value) for key, value in _row(o).items()} for o in outcomes]


def _row(o: Outcome) -> dict[str, Any]:
    hours, gain = o.paper or (None, None)
    return {
        "dataset": o.dataset,
        "setting": o.setting,
        "scheme": o.scheme,
        "fleet": o.fleet,
        "features": o.features,
        "optimiser": o.optimiser,
        "disclosure": o.disclosure,
        "redundancy": o.seeds[0].redundancy,
        "target": o.target,
        "metric": o.metric,
        "rounds": o.rounds,
        "training_hours": o.training_hours,
        "total_hours": o.total_hours,
        "final": o.final,
        "gain": o.gain,
        "gain_total": o.gain_total,
        "reference": o.reference,
        "paper_hours": hours,
        "paper_gain": gain,
        "points_per_parity_row": o.points_per_parity_row,
        "unrepresented_points": o.fact("unrepresented_points"),
        "excess": [curve.excess_at_plan for curve in o.seeds],
        "planned_excess": o.fact("planned_excess"),
        "planned_hours": o.fact("planned_hours"),
        "predicted_excess": o.fact("predicted_excess"),
        "predicted_hours": o.fact("predicted_hours"),
        "predicted_start_loss": o.fact("predicted_start_loss"),
        "start_loss": o.fact("start_loss"),
        "chance": o.chance,
        "above_chance": o.above_chance,
        "diverged": o.diverged,
        "facts": o.scheme_facts,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
