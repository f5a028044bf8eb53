"""Results as rows: of tables in the terminal, and of the JSON that scripts rely on."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from codedfedl.core.record import PARTS
from codedfedl.io.files import replacing
from codedfedl.io.tables import write_table
from codedfedl.report.comparison import best, races, three_digits
from codedfedl.report.reading import Columns
from codedfedl.report.results import Outcome, written
from codedfedl.runs.grid import SCHEME, names

Rows = list[dict[str, Any]]

_WIDE = 150  # characters of a terminal that shows everything

_CELL = ("dataset", "scheme", "redundancy", "fleet", "features", "optimiser", "disclosure")
_ATTRIBUTES = (
    *("setting", "target", "metric", "rounds", "training_hours", "total_hours", "final"),
    *("gain", "gain_total", "p_value", "reference", "points_per_parity_row"),
    *("chance", "above_chance", "diverged"),
)
_FACTS = (
    *("unrepresented_points", "planned_excess", "planned_hours", "predicted_excess"),
    *("predicted_hours", "predicted_start_loss", "start_loss"),
)


def plain_rows(columns: Mapping[str, Any]) -> Rows:
    """Return a table as plain rows, for JSON."""
    values = [column.tolist() for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]


def round_rows(rounds: Columns) -> Rows:
    """Return what happened in every round of a federation."""
    names = ("round", "deadline_s", "seconds", *PARTS, "metric")
    metric, shown = str(rounds["metric_name"][0]), []
    for row in plain_rows({name: rounds[name] for name in names}):
        style = "yellow" if any(row[part] for part in PARTS if part != "arrived") else ""
        cells = {
            "round": str(row["round"]),
            "deadline, s": f"{row['deadline_s']:.4g}",
            "took, s": f"{row['seconds']:.2f}",
            **{part: str(row[part]) for part in PARTS},
            metric: written(metric, row["metric"]),
        }
        shown.append({name: Text(cell, style, justify="right") for name, cell in cells.items()})
    return shown


def outcome_rows(outcomes: Sequence[Outcome]) -> Rows:
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


def write_results(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write results: as .csv or .parquet a row per setting and seed, as .tex one per setting."""
    if path.suffix != ".tex":
        write_table(path, seed_columns(outcomes))
        return
    with replacing(path) as partial:
        partial.write_text(latex(outcomes), "utf-8")


def seed_columns(outcomes: Sequence[Outcome]) -> dict[str, list[Any]]:
    """Return a row per setting and seed: the grid, settings of schemes, results, own facts."""
    words, rows = names(outcomes[0].cell.values), []
    for o in outcomes:
        axes = {words[key]: value for key, value in o.cell.values.items() if key != SCHEME}
        facts = o.scheme_facts
        for k, row in enumerate(o.by_seed):
            stated = {name: values[k] for name, values in facts.items()}
            rows.append(o.cell.scheme_settings | axes | row | {"p_value": o.p_value} | stated)
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key.replace(" ", "_"): _column([row.get(key) for row in rows]) for key in keys}


def _column(values: list[Any]) -> list[Any]:
    """Return the values of a column; as texts where some are not numbers."""
    plain = all(value is None or isinstance(value, int | float) for value in values)
    return values if plain else [None if value is None else str(value) for value in values]


def latex(outcomes: Sequence[Outcome]) -> str:
    """Return the table of results in LaTeX, with the facts of own schemes; for booktabs."""
    columns = _columns(outcomes, _WIDE, None)
    facts = [o.scheme_facts for o in outcomes]
    for name in dict.fromkeys(name for stated in facts for name in stated):
        columns[name] = [spread(stated.get(name, []), wide=True) for stated in facts]
    if any(o.p_value is not None for o in outcomes):
        columns["p"] = ["–" if o.p_value is None else f"{o.p_value:.2g}" for o in outcomes]
    lines = [list(columns), *(list(cells) for cells in zip(*columns.values(), strict=True))]
    header, *rows = (" & ".join(map(_escaped, line)) + r" \\" for line in lines)
    words = sum(name in ("data", "scheme") for name in columns)
    body = ["\\toprule", header, "\\midrule", *rows, "\\bottomrule"]
    alignment = "l" * words + "r" * (len(columns) - words)
    return "\n".join([f"\\begin{{tabular}}{{{alignment}}}", *body, "\\end{tabular}", ""])


def _escaped(text: str) -> str:
    return re.sub(r"([&%$#_{}])", r"\\\1", text.strip()).replace("×", r"$\times$")


def outcome_views(
    outcomes: Sequence[Outcome], width: int, changes: Sequence[str] | None = None
) -> list[Any]:
    """Return the schemes of a run with their hours on both clocks: medians, and ranges over seeds.

    Ranges and the paper's own figures are left out where there is no room or nothing to show.

    Parameters
    ----------
    changes
        Of each setting against another run, where runs are compared.
    """
    winners = [best(race, "total_hours") for race in races(outcomes) if len(race) > 1]
    columns = _columns(outcomes, width, changes)
    rows = []
    for outcome, *cells in zip(outcomes, *columns.values(), strict=True):
        style = "bold green" if outcome in winners else ""
        texts = [Text(cell, style, justify="right") for cell in cells]
        row = dict(zip(columns, texts, strict=True))
        for name in {"data", "scheme"} & row.keys():
            row[name].justify = "left"
        rows.append(row)
    return [*_title(outcomes), rows]


def _title(outcomes: Sequence[Outcome]) -> list[str]:
    if not any(np.isfinite(o.target) for o in outcomes):
        return ["There is no target: nothing that could set it is above chance"]
    goals = {written(o.metric, o.target) for o in outcomes}
    if len(goals) > 1:
        return []
    source = f", {outcomes[0].target_source}" if outcomes[0].target_source else ""
    return [f"Time to {outcomes[0].metric} {goals.pop()} on the test set{source}"]


def _columns(
    outcomes: Sequence[Outcome], width: int, changes: Sequence[str] | None
) -> dict[str, list[str]]:
    """Return the cells of the table, by their headings."""
    wide = width >= _WIDE
    columns = {
        "data": [o.dataset for o in outcomes],
        "scheme": [o.setting for o in outcomes],
        "rounds": [spread(o.rounds, wide) for o in outcomes],
        "training h": [spread(o.training_hours, wide) for o in outcomes],
        "gain": [times(o.gain) for o in outcomes],
        "with set-up": [spread(o.total_hours, wide) for o in outcomes],
        "gain ": [times(o.gain_total) for o in outcomes],
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
        columns["gain  "] = ["" if known is None else times(known[1]) for known in paper]
    targets = [written(o.metric, o.target) for o in outcomes]
    return columns | ({"target": targets} if len(set(targets)) > 1 else {})


def spread(values: Sequence[float | None], wide: bool) -> str:
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


def times(gain: float | None) -> str:
    """Write how many times sooner something is."""
    return "–" if gain is None else f"{gain:,.0f}×" if gain >= 100 else f"{gain:.2f}×"
