"""How the nodes are measured before anything is planned."""

import numpy as np

from codedfedl.errors import InputError
from codedfedl.federate.runtime import Federation
from codedfedl.federate.transport import Arrival
from codedfedl.fitting.traces import Traces, slow_minority

__all__ = ["probe"]


def probe(federation: Federation) -> Traces:
    """Measure every node: a message asks for a gradient over all, half or a quarter of its points.

    A node that is silent twice is not asked again.
    """
    transport, config, task = federation.transport, federation.config, federation.task
    rows: list[tuple[int, int, float, float]] = []
    silences = np.zeros(len(federation.everyone), dtype=np.int64)
    zero = np.zeros((task.workload.features, task.workload.labels), dtype=np.float32)
    points, seconds = task.points.max(0), config.probe_timeout
    for number in range(config.probes):
        loads = np.maximum(points >> number % 3, 1).tolist()
        began = transport.now()
        facts = {j: {"load": loads[j]} for j in federation.everyone if silences[j] < 2}
        asked = federation.question("probe", facts, seconds, largest=zero.nbytes, model=zero)
        answers = dict.fromkeys(facts, (np.nan, np.inf))
        for arrival in transport.gather(asked, began + seconds):
            answers[arrival.client] = _measured(federation, arrival, arrival.when - began)
        silences[[j for j, (_, total) in answers.items() if np.isinf(total)]] += 1
        rows += [(j, loads[j], *answers[j]) for j in facts]
        federation.say(f"probe {number + 1} of {config.probes} done")
    if not any(np.isfinite(total) for *_, total in rows):
        raise InputError(
            "no node answered a probe: look at the nodes' logs, and at the data they are given"
        )
    client, load, compute, total = zip(*sorted(rows), strict=True)  # in the members' order
    names = [federation.members.names[j] for j in client]
    traces = Traces(names, load, compute=compute, total=total, waited=np.full(len(load), seconds))
    for name, times in slow_minority(traces).items():
        federation.say(
            f"advice: {name} takes {times:.3g} times as long as all others, and a planned deadline "
            "does not wait for it: give federation.deadline if rounds should"
        )
    return traces


def _measured(federation: Federation, arrival: Arrival, took: float) -> tuple[float, float]:
    """Return compute and total seconds of a probe, without what only the first one computes."""
    seconds, busy = arrival.facts.get("seconds"), arrival.facts.get("busy")
    if type(seconds) is float and type(busy) is float and 0 < seconds <= busy < took:
        return seconds, took - busy + seconds
    why = arrival.reason or "sent a malformed answer to a probe"
    federation.say(f"{federation.members.names[arrival.client]}: {why}")
    return np.nan, np.inf
