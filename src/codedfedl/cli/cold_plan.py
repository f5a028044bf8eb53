"""`codedfedl plan --excess` and `--within`: the plan of a cold start, before data are seen."""

from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from codedfedl.arrays import IntArray
from codedfedl.cli.output import results
from codedfedl.fleet.costs import BlockSetup
from codedfedl.fleet.devices import Fleet, Workload
from codedfedl.learning.codes import LEAST_MIXING
from codedfedl.learning.features import Patches, Structured, Tiles
from codedfedl.planning.cold_start import ColdStart, best_cold_start
from codedfedl.planning.maps import MapCost, MapPlan, best_map, plan_maps

__all__ = ["plan_feature_map", "plan_from_cold"]

_ROWS = 12
_LEAST_SIDE = 16  # of an image: patches see little in smaller ones
# Number of features, and for patches the divisor of the default stride. Sorted from the least to
# the most accurate, by exact ridge regression on held-out training points (docs/features.md).
_TABLES = ((500, None), (1000, None), (2000, None), (4000, None))
_IMAGES = (
    *_TABLES[:3], (1000, 1), (4000, None), (2000, 1), (1000, 2), (4000, 1), (2000, 2), (4000, 2),
)  # fmt: skip


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


def plan_feature_map(
    clients: Fleet,
    workload: Workload,
    inputs: int,
    image: tuple[int, int, int] | None,
    batches: int,
    excess: float,
    hours: float,
    *,
    quiet: bool,
) -> dict[str, Any]:
    """Choose the most accurate feature map that is trained in time, and show what others take."""
    maps = _feature_maps(inputs, image)
    plans = plan_maps(clients, workload, clients.points * batches, maps, excess, LEAST_MIXING)
    chosen = best_map(plans, hours)
    if not quiet:
        results.print(_maps(plans, chosen, hours))
        results.print(_snippet(chosen.map, image))
    described = [
        {
            "kind": one.map.kind,
            "n_components": one.map.features,
            "stride": one.map.stride,
            "macs": one.map.macs,
            "predicted_hours": one.hours,
            "setup_deadline_s": one.plan.setup_deadline,
            "round_deadline_s": one.plan.round_deadline,
            "rounds": one.plan.rounds,
        }
        for one in plans
    ]
    return {"chosen": described[plans.index(chosen)], "maps": described}


def _feature_maps(inputs: int, image: tuple[int, int, int] | None) -> list[MapCost]:
    """Return maps from the least to the most accurate; with patches if points are images."""
    maps = []
    for q, part in _TABLES if image is None or min(image[:2]) < _LEAST_SIDE else _IMAGES:
        if part is None:
            maps.append(MapCost("structured", q, Structured(q).macs(inputs)))
        else:
            stride = max(Tiles(image).on(inputs).stride // part, 1)
            made = Patches(q, tiles=Tiles(image, stride=stride))
            maps.append(MapCost("patches", made.size(inputs), made.macs(inputs), stride))
    return maps


def _maps(plans: list[MapPlan], chosen: MapPlan, hours: float) -> Table:
    title = f"Feature maps, the most accurate last; to be trained within {hours:g} h"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2), header_style="bold")
    table.add_column("features")
    for heading in ("number", "stride", "operations a point", "predicted, h", ""):
        table.add_column(heading, justify="right")
    for one in plans:
        cost, stride = one.map, "" if one.map.stride is None else str(one.map.stride)
        verdict = "chosen" if one is chosen else "" if one.hours <= hours else "too long"
        numbers = (f"{cost.features:,}", stride, f"{cost.macs:,}", f"{one.hours:.2f}", verdict)
        style = "bold" if one is chosen else "dim" if one.hours > hours else ""
        table.add_row(cost.kind, *numbers, style=style)
    return table


def _snippet(chosen: MapCost, image: tuple[int, int, int] | None) -> Text:
    """Return the lines for an experiment."""
    lines = ["", "[features]", f'kind = "{chosen.kind}"', f"n_components = {chosen.features}"]
    if chosen.stride is not None and image is not None:
        lines += [f"image = {list(image)}", f"stride = {chosen.stride}"]
    return Text("\n".join(lines))
