"""One scheme trained on points that are all here, for the estimators: no files, no checkpoint."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.core.columns import round_columns
from codedfedl.core.disclosure import only_private
from codedfedl.data import Dataset, mini_batches, partition
from codedfedl.data.partitions import client_names, places_of, shards_by_name
from codedfedl.fleet.built_in import paper_devices
from codedfedl.fleet.delays import DelayParameters
from codedfedl.fleet.devices import Devices, Fleet, Workload, read_clients
from codedfedl.learning.features import Encoded, FeatureMap
from codedfedl.learning.optimisers import Schedule
from codedfedl.schemes import Scheme, scheme_for
from codedfedl.simulation.client_data import embedded, task_of
from codedfedl.simulation.engine import Simulation, entries
from codedfedl.simulation.outputs import privacy_facts

_CLIENTS, _LEAST_POINTS = 30, 40  # of the default fleet: the paper's size, and least per client

Known = Devices | DelayParameters


@dataclass(frozen=True, eq=False)
class Dealt:
    """The clients: what is known of all, and of those with points their names and shards."""

    known: Known | None
    names: npt.NDArray[np.str_] | None
    shards: list[IntArray]

    def fleet(self, workload: Workload, points: IntArray, seed: int) -> Fleet:
        """Return the clients that have points, with those points, in the order of their names."""
        if self.known is None:
            # The paper's ladders from the fastest to the slowest, with a rung for every client.
            between = (_CLIENTS - 1) / max(len(points) - 1, 1)
            chosen: Known = paper_devices(len(points), k1=0.95**between, k2=0.8**between, seed=seed)
        elif self.names is None:
            chosen = self.known.take(np.arange(len(points)))
        else:
            chosen = self.known.take(places_of(self.names, self.known.client))
        parameters = chosen.parameters(workload) if isinstance(chosen, Devices) else chosen
        fleet = Fleet.of(parameters, points)
        return fleet if self.names is None else replace(fleet, client=self.names)


def deal_to(
    fleet: Known | str | Path | None, clients: Any, labels: npt.NDArray[Any], seed: int
) -> Dealt:
    """Give points to the clients that are named for each, or to all at random.

    Parameters
    ----------
    fleet
        Fleet, devices, or a file of either; None stands for the paper's.
    clients : array of shape (n,), optional
        The name of each point's client.
    """
    known = read_clients(fleet) if isinstance(fleet, str | Path) else fleet
    if clients is not None:
        return Dealt(known, *shards_by_name(client_names(clients, len(labels)), seed))
    enough = min(_CLIENTS, max(1, len(labels) // _LEAST_POINTS))
    count = min(enough if known is None else len(known), len(labels))
    return Dealt(known, None, partition(labels, count, "iid", seed=seed))


@dataclass(frozen=True, eq=False)
class Trained:
    """How it ended; nothing here holds a training point.

    Attributes
    ----------
    features
        The feature map: the one that was given, or the scheme's own.
    weights : array of shape (q, c)
    plan, privacy
        As the scheme describes them.
    history
        For every round: ``round``, ``training_hours``, ``total_hours``, ``arrived`` and, unless the
        scheme is private, ``score`` on the test points.
    """

    scheme: Scheme
    features: FeatureMap
    weights: FloatArray
    fleet: Fleet
    plan: Any
    privacy: dict[str, Any] | None
    history: dict[str, npt.NDArray[Any]]

    @property
    def hours(self) -> tuple[float, float]:
        """Simulated hours of the rounds, and with the set-up."""
        rounds, total = (self.history[f"{name}_hours"][-1] for name in ("training", "total"))
        return float(rounds), float(total)

    @property
    def card(self) -> dict[str, Any]:
        """Facts for the model's card."""
        rounds, total = self.hours
        return {
            "scheme": self.scheme.info.name,
            "clients": len(self.fleet.points),
            "rounds": int(self.history["round"][-1]),
            "training_hours": rounds,
            "total_hours": total,
            "simulated": True,
            "epsilon": (self.privacy or {}).get("epsilon"),
            "privacy": self.privacy,
        }


def train(
    dataset: Dataset,
    dealt: Dealt,
    features: FeatureMap,
    scheme: str | Scheme,
    *,
    batches: int,
    epochs: int,
    step: float,
    ridge: float,
    seed: int,
) -> Trained:
    """Train to the end; a scheme given by name mixes less if no client has many points."""
    if isinstance(scheme, str):
        scheme = scheme_for(scheme, {}, max(len(shard) for shard in dealt.shards), rows=4)
    if not isinstance(features, Encoded):
        features = scheme.info.features or features
    parts, schedule = mini_batches(dealt.shards, batches), Schedule(step, 1.0, ())
    task = task_of(dataset, parts, features, epochs=epochs, schedule=schedule, ridge=ridge)
    fleet = dealt.fleet(task.workload, task.points[0], seed)
    scheme.check(fleet)
    problem = embedded(dataset, parts, features, "cpu")
    simulation = Simulation(problem, entries(task, fleet, {scheme.info.name: scheme}), seed)
    for _ in simulation.run():
        pass
    setting = simulation.settings[0]
    described, recorded = scheme.describe(setting.state), round_columns(setting.records)
    history = {
        name: recorded[name] for name in ("round", "training_hours", "total_hours", "arrived")
    }
    if not only_private(scheme.info.disclosure):
        history["score"] = recorded["metric"]
    weights, privacy = np.asarray(setting.state.model, np.float64), privacy_facts(described.account)
    return Trained(scheme, features, weights, fleet, described.plan, privacy, history)
