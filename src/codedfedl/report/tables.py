"""Tables in the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from codedfedl.core.record import PARTS
from codedfedl.report.results import Outcome, written
from codedfedl.report.verdict import best, races, three_digits

__all__ = ["outcome_view", "rounds_view"]


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
    if changes is not None:
        columns["change"] = list(changes)
    if width >= 100 and any(o.points_per_parity_row is not None for o in outcomes):
        mixing = (o.points_per_parity_row for o in outcomes)
        columns["mixing"] = ["" if points is None else f"{points:,.0f}" for points in mixing]
    if len(set(columns["data"])) == 1:
        del columns["data"]
    if width >= 100 and any(o.paper is not None for o in outcomes):
        hours = ["" if o.paper is None else f"{o.paper[0]:.0f}" for o in outcomes]
        gains = ["" if o.paper is None else _times(o.paper[1]) for o in outcomes]
        columns |= {"paper h": hours, "gain  ": gains}
    goals = {written(o.metric, o.target) for o in outcomes}
    if len(goals) > 1:
        columns["target"] = [written(o.metric, o.target) for o in outcomes]
    source = f", {outcomes[0].target_source}" if outcomes[0].target_source else ""
    goal = (
        f"Time to {outcomes[0].metric} {goals.pop()} on the test set{source}"
        if len(goals) == 1
        else None
    )
    if not any(np.isfinite(o.target) for o in outcomes):
        goal = "There is no target: nothing that could set it is above chance"
    table = Table(title=goal, title_justify="left", box=None, padding=(0, 1), header_style="bold")
    for heading, cells in columns.items():
        if heading in ("data", "scheme"):  # these give way where there is little room
            table.add_column(heading, overflow="fold", min_width=12)
        else:
            whole = max(len(cell) for cell in (heading, *cells))
            table.add_column(heading, justify="right", no_wrap=True, min_width=whole)
    for row, outcome in zip(zip(*columns.values(), strict=True), outcomes, strict=True):
        table.add_row(*row, style="bold green" if _is_first(outcome, outcomes) else "")
    return table


def _is_first(outcome: Outcome, outcomes: Sequence[Outcome]) -> bool:
    """Say whether nobody in the same race was sooner with the set-up charged."""
    (race,) = (race for race in races(outcomes) if outcome in race)
    return len(race) > 1 and outcome is best(race, "total_hours")


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
