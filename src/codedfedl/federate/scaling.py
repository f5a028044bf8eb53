"""Clients with tables of their own agree on a scale, by rounded means, before they embed."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from codedfedl.data.scaling import Moments, Scaling, agreed_scaling
from codedfedl.errors import InputError
from codedfedl.federate.job import Job
from codedfedl.federate.transport import Transport
from codedfedl.runs.config import FederationConfig
from codedfedl.runs.journal import Members

__all__ = ["agree_on_scaling"]


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
