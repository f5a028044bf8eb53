"""The server of a real federation: it asks, waits until a deadline, checks, and goes on.

The life of a federation: wait until all nodes are ready and agree; measure them; fit a fleet; plan;
let them embed and send parity; play rounds; save the model. Every finished step is in the journal,
so that a server that was killed begins where it was.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl._types import IntArray
from codedfedl.errors import InputError
from codedfedl.federate.checks import (
    Bounds,
    Expected,
    Expecting,
    RefusedError,
    check_distance,
    checked_gradient,
    checked_parity,
    expected_of_all,
    expected_of_load,
)
from codedfedl.federate.collect import Arrival, Collector
from codedfedl.federate.evaluation import Evaluation
from codedfedl.federate.meeting import Say, job_of, meet, wait_for
from codedfedl.federate.records import write_records
from codedfedl.federate.tally import Tally
from codedfedl.fitting.traces import Traces
from codedfedl.runs.config import Experiment, FederationConfig
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.federation import federation_config, fitted, scheme_of, start, task_of
from codedfedl.runs.journal import ARRIVED, DROPPED, LATE, SETUP, Exchange, Journal, Members
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

__all__ = ["federate"]

_GOODBYE = 15.0  # seconds
_REMEMBERED = 20  # rounds after which a late answer is not waited for any more
_EMBEDDING = 0.25  # share of a round in which a client may embed more points


def federate(
    collector: Collector, experiment: Experiment, directory: RunDirectory, say: Say = print
) -> None:
    """Run a federation, or go on with one, until its model and records are written."""
    config, scheme = federation_config(experiment), scheme_of(experiment)
    evaluation = Evaluation(experiment)
    with directory.opened(experiment):
        journal = Journal(directory.path)
        members = journal.members()
        if members is None:
            members = meet(collector, experiment, config, say)
            journal.keep_members(members)
        else:
            wait_for(collector, members, say)
        server = _Server(collector, experiment, config, members, journal, evaluation, say)
        if not journal.traces.is_file():
            server.probe().write(journal.traces)
        found = fitted(journal, members)
        found.fleet.write(directory.path / "fleet.csv")
        zero = np.zeros(server.shape, dtype=np.float32)
        state = server.run(scheme, start(scheme, experiment, members, found, zero))
        gone = server.part()
        directory.save({"model": np.asarray(state.model), "round": np.array(state.round)})
        write_records(
            directory, experiment, members, list(journal.exchanges(gradients=False)), gone
        )
        say(f"done: {directory.path}")


class _Server:
    """Asks the members of one federation."""

    def __init__(
        self,
        collector: Collector,
        experiment: Experiment,
        config: FederationConfig,
        members: Members,
        journal: Journal,
        evaluation: Evaluation,
        say: Say,
    ) -> None:
        self.collector, self.config, self.members = collector, config, members
        self.journal, self.evaluation, self.say = journal, evaluation, say
        self.task = task_of(experiment, members)
        self.job = asdict(job_of(experiment, members.key, members.columns))
        self.shape = (self.task.workload.features, self.task.workload.labels)
        self.bounds = Bounds.of(str(self.job["kind"]), members.classes)
        self.excluded = {j for j, name in enumerate(members.names) if name in config.without}
        self._block_ask: AskBlockParity | None = None
        self._pending: dict[int, tuple[int, int]] = {}  # question: client and round
        self._parity_pending: dict[int, tuple[int, int]] = {}  # question: client and mixing
        self._answered = np.zeros(len(members.names), dtype=np.int64)
        self._sent: dict[int, npt.NDArray[np.float32]] = {}

    def probe(self) -> Traces:
        """Measure every node: a gradient over all, a half or a quarter of its points a message.

        Who does not answer twice is not asked again.
        """
        rows: list[tuple[int, int, float, float]] = []
        silences = np.zeros(len(self._all), dtype=np.int64)
        zero = np.zeros(self.shape, dtype=np.float32)
        points, seconds = self.task.points.max(0), self.config.probe_timeout
        for number in range(self.config.probes):
            loads = np.maximum(points >> number % 3, 1).tolist()
            began = time.monotonic()
            facts = {j: {"load": loads[j]} for j in self._all if silences[j] < 2}
            asked = self._ask("probe", facts, seconds, model=zero)
            answers = dict.fromkeys(facts, (np.nan, np.inf))
            for arrival in self.collector.gather(asked, began + seconds):
                answers[arrival.client] = self._measured(arrival, arrival.when - began)
            silences[[j for j, (_, total) in answers.items() if np.isinf(total)]] += 1
            rows += [(j, loads[j], *answers[j]) for j in facts]
            self.say(f"probe {number + 1} of {self.config.probes} done")
        if not any(np.isfinite(total) for *_, total in rows):
            raise InputError(
                "no node answered a probe: look at the nodes' logs, and at the data they are given"
            )
        client, load, compute, total = zip(*sorted(rows), strict=True)  # in the members' order
        names = [self.members.names[j] for j in client]
        return Traces(names, load, compute=compute, total=total, waited=np.full(len(load), seconds))

    def _measured(self, arrival: Arrival, took: float) -> tuple[float, float]:
        """Return compute and total seconds of a probe, without what only the first one does."""
        seconds, busy = arrival.facts.get("seconds"), arrival.facts.get("busy")
        if type(seconds) is float and type(busy) is float and 0 < seconds <= busy < took:
            return seconds, took - busy + seconds
        why = arrival.reason or "answered a probe in a form that is not ours"
        self.say(f"{self.members.names[arrival.client]}: {why}")
        return np.nan, np.inf

    def run(self, scheme: Scheme, state: State) -> State:
        """Drive the scheme, from where the journal ends."""
        for exchange in self.journal.exchanges():
            self._remember(exchange, scheme.ask(state), state)
            state = scheme.receive(state, self.journal.inbox(exchange, self.task.batches))
        if isinstance(state, NewtonState) and self._block_ask is not None:
            self._ask_for_blocks(self._block_ask, Tally.start(self.task.held))  # what is missing
        if scheme.name == "uncoded" and state.round == 0:
            self._prepare()
        while state.round < self.config.rounds and (ask := scheme.ask(state)) is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # a step may be too large
                exchange = self.exchange(ask, state)
                inbox = self.journal.inbox(exchange, self.task.batches)
                state = scheme.receive(state, inbox)
                metric = self.evaluation.metric(np.asarray(state.model))
            exchange = replace(exchange, metric=metric)
            self.journal.append(exchange)
            self.say(_described(exchange, self.config.rounds))
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
        asked = self._ask("goodbye", {j: {} for j in self._all}, _GOODBYE)
        heard = {
            arrival.client
            for arrival in self.collector.gather(asked, time.monotonic() + _GOODBYE)
            if np.isfinite(arrival.when)
        }
        return [j for j in self._all if j not in heard]

    def _ask(
        self,
        kind: str,
        facts: Mapping[int, Mapping[str, Any]],
        seconds: float,
        *,
        at_once: int | None = None,
        **arrays: npt.NDArray[Any],
    ) -> dict[int, int]:
        """Ask some clients; return the client of every question."""
        questions = {
            j: (self.members.nodes[j], {"job": self.job, **own}) for j, own in facts.items()
        }
        return self.collector.ask(kind, questions, arrays, seconds, at_once=at_once)

    # What is asked once.

    def _prepare(self) -> None:
        """Let everybody embed, so that the first round is like the others."""
        seconds = self.config.setup_timeout
        asked = self._ask("prepare", {j: {} for j in self._all}, seconds)
        for arrival in self.collector.gather(asked, time.monotonic() + seconds):
            if arrival.reason:
                self.say(f"{self.members.names[arrival.client]}: {arrival.reason}")

    def _parity(self, ask: AskParity) -> Exchange:
        """Collect composite parity: everybody's is needed."""
        rows, seconds = [int(u) for u in ask.rows], self.config.setup_timeout
        facts = {
            j: {
                "rows": rows,
                "loads": ask.loads[:, j].tolist(),
                "return_probabilities": ask.return_probabilities[:, j].tolist(),
                "code": asdict(ask.code),
            }
            for j in self._playing
        }
        tally = self._tally()
        asked = self._ask_parity("parity", facts, [sum(rows)], seconds, tally)
        for arrival in self.collector.gather(asked, tally.began + seconds):
            with self._refusals(tally, arrival) as usable:
                if usable:
                    self._keep_parity(arrival, rows, int(self.task.held[arrival.client]))
                    tally.arrived(arrival)
        silent = [j for j in self._playing if tally.outcome[j] != ARRIVED]
        silent = [j for j in silent if j not in {client for client, _ in tally.refusals}]
        if silent:
            names = [self.members.names[j] for j in silent]
            raise InputError(
                f"no parity from {', '.join(names)} within {seconds:g} s: look at their logs and "
                "run this again, with a larger federation.setup_timeout, or with "
                f"federation.without={names} to go on without them"
            )
        self.excluded |= {client for client, _ in tally.refusals}
        if not len(self._playing):
            raise InputError("all parity was refused: see what the log says of it")
        return self._finished(tally, SETUP, 0, seconds)

    def _block_parity(self, ask: AskBlockParity) -> Exchange:
        """Collect each client's own parity; what is late comes in a later exchange."""
        tally, deadline = self._tally(), _longest(ask.wait, self.config)
        asked = self._ask_for_blocks(ask, tally)
        for arrival in self.collector.gather(asked, tally.began + deadline):
            self._take_block(tally, arrival)
        blocks = self._new_blocks(())
        if not blocks:
            raise InputError(
                f"no node sent parity within {deadline:g} s: look at the nodes' logs, or begin "
                "anew with a larger setup_deadline"
            )
        return replace(self._finished(tally, SETUP, 0, deadline), blocks=blocks)

    def _ask_for_blocks(self, ask: AskBlockParity, tally: Tally) -> dict[int, int]:
        """Ask all whose own parity is not here; they may answer in a later round."""
        deadline = _longest(ask.wait, self.config)
        common = {"code": asdict(ask.code), "mixing": ask.mixing, "seconds": deadline / 2}
        facts = {j: {"points": int(self.task.held[j]), **common} for j in self._playing}
        rows = self.task.held // ask.mixing
        asked = self._ask_parity("block_parity", facts, rows, _REMEMBERED * deadline, tally)
        self._parity_pending = {number: (j, ask.mixing) for number, j in asked.items()}
        return asked

    def _ask_parity(
        self,
        kind: str,
        facts: Mapping[int, Mapping[str, Any]],
        rows: Iterable[int],
        seconds: float,
        tally: Tally,
    ) -> dict[int, int]:
        """Ask for parity that is not here yet, as much at a time as may be on its way."""
        here = self.journal.parity_points()  # from before the server was killed
        each = max(1, 4 * int(max(rows)) * sum(self.shape))
        at_once = max(1, int(self.config.in_flight * 1e6 / each))
        for j in here:
            tally.outcome[j], tally.when[j] = ARRIVED, 0.0
        missing = {j: own for j, own in facts.items() if j not in here}
        return self._ask(kind, missing, seconds, at_once=at_once)

    def _take_block(self, tally: Tally, arrival: Arrival) -> None:
        """Keep a client's own parity."""
        client, mixing = self._parity_pending.pop(arrival.question)
        with self._refusals(tally, arrival) as usable:
            if usable:
                points = arrival.facts.get("points")
                if type(points) is not int or not 0 <= points <= self.task.held[client]:
                    raise RefusedError("parity stands for points that the client does not have")
                if points >= mixing:
                    self._keep_parity(arrival, [points // mixing], points)
                    tally.arrived(arrival)
        self.excluded |= {refused for refused, _ in tally.refusals}

    def _new_blocks(self, known: Collection[int]) -> dict[int, int]:
        """Return whose parity is here and was in no exchange yet, and its points."""
        return {j: n for j, n in self.journal.parity_points().items() if j not in known}

    def _keep_parity(self, arrival: Arrival, rows: list[int], points: int) -> None:
        if arrival.client in self.journal.parity_points():
            raise RefusedError("parity came a second time")
        arrays = checked_parity(arrival.arrays, rows, *self.shape)
        most = int(self.task.held[arrival.client])
        self.bounds.check_parity(arrays, most, self.config.tolerance)
        self.journal.keep_parity(arrival.client, arrays, points)

    # What is asked in every round.

    def _gradient(self, ask: AskGradient, state: State) -> Exchange:
        """Ask for gradients at the planned loads, and add up those that come in time."""
        model = np.asarray(state.model, dtype=np.float32)
        deadline = _longest(ask.wait, self.config)
        common = {"round": ask.round, "batch": ask.batch}
        tally = self._tally(ask.loads)
        loads = tally.loads.tolist()
        facts = {j: {"load": loads[j], **common} for j in self._all if loads[j]}
        asked = self._ask("gradient", facts, deadline, model=model)

        def expect(client: int) -> Expected | None:
            if not isinstance(state, CodedState):
                return None
            return expected_of_load(
                self.journal.parity(client, ask.batch),
                model,
                points=int(self.task.points[ask.batch, client]),
                load=loads[client],
                return_probability=float(state.plans[ask.batch].return_probabilities[client]),
            )

        with Expecting(expect, facts, tally.began + deadline) as expected:
            total = np.zeros(self.shape) + (0.0 if ask.own is None else ask.own.gradient(model))
            for arrival in self._in_time(asked, tally, deadline):
                with self._refusals(tally, arrival) as usable:
                    if usable:
                        j = arrival.client
                        gradient, points = checked_gradient(
                            arrival, ask.round, self.shape, loads[j]
                        )
                        self._check(gradient, model, points, expected[j])
                        total += gradient
                        tally.arrived(arrival)
        if ask.own is None and not (tally.outcome == ARRIVED).any():
            raise InputError(
                f"no client answered in round {ask.round + 1} within {deadline:g} s: see that the "
                "nodes are up and run this again, or begin anew with a larger federation.deadline"
            )
        exchange = self._finished(tally, ask.round, ask.batch, deadline)
        return replace(exchange, total=total.astype(np.float32))

    def _embedded(self, ask: AskEmbedded, state: State) -> Exchange:
        """Ask all who are idle; take all answers, those to older models too."""
        assert isinstance(state, NewtonState)
        deadline = ask.wait.deadline
        model = self._sent[ask.round] = np.asarray(state.model, dtype=np.float32)
        self._sent.pop(ask.round - _REMEMBERED - 1, None)
        outstanding = {**self._pending, **self._parity_pending}
        busy = {client for client, _ in outstanding.values()}
        common = {"round": ask.round, "least": 1, "seconds": _EMBEDDING * deadline}
        tally = self._tally()
        facts = {
            j: {"answered": int(self._answered[j]), **common}
            for j in self._playing
            if j not in busy
        }
        asked = self._ask("embedded_gradient", facts, _REMEMBERED * deadline, model=model)
        self._pending |= {number: (client, ask.round) for number, client in asked.items()}

        def expect(client: int, round_: int = ask.round) -> Expected | None:
            block, held = state.blocks.get(client), int(self.task.held[client])
            if block is None:
                return None
            return expected_of_all(
                block.parity, self._sent[round_], points=held, behind=block.points
            )

        replies: list[Reply] = []
        with Expecting(expect, facts, tally.began + deadline) as expected:
            wanted = {*asked, *outstanding}
            for arrival in self.collector.gather(wanted, tally.began + deadline):
                if arrival.question in self._parity_pending:
                    self._take_block(tally, arrival)
                    continue
                j, when_asked = self._pending.pop(arrival.question)
                with self._refusals(tally, arrival) as usable:
                    if usable and arrival.facts.get("points") != 0:  # 0: nothing embedded yet
                        now = when_asked == ask.round
                        right = expected[j] if now else expect(j, when_asked)
                        replies.append(self._reply(arrival, when_asked, right))
                        if now and arrival.when <= tally.began + deadline:
                            tally.arrived(arrival)
        exchange = self._finished(tally, ask.round, 0, deadline)
        replies.sort(key=lambda reply: (reply.client, reply.round))
        return replace(exchange, replies=tuple(replies), blocks=self._new_blocks(state.blocks))

    def _reply(self, arrival: Arrival, round_: int, expected: Expected | None) -> Reply:
        client, held = arrival.client, int(self.task.held[arrival.client])
        gradient, points = checked_gradient(arrival, round_, self.shape)
        if not 1 <= points <= held:
            raise RefusedError(f"processed {points} of its {held} points")
        self._check(gradient, self._sent[round_], held, expected)
        self._answered[client] = points
        return Reply(client, round_, points, gradient)

    def _check(
        self,
        gradient: npt.NDArray[np.float32],
        model: npt.NDArray[np.float32],
        points: int,
        expected: Expected | None,
    ) -> None:
        self.bounds.check_gradient(gradient, model, points)
        if expected is not None:
            check_distance(gradient, expected, self.config.tolerance)

    def _in_time(self, asked: Collection[int], tally: Tally, deadline: float) -> Iterator[Arrival]:
        """Yield what is there by the deadline."""
        for arrival in self.collector.gather(asked, tally.began + deadline):
            if arrival.when <= tally.began + deadline or np.isinf(arrival.when):
                yield arrival

    @contextmanager
    def _refusals(self, tally: Tally, arrival: Arrival) -> Iterator[bool]:
        """Say whether there is an answer to use; note whatever is wrong with it, and go on."""
        client, name = arrival.client, self.members.names[arrival.client]
        if arrival.status in ("problem", "gone"):
            tally.dropped(client)
        if arrival.status == "problem":
            self.say(f"{name}: {arrival.reason}")
        why = arrival.reason if arrival.status == "malformed" else ""
        try:
            yield arrival.status == "answer"
        except TimeoutError:  # there was no time left to judge it: it stays late
            return
        except Exception as error:  # whatever a client sends, the others go on
            why = str(error) if isinstance(error, RefusedError) else type(error).__name__
        if why:
            self.say(f"refused: {name}: {why}")
            tally.refused(client, why)

    def _finished(self, tally: Tally, number: int, batch: int, deadline: float) -> Exchange:
        seconds = time.monotonic() - tally.began
        here = self.collector.nodes()
        for j in np.flatnonzero(tally.outcome == LATE):
            if self.members.nodes[j] not in here:
                tally.dropped(int(j))
        return Exchange(
            round=number,
            batch=batch,
            deadline=deadline,
            seconds=seconds,
            loads=tally.loads,
            outcome=tally.outcome,
            when=tally.when,
            compute=tally.compute,
            refusals=tuple(tally.refusals),
        )

    def _remember(self, exchange: Exchange, ask: Ask | None, state: State) -> None:
        """Take from the journal what the server itself knew."""
        if exchange.round == SETUP:
            self.excluded |= {client for client, _ in exchange.refusals}
            self._block_ask = ask if isinstance(ask, AskBlockParity) else None
            return
        self._sent[exchange.round] = np.asarray(state.model, dtype=np.float32)
        for reply in exchange.replies:
            self._answered[reply.client] = reply.points

    def _tally(self, loads: IntArray | None = None) -> Tally:
        """Begin an exchange with all who are not left out; about all their points, if not said."""
        asked = np.array(self.task.held if loads is None else loads, dtype=np.int64)
        asked[list(self.excluded)] = 0
        return Tally.start(asked)

    @property
    def _playing(self) -> list[int]:
        return [j for j in self._all if j not in self.excluded]

    @property
    def _all(self) -> range:
        return range(len(self.members.names))


def _longest(wait: Wait, config: FederationConfig) -> float:
    """Return for how long a round may wait."""
    if isinstance(wait, Until):
        return wait.deadline
    assert isinstance(wait, Everyone)
    return config.deadline or config.setup_timeout


def _described(exchange: Exchange, rounds: int) -> str:
    counts = [int((exchange.outcome == kind).sum()) for kind in (ARRIVED, LATE, DROPPED)]
    where = "set-up" if exchange.round == SETUP else f"round {exchange.round + 1} of {rounds}"
    result = "" if np.isnan(exchange.metric) else f"; {exchange.metric:.4f} on the test points"
    return (
        f"{where}: {exchange.seconds:.2f} s of {exchange.deadline:g} s, {counts[0]} arrived, "
        f"{counts[1]} late, {counts[2]} dropped{result}"
    )
