"""The rows of a reproduction as a table of the documentation, with version, date and command."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from codedfedl import __version__
from codedfedl.io.files import make_folder, replacing
from codedfedl.report.comparison import three_digits
from codedfedl.report.outcome_tables import spread, times
from codedfedl.report.results import written

Row = Mapping[str, Any]


def write_table(folder: Path, name: str, command: str, document: Row) -> Path:
    """Write what a reproduction returned as Markdown, and return the path of the file."""
    rows = document.get("rows") or [r for part in document["settings"].values() for r in part]
    cells = [_cells(row) for row in rows]
    columns = [c for c in dict.fromkeys(c for row in cells for c in row) if any(_has(cells, c))]
    lines = [columns, ["---"] * len(columns), *([row.get(c, "") for c in columns] for row in cells)]
    caption = f"*Version {__version__}, {datetime.now(UTC):%Y-%m-%d}: `{command}`.*"
    table = "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)
    make_folder(folder)
    with replacing(folder / f"{name}.md") as path:
        path.write_text(f"{caption}\n\n{table}\n", "utf-8")
    return folder / f"{name}.md"


def _has(cells: Sequence[Mapping[str, str]], column: str) -> list[bool]:
    return [bool(row.get(column)) for row in cells]


def _cells(row: Row) -> dict[str, str]:
    """Return the cells of a row, by their headings."""
    if "total_hours" not in row:  # measured at equal hours, or in rounds
        return {name.replace("_", " "): _plain(value) for name, value in row.items()}
    hours = {name: spread(row[key], wide=True) for name, key in _SPREADS.items()}
    return {
        **{name.replace("_", " "): _plain(row.get(name)) for name in ("dataset", "fleet", "split")},
        "scheme": str(row.get("setting") or row["scheme"]),
        "discloses": ", ".join(row["disclosure"]),
        **{name: _plain(row.get(name)) for name in ("load", "bits", "least", "epsilon")},
        "points a row": _plain(row["points_per_parity_row"]),
        "target": "" if row["target"] is None else written(row["metric"], row["target"]),
        "rounds": hours["rounds"],
        "training, h": hours["training, h"],
        "gain": times(row["gain"]),
        "with set-up, h": hours["with set-up, h"],
        "gain, set-up charged": times(row["gain_total"]),
        "final": written(row["metric"], float(np.median(row["final"]))),
        "pooled": written(row["metric"], row["pooled"]) if row.get("pooled") else "",
    }


_SPREADS = {"rounds": "rounds", "training, h": "training_hours", "with set-up, h": "total_hours"}
"""Numbers of which each seed has one, by their heading."""


def _plain(value: Any) -> str:
    """Write a value as people do; a number with three digits or all before the point."""
    if value is None:
        return ""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return three_digits(value) if is_number else str(value)
