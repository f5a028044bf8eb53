"""The server of a real federation: it asks, waits until a deadline, checks, and goes on.

The life of a federation: wait until all nodes are ready and agree; measure them; fit a fleet; plan;
let them embed and send parity; play rounds; save the model. Every finished step is in the journal,
so that a server that was killed begins where it was.
"""

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.calibration.traces import Traces
from codedfedl.data import load_dataset
from codedfedl.data.loading import DATASET_NAMES
from codedfedl.data.shards import Shard, read_shard
from codedfedl.errors import InputError
from codedfedl.features import FeatureMap, fingerprint
from codedfedl.federate.checks import (
    Expected,
    RefusedError,
    check_distance,
    checked_gradient,
    checked_parity,
    expected_of_all,
    expected_of_load,
)
from codedfedl.federate.collect import Arrival, Collector
from codedfedl.federate.node import Job
from codedfedl.federate.records import write_records
from codedfedl.runs.config import Experiment, FederationConfig
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.federation import federation_config, fitted, scheme_of, start, task_of
from codedfedl.runs.journal import (
    ARRIVED,
    DROPPED,
    LATE,
    NOT_ASKED,
    SETUP,
    Exchange,
    Journal,
    Members,
)
from codedfedl.schemes import Scheme
from codedfedl.schemes.base import (
    Ask,
    AskBlockParity,
    AskEmbedded,
    AskGradient,
    AskParity,
    Everyone,
    Reply,
    State,
    Until,
    Wait,
)
from codedfedl.schemes.coded import CodedState
from codedfedl.schemes.coded_newton import NewtonState
from codedfedl.training import accuracy, r_squared

__all__ = ["federate"]

_PARITY_AT_ONCE = 2  # answers in memory while they are pulled
_GOODBYE = 15.0  # seconds
_RETURN = 30.0  # seconds that a resumed federation waits for its nodes
_REMEMBERED = 20  # rounds after which a late answer is not waited for any more
_EMBEDDING = 0.25  # share of a round in which a client may embed more points

Say = Callable[[str], None]


def federate(
    collector: Collector, experiment: Experiment, directory: RunDirectory, say: Say = print
) -> None:
    """Run a federation, or go on with one, until its model and records are written."""
    config, scheme = federation_config(experiment), scheme_of(experiment)
    _test_set(experiment)  # refuses what cannot be read, before any node is asked
    directory.open(experiment, resume=True)
    journal = Journal(directory.path)
    members = journal.members()
    if members is None:
        members = _meet(collector, experiment, config, say)
        journal.keep_members(members)
    else:
        _wait_for(collector, members, say)
    server = _Server(collector, experiment, config, members, journal, say)
    if not journal.traces.is_file():
        server.probe().write(journal.traces)
    found = fitted(journal, members)
    found.fleet.write(directory.path / "fleet.csv")
    for note in found.notes:
        say(f"note: {note}")
    zero = np.zeros(server.shape, dtype=np.float32)
    state = server.run(scheme, start(scheme, experiment, members, found, zero))
    gone = server.part()
    directory.save({"model": np.asarray(state.model), "round": np.array(state.round)})
    write_records(directory, experiment, members, list(journal.exchanges()), gone)
    say(f"done: {directory.path}")


def _meet(
    collector: Collector, experiment: Experiment, config: FederationConfig, say: Say
) -> Members:
    """Wait until as many nodes as planned are ready, and agree on the feature map."""
    seed = experiment.seeds[0]
    features = experiment.feature_map(seed, experiment.schemes[0])
    job = _job(experiment, secrets.token_hex(16))
    until = time.monotonic() + config.ready_timeout
    asked: dict[int, int] = {}
    accepted: dict[int, dict[str, Any]] = {}
    refused: list[str] = []
    tried: set[int] = set()
    while len(accepted) < config.clients:
        new = [node for node in collector.grid.get_node_ids() if node not in tried]
        tried.update(new)
        left = until - time.monotonic()
        if left <= 0:
            raise InputError(_not_ready(config, accepted, refused, len(tried)))
        asked |= collector.ask("hello", {n: (n, {"job": asdict(job)}) for n in new}, {}, left)
        for arrival in collector.gather(asked, min(time.monotonic() + 0.5, until)):
            asked.pop(arrival.question, None)
            try:
                accepted[arrival.client] = _greeted(arrival, features, accepted)
                say(f"{accepted[arrival.client]['name']} is ready")
            except RefusedError as error:
                refused.append(str(error))
                say(f"refused: {error}")
                if arrival.problem and not arrival.refused and np.isinf(arrival.when):
                    tried.discard(arrival.client)  # it was not up yet: greet it again
    chosen = sorted(accepted, key=lambda node: str(accepted[node]["name"]))[: config.clients]
    facts = [accepted[node] for node in chosen]
    return Members(
        key=job.key,
        names=[str(fact["name"]) for fact in facts],
        nodes=chosen,
        points=[int(fact["points"]) for fact in facts],
        inputs=int(facts[0]["inputs"]),
        columns=max(int(fact["columns"]) for fact in facts),
        classes=bool(facts[0]["classes"]),
    )


