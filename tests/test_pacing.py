"""The pacer without an engine: deadlines, windows, factors; and a client's batches."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from codedfedl.errors import InputError
from codedfedl.pacing import Pacer
from codedfedl.pacing.deadlines import NextDelays, choose, draws_of, windows_for
from codedfedl.pacing.flower.batches import TimedBatches, timed

HEAVY = ["flwr", "jinja2", "matplotlib", "pandas", "pyarrow", "pydantic", "sklearn", "torch"]
HEAVY += ["codedfedl.federate", "codedfedl.report", "codedfedl.runs"]


ALONE = """
import sys
class Blocked:
    def find_spec(self, name, *_):
        if name in HEAVY:
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
from codedfedl.pacing import Pacer
from codedfedl.pacing.flower import timed
pacer, now = Pacer(), 0.0
for number in range(5):
    for node in pacer.begin(range(4), now).ask:
        pacer.arrived(node, now + 1 + node, examples=5.0)
    pacer.end(now := now + 5)
assert pacer.begin(range(4), now).deadline < 6
"""


def test_pacing_needs_numpy_alone() -> None:
    """So do clients, which an engine may start anew for every message."""
    subprocess.run([sys.executable, "-c", f"HEAVY = {HEAVY}\n{ALONE}"], check=True)


def played(
    pacer: Pacer, seconds: Callable[[int, int], float], rounds: int, nodes: int
) -> Iterator[Any]:
    """Play rounds on a clock of our own; nodes that are busy finish what they do."""
    now, working = 0.0, dict[int, float]()
    for k in range(rounds):
        plan = pacer.begin(range(nodes), now)
        working |= {j: now + seconds(j, k) for j in plan.ask}
        while pacer.waiting:
            node = min(working, key=working.__getitem__)
            if working[node] > pacer.until:
                now = pacer.until
                break
            now = max(now, working.pop(node))
            pacer.arrived(node, now, examples=1.0)
        yield pacer.end(now)


def test_a_deadline_is_chosen_by_progress_per_second() -> None:
    """Two of eight nodes are ten times slower; of equal nodes nobody is cut off."""
    slow = [draws(10.0 if j > 5 else 1.0) for j in range(8)]
    best = choose(draws_of(slow, 100), np.ones(8), drop=False, cap=20.0)
    assert 0.9 < best.deadline < 5
    assert best.gain > 1.5
    lost = choose(draws_of(slow, 100), np.ones(8), drop=True, cap=20.0)
    assert lost.deadline > 7  # without late answers, nobody's data are left out
    equal = choose(draws_of([draws(1.0)] * 8, 100), np.ones(8), drop=False, cap=20.0)
    assert equal.deadline > 1.1
    assert equal.gain == pytest.approx(1.0, abs=0.02)


def draws(seconds: float) -> Any:
    return np.array([[seconds, 0.0]] * 20)


def test_a_window_leaves_time_for_the_link() -> None:
    overhead, full = np.full((50, 2), 2.0), np.full((50, 2), [30.0, 1.0])
    assert windows_for(NextDelays(overhead, full), 8.0).tolist() == [6.0, inf]
    assert windows_for(NextDelays(overhead, full), inf).tolist() == [inf, inf]


def test_shares_of_rounds_are_of_all_rounds_busy_ones_included() -> None:
    """Node 2 takes 2.5 deadlines: it counts in every third round, though whenever it is asked."""
    pacer = Pacer(deadline=1.0)
    rounds = list(played(pacer, lambda j, _k: 2.5 if j == 2 else 0.5, 90, 3))
    counted = sum(answer.node == 2 for r in rounds for answer in r.counted)
    assert pacer.share_of_rounds(2) == pytest.approx(counted / 90, rel=0.15)
    assert pacer.share_of_rounds(0) == 1.0
    weights = [a.factor * 1 for r in rounds[10:] for a in r.counted if a.node == 2]
    # With s, the sum over rounds of n·factor/Σn is the node's share of the data.
    total = sum(a.factor / len(r.counted) for r in rounds[9:] for a in r.counted if a.node == 2)
    assert total / len(rounds[9:]) == pytest.approx(1 / 3, rel=0.15)
    assert weights


def test_a_new_node_is_waited_for_once() -> None:
    pacer = Pacer()
    rounds = list(played(pacer, lambda j, k: 15.0 if j == 0 and k == 0 else 1.0, 6, 4))
    assert rounds[0].seconds == 15.0
    assert not rounds[0].missing
    assert max(r.seconds for r in rounds[1:]) < 3


def test_a_node_that_never_answers_holds_up_the_first_round_alone() -> None:
    pacer = Pacer()
    rounds = list(played(pacer, lambda j, _k: 1e9 if j == 0 else 1.0, 8, 4))
    assert rounds[0].seconds == 20.0
    assert max(r.seconds for r in rounds[1:]) < 2


def test_a_silent_node_is_asked_again_and_its_old_answer_still_counts() -> None:
    pacer, now = Pacer(deadline=1.0), 0.0
    for _ in range(12):
        plan = pacer.begin([1, 2], now)
        for node in plan.ask:
            if node == 1 or now < 0.5:
                pacer.arrived(node, now + 0.2, examples=1.0)
        now += 1.0
        pacer.end(now)
    assert pacer.times[2].missed > 0
    pacer.begin([1, 2], now)
    answer = pacer.arrived(2, now + 0.5, examples=1.0, asked=1)
    pacer.end(now + 1)
    assert answer is not None
    assert answer.late == 11
    assert answer.factor > 1


def test_nodes_that_are_all_silent_are_asked_again() -> None:
    """Rounds in which nobody is asked would pass in no time."""
    pacer = Pacer(deadline=1.0)
    list(played(pacer, lambda _j, k: 0.5 if k < 3 else 1e9, 4, 2))
    for now in (100.0, 200.0, 300.0):
        assert pacer.begin([0, 1], now).ask == (0, 1)
        assert pacer.until > now
        pacer.end(now + 1)
    assert pacer.begin([0, 1], 1000.0, busy=[0, 1]).ask == (0, 1)


def test_late_answers_of_nodes_that_are_not_selected_count_as_theirs() -> None:
    """Two of four nodes take turns; every answer comes in the round of the others."""
    pacer = Pacer(deadline=1.0)
    factors = []
    for k in range(60):
        for node in list(pacer.pending):
            pacer.arrived(node, k + 0.5, examples=1.0)
        pacer.begin([0, 1] if k % 2 else [2, 3], float(k))
        factors += [answer.factor for answer in pacer.end(k + 1.0).counted]
    assert pacer.share_of_rounds(0) == pytest.approx(1.0, abs=0.15)
    assert factors[-1] == pytest.approx(1.0, abs=0.2)


def test_only_measuring_weighs_nothing_and_takes_nothing_late() -> None:
    pacer = Pacer(learn_only=True, longest=2.0)
    rounds = list(played(pacer, lambda j, _k: 3.0 if j == 2 else 0.5, 6, 3))
    assert {answer.factor for r in rounds for answer in r.counted} == {1.0}
    assert all(not answer.late for r in rounds for answer in r.counted)
    assert all(r.plan.deadline == inf and not r.plan.windows for r in rounds)


def test_a_part_of_a_pass_counts_no_more_than_a_whole_one() -> None:
    """A tenth of a pass that moves half as far as a whole one is doubled, not taken ten times."""

    def factor(length: float, *, whole: float = 1.0, others: float = 1.0) -> float:
        pacer = Pacer(deadline=1.0)
        for k, (share, mine, theirs) in enumerate([(1.0, whole, 1.0), (0.1, length, others)]):
            pacer.begin([1, 2, 3], float(k))
            for node in (1, 3):
                pacer.arrived(node, k + 0.5, examples=1, share=1.0, compute=0.2, length=theirs)
            pacer.arrived(2, k + 0.5, examples=1, share=share, compute=0.2, length=mine)
            last = pacer.end(k + 1.0).answers[2]
        return last.factor

    assert factor(0.05) == pytest.approx(10.0)
    assert factor(0.5) == pytest.approx(2.0)
    assert factor(3.0) == pytest.approx(1.0)
    assert factor(0.5, whole=5.0) == pytest.approx(10.0)  # whose updates are long, or were
    assert factor(0.5, whole=5.0, others=0.5) == pytest.approx(5.0)


@pytest.mark.parametrize("examples", [0.0, -3.0, float("nan"), inf])
def test_a_weight_that_is_none_is_refused(examples: float) -> None:
    pacer = Pacer()
    pacer.begin([7], 0.0)
    with pytest.raises(InputError, match="node 7: examples is .*must be a number above 0"):
        pacer.arrived(7, 1.0, examples=examples)


def test_a_cap_is_a_bias_and_is_said() -> None:
    pacer = Pacer(deadline=1.0, cap=2.0)
    *_, last = (r for r in played(pacer, lambda j, _k: 5.5 if j == 2 else 0.5, 40, 3) if r.capped)
    assert last.capped == [2]
    assert "biased: 1/π of 1 nodes is cut to the cap" in last.sentence()


def test_a_state_continues_where_it_was() -> None:
    first = Pacer(late="drop", deadline=1.0)
    list(played(first, lambda j, k: 3.0 if j == 1 and k % 2 else 0.5, 9, 2))
    again = Pacer(late="drop", deadline=1.0)
    again.restore(json.loads(json.dumps(first.state())))
    assert again.state() == first.state()
    assert again.share_of_rounds(1) == first.share_of_rounds(1)


# A client's side.


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def used(batches: TimedBatches[Any], clock: Clock, seconds: float) -> int:
    count = 0
    for _ in batches:
        clock.now += seconds
        count += 1
    return count


def test_batches_end_before_the_window_would() -> None:
    clock, loader = Clock(), [np.zeros((4, 2))] * 10
    batches = TimedBatches(loader, 3.5, clock=clock)
    assert used(batches, clock, 1.0) == 3
    assert batches.metrics == {"paced-seconds": 3.0, "paced-examples": 12.0, "paced-share": 0.3}


def test_there_is_at_least_a_batch_and_by_default_a_pass() -> None:
    clock, loader = Clock(), [[1, 2]] * 4
    assert used(TimedBatches(loader, 0.0, clock=clock), clock, 5.0) == 1
    whole = TimedBatches(iter(loader), inf, clock=clock)  # of no known length
    assert used(whole, clock, 5.0) == 4
    assert whole.metrics["paced-share"] == 1.0


def test_more_passes_fill_a_window_if_asked_and_several_loops_share_one() -> None:
    clock, loader = Clock(), [[1, 2]] * 4
    assert used(more := TimedBatches(loader, 10.5, repeat=True, clock=clock), clock, 1.0) == 10
    assert more.metrics["paced-share"] == 2.5
    epochs = TimedBatches(loader, 6.5, clock=clock)
    assert [used(epochs, clock, 1.0) for _ in range(2)] == [4, 2]
    assert epochs.metrics["paced-share"] == 6 / 8


@pytest.mark.parametrize(
    "batch",
    [
        np.zeros((3, 2)),
        (np.zeros((3, 2)), np.zeros(3)),
        {"image": np.zeros((3, 2))},
        ["a", "b", "c"],
    ],
)
def test_examples_are_counted_in_any_batch(batch: Any) -> None:
    message = SimpleNamespace(content={"paced": {"window": 9.0}})
    batches = timed(message, [batch])
    assert batches.window == 9.0
    list(batches)
    assert batches.metrics["paced-examples"] == 3.0
