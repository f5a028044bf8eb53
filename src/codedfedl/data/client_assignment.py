"""Assign points to clients, and clients to devices."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import IntArray
from codedfedl.data.partitions import partition
from codedfedl.errors import InputError
from codedfedl.fleet.built_in import paper_devices
from codedfedl.fleet.delays import DelayParameters
from codedfedl.fleet.devices import Devices, Fleet, Workload, read_clients
from codedfedl.random import stream

__all__ = ["dealt", "fleet_of", "known_clients"]

_CLIENTS, _LEAST_POINTS = 30, 40  # of the default fleet: the paper's size, and least per client

Names = npt.NDArray[np.str_]
Known = Devices | DelayParameters


def known_clients(given: Known | str | Path | None) -> Known | None:
    """Return a fleet or devices, read from a file if a path is given; None for the paper's."""
    return read_clients(given) if isinstance(given, str | Path) else given


def dealt(
    clients: Any, labels: npt.NDArray[Any], fleet: Known | None, seed: int
) -> tuple[Names | None, list[IntArray]]:
    """Return the names of the clients and their points, assigned at random by default."""
    if clients is None:
        count = _size(fleet, len(labels))
        return None, partition(labels, min(count, len(labels)), "iid", seed=seed)
    names, owner = np.unique(_names(clients, len(labels)), return_inverse=True)
    order = stream(seed, "partition").permutation(len(owner))
    grouped = order[np.argsort(owner[order], kind="stable")]
    return names, np.split(grouped, np.cumsum(np.bincount(owner))[:-1])


def fleet_of(
    given: Known | None, names: Names | None, workload: Workload, points: IntArray, seed: int
) -> Fleet:
    """Return the clients that have points, with those points, in the order of their names."""
    if given is None:
        # The paper's ladders from the fastest to the slowest, with a rung for every client.
        between = (_CLIENTS - 1) / max(len(points) - 1, 1)
        chosen: Known = paper_devices(len(points), k1=0.95**between, k2=0.8**between, seed=seed)
    else:
        chosen = given.take(_places(given, names, len(points)))
    parameters = chosen.parameters(workload) if isinstance(chosen, Devices) else chosen
    fleet = Fleet.of(parameters, points)
    return fleet if names is None else replace(fleet, client=names)


def _size(fleet: Known | None, points: int) -> int:
    """Return how many clients there are; by default fewer where there is little data."""
    if fleet is None:
        return min(_CLIENTS, max(1, points // _LEAST_POINTS))
    return len(fleet)


def _names(clients: Any, points: int) -> Names:
    """Return the name of each point's client as text; whole numbers are the same in any type."""
    given = np.asarray(clients, dtype=object)
    if given.shape != (points,):
        raise InputError(
            f"clients has shape {given.shape} where there are {points} points: name the client of "
            "every point"
        )
    names = []
    for row, name in enumerate(given.tolist()):
        if str(name) in ("", "None", "nan", "<NA>", "NaT"):
            raise InputError(f"clients, row {row} (counted from 0) is {name!r}: name the client")
        whole = isinstance(name, float) and name.is_integer()
        names.append(str(int(name)) if whole else str(name))
    return np.array(names)


def _places(fleet: Known, names: Names | None, clients: int) -> IntArray:
    """Return where the named clients are in the fleet; the first ones where none is named."""
    if names is None:
        return np.arange(clients)
    where = {str(name): index for index, name in enumerate(fleet.client)}
    for name in names.tolist():
        if name not in where:
            known = ", ".join(list(where)[:5])
            raise InputError(
                f"clients names {name!r}, which is not in the fleet ({known}, …): add it there"
            )
    return np.array([where[name] for name in names.tolist()])
