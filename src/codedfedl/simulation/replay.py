"""Replay a federation from its records: the same mathematics on the simulator's side.

The clients' gradients are computed anew from the data, for those who arrived in each round and for
the loads that they had; the parity is what they sent, since their codes are secret. The model must
come out the same, up to the rounding of float32.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from codedfedl.arrays import Array
from codedfedl.core.loop import Driver, RunningSum, drive
from codedfedl.core.protocol import SUM, Ask, Inbox, Reply
from codedfedl.core.work import ArrayClient
from codedfedl.data import Dataset
from codedfedl.data.partitions import processing_order
from codedfedl.data.shards import Scaling, Shard
from codedfedl.errors import InputError
from codedfedl.random import stream
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.exchange import Exchange
from codedfedl.runs.federation import (
    federation_config,
    federation_learner,
    federation_task,
    first_model,
    fitted,
    scheme_of,
    start,
)
from codedfedl.runs.journal import Journal, Members

ROUNDING = 1e-4
"""How far two models may lie apart, relative to the largest entry, and still be the same."""


@dataclass(frozen=True)
class Replay:
    """The result of a replay: `difference` is relative to the largest entry of the model."""

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
    journal.check()
    if members is None or stored is None:
        raise InputError(f"{directory.path} holds no finished federation: resume it first")
    dataset = experiment.data.load(data)
    clients = replayed_clients(experiment, dataset, members)
    scheme = scheme_of(experiment)
    first = first_model(federation_task(experiment, members), experiment.seeds[0])
    state = start(scheme, experiment, members, fitted(journal, members), first)
    runtime = _Recomputed(journal, clients)
    driver = Driver(scheme, state, journal.rounds())
    for _ in drive(driver, runtime):
        pass
    recorded = stored["model"].astype(np.float64)
    model = np.asarray(driver.state.model, np.float64)
    apart = float(np.abs(model - recorded).max() / max(np.abs(recorded).max(), 1e-30))
    return Replay(driver.played, runtime.answers, runtime.missed, apart)


class _Recomputed:
    """A runtime that knows from the journal who arrived, and computes their answers anew."""

    def __init__(self, journal: Journal, clients: list[ArrayClient]) -> None:
        self.journal, self.clients = journal, clients
        self.exchanges: Iterator[Exchange] = journal.exchanges()
        self.asked: dict[int, tuple[Ask, Array]] = {}  # by round
        self.answers = self.missed = 0

    def exchange(self, ask: Ask, model: Array, round_: int) -> Inbox:
        exchange = next(self.exchanges, None)
        if exchange is None:
            raise InputError(f"{self.journal.folder} ends before its model: resume it first")
        inbox = self.journal.inbox(exchange, summed=ask.combine is SUM)
        if ask.setup:  # what clients send once is made with secret codes
            return inbox
        self.asked[round_] = ask, model
        record = exchange.record
        self.answers += int(record.arrived.sum())
        self.missed += int((~record.arrived & (record.loads > 0)).sum())
        if ask.noise is not None:
            return self._summed(ask, model, inbox)
        sums, loads = inbox.sums, record.loads if inbox.loads is None else inbox.loads
        if ask.combine is SUM:
            total = RunningSum()
            for j in np.flatnonzero(record.arrived).tolist():
                arrays = self._answer(ask, j, int(loads[j]), model)
                total.add({name: array.astype(np.float64) for name, array in arrays.items()})
            sums = {name: array.astype(np.float32) for name, array in total.result().items()}
        replies = tuple(self._again(reply) for reply in inbox.replies)
        return replace(inbox, sums=sums, replies=replies)

    def _again(self, reply: Reply) -> Reply:
        """Return a reply as its client computes it, for what and where it was asked; maybe late."""
        if reply.round not in self.asked:
            return reply
        ask, model = self.asked[reply.round]
        arrays = self._answer(ask, reply.client, reply.points, model)
        return replace(reply, arrays=arrays, model=model)

    def _summed(self, ask: Ask, model: Array, inbox: Inbox) -> Inbox:
        """Return a secure sum: recomputed, unless it contains noise, which is not known."""
        noisy = ask.noise or getattr(ask.work, "noise", 0.0)
        if noisy or inbox.loads is None or not inbox.sums:
            return inbox
        total = RunningSum()
        for j in np.flatnonzero(inbox.loads).tolist():
            total.add(self._answer(ask, j, int(inbox.loads[j]), model))
        return replace(inbox, sums=total.result())

    def _answer(self, ask: Ask, client: int, load: int, model: Array) -> dict[str, Array]:
        work = ask.work.for_client(client)
        answer = work.timed(self.clients[client], load, model, lambda: 0.0)
        return dict(work.unpacked(answer.arrays, answer.points, model))


def replayed_clients(
    experiment: Experiment, dataset: Dataset, members: Members
) -> list[ArrayClient]:
    """Embed every client's points, in the order in which it processes them."""
    seed = experiment.seeds[0]
    shards = experiment.deal(dataset, len(members.names), seed)
    if [len(rows) for rows in shards] != members.claimed:
        raise InputError(
            f"{experiment.data.name} does not give the clients the points that they had "
            f"({members.claimed[:5]} …): only a federation of such data can be replayed"
        )
    features = experiment.feature_map(seed, experiment.schemes[0])
    learner = federation_learner(experiment, members)
    clients, scaling = [], Scaling(**members.scaling)
    for j, rows in enumerate(shards):
        order = rows[processing_order(len(rows), seed)][: members.points[j]]
        targets = Shard(dataset.inputs, dataset.labels).targets(order, members.columns)
        targets = scaling.targets(targets)
        embedded = features.transform(scaling.inputs(dataset.inputs[order])).astype(np.float32)
        clients.append(
            ArrayClient(
                embedded,
                targets,
                experiment.data.batches,
                lambda first, *rest, j=j: stream(seed, "code", first, j, *rest),
                learner=learner,
            )
        )
    return clients
