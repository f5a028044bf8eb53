"""Results as tables in the terminal, and as the JSON rows that scripts rely on."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from codedfedl.core.record import PARTS
from codedfedl.report.comparison import best, races, three_digits
from codedfedl.report.results import Outcome, written

__all__ = ["outcome_rows", "outcome_view", "rounds_view"]

_CELL = ("dataset", "scheme", "redundancy", "fleet", "features", "optimiser", "disclosure")
_ATTRIBUTES = (
    *("setting", "target", "metric", "rounds", "training_hours", "total_hours", "final"),
    *("gain", "gain_total", "reference", "points_per_parity_row"),
    *("chance", "above_chance", "diverged"),
)
_FACTS = (
    *("unrepresented_points", "planned_excess", "planned_hours", "predicted_excess"),
    *("predicted_hours", "predicted_start_loss", "start_loss"),
)


def outcome_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return a JSON row per setting. Scripts rely on every key; there is no NaN in JSON."""
    return [{key: _plain(value) for key, value in _row(o).items()} for o in outcomes]


def _row(o: Outcome) -> dict[str, Any]:
    hours, gain = o.paper or (None, None)
    return {
        **{name: getattr(o.cell, name) for name in _CELL},
        **{name: getattr(o, name) for name in _ATTRIBUTES},
        **{name: o.fact(name) for name in _FACTS},
        "paper_hours": hours,
        "paper_gain": gain,
        "excess": [curve.excess_at_plan for curve in o.seeds],
        "facts": o.scheme_facts,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def rounds_view(rounds: Mapping[str, npt.NDArray[Any]]) -> Table:
    """Return what happened in every round of a federation."""
    metric = str(rounds["metric_name"][0])
    table = Table(box=None, header_style="bold")
    for name in ("round", "deadline, s", "took, s", *PARTS, metric):
        table.add_column(name, justify="right")
    for row in range(len(rounds["round"])):
        missed = any(rounds[part][row] for part in PARTS if part != "arrived")
        table.add_row(
            str(rounds["round"][row]),
            f"{rounds['deadline_s'][row]:.4g}",
            f"{rounds['seconds'][row]:.2f}",
            *(str(rounds[name][row]) for name in PARTS),
            written(metric, float(rounds["metric"][row])),
            style="yellow" if missed else "",
        )
    return table


def outcome_view(
    outcomes: Sequence[Outcome], width: int, changes: Sequence[str] | None = None
) -> Table:
    """Return the schemes of a run with their hours on both clocks: medians, and ranges over seeds.

    Ranges and the paper's own figures are left out where there is no room or nothing to show.

    Parameters
    ----------
    changes
        Of each setting against another run, where runs are compared.
    """
    table = Table(
        title=_title(outcomes),
        title_justify="left",
        box=None,
        padding=(0, 1),
        header_style="bold",
    )
    columns = _columns(outcomes, width, changes)
    for heading, cells in columns.items():
        if heading in ("data", "scheme"):  # these give way where there is little room
            table.add_column(heading, overflow="fold", min_width=12)
        else:
            longest = max(len(cell) for cell in (heading, *cells))
            table.add_column(heading, justify="right", no_wrap=True, min_width=longest)
    winners = [best(race, "total_hours") for race in races(outcomes) if len(race) > 1]
    for row, outcome in zip(zip(*columns.values(), strict=True), outcomes, strict=True):
        table.add_row(*row, style="bold green" if outcome in winners else "")
    return table


def _title(outcomes: Sequence[Outcome]) -> str | None:
    if not any(np.isfinite(o.target) for o in outcomes):
        return "There is no target: nothing that could set it is above chance"
    goals = {written(o.metric, o.target) for o in outcomes}
    if len(goals) > 1:
        return None
    source = f", {outcomes[0].target_source}" if outcomes[0].target_source else ""
    return f"Time to {outcomes[0].metric} {goals.pop()} on the test set{source}"


def _columns(
    outcomes: Sequence[Outcome], width: int, changes: Sequence[str] | None
) -> dict[str, list[str]]:
    """Return the cells of the table, by their headings."""
    wide = width >= 150
    columns = {
        "data": [o.dataset for o in outcomes],
        "scheme": [o.setting for o in outcomes],
        "rounds": [_spread(o.rounds, wide) for o in outcomes],
        "training h": [_spread(o.training_hours, wide) for o in outcomes],
        "gain": [_times(o.gain) for o in outcomes],
        "with set-up": [_spread(o.total_hours, wide) for o in outcomes],
        "gain ": [_times(o.gain_total) for o in outcomes],
        "final": [written(o.metric, float(np.median(o.final))) for o in outcomes],
    }
    if len(set(columns["data"])) == 1:
        del columns["data"]
    if changes is not None:
        columns["change"] = list(changes)
    mixing = [o.points_per_parity_row for o in outcomes]
    if width >= 100 and any(points is not None for points in mixing):
        columns["mixing"] = ["" if points is None else f"{points:,.0f}" for points in mixing]
    paper = [o.paper for o in outcomes]
    if width >= 100 and any(paper):
        columns["paper h"] = ["" if known is None else f"{known[0]:.0f}" for known in paper]
        columns["gain  "] = ["" if known is None else _times(known[1]) for known in paper]
    targets = [written(o.metric, o.target) for o in outcomes]
    return columns | ({"target": targets} if len(set(targets)) > 1 else {})


def _spread(values: Sequence[float | None], wide: bool) -> str:
    """Write the median, and where there is room how far the seeds lie apart."""
    met = [value for value in values if value is not None]
    if not met:
        return "not met"
    middle = three_digits(float(np.median(met)))
    if len(met) < len(values):
        return f"{middle} ({len(met)}/{len(values)})"
    if len(met) == 1 or not wide:
        return middle
    return f"{middle} ({three_digits(min(met))}–{three_digits(max(met))})"


def _times(gain: float | None) -> str:
    return "–" if gain is None else f"{gain:,.0f}×" if gain >= 100 else f"{gain:.2f}×"
