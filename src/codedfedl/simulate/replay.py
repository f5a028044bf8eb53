"""A federation once more, from what it recorded: the same mathematics on the simulator's side.

The clients' gradients are computed anew from the data, for those who arrived in each round and for
the loads that they had; the parity is what they sent, since their codes are secret. The model must
come out the same, up to the rounding of float32.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.data import Dataset, load_dataset, mini_batches
from codedfedl.data.partitions import processing_order
from codedfedl.data.shards import Shard
from codedfedl.errors import InputError
from codedfedl.learning.gradients import gradient
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.federation import federation_config, fitted, scheme_of, start
from codedfedl.runs.journal import SETUP, Exchange, Journal, Members
from codedfedl.schemes.base import AskGradient, Inbox, Reply

__all__ = ["ROUNDING", "Replay", "replay"]

ROUNDING = 1e-4
"""How far two models may lie apart, relative to the largest entry, and still be the same."""

Points = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Replay:
    """What came of a replay: `difference` is relative to the largest entry of the model."""

    rounds: int
    answers: int
    missed: int
    difference: float

    @property
    def same(self) -> bool:
        """Whether both models are the same up to rounding."""
        return self.difference <= ROUNDING


def replay(directory: RunDirectory, data: str | None = None) -> Replay:
    """Recompute a federation's model from its recorded arrivals."""
    experiment, journal = directory.experiment(), Journal(directory.path)
    federation_config(experiment)
    members, stored = journal.members(), directory.checkpoint()
    if members is None or stored is None:
        raise InputError(f"{directory.path} holds no finished federation: resume it first")
    dataset = load_dataset(experiment.data.name, data, label=experiment.data.label)
    clients = _clients(experiment, dataset, members)
    scheme = scheme_of(experiment)
    shape = (clients[0][0].shape[1], members.columns)
    zero = np.zeros(shape, dtype=np.float32)
    state = start(scheme, experiment, members, fitted(journal, members), zero)
    sent: dict[int, npt.NDArray[np.float32]] = {}
    rounds = answers = missed = 0
    for exchange in journal.exchanges():
        inbox = journal.inbox(exchange, experiment.data.batches)
        if exchange.round != SETUP:
            model = sent[exchange.round] = np.asarray(state.model, dtype=np.float32)
            ask = scheme.ask(state)
            own = ask.own.gradient(model) if isinstance(ask, AskGradient) and ask.own else 0.0
            inbox = _recomputed(inbox, exchange, experiment, clients, sent, own)
            rounds += 1
            answers += int(exchange.arrived.sum())
            missed += int((~exchange.arrived & (exchange.loads > 0)).sum())
        state = scheme.receive(state, inbox)
    recorded, found = stored["model"].astype(np.float64), np.asarray(state.model, np.float64)
    apart = float(np.abs(found - recorded).max() / max(np.abs(recorded).max(), 1e-30))
    return Replay(rounds, answers, missed, apart)


def _clients(experiment: Experiment, dataset: Dataset, members: Members) -> list[Points]:
    """Embed every client's points, in the order in which it processes them."""
    seed = experiment.seeds[0]
    shards = experiment.deal(dataset.labels, len(members.names), seed)
    if [len(rows) for rows in shards] != members.points:
        raise InputError(
            f"{experiment.data.name} does not deal the points that the clients had "
            f"({members.points[:5]} …): only a federation of such data can be replayed"
        )
    features = experiment.feature_map(seed, experiment.schemes[0])
    clients = []
    for rows in shards:
        order = rows[processing_order(len(rows), seed)]
        targets = Shard(dataset.inputs, dataset.labels).targets(order, members.columns)
        clients.append((features.transform(dataset.inputs[order]), targets))
    return clients


def _recomputed(
    inbox: Inbox,
    exchange: Exchange,
    experiment: Experiment,
    clients: list[Points],
    sent: dict[int, npt.NDArray[np.float32]],
    own: Any,
) -> Inbox:
    """Return the inbox with gradients computed here."""

    def over(client: int, first: int, points: int, round_: int) -> npt.NDArray[np.float32]:
        features, targets = (part[first : first + points] for part in clients[client])
        return np.asarray(gradient(features, targets, sent[round_]))

    if exchange.replies:
        return replace(inbox, replies=tuple(_answer(r, clients, over) for r in exchange.replies))
    if exchange.total is None:  # nobody answered a scheme that uses single answers
        return inbox
    total = np.zeros_like(sent[exchange.round], dtype=np.float64) + own
    for j in np.flatnonzero(exchange.arrived).tolist():
        parts = mini_batches([np.arange(len(clients[j][0]))], experiment.data.batches)
        first = int(parts[exchange.batch][0][0])
        total += over(j, first, int(exchange.loads[j]), exchange.round)
    return replace(inbox, total=total.astype(np.float32))


def _answer(
    reply: Reply, clients: list[Points], over: Callable[..., npt.NDArray[np.float32]]
) -> Reply:
    heavier = np.float32(len(clients[reply.client][0]) / reply.points)
    found = over(reply.client, 0, reply.points, reply.round) * heavier
    return replace(reply, gradient=found)
