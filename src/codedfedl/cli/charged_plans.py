"""Plans that charge the set-up: `codedfedl plan --excess`, `--within` and `--rounds`."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from codedfedl.cli.output import View
from codedfedl.errors import InputError
from codedfedl.fleet.costs import BlockSetup
from codedfedl.fleet.devices import Fleet
from codedfedl.io.names import count_of
from codedfedl.learning.codes import LEAST_MIXING
from codedfedl.learning.features import Patches, Structured, Tiles
from codedfedl.planning.cold_start import best_cold_start
from codedfedl.planning.hours import (
    HoursPlan,
    MapCost,
    Training,
    best_map,
    cheapest_plan,
    plan_maps,
)
from codedfedl.planning.plan import Plan
from codedfedl.report.fleet_tables import duration

if TYPE_CHECKING:
    from codedfedl.cli.plan import WorkOptions


SHOWN_CLIENTS = 12
MIN_PATCH_SIDE = 16
"""Pixels; smaller images have too few patches to be worth them."""

EXCESS_BOUND = 1.0
"""The bound on the objective's excess that `coded` plans for by default."""

# Number of features, and for patches the divisor of the default stride. Sorted by the
# accuracy of exact ridge regression on held-out training points: docs/explanation/features.md.
_TABLES = ((500, None), (1000, None), (2000, None), (4000, None))
_IMAGES = (
    *_TABLES[:3], (1000, 1), (4000, None), (2000, 1), (1000, 2), (4000, 1), (2000, 2), (4000, 2),
)  # fmt: skip


def plan_cold_start(
    clients: Fleet, work: "WorkOptions", excess: float
) -> tuple[dict[str, Any], list[View]]:
    """Plan `coded-newton` with structured features and ten points a parity row, and show it."""
    points = clients.points * work.batches
    macs = Structured(work.features).macs(work.inputs)
    ways = BlockSetup(work.workload, macs, 1, LEAST_MIXING, bits=16).ways()
    chosen, setup = best_cold_start(clients, points, ways, excess)
    parity_rows = setup.rows(chosen.points)
    rows = [
        {
            "client": client,
            "points": int(points[j]),
            "embedded": int(chosen.points[j]),
            "parity_rows": int(parity_rows[j]),
        }
        for j, client in enumerate(clients.client.tolist())
    ]
    document = {
        "setup_deadline_s": chosen.setup_deadline,
        "round_deadline_s": chosen.round_deadline,
        "rounds": chosen.rounds,
        "predicted_hours": chosen.seconds / 3600,
        "predicted_excess": chosen.excess,
        "parity_rows": int(parity_rows.sum()),
        "unrepresented_points": int(points[chosen.points == 0].sum()),
        "clients": rows,
    }
    embedded = float(chosen.points.sum()) / float(points.sum())
    sentence = (
        f"set-up {chosen.setup_deadline:,.0f} s, then {count_of(chosen.rounds, 'round')} of "
        f"{chosen.round_deadline:,.0f} s: {chosen.seconds / 3600:.2f} h to an objective "
        f"{chosen.excess:.0%} above its optimum, as predicted;\n{embedded:.0%} of the points are "
        f"embedded when the set-up ends, {int(parity_rows.sum()):,} parity rows of ten points each"
    )
    least = sorted(rows, key=lambda row: row["embedded"] / max(row["points"], 1))[:SHOWN_CLIENTS]
    title = f"The {len(least)} of {len(clients):,} clients that embed the smallest share"
    return document, [sentence, f"\n{title}:", least]


def plan_feature_map(
    clients: Fleet,
    work: "WorkOptions",
    image: tuple[int, int, int] | None,
    excess: float,
    hours: float,
) -> tuple[dict[str, Any], list[View]]:
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
    rows = [
        {
            "features": plan.map.kind,
            "number": plan.map.features,
            "stride": plan.map.stride or "",
            "operations a point": plan.map.macs,
            "predicted, h": round(plan.hours, 2),
            "": "chosen" if plan is chosen else "" if plan.hours <= hours else "too long",
        }
        for plan in plans
    ]
    title = f"Feature maps, the most accurate last; to be trained within {hours:g} h:"
    snippet = ["", "[features]", f'kind = "{chosen.map.kind}"']
    snippet += [f"n_components = {chosen.map.features}"]
    if chosen.map.stride is not None and image is not None:
        snippet += [f"image = {list(image)}", f"stride = {chosen.map.stride}"]
    document = {"chosen": described[plans.index(chosen)], "maps": described}
    return document, [title, rows, "\n".join(snippet)]


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


def plan_for_rounds(
    clients: Fleet, work: "WorkOptions", rounds: int
) -> tuple[Plan, dict[str, Any]]:
    """Minimise the time of set-up and all rounds; compare the paper's rule with a free deadline.

    The plan is for a dense code on random features. The comparison plans the same training by
    E[return] = m − u and with the deadline free: structured features, and a sparse code with ten
    points of a client behind every parity row.
    """
    macs = work.inputs * work.features
    dense = Training(work.workload, macs, work.batches, rounds, work.step, mixing=0)
    chosen = cheapest_plan(clients, dense).plan
    structured = Structured(work.features).macs(work.inputs)
    sparse = replace(dense, feature_macs=structured, mixing=LEAST_MIXING)
    rule = cheapest_plan(clients, sparse)
    charged: dict[str, Any] = {"rule": _times(rule), "hours": None, "rule_costs": None}
    try:
        free = cheapest_plan(clients, sparse, EXCESS_BOUND)
    except InputError:  # some clients are rarely available: only the rule has a plan
        return chosen, charged
    charged["hours"] = {**_times(free), "excess_bound": free.excess}
    charged["rule_costs"] = rule.seconds / free.seconds
    return chosen, charged


def _times(charged: HoursPlan) -> dict[str, Any]:
    return {
        "deadline_s": charged.plan.deadline,
        "parity_rows": charged.plan.parity_rows,
        "setup_s": charged.setup_seconds,
        "total_s": charged.seconds,
    }


def charged_views(charged: dict[str, Any], rounds: int) -> list[View]:
    """Return both plans as a table, and what the rule costs as a sentence."""
    rows = []
    for name, words in (("rule", "the paper's rule"), ("hours", "charged hours")):
        if (plan := charged[name]) is not None:
            row = {"deadline from": words, "parity rows": plan["parity_rows"]}
            times = {"deadline": "deadline_s", "set-up": "setup_s", "in all": "total_s"}
            rows.append(row | {heading: duration(plan[key]) for heading, key in times.items()})
    title = f"\nSet-up and {rounds:,} rounds, structured features, ten points per parity row:"
    if charged["rule_costs"] is None:
        return [title, rows]
    sentence = (
        f"The rule takes {charged['rule_costs']:.1f} times as long; the other leaves an "
        f"excess of at most {charged['hours']['excess_bound']:.2g} of the objective "
        '(coded, planned = "hours").'
    )
    return [title, rows, sentence]
