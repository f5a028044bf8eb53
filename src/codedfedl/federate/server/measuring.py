"""What the server learns of the nodes before it plans: how far claims count, a scale, delays.

A node's points weight its answers, and its label columns set the size of everybody's model. What
the operator states takes precedence. Otherwise points count up to a cap C, the largest for which
the fifth of the nodes with most points weighs no more than a third of all,

    Σ_{i ≤ k} min(c_i, C) ≤ ⅓·(S + Σ_i min(c_i, C)),  k = ⌊n/5⌋,

where c_1 ≥ c_2 ≥ … are the claims and S is the sum of the points that the operator states. For ten
nodes, of which two claim more than eight equal ones, C is twice what these claim. Fewer than five
nodes have no such minority. No claim counts for more than `heaviest` times the median either.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from codedfedl.arrays import IntArray
from codedfedl.data.shards import Moments, Scaling, agreed_scaling
from codedfedl.errors import InputError
from codedfedl.federate.job import Job
from codedfedl.federate.server.asking import Asking
from codedfedl.federate.server.checks import low_median
from codedfedl.federate.transport import Arrival, Transport
from codedfedl.fitting.traces import Traces, slow_minority
from codedfedl.learning.codes import LEAST_MIXING
from codedfedl.runs.federation_sections import FederationConfig
from codedfedl.runs.journal import Members

_ALWAYS = 100  # label columns that cost nobody much
_MINORITY = 5  # one in so many nodes may lie
_OTHERS = 2  # times the weight of that minority, which the others have at least


def unbelieved(
    greeted: Mapping[int, Mapping[str, Any]], config: FederationConfig
) -> dict[int, str]:
    """Return the nodes whose claims are not believed, and why."""
    if not greeted:
        return {}
    columns = int(low_median([facts["columns"] for facts in greeted.values()]))
    widest = config.classes or max(_ALWAYS, config.heaviest * columns)
    doubted = {}
    for node, facts in greeted.items():
        name, claimed = facts["name"], facts["points"]
        stated = config.points.get(name)
        if stated is not None and claimed != stated:
            doubted[node] = f"{name} has {claimed} points where federation.points says {stated}"
        elif facts["columns"] > widest:
            limit = f"where federation.classes is {config.classes}"
            if config.classes is None:
                limit = f"which is many more than the median of {columns}: say federation.classes"
            doubted[node] = f"{name} says that it has {facts['columns']} label columns, {limit}"
    return doubted


def counted_points(claims: Mapping[str, int], config: FederationConfig) -> list[int]:
    """Return how many of the points that each node claims count, in their order."""
    stated = sum(points for name, points in claims.items() if name in config.points)
    others = np.array([points for name, points in claims.items() if name not in config.points])
    most = int(config.heaviest * low_median(list(claims.values())))
    if (minority := len(claims) // _MINORITY) and len(others):
        most = min(most, _cap(np.sort(others)[::-1], stated, minority))
    most = max(most, LEAST_MIXING)  # a node answers for no fewer
    return [
        points if name in config.points else min(points, most) for name, points in claims.items()
    ]


def _cap(claims: IntArray, stated: int, minority: int) -> int:
    """Return the largest C that keeps the minority's weight within its share, by bisection.

    The excess is convex in C as far as the largest claim, and not above 0 at C = 0.
    """

    def fits(cap: int) -> bool:
        counted = np.minimum(claims, cap)
        return bool(_OTHERS * counted[:minority].sum() <= stated + counted[minority:].sum())

    low, high = int(claims[-1]), int(claims[0])
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def advice_on_claims(names: Sequence[str], claims: Sequence[int], counted: Sequence[int]) -> str:
    """Return what to do about claims that do not count in full; empty if all do."""
    members = zip(names, claims, counted, strict=True)
    capped = [(name, claim, points) for name, claim, points in members if points < claim]
    if not capped:
        return ""
    each = ", ".join(f"{points} of {claim} of {name}" for name, claim, points in capped)
    table = ", ".join(f"{name} = {claim}" for name, claim, _ in capped)
    return (
        f"points that count: {each}, so that no fifth of the nodes outweighs the others; if they "
        f"have so many, say federation.points = {{ {table} }}"
    )


def agree_on_scaling(
    transport: Transport, config: FederationConfig, members: Members, job: Job
) -> Scaling:
    """Ask all members for their means and spreads; every one must answer."""
    seconds = config.probe_timeout
    questions = {j: (node, {"job": asdict(job)}) for j, node in enumerate(members.nodes)}
    columns = 0 if members.classes else members.columns
    largest = 8 * (2 * members.inputs + columns) + 1024
    asked = transport.ask("moments", questions, {}, seconds, largest=largest)
    answers: dict[int, Moments] = {}
    for arrival in transport.gather(asked, transport.now() + seconds):
        moments = _checked(arrival.arrays, members.inputs, columns)
        if moments is not None:
            answers[arrival.client] = moments
    missing = [name for j, name in enumerate(members.names) if j not in answers]
    if missing:
        raise InputError(
            f"no means that can be right came from {', '.join(missing)} within {seconds:g} s: the "
            "scale is agreed on by all; look at their logs, raise federation.probe_timeout, or "
            "name them in federation.without"
        )
    return agreed_scaling([answers[j] for j in range(len(answers))], members.points)


def _checked(arrays: Mapping[str, Any], inputs: int, columns: int) -> Moments | None:
    """Return a client's means and spreads, or nothing where they cannot be right."""
    shapes = {"means": (inputs,), "spreads": (inputs,), "labels": (columns,)}
    values = {name: np.asarray(arrays.get(name, np.nan)) for name in shapes}
    for name, shape in shapes.items():
        value = values[name]
        if value.shape != shape or value.dtype.kind != "f" or not np.isfinite(value).all():
            return None
    return None if values["spreads"].min(initial=0) < 0 else Moments(**values)


