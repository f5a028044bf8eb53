"""Plans that charge the set-up: `codedfedl plan --excess`, `--within` and `--rounds`."""

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from codedfedl.arrays import IntArray
from codedfedl.cli.output import plain_table
from codedfedl.errors import InputError
from codedfedl.fleet.costs import BlockSetup
from codedfedl.fleet.devices import Fleet, Workload
from codedfedl.learning.codes import LEAST_MIXING
from codedfedl.learning.features import Patches, Structured, Tiles
from codedfedl.planning.cold_start import ColdStart, best_cold_start
from codedfedl.planning.hours import Training, cheapest_plan, plan_hours
from codedfedl.planning.maps import MapCost, MapPlan, best_map, plan_maps
from codedfedl.report.fleet_tables import duration

if TYPE_CHECKING:
    from codedfedl.cli.plan import WorkOptions

__all__ = ["charged_plans", "charged_view", "plan_cold_start", "plan_feature_map"]

SHOWN_CLIENTS = 12
MIN_PATCH_SIDE = 16
"""Pixels; smaller images have too few patches to be worth them."""

EXCESS_BOUND = 1.0
"""The bound on the objective's excess that `coded` plans for by default."""

# Number of features, and for patches the divisor of the default stride. Sorted from the least to
# the most accurate, by exact ridge regression on held-out training points (docs/features.md).
_TABLES = ((500, None), (1000, None), (2000, None), (4000, None))
_IMAGES = (
    *_TABLES[:3], (1000, 1), (4000, None), (2000, 1), (1000, 2), (4000, 1), (2000, 2), (4000, 2),
)  # fmt: skip


def plan_cold_start(
    clients: Fleet, work: "WorkOptions", excess: float
) -> tuple[dict[str, Any], RenderableType]:
    """Plan `coded-newton` with structured features and ten points a parity row, and show it."""
    points = clients.points * work.batches
    macs = Structured(work.features).macs(work.inputs)
    ways = BlockSetup(work.workload, macs, 1, LEAST_MIXING, bits=16).ways()
    chosen, setup = best_cold_start(clients, points, ways, excess)
    parity_rows = setup.rows(chosen.points)
    columns = (clients.client.tolist(), points, chosen.points, parity_rows)
    document = {
        "setup_deadline_s": chosen.setup_deadline,
        "round_deadline_s": chosen.round_deadline,
        "rounds": chosen.rounds,
        "predicted_hours": chosen.seconds / 3600,
        "predicted_excess": chosen.excess,
        "parity_rows": int(parity_rows.sum()),
        "unrepresented_points": int(points[chosen.points == 0].sum()),
        "clients": [
            {
                "client": client,
                "points": int(held),
                "embedded": int(embedded),
                "parity_rows": int(rows),
            }
            for client, held, embedded, rows in zip(*columns, strict=True)
        ],
    }
    return document, Group(
        _sentence(chosen, points, parity_rows), _clients(chosen, clients, points, parity_rows)
    )


def _sentence(chosen: ColdStart, points: np.ndarray, parity_rows: IntArray) -> Text:
    embedded = float(chosen.points.sum()) / float(points.sum())
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


def _clients(
    chosen: ColdStart, clients: Fleet, points: np.ndarray, parity_rows: IntArray
) -> RenderableType:
    shares = chosen.points / np.maximum(points, 1)
    order = np.argsort(shares, kind="stable")[:SHOWN_CLIENTS]
    title = f"The {len(order)} of {len(clients):,} clients that embed the smallest share"
    table = plain_table(["client"], ["points", "embedded", "parity rows"], title)
    for j in order:
        embedded = int(chosen.points[j])
        rows = f"{parity_rows[j]:,}" if embedded else "–"
        table.add_row(Text(str(clients.client[j])), f"{points[j]:,.0f}", f"{embedded:,}", rows)
    return table


def plan_feature_map(
    clients: Fleet,
    work: "WorkOptions",
    image: tuple[int, int, int] | None,
    excess: float,
    hours: float,
) -> tuple[dict[str, Any], RenderableType]:
    """Choose the most accurate feature map that is trained in time, and show what others take."""
    maps = _feature_maps(work.inputs, image)
    points = clients.points * work.batches
    plans = plan_maps(clients, work.workload, points, maps, excess, LEAST_MIXING)
    chosen = best_map(plans, hours)
    described = [
        {
            "kind": plan.map.kind,
            "n_components": plan.map.features,
            "stride": plan.map.stride,
            "macs": plan.map.macs,
            "predicted_hours": plan.hours,
            "setup_deadline_s": plan.plan.setup_deadline,
            "round_deadline_s": plan.plan.round_deadline,
            "rounds": plan.plan.rounds,
        }
        for plan in plans
    ]
    view = Group(_maps(plans, chosen, hours), _snippet(chosen.map, image))
    return {"chosen": described[plans.index(chosen)], "maps": described}, view


