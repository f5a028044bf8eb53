"""The pacer: it is told who was asked and when answers came, and says what the next round is.

It knows no engine, no clock and no model. In every round, `begin` says whom to ask, until when to
wait and how long each node should compute; `arrived` is told of every answer; `end` says which
answers count, and by which factor: with updates u_j = y_j − x of nodes with n_j examples,

    x + Σ_counted n_j · factor_j · u_j / Σ_counted n_j

has the mean of the update with everybody in it, if what nodes answer does not depend on when.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import median
from typing import Any, Literal

import numpy as np

from codedfedl.errors import InputError
from codedfedl.pacing.deadlines import DeadlineChoice, NextDelays, NodeTimes, choose, draws_of
from codedfedl.pacing.rounds import NodeReply, Round, RoundPlan

__all__ = ["Pacer"]

PLAYED_ROUNDS = 100
PATIENCE = 20.0  # New nodes are waited for this many times as long as half of the others took.
PATIENCE_WITH_OTHERS = 3.0  # The same where answers are only counted.
LEAST_WITHOUT_FACTORS = 2.0  # Without factors every node should arrive in one of so many rounds.
PRIOR_ROUNDS = 4.0  # A planned share of rounds weighs as much as so many rounds that were seen.
FADING = 0.99  # Of what was counted before, that each round leaves.
FORGOTTEN = 3.0  # After so many deadlines a question without an answer counts as lost;
FORGOTTEN_NEW = 10.0  # that to a node which never answered, after so many.


class Pacer:
    """Deadlines, windows and factors from arrivals; times are of any one clock, in seconds.

    Parameters
    ----------
    late
        Whether an answer that comes after its round counts in a later one, or is dropped: its
        question is then void, and the node may be asked again. ``ignore`` is for evaluation: a
        late answer says that its node is free again, and no more.
    cap
        The largest 1/π. A smaller one has less variance and more bias.
    deadline
        Fixed seconds, instead of a chosen deadline.
    factors
        Whether answers are weighed by 1/π; otherwise all count alike.
    learn_only
        Wait for all, and only say what could be gained.
    longest
        Seconds that no round exceeds.
    """

    def __init__(
        self,
        *,
        late: Literal["count", "drop", "ignore"] = "count",
        cap: float = 20.0,
        deadline: float | None = None,
        factors: bool = True,
        learn_only: bool = False,
        longest: float = 3600.0,
    ) -> None:
        self.late, self.cap, self.deadline, self.factors = late, cap, deadline, factors
        self.learn_only, self.longest = learn_only, longest
        self.times: dict[Any, NodeTimes] = {}
        self.rounds = 0
        self._pending: dict[Any, tuple[float, int]] = {}  # when and in which round it was asked
        self._asked: set[Any] = set()  # ever
        self._current: Round | None = None
        self._inbox: list[NodeReply] = []  # of the round that runs, or of the next one
        self._began: list[float] = []  # of every round

    @property
    def pending(self) -> Collection[Any]:
        """The nodes that have a question and no answer."""
        return self._pending.keys()

    # A round.

    def begin(self, nodes: Iterable[Any], now: float, *, busy: Collection[Any] = ()) -> RoundPlan:
        """Plan a round for the nodes that should take part.

        Parameters
        ----------
        busy
            Nodes that are known to do something else.
        """
        selected = list(dict.fromkeys(nodes))
        if self.late == "drop" or self.learn_only:
            self._pending.clear()
        self.forget_lost(now)
        working = tuple(n for n in selected if n in self._pending or n in busy)
        if len(working) == len(selected) and self._pending.keys().isdisjoint(
            self._present(selected, now)
        ):  # nobody is idle, and no answer is on its way
            for node in set(working) & self._pending.keys():
                self._give_up(node)
            working = ()
        ask = tuple(n for n in selected if n not in working)
        plan = self._plan(selected, ask, working, now)
        self._current = Round(self.rounds, plan, now, waiting=self._waiting_for_all(selected, now))
        self._selected = selected
        self._pending |= dict.fromkeys(ask, (now, self.rounds))
        self._asked |= set(ask)
        self._began.append(now)
        self.rounds += 1
        return plan

    def forget_lost(self, now: float) -> None:
        """Give up questions without an answer for so long that they must have got lost."""
        deadline = self._current.plan.deadline if self._current is not None else inf
        for node, (asked, _) in list(self._pending.items()):
            times = self.times.setdefault(node, NodeTimes())
            patient = FORGOTTEN if times.heard else FORGOTTEN_NEW
            limits = [t for t in (patient * deadline, 4 * times.longest) if t < inf]
            if limits and now - asked > 2**times.missed * max(limits):
                self._give_up(node)

    def _give_up(self, node: Any) -> None:
        del self._pending[node]
        self.times.setdefault(node, NodeTimes()).missed += 1

    def wait_for_all(self) -> None:
        """Plan nothing from now on, the round that runs included."""
        self.learn_only = True
        if self._current is not None:
            self._current.plan = replace(self._current.plan, deadline=inf, why="pacing is off")

    @property
    def until(self) -> float:
        """When the round ends at the latest."""
        current = self._running
        end = current.began + min(current.plan.deadline, self.longest)
        if current.plan.deadline < inf or self.learn_only:
            return end
        came = [a.seconds for a in self._inbox if a.asked == current.number]
        if 2 * len(came) < len(current.plan.ask):
            return end
        patience = PATIENCE if self.late != "ignore" else PATIENCE_WITH_OTHERS
        return min(end, current.began + patience * median(came))

    @property
    def waiting(self) -> bool:
        """Whether an answer is worth waiting for: of this round, or of any if nobody was asked."""
        current = self._running
        if not current.plan.ask:
            return bool(self._pending) and not self._inbox and current.plan.deadline < inf
        asked = (self._pending.get(node, (0.0, -1))[1] for node in current.plan.ask)
        return any(number == current.number for number in asked)

    def arrived(
        self,
        node: Any,
        now: float,
        *,
        examples: float,
        share: float | None = None,
        compute: float | None = None,
        length: float | None = None,
        asked: int | None = None,
        tag: Any = None,
    ) -> NodeReply | None:
        """Note an answer; None if nobody was asked for it. It may come between two rounds.

        Parameters
        ----------
        examples
            The node's weight: a number above 0.
        share, compute
            Which part of a full pass it did, and how many seconds that took.
        length
            The Euclidean norm of its update. That of a part of a pass is not scaled up to more than
            its last whole pass, in proportion to those of the others: training saturates.
        asked
            The number of the round of its question; by default the last one that it was asked.
        """
        if not 0 < examples < inf:
            raise InputError(f"node {node}: examples is {examples}: must be a number above 0")
        number = self._pending.get(node, (0.0, -1))[1]
        if asked in (None, number):
            self._pending.pop(node, None)
        else:
            number = asked  # it was given up, and another one may be on its way
        if number < 0:
            return None
        seconds = max(now - self._began[number], 1e-6)
        answer = NodeReply(node, seconds, examples, length=length, tag=tag, asked=number)
        if share is not None and compute is not None and 0 < compute <= 1.05 * seconds:
            answer.share, answer.compute = share, min(compute, seconds)
            row = (seconds - answer.compute, answer.compute / share)
        else:
            row = (seconds, 0.0)
        times = self.times.setdefault(node, NodeTimes())
        times.examples, times.missed = examples, 0
        times.seen.append(row)
        self._inbox.append(answer)
        return answer

    def lost(self, node: Any, *, asked: int | None = None) -> None:
        """Note that no answer will come: the node failed, or is gone; `asked` as in `arrived`."""
        if node in self._pending and asked in (None, self._pending[node][1]):
            del self._pending[node]
            if self._current is not None:
                self._current.lost.append(node)

    def end(self, now: float) -> Round:
        """End the round: its answers have their factors now."""
        current = self._running
        current.seconds = now - current.began
        current.answers, self._inbox = self._inbox, []
        for answer in current.answers:
            answer.late = current.number - answer.asked
        current.missing = [n for n in current.plan.ask if n in self._pending]
        if self.late == "drop" and not self.learn_only:
            for node in current.missing:
                self.times.setdefault(node, NodeTimes()).seen.append((inf, 0.0))
        takes_late = self.late == "count" and not self.learn_only
        counted = [a for a in current.answers if not a.late or takes_late]
        known = [n for n in self._selected if n in self.times and self.times[n].heard]
        examples = {n: float(self.times[n].examples or 0.0) for n in known}
        everybody = sum(examples.values()) or 1.0
        arrived = sum(answer.examples for answer in counted)
        usual = sum(self.times[n].part * examples[n] for n in known) / everybody
        typical = self._typical_length(counted)
        for answer in counted:
            answer.factor = 1.0
            if self.factors and not self.learn_only:
                inverse = 1 / self.share_of_rounds(answer.node)
                if inverse > self.cap:
                    current.capped.append(answer.node)
                passes = 1 / (answer.share or self.times[answer.node].part)
                if answer.length and (reach := self.times[answer.node].reach) is not None:
                    passes = min(passes, max(1.0, reach * typical / answer.length))
                weight = min(inverse, self.cap) * min(usual * passes, self.cap)
                answer.factor = arrived / everybody * weight
        self._calibrate({a.node for a in counted}, known)
        return current

    def _typical_length(self, counted: Sequence[NodeReply]) -> float:
        """Return the median length of whole passes (∞: unknown); note those of nodes against it."""
        whole = {a.node: a.length for a in counted if a.length and not a.late and a.share == 1.0}
        typical = median(whole.values()) if whole else inf
        for node, length in whole.items():
            self.times[node].reach = length / typical
        return typical

    def share_of_rounds(self, node: Any) -> float:
        """Return π: the share of rounds in which an answer of the node counts, as far as known.

        What was planned, corrected by how often its answers have counted since.
        """
        if node not in self.times:
            return 1.0
        times = self.times[node]
        seen = (times.counted + PRIOR_ROUNDS) / (times.expected + PRIOR_ROUNDS)
        return float(min(1.0, max(times.planned * seen, 1e-6)))

    def expected_examples(self, node: Any) -> float:
        """Return how many examples fit into the node's window, as far as is known."""
        times = self.times.get(node)
        return 0.0 if times is None else times.part * (times.examples or 0.0)

    # What is behind it.

    @property
    def _running(self) -> Round:
        if self._current is None:
            raise RuntimeError("no round has begun: call begin first")
        return self._current

    def _calibrate(self, counted: set[Any], known: Sequence[Any]) -> None:
        for node in known:
            times = self.times[node]
            times.counted *= FADING
            times.expected = FADING * times.expected + times.planned
        for node in counted:  # also late ones of nodes that this round did not select
            self.times[node].counted += 1

    def _silent(self, node: Any, now: float) -> float:
        return now - self._pending[node][0] if node in self._pending else 0.0

    def _draws(self, nodes: Sequence[Any], now: float) -> NextDelays:
        rows = [self.times[n].rows(self._silent(n, now)) for n in nodes]
        return draws_of(rows, PLAYED_ROUNDS, seed=self.rounds)

    def _present(self, nodes: Iterable[Any], now: float) -> list[Any]:
        """Return the nodes with known delays that are not silent for much longer than those."""
        heard = [n for n in nodes if n in self.times and self.times[n].heard]
        return [n for n in heard if not self.times[n].is_gone(self._silent(n, now))]

    def _plan(
        self, selected: list[Any], ask: tuple[Any, ...], busy: tuple[Any, ...], now: float
    ) -> RoundPlan:
        present, new = self._present(selected, now), [n for n in ask if n not in self._asked]
        if not present or new:
            reason = f"waits for {len(new)} new nodes" if new else "nobody answers"
            return RoundPlan(ask, busy, inf, {}, 1.0, reason)
        played = self._choose(present, now)
        if self.learn_only:
            would = f"learning only: {played.deadline:.3g} s would do"
            return RoundPlan(ask, busy, inf, {}, played.gain, would)
        for node, share, work in zip(present, played.shares, played.work, strict=True):
            self.times[node].planned, self.times[node].part = float(share), float(work)
        windows = zip(present, played.windows.tolist(), strict=True)
        cut = {node: window for node, window in windows if window < inf and node in ask}
        why = f"{played.gain:.3g} × the progress a second of waiting for all"
        why = "as given" if self.deadline else why
        return RoundPlan(ask, busy, min(played.deadline, self.longest), cut, played.gain, why)

    def _choose(self, nodes: Sequence[Any], now: float) -> DeadlineChoice:
        weights = np.array([self.times[n].examples for n in nodes], dtype=np.float64)
        return choose(
            self._draws(nodes, now),
            weights,
            drop=self.late != "count",
            cap=self.cap if self.factors else LEAST_WITHOUT_FACTORS,
            unbiased=self.late != "ignore",
            deadline=self.deadline,
        )

    def _waiting_for_all(self, nodes: Sequence[Any], now: float) -> float:
        """Return the mean of the longest delay, of nodes that are there, with all of their work."""
        present = self._present(nodes, now)
        if not present:
            return 0.0
        total = self._draws(present, now).total
        return float(np.where(np.isfinite(total), total, 0.0).max(axis=1).mean())

    # To continue later.

    def state(self) -> dict[str, Any]:
        """Return what was learned, for JSON; questions that are open are forgotten."""
        nodes = [{"node": node, **times.document()} for node, times in self.times.items()]
        return {"rounds": self.rounds, "asked": list(self._asked), "nodes": nodes}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self.rounds, self._asked = state["rounds"], set(state["asked"])
        self._began = [-inf] * self.rounds
        for row in state["nodes"]:
            self.times[row["node"]] = NodeTimes.of(row)
