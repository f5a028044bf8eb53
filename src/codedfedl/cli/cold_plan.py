"""`codedfedl plan --excess`: the plan of a cold start, before any data are seen."""

from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from codedfedl._types import IntArray
from codedfedl.cli.output import results
from codedfedl.fleet.costs import BlockSetup
from codedfedl.fleet.devices import Fleet, Workload
from codedfedl.learning.codes import LEAST_MIXING
from codedfedl.learning.features import Structured
from codedfedl.planning.cold_start import ColdStart, best_cold_start

__all__ = ["plan_from_cold"]

_ROWS = 12


def plan_from_cold(
    clients: Fleet, workload: Workload, inputs: int, batches: int, excess: float, *, quiet: bool
) -> dict[str, Any]:
    """Plan `coded-newton` with structured features and ten points a parity row, and show it."""
    held = clients.points * batches
    macs = Structured(workload.features).macs(inputs)
    ways = BlockSetup(workload, macs, 1, LEAST_MIXING, bits=16).ways()
    chosen, setup = best_cold_start(clients, held, ways, excess)
    parity_rows = setup.rows(chosen.points)
    if not quiet:
        results.print(_sentence(chosen, held, parity_rows), soft_wrap=True)
        results.print(_clients(chosen, clients, held, parity_rows))
    rows = zip(clients.client.tolist(), held, chosen.points, parity_rows, strict=True)
    return {
        "setup_deadline_s": chosen.setup_deadline,
        "round_deadline_s": chosen.round_deadline,
        "rounds": chosen.rounds,
        "predicted_hours": chosen.seconds / 3600,
        "predicted_excess": chosen.excess,
        "parity_rows": int(parity_rows.sum()),
        "unrepresented_points": int(held[chosen.points == 0].sum()),
        "clients": [
            {
                "client": client,
                "points": int(points),
                "embedded": int(embedded),
                "parity_rows": int(sent),
            }
            for client, points, embedded, sent in rows
        ],
    }


def _sentence(chosen: ColdStart, held: np.ndarray, parity_rows: IntArray) -> Text:
    embedded = float(chosen.points.sum()) / float(held.sum())
    return Text.assemble(
        ("set-up ", "dim"),
        (f"{chosen.setup_deadline:,.0f} s", "bold"),
        (", then ", "dim"),
        (f"{chosen.rounds} rounds of {chosen.round_deadline:,.0f} s", "bold"),
        (": ", "dim"),
        (f"{chosen.seconds / 3600:.2f} h", "bold"),
        (f" to an objective {chosen.excess:.0%} above its optimum, as predicted;\n", "dim"),
        (f"{embedded:.0%} of the points are embedded when the set-up ends, ", "dim"),
        (f"{int(parity_rows.sum()):,} parity rows of ten points each\n", "dim"),
    )


def _clients(chosen: ColdStart, clients: Fleet, held: np.ndarray, parity_rows: IntArray) -> Table:
    order = np.argsort(chosen.points / np.maximum(held, 1), kind="stable")[:_ROWS]
    title = f"The {len(order)} of {len(clients):,} clients that embed the smallest share"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2), header_style="bold")
    table.add_column("client")
    for heading in ("points", "embedded", "parity rows"):
        table.add_column(heading, justify="right")
    for j in order:
        embedded = int(chosen.points[j])
        rows = f"{parity_rows[j]:,}" if embedded else "–"
        table.add_row(Text(str(clients.client[j])), f"{held[j]:,.0f}", f"{embedded:,}", rows)
    return table