def _not_ready(
    config: FederationConfig, accepted: Mapping[int, Any], refused: list[str], seen: int
) -> str:
    why = f" Refused: {'; '.join(refused)}." if refused else ""
    return (
        f"{len(accepted)} of {config.clients} nodes are ready after {config.ready_timeout:g} s "
        f"({seen} were seen): start the others, raise federation.ready_timeout, or lower "
        f"federation.clients.{why}"
    )


def _greeted(
    arrival: Arrival, features: FeatureMap, others: Mapping[int, dict[str, Any]]
) -> dict[str, Any]:
    """Return a node's greeting, or say why it cannot take part."""
    facts, node = arrival.facts, f"node {arrival.client}"
    if arrival.problem:
        raise RefusedError(f"{node}: {arrival.problem}")
    kinds = {"name": str, "points": int, "inputs": int, "columns": int, "fingerprint": list}
    if any(not isinstance(facts.get(key), kind) for key, kind in kinds.items()):
        raise RefusedError(f"{node} greets in a form that is not ours")
    node = f"{facts['name']} ({node})"
    if not (facts["points"] >= 1 and facts["inputs"] >= 1 and facts["columns"] >= 1):
        raise RefusedError(f"{node} has no data")
    own, other = fingerprint(features, facts["inputs"]).ravel(), facts["fingerprint"]
    if len(other) != len(own) or not np.allclose(other, own, rtol=1e-3, atol=1e-3):
        raise RefusedError(
            f"{node} computes other features: install the same version of codedfedl on all nodes"
        )
    for one in others.values():
        if one["name"] == facts["name"]:
            raise RefusedError(f"{node} has a name that another node has: give each its own")
        for key in ("inputs", "classes"):
            if one[key] != facts.get(key):
                raise RefusedError(
                    f"{node} has {key} = {facts.get(key)} where {one['name']} has {one[key]}: "
                    "give all clients the same columns and kind of labels"
                )
    return facts


def _wait_for(collector: Collector, members: Members, say: Say) -> None:
    """Give the nodes of a resumed federation some time to be there again."""
    until = time.monotonic() + _RETURN
    while missing := set(members.nodes) - set(collector.grid.get_node_ids()):
        if time.monotonic() > until:
            say(f"going on without {len(missing)} nodes, which may come back")
            return
        time.sleep(0.5)


def _job(experiment: Experiment, key: str, columns: int = 0) -> Job:
    config, chosen = experiment.features, experiment.schemes[0]
    return Job(
        key=key,
        kind=chosen.features or config.kind,
        n_components=config.n_components,
        sigma=config.sigma,
        seed=experiment.seeds[0],
        batches=experiment.data.batches,
        columns=columns,
    )


def _test_set(experiment: Experiment) -> Shard | None:
    """Return the server's own test points, as they are."""
    assert experiment.federation is not None
    name = experiment.federation.test
    if name is None:
        return None
    if name not in DATASET_NAMES:
        return read_shard(name, experiment.data.label)
    dataset = load_dataset(name)
    return Shard(dataset.test_inputs, dataset.test_labels)


