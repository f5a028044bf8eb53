"""`codedfedl plan --rounds`: the paper's rule beside a plan that is free to wait less."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from codedfedl.errors import InputError
from codedfedl.fleet.devices import Fleet, Workload
from codedfedl.learning.codes import LEAST_MIXING
from codedfedl.learning.features import Structured
from codedfedl.planning.hours import Training, cheapest_plan, plan_hours
from codedfedl.report.fleet_tables import duration

__all__ = ["charged_plans", "charged_view"]

_EXCESS = 1.0  # the bound that `coded` plans for by default


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
        free = plan_hours(clients, training, _EXCESS)
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


def charged_view(found: dict[str, Any], rounds: int) -> Group:
    """Return both plans as a table, and what the rule costs as a sentence."""
    table = Table(box=None, padding=(0, 2), header_style="bold")
    table.add_column("deadline from")
    for heading in ("parity rows", "deadline", "set-up", "in all"):
        table.add_column(heading, justify="right")
    for name, words in (("rule", "the paper's rule"), ("hours", "charged hours")):
        if (one := found[name]) is not None:
            seconds = [duration(one[key]) for key in ("deadline_s", "setup_s", "total_s")]
            table.add_row(words, f"{one['parity_rows']:,}", *seconds)
    title = f"\nSet-up and {rounds:,} rounds, structured features, ten points per parity row"
    parts: list[RenderableType] = [Text(title, style="bold"), table]
    if found["rule_costs"] is not None:
        parts.append(
            Text(
                f"The rule takes {found['rule_costs']:.1f} times as long; the other leaves an "
                f"excess of at most {found['hours']['excess_bound']:.2g} of the objective "
                '(coded, planned = "hours").'
            )
        )
    return Group(*parts)