def probe(asking: Asking) -> Traces:
    """Measure every node: a message asks for a gradient over all, half or a quarter of its points.

    A node that is silent twice is not asked again.
    """
    transport, config, task = asking.transport, asking.config, asking.task
    rows: list[tuple[int, int, float, float]] = []
    silences = np.zeros(len(asking.everyone), dtype=np.int64)
    zero = np.zeros(task.model_shape, dtype=np.float32)
    points, seconds = task.points.max(0), config.probe_timeout
    for number in range(config.probes):
        loads = np.maximum(points >> number % 3, 1).tolist()
        began = transport.now()
        facts = {j: {"load": loads[j]} for j in asking.everyone if silences[j] < 2}
        asked = asking.question("probe", facts, seconds, largest=zero.nbytes, model=zero)
        answers = dict.fromkeys(facts, (np.nan, np.inf))
        for arrival in transport.gather(asked, began + seconds):
            answers[arrival.client] = _measured(asking, arrival, arrival.when - began)
        silences[[j for j, (_, total) in answers.items() if np.isinf(total)]] += 1
        rows += [(j, loads[j], *answers[j]) for j in facts]
        asking.say(f"probe {number + 1} of {config.probes} done")
    if not any(np.isfinite(total) for *_, total in rows):
        raise InputError(
            "no node answered a probe: look at the nodes' logs, and at the data they are given"
        )
    client, load, compute, total = zip(*sorted(rows), strict=True)  # in the members' order
    names = [asking.members.names[j] for j in client]
    traces = Traces(names, load, compute=compute, total=total, waited=np.full(len(load), seconds))
    for name, times in slow_minority(traces).items():
        asking.say(
            f"advice: {name} takes {times:.3g} times as long as all others, and a planned deadline "
            "does not wait for it: give federation.deadline if rounds should"
        )
    return traces


def _measured(asking: Asking, arrival: Arrival, took: float) -> tuple[float, float]:
    """Return compute and total seconds of a probe, without what only the first one computes."""
    seconds, busy = arrival.facts.get("seconds"), arrival.facts.get("busy")
    if type(seconds) is float and type(busy) is float and 0 < seconds <= busy < took:
        return seconds, took - busy + seconds
    why = arrival.reason or "sent a malformed answer to a probe"
    asking.say(f"{asking.members.names[arrival.client]}: {why}")
    return np.nan, np.inf