@dataclass
class _Round:
    """What is known of an exchange while it goes on."""

    began: float
    loads: npt.NDArray[np.int64]
    when: npt.NDArray[np.float64]
    compute: npt.NDArray[np.float64]
    outcome: npt.NDArray[np.int64]
    refusals: list[tuple[int, str]]

    @classmethod
    def start(cls, loads: npt.NDArray[np.int64]) -> "_Round":
        n = len(loads)
        outcome = np.where(loads > 0, LATE, NOT_ASKED)
        return cls(time.monotonic(), loads, np.full(n, np.inf), np.full(n, np.nan), outcome, [])

    def arrived(self, arrival: Arrival) -> None:
        self.outcome[arrival.client] = ARRIVED
        self.when[arrival.client] = arrival.when - self.began
        seconds = arrival.facts.get("seconds")
        if isinstance(seconds, float) and 0 <= seconds < np.inf:
            self.compute[arrival.client] = seconds

    def dropped(self, client: int) -> None:
        self.outcome[client] = DROPPED

    def refused(self, client: int, why: str) -> None:
        self.outcome[client] = DROPPED
        self.refusals.append((client, why))


class _Server:
    """Asks the members of one federation."""

    def __init__(
        self,
        collector: Collector,
        experiment: Experiment,
        config: FederationConfig,
        members: Members,
        journal: Journal,
        say: Say,
    ) -> None:
        self.collector, self.config, self.members = collector, config, members
        self.journal, self.say, self.experiment = journal, say, experiment
        self.task = task_of(experiment, members)
        self.job = asdict(_job(experiment, members.key, members.columns))
        self.shape = (self.task.workload.features, self.task.workload.labels)
        self.excluded: set[int] = set()
        self._pending: dict[int, tuple[int, int]] = {}  # question: client and round
        self._answered = np.zeros(len(members.names), dtype=np.int64)
        self._sent: dict[int, npt.NDArray[np.float32]] = {}

    def probe(self) -> Traces:
        """Measure every node: a gradient over all, a half or a quarter of its points a message."""
        names = ("client", "load", "compute", "total")
        rows: list[tuple[str, int, float, float]] = []
        model = np.zeros(self.shape, dtype=np.float32)
        points = self.task.points.max(0)
        for number in range(self.config.probes):
            loads = np.maximum(points >> number % 3, 1)
            questions = {
                j: (self.members.nodes[j], self._facts(load=int(loads[j]))) for j in self._all
            }
            began, seconds = time.monotonic(), self.config.setup_timeout
            asked = self.collector.ask("probe", questions, {"model": model}, seconds)
            for arrival in self.collector.gather(asked, began + seconds):
                if arrival.question in asked:
                    j = arrival.client
                    measured = self._measured(arrival, arrival.when - began)
                    rows.append((self.members.names[j], int(loads[j]), *measured))
            self.say(f"probe {number + 1} of {self.config.probes} done")
        if not any(np.isfinite(total) for *_, total in rows):
            raise InputError(
                "no node answered a probe: look at the nodes' logs, and at the data they are given"
            )
        columns = zip(*rows, strict=True)
        return Traces(**{n: np.array(c) for n, c in zip(names, columns, strict=True)})

    def _measured(self, arrival: Arrival, took: float) -> tuple[float, float]:
        """Return compute and total seconds of a probe, without what only the first one does."""
        seconds, busy = arrival.facts.get("seconds"), arrival.facts.get("busy")
        if isinstance(seconds, float) and isinstance(busy, float) and 0 < seconds <= busy < took:
            return seconds, took - busy + seconds
        why = arrival.problem or "answered a probe in a form that is not ours"
        self.say(f"{self.members.names[arrival.client]}: {why}")
        return np.nan, np.inf

    def run(self, scheme: Scheme, state: State) -> State:
        """Drive the scheme, from where the journal ends."""
        for exchange in self.journal.exchanges():
            self._remember(exchange, state)
            state = scheme.receive(state, self.journal.inbox(exchange, self.task.batches))
        if scheme.name == "uncoded" and state.round == 0:
            self._prepare()
        while state.round < self.config.rounds and (ask := scheme.ask(state)) is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # a step may be too large
                exchange = self.exchange(ask, state)
                inbox = self.journal.inbox(exchange, self.task.batches)
                state = scheme.receive(state, inbox)
                metric = self._metric(state)
            exchange = replace(exchange, metric=metric)
            self.journal.append(exchange)
            self.say(_described(exchange, self.config.rounds, self._metric_name))
        return state

    def exchange(self, ask: Ask, state: State) -> Exchange:
        """Ask the clients, and return what came of it."""
        if isinstance(ask, AskParity):
            return self._parity(ask)
        if isinstance(ask, AskBlockParity):
            return self._block_parity(ask)
        if isinstance(ask, AskGradient):
            return self._gradient(ask, state)
        assert isinstance(ask, AskEmbedded)
        return self._embedded(ask, state)

    def part(self) -> list[int]:
        """End the federation at the clients; return who is gone."""
        asked = self.collector.ask("goodbye", self._questions(self._all), {}, _GOODBYE)
        heard = set()
        for arrival in self.collector.gather(asked, time.monotonic() + _GOODBYE):
            if arrival.question in asked and not np.isinf(arrival.when):
                heard.add(arrival.client)
        return [j for j in self._all if j not in heard]

    # What is asked once.

    def _prepare(self) -> None:
        """Let everybody embed, so that the first round is like the others."""
        asked = self.collector.ask(
            "prepare", self._questions(self._all), {}, self.config.setup_timeout
        )
        for arrival in self.collector.gather(asked, time.monotonic() + self.config.setup_timeout):
            if arrival.problem:
                self.say(f"{self.members.names[arrival.client]}: {arrival.problem}")

    def _parity(self, ask: AskParity) -> Exchange:
        round_ = _Round.start(ask.loads.max(0) * 0 + 1)
        code = asdict(ask.code)
        questions = {
            j: (
                self.members.nodes[j],
                self._facts(
                    rows=list(ask.rows),
                    loads=ask.loads[:, j].tolist(),
                    return_probabilities=ask.return_probabilities[:, j].tolist(),
                    code=code,
                ),
            )
            for j in self._all
        }

        def take(arrival: Arrival) -> None:
            self._take_parity(arrival, round_, list(ask.rows))

        self._collect_parity("parity", questions, round_, self.config.setup_timeout, take)
        silent = np.flatnonzero(round_.outcome == LATE).tolist()
        silent += [
            j
            for j in self._all
            if j not in {c for c, _ in round_.refusals} and round_.outcome[j] == DROPPED
        ]
        if silent:
            names = ", ".join(self.members.names[j] for j in silent)
            raise InputError(
                f"no parity from {names} within {self.config.setup_timeout:g} s: look at their "
                "logs and start again with the same --out, raise federation.setup_timeout, or "
                "leave them out by a lower federation.clients"
            )
        return self._finished(round_, SETUP, 0, self.config.setup_timeout)

    def _block_parity(self, ask: AskBlockParity) -> Exchange:
        deadline = ask.wait.deadline if isinstance(ask.wait, Until) else self.config.setup_timeout
        held = self.task.held
        round_ = _Round.start(held.astype(np.int64))
        facts = {"code": asdict(ask.code), "mixing": ask.mixing, "seconds": deadline / 2}
        questions = {
            j: (self.members.nodes[j], self._facts(points=int(held[j]), **facts)) for j in self._all
        }
        blocks: dict[int, int] = {}

        def take(arrival: Arrival) -> None:
            points = arrival.facts.get("points")
            if not isinstance(points, int) or not 0 <= points <= held[arrival.client]:
                raise RefusedError(f"parity stands for {points!r} points")
            if points // ask.mixing > 0:
                self._take_parity(arrival, round_, [points // ask.mixing])
                blocks[arrival.client] = points

        self._collect_parity("block_parity", questions, round_, deadline, take)
        if not blocks:
            raise InputError(
                f"no node sent parity within {deadline:g} s: look at the nodes' logs, or raise "
                "setup_deadline"
            )
        exchange = self._finished(round_, SETUP, 0, deadline)
        return replace(exchange, blocks=dict(sorted(blocks.items())))

    def _collect_parity(
        self,
        kind: str,
        questions: Mapping[int, tuple[int, dict[str, Any]]],
        round_: _Round,
        seconds: float,
        take: Callable[[Arrival], None],
    ) -> None:
        """Take each client's parity to the disk as it comes, a few at a time in memory."""
        known = {j for j in questions if self.journal.has_parity(j)}
        asked = self.collector.ask(
            kind,
            {j: question for j, question in questions.items() if j not in known},
            {},
            seconds,
            at_once=_PARITY_AT_ONCE,
        )
        for j in known:  # it was here before the server was killed
            round_.outcome[j], round_.when[j] = ARRIVED, 0.0
        for arrival in self.collector.gather(asked, round_.began + seconds):
            if arrival.question not in asked:
                continue
            try:
                if arrival.refused:
                    raise RefusedError(str(arrival.problem))
                if arrival.problem:
                    self.say(f"{self.members.names[arrival.client]}: {arrival.problem}")
                    round_.dropped(arrival.client)
                    continue
                take(arrival)
                round_.arrived(arrival)
            except RefusedError as error:
                self.excluded.add(arrival.client)
                round_.refused(arrival.client, f"parity: {error}")

    def _take_parity(self, arrival: Arrival, round_: _Round, rows: list[int]) -> None:
        if self.journal.has_parity(arrival.client):
            raise RefusedError("sent a second time")
        self.journal.keep_parity(arrival.client, checked_parity(arrival.arrays, rows, *self.shape))

    # What is asked in every round.

    def _gradient(self, ask: AskGradient, state: State) -> Exchange:
        model = np.asarray(state.model, dtype=np.float32)
        playing = [j for j in self._all if ask.loads[j] > 0 and j not in self.excluded]
        loads = np.zeros(len(self._all), dtype=np.int64)
        loads[playing] = ask.loads[playing]
        questions = {
            j: (
                self.members.nodes[j],
                self._facts(round=ask.round, batch=ask.batch, load=int(loads[j])),
            )
            for j in playing
        }
        deadline = _longest(ask.wait, self.config)
        round_ = _Round.start(loads)
        asked = self.collector.ask("gradient", questions, {"model": model}, deadline)
        total = np.zeros(self.shape) if ask.own is None else ask.own.gradient(model)
        total = np.asarray(total, dtype=np.float64)
        for arrival in self.collector.gather(asked, round_.began + deadline):
            if arrival.question not in asked or arrival.when > round_.began + deadline:
                if arrival.question in asked:
                    self._missed(round_, arrival)
                continue  # too late, or an answer to an older round
            try:
                j = arrival.client
                gradient = self._checked(arrival, ask.round, int(loads[j]))
                expected = self._expected(state, ask, j, model)
                if expected is not None:
                    check_distance(gradient, expected, self.config.tolerance)
                total += gradient
                round_.arrived(arrival)
            except RefusedError as error:
                round_.refused(arrival.client, str(error))
        if ask.own is None and not (round_.outcome == ARRIVED).any():
            raise InputError(
                f"no client answered in round {ask.round + 1} within {deadline:g} s: see that the "
                "nodes are up, give federation.deadline more time, and resume"
            )
        exchange = self._finished(round_, ask.round, ask.batch, deadline)
        return replace(exchange, total=total.astype(np.float32))

    def _embedded(self, ask: AskEmbedded, state: State) -> Exchange:
        """Ask all who are idle; take all answers, those to older models too."""
        assert isinstance(state, NewtonState)
        model = np.asarray(state.model, dtype=np.float32)
        self._sent[ask.round] = model
        deadline = ask.wait.deadline
        busy = {client for client, _ in self._pending.values()} | self.excluded
        idle = [j for j in self._all if j not in busy]
        round_ = _Round.start(self.task.held.astype(np.int64))
        common = {"round": ask.round, "least": 1, "seconds": _EMBEDDING * deadline}
        questions = {
            j: (
                self.members.nodes[j],
                self._facts(answered=int(self._answered[j]), **common),
            )
            for j in idle
        }
        asked = self.collector.ask(
            "embedded_gradient", questions, {"model": model}, _REMEMBERED * deadline
        )
        self._pending |= {number: (client, ask.round) for number, client in asked.items()}
        replies: list[Reply] = []
        for arrival in self.collector.gather(asked, round_.began + deadline):
            if arrival.question not in self._pending:
                continue
            client, when_asked = self._pending.pop(arrival.question)
            if arrival.problem and not arrival.refused:
                self._missed(round_, arrival)
                continue
            try:
                replies.append(self._reply(arrival, client, when_asked, state))
                if when_asked == ask.round:
                    round_.arrived(arrival)
            except RefusedError as error:
                round_.refused(client, str(error))
        exchange = self._finished(round_, ask.round, 0, deadline)
        return replace(exchange, replies=tuple(sorted(replies, key=lambda r: (r.client, r.round))))

    def _reply(self, arrival: Arrival, client: int, round_: int, state: NewtonState) -> Reply:
        held = int(self.task.held[client])
        gradient = self._checked(arrival, round_, None)
        points = int(arrival.facts["points"])
        if not 1 <= points <= held:
            raise RefusedError(f"processed {points} of its {held} points")
        if client in state.blocks:
            block = state.blocks[client]
            expected = expected_of_all(
                block.parity, self._sent[round_], points=held, behind=block.points, answered=points
            )
            check_distance(gradient, expected, self.config.tolerance)
        self._answered[client] = points
        return Reply(client, round_, points, gradient)

    def _checked(self, arrival: Arrival, round_: int, load: int | None) -> Any:
        if arrival.problem:
            raise RefusedError(arrival.problem)
        return checked_gradient(
            arrival.facts, arrival.arrays, round_=round_, load=load, shape=self.shape
        )

    def _expected(
        self, state: State, ask: AskGradient, client: int, model: npt.NDArray[np.float32]
    ) -> Expected | None:
        if not isinstance(state, CodedState):
            return None
        plan = state.plans[ask.batch]
        return expected_of_load(
            self.journal.parity(client, ask.batch),
            model,
            points=int(self.task.points[ask.batch, client]),
            load=int(ask.loads[client]),
            return_probability=float(plan.return_probabilities[client]),
        )

    @staticmethod
    def _missed(round_: _Round, arrival: Arrival) -> None:
        """Tell a node that is gone from one that is only late."""
        if arrival.problem and arrival.problem != "no answer in time":
            round_.dropped(arrival.client)

    def _finished(self, round_: _Round, number: int, batch: int, deadline: float) -> Exchange:
        seconds = time.monotonic() - round_.began
        here = set(self.collector.grid.get_node_ids())
        for j in np.flatnonzero(round_.outcome == LATE):
            if self.members.nodes[j] not in here:
                round_.dropped(int(j))
        return Exchange(
            round=number,
            batch=batch,
            deadline=deadline,
            seconds=seconds,
            loads=round_.loads,
            outcome=round_.outcome,
            when=round_.when,
            compute=round_.compute,
            refusals=tuple(round_.refusals),
        )

    def _remember(self, exchange: Exchange, state: State) -> None:
        """Take from the journal what the server itself knew."""
        if exchange.round == SETUP:
            self.excluded = {client for client, _ in exchange.refusals}
            return
        self._sent[exchange.round] = np.asarray(state.model, dtype=np.float32)
        for reply in exchange.replies:
            self._answered[reply.client] = reply.points

    @property
    def _all(self) -> range:
        return range(len(self.members.names))

    def _facts(self, **facts: Any) -> dict[str, Any]:
        return {"job": self.job, **facts}

    def _questions(self, clients: range) -> dict[int, tuple[int, dict[str, Any]]]:
        return {j: (self.members.nodes[j], self._facts()) for j in clients}

    @property
    def _metric_name(self) -> str:
        return "accuracy" if self.members.classes else "R²"

    @cached_property
    def _test(self) -> tuple[Any, Any] | None:
        shard = _test_set(self.experiment)
        if shard is None:
            return None
        features = self.experiment.feature_map(
            self.experiment.seeds[0], self.experiment.schemes[0]
        ).transform(np.asarray(shard.inputs, dtype=np.float32))
        if self.members.classes:
            return features, np.asarray(shard.labels)
        return features, shard.targets(np.arange(len(shard.labels)), self.members.columns)

    def _metric(self, state: State) -> float:
        if self._test is None:
            return float("nan")
        features, wanted = self._test
        predictions = (features @ np.asarray(state.model))[:, None, :]
        measure = accuracy if self.members.classes else r_squared
        return float(measure(predictions, wanted)[0])


def _longest(wait: Wait, config: FederationConfig) -> float:
    """Return for how long a round may wait."""
    if isinstance(wait, Until):
        return wait.deadline
    assert isinstance(wait, Everyone)
    return config.deadline or config.setup_timeout


def _described(exchange: Exchange, rounds: int, metric: str) -> str:
    counts = [int((exchange.outcome == kind).sum()) for kind in (ARRIVED, LATE, DROPPED)]
    where = "set-up" if exchange.round == SETUP else f"round {exchange.round + 1} of {rounds}"
    result = "" if np.isnan(exchange.metric) else f", {metric} {exchange.metric:.4f}"
    return (
        f"{where}: {exchange.seconds:.2f} s of {exchange.deadline:g} s, {counts[0]} arrived, "
        f"{counts[1]} late, {counts[2]} dropped{result}"
    )
