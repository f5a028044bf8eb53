"""Clients with tables of their own agree on a scale, by sums, before anything is embedded."""

from dataclasses import asdict
from typing import Any

import numpy as np

from codedfedl.data.scaling import Moments, Scaling, agreed_means, agreed_spreads
from codedfedl.errors import InputError
from codedfedl.federate.job import Job
from codedfedl.federate.transport import Transport
from codedfedl.runs.config import FederationConfig
from codedfedl.runs.journal import Members

__all__ = ["agree_on_scaling"]


def agree_on_scaling(
    transport: Transport, config: FederationConfig, members: Members, job: Job
) -> Scaling:
    """Ask all members for sums twice, about 0 and about the means; every one must answer.

    The number of points of each is what it reported when it joined.
    """
    first = _asked(transport, config, members, job, [0.0] * members.inputs)
    low, offset = agreed_means(first, members.points)
    span = agreed_spreads(_asked(transport, config, members, job, low.tolist()), members.points)
    return Scaling(low.tolist(), span.tolist(), offset.tolist())


def _asked(
    transport: Transport,
    config: FederationConfig,
    members: Members,
    job: Job,
    about: list[float],
) -> list[Moments]:
    seconds = config.probe_timeout
    facts = {"job": asdict(job), "about": about}
    questions = {j: (node, facts) for j, node in enumerate(members.nodes)}
    columns = 0 if members.classes else members.columns
    largest = 8 * (2 * members.inputs + columns) + 1024
    asked = transport.ask("moments", questions, {}, seconds, largest=largest)
    found: dict[int, Moments] = {}
    for arrival in transport.gather(asked, transport.now() + seconds):
        found |= _checked(arrival.client, arrival.arrays, members.inputs, columns)
    missing = [name for j, name in enumerate(members.names) if j not in found]
    if missing:
        raise InputError(
            f"no sums that can be right came from {', '.join(missing)} within {seconds:g} s: the "
            "scale is agreed on by all; look at their logs, raise federation.probe_timeout, or "
            "name them in federation.without"
        )
    shares = np.array(members.points) / members.claimed
    return [found[j].times(share) for j, share in enumerate(shares.tolist())]


def _checked(client: int, arrays: Any, inputs: int, columns: int) -> dict[int, Moments]:
    """Return a client's sums, or nothing where they cannot be right."""
    shapes = {"sums": (inputs,), "squares": (inputs,), "labels": (columns,)}
    told = {name: np.asarray(arrays.get(name, np.nan)) for name in shapes}
    if any(
        told[name].shape != shape or told[name].dtype.kind != "f" for name, shape in shapes.items()
    ):
        return {}
    if (
        not all(np.isfinite(array).all() for array in told.values())
        or told["squares"].min(initial=0) < 0
    ):
        return {}
    return {client: Moments(**told)}
