"""States of coded-newton, and answers to it."""

from typing import Any

import numpy as np

from codedfedl import Fleet
from codedfedl.core.protocol import Inbox, Reply, Task
from codedfedl.core.record import SETUP
from codedfedl.data import load_dataset
from codedfedl.fleet.devices import Workload
from codedfedl.learning.codes import Code
from codedfedl.learning.features import Structured
from codedfedl.learning.optimisers import Schedule
from codedfedl.runs.config import Experiment
from codedfedl.schemes.coded_newton import CodedNewton
from codedfedl.schemes.newton_state import NewtonState
from codedfedl.simulation.client_data import Problem
from codedfedl.simulation.units import prepare

SMALL: dict[str, Any] = {
    "data": {"name": "digits", "batches": 2},
    "fleet": {"clients": 10, "k2": 0.4},
    "features": {"kind": "structured", "n_components": 60, "sigma": 2.0},
    "training": {"epochs": 200, "ridge": 1e-4, "target": 0.5},
}


def prepared(scheme: dict[str, Any], **fleet: Any) -> tuple[Experiment, Problem, Task, Fleet]:
    """Deal digits to ten unequal clients, sorted by class."""
    changes = {"schemes": [scheme], "fleet": SMALL["fleet"] | fleet}
    experiment = Experiment.model_validate(SMALL | changes)
    data = load_dataset("digits")
    return experiment, *prepare(experiment, data, 0, Structured(60, 2.0, 0), "cpu")


def newton_state(
    damped: bool = True, held: tuple[int, ...] = (40, 30, 5), features: int = 6
) -> tuple[NewtonState, list[tuple[np.ndarray, np.ndarray]], CodedNewton]:
    """Three clients by hand, the last one with too few points for parity."""
    rng = np.random.default_rng(0)
    shards = [(rng.standard_normal((n, features)), rng.standard_normal((n, 2))) for n in held]
    fleet = Fleet(points=held, rate=1, alpha=2, packet_time=1, erasure=0.1)
    task = Task(Workload(features, 2), 10, np.array([held]), 200, Schedule(), 1e-2)
    scheme = CodedNewton(setup_deadline=1e4, deadline=1e4, rounds=200, damped=damped)
    state = scheme.start(task, fleet, np.zeros((features, 2), np.float32))
    state = scheme.receive(state, everyone())  # nobody says how many points of each class it has
    replies = []
    for j, (x, y) in enumerate(shards):
        if held[j] >= 10:
            mixed = Code("dealt").mix((x, y), np.ones(held[j]), held[j] // 10, rng)
            replies.append(parity_of(j, held[j], *mixed))
    arrived = np.array(held) >= 10
    return scheme.receive(state, Inbox(arrived, 70.0, replies=tuple(replies))), shards, scheme


def parity_of(client: int, points: int, features: np.ndarray, targets: np.ndarray) -> Reply:
    """Return a client's answer to the set-up."""
    return Reply(client, SETUP, points, {"features0": features, "targets0": targets})


def answer_of(
    client: int, round_: int, shard: tuple[np.ndarray, np.ndarray], model: np.ndarray
) -> Reply:
    """Return a client's exact gradient at a model, and which model that is."""
    gradient = np.asarray(shard[0].T @ (shard[0] @ model - shard[1]))
    return Reply(client, round_, len(shard[0]), {"gradient": gradient}, model)


def everyone(*replies: Reply) -> Inbox:
    """Return the answers of a round; who arrived makes no difference to the scheme."""
    return Inbox(np.ones(3, bool), 0.0, replies=replies)