def _feature_maps(inputs: int, image: tuple[int, int, int] | None) -> list[MapCost]:
    """Return maps from the least to the most accurate; with patches if points are images."""
    maps = []
    for q, part in _TABLES if image is None or min(image[:2]) < MIN_PATCH_SIDE else _IMAGES:
        if part is None:
            maps.append(MapCost("structured", q, Structured(q).macs(inputs)))
        else:
            stride = max(Tiles(image).on(inputs).stride // part, 1)
            patches = Patches(q, tiles=Tiles(image, stride=stride))
            maps.append(MapCost("patches", patches.size(inputs), patches.macs(inputs), stride))
    return maps


def _maps(plans: list[MapPlan], chosen: MapPlan, hours: float) -> RenderableType:
    title = f"Feature maps, the most accurate last; to be trained within {hours:g} h"
    numbers = ["number", "stride", "operations a point", "predicted, h", ""]
    table = plain_table(["features"], numbers, title)
    for plan in plans:
        cost, stride = plan.map, "" if plan.map.stride is None else str(plan.map.stride)
        verdict = "chosen" if plan is chosen else "" if plan.hours <= hours else "too long"
        cells = (f"{cost.features:,}", stride, f"{cost.macs:,}", f"{plan.hours:.2f}", verdict)
        style = "bold" if plan is chosen else "dim" if plan.hours > hours else ""
        table.add_row(cost.kind, *cells, style=style)
    return table


def _snippet(chosen: MapCost, image: tuple[int, int, int] | None) -> Text:
    """Return the lines for an experiment."""
    lines = ["", "[features]", f'kind = "{chosen.kind}"', f"n_components = {chosen.features}"]
    if chosen.stride is not None and image is not None:
        lines += [f"image = {list(image)}", f"stride = {chosen.stride}"]
    return Text("\n".join(lines))


def charged_plans(
    clients: Fleet, workload: Workload, inputs: int, batches: int, rounds: int, step: float
) -> dict[str, Any]:
    """Plan the same training twice: by E[return] = m − u, and with the deadline free.

    Structured features, and a sparse code with ten points of a client behind every parity row.
    """
    macs = Structured(workload.features).macs(inputs)
    training = Training(workload, macs, batches, rounds, step, LEAST_MIXING)
    rule, seconds = cheapest_plan(
        clients, rounds, lambda rows: training.setup_seconds(clients, rows)
    )
    document: dict[str, Any] = {
        "rule": {
            "deadline_s": rule.deadline,
            "parity_rows": rule.parity_rows,
            "setup_s": training.setup_seconds(clients, rule.parity_rows),
            "total_s": seconds,
        },
        "hours": None,
        "rule_costs": None,
    }
    try:
        free = plan_hours(clients, training, EXCESS_BOUND)
    except InputError:  # some clients are rarely available: only the rule has a plan
        return document
    document["hours"] = {
        "deadline_s": free.plan.deadline,
        "parity_rows": free.plan.parity_rows,
        "setup_s": free.setup_seconds,
        "total_s": free.seconds,
        "excess_bound": free.excess,
    }
    document["rule_costs"] = seconds / free.seconds
    return document


def charged_view(charged: dict[str, Any], rounds: int) -> Group:
    """Return both plans as a table, and what the rule costs as a sentence."""
    table = plain_table(["deadline from"], ["parity rows", "deadline", "set-up", "in all"])
    for name, words in (("rule", "the paper's rule"), ("hours", "charged hours")):
        if (plan := charged[name]) is not None:
            seconds = [duration(plan[key]) for key in ("deadline_s", "setup_s", "total_s")]
            table.add_row(words, f"{plan['parity_rows']:,}", *seconds)
    title = f"\nSet-up and {rounds:,} rounds, structured features, ten points per parity row"
    parts: list[RenderableType] = [Text(title, style="bold"), table]
    if charged["rule_costs"] is not None:
        sentence = (
            f"The rule takes {charged['rule_costs']:.1f} times as long; the other leaves an "
            f"excess of at most {charged['hours']['excess_bound']:.2g} of the objective "
            '(coded, planned = "hours").'
        )
        parts.append(Text(sentence))
    return Group(*parts)
