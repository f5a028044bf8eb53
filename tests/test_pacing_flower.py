"""Pacing somebody else's Flower app: stock strategies on a grid in memory, on a virtual clock."""

import json
import logging
import random
import re
import time
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.app.error import Error
from flwr.serverapp import strategy as stock

from codedfedl.errors import InputError
from codedfedl.pacing.flower import paced, timed
from codedfedl.pacing.flower.mail import Mail
from codedfedl.pacing.flower.replies import treatment_of
from codedfedl.pacing.rounds import PacingJournal
from tests.paced_world import World, arrays_of, pace, reply_of, window_of

TARGETS = {1: 0.0, 2: 1.0, 3: 4.0, 4: 9.0}
OPTIMUM = 3.5


def x_of(message: Message) -> Any:
    record = message.content["arrays"]
    assert isinstance(record, ArrayRecord)
    return record["x"].numpy()


def steps(message: Message, _asked: int) -> RecordDict:
    """Move a part of the way to the node's own target."""
    x, node = x_of(message), message.metadata.dst_node_id
    if message.metadata.message_type == "evaluate":
        return RecordDict({"metrics": reply_of({})["metrics"]})
    return reply_of({"x": x + 0.1 * (TARGETS[node] - x)})


def fedavg(kind: type = stock.FedAvg, **options: Any) -> Any:
    return kind(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1, **options)


def start(strategy: Any, grid: Any, rounds: int, x: float = 0.0) -> Any:
    begin = arrays_of(x=np.array([x, x], np.float32))
    result = strategy.start(grid=grid, initial_arrays=begin, num_rounds=rounds)
    return result.arrays["x"].numpy() if "x" in result.arrays else np.array([x, x])


def test_nodes_that_are_as_fast_as_the_others_train_as_without_pacing() -> None:
    """Not one bit differs from Flower's own rounds."""
    plain, grid = World(TARGETS, steps), World(TARGETS, steps)
    random.seed(1)  # of the order in which strategies ask
    expected = start(fedavg(), plain, 12)
    random.seed(1)
    assert (start(fedavg(), pace(grid), 12) == expected).all()
    assert grid.clock <= plain.clock


class Noting(stock.FedAvg):
    """FedAvg that remembers its models."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is not None:
            self.seen = [*getattr(self, "seen", []), float(arrays["x"].numpy()[0])]
        return arrays, metrics


@pytest.mark.parametrize("late", ["count", "drop"])
def test_fedavg_is_unbiased_whoever_arrives(late: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are in time with probabilities 1, 0.8, 0.6 and 0.4; others 2 rounds late, or lost.

    The mean of 300 rounds has a standard error of at most 1.71/√300 = 0.1; five of them are 0.5,
    for a false alarm in a million. Flower's own mean with such a deadline ends 1.07 too low.
    """
    monkeypatch.setattr("codedfedl.pacing.pacer.PLAYED_ROUNDS", 25)
    rng, arrives = np.random.default_rng(5), {1: 1.0, 2: 0.8, 3: 0.6, 4: 0.4}

    def seconds(node: int, _asked: int) -> float:
        return 1.0 if rng.random() < arrives[node] else 5.0

    grid, strategy = World(TARGETS, steps, seconds), fedavg(Noting)
    start(strategy, pace(grid, strategy, late=late, deadline=2.0), 400)
    assert np.mean(strategy.seen[100:]) == pytest.approx(OPTIMUM, abs=0.5)
    assert OPTIMUM - sum(p * TARGETS[j] for j, p in arrives.items()) / sum(arrives.values()) > 1


def test_slow_nodes_cost_little_time_and_their_data_count() -> None:
    def seconds(node: int, _asked: int) -> float:
        return 30.0 if node == 4 else 3.0

    grid, strategy = World(TARGETS, steps, seconds), fedavg(Noting)
    start(strategy, pace(grid, strategy), 120)
    assert grid.clock < 120 * 30 / 4
    assert np.mean(strategy.seen[40:]) == pytest.approx(OPTIMUM, rel=0.1)


def test_a_window_cuts_the_work_of_slow_nodes_and_its_updates_are_normalised() -> None:
    """Node 4 needs 30 s for a pass, all others 3 s; half a second goes to the link."""

    def pace_of(node: int) -> float:
        return 30.0 if node == 4 else 3.0

    def part(message: Message) -> float:
        return min(1.0, window_of(message) / pace_of(message.metadata.dst_node_id))

    def answer(message: Message, _asked: int) -> RecordDict:
        x, node, share = x_of(message), message.metadata.dst_node_id, part(message)
        told = {"paced-seconds": share * pace_of(node), "paced-share": share}
        return reply_of({"x": x + 0.1 * share * (TARGETS[node] - x)}, **told)

    grid, strategy = World(TARGETS, answer), fedavg(Noting)
    grid.seconds = lambda node, _asked: 0.5 + pace_of(node) * part(grid.pushed[-1])
    trained = pace(grid, strategy)
    start(strategy, trained, 80)
    assert grid.clock < 80 * 30 / 4
    assert strategy.seen[-1] == pytest.approx(OPTIMUM, rel=0.02)
    assert min(part(message) for message in grid.pushed) < 0.5
    assert trained.pacers["train"].times[4].part < 0.5


def test_our_metrics_and_our_record_reach_nobody_else() -> None:
    """Clients that report their times and others that do not: Flower would skip such replies."""

    def answer(message: Message, asked: int) -> RecordDict:
        told = (
            {"paced-seconds": 0.5, "paced-share": 1.0} if message.metadata.dst_node_id == 2 else {}
        )
        return reply_of({"x": x_of(message) + 1}, **told)

    grid, metrics = World([1, 2], answer), []
    strategy = fedavg(train_metrics_aggr_fn=lambda records, _key: metrics.extend(records))
    assert start(strategy, pace(grid, strategy), 3) == pytest.approx(3.0)
    assert all(set(record["metrics"]) == {"num-examples", "loss"} for record in metrics)


def test_batch_norm_statistics_and_integers_are_as_they_came() -> None:
    def answer(message: Message, _asked: int) -> RecordDict:
        node = message.metadata.dst_node_id
        arrays: Any = {
            "w": np.ones(2),
            "bn.running_var": np.full(2, 5.0),
            "bn.num_batches_tracked": 7,
        }
        return reply_of(arrays, examples=10 * node)

    late = {(2, 2): 50.0}
    grid = World([1, 2], answer, lambda node, asked: late.get((node, asked), 1.0))
    strategy = fedavg()
    zeros: Any = {"w": np.zeros(2), "bn.running_var": np.ones(2), "bn.num_batches_tracked": 0}
    begin = arrays_of(**zeros)
    result = strategy.start(
        grid=pace(grid, strategy, deadline=2.0), initial_arrays=begin, num_rounds=2
    )
    arrays = {name: array.numpy() for name, array in result.arrays.items()}
    assert arrays["bn.running_var"] == pytest.approx(5.0)
    assert arrays["bn.num_batches_tracked"] == 7
    assert arrays["w"] == pytest.approx(1.0)  # it was there, and one of two steps of 0 is taken


def test_nobody_arrives_and_the_model_stays() -> None:
    grid = World([1, 2], steps, lambda _node, asked: 1.0 if asked == 1 else 1e9)
    strategy = fedavg()
    first = start(strategy, pace(World([1, 2], steps), strategy), 1)
    assert start(strategy, pace(grid, strategy), 3) == pytest.approx(first)


def test_failures_cost_nothing_but_their_answers() -> None:
    """An error reply, a question that the engine does not take, and a node that is gone."""

    def answer(message: Message, asked: int) -> RecordDict | Error | None:
        if message.metadata.dst_node_id == 2:
            return Error(0, "no memory")
        return steps(message, asked)

    grid, strategy = World(TARGETS, answer), fedavg()
    grid.refused = {3}
    x = start(strategy, pace(grid, strategy, longest=100.0), 40)
    assert x == pytest.approx((TARGETS[1] + TARGETS[4]) / 2, rel=0.05)
    assert grid.clock < 100


def test_evaluation_has_a_deadline_and_no_factors() -> None:
    asked = []

    def answer(message: Message, k: int) -> RecordDict:
        if message.metadata.message_type == "evaluate":
            asked.append(message.metadata.dst_node_id)
            return RecordDict({"metrics": reply_of({}, loss=2.0)["metrics"]})
        return steps(message, k)

    def seconds(node: int, _asked: int) -> float:
        return 40.0 if node == 4 else 1.0

    strategy = stock.FedAvg(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    grid = World(TARGETS, answer, seconds)
    begin = arrays_of(x=np.zeros(2, np.float32))
    result = strategy.start(grid=pace(grid, strategy), initial_arrays=begin, num_rounds=20)
    assert grid.clock < 20 * 40
    assert len(result.evaluate_metrics_clientapp) == 20
    assert {metrics["loss"] for metrics in result.evaluate_metrics_clientapp.values()} == {2.0}


def test_learning_only_changes_no_message_and_waits_for_all(caplog: Any) -> None:
    def seconds(node: int, _asked: int) -> float:
        return 30.0 if node == 4 else 3.0

    grid, plain = World(TARGETS, steps, seconds), World(TARGETS, steps, seconds)
    trained = pace(grid, learn_only=True)
    with caplog.at_level(logging.INFO, "flwr"):
        caplog.handler.setLevel(logging.INFO)
        assert start(fedavg(), trained, 4) == pytest.approx(start(fedavg(), plain, 4))
    assert grid.clock == plain.clock
    assert all("paced" not in message.content for message in grid.pushed)
    assert "learning only" in caplog.text


STRATEGIES = {
    "FedAvg": True,
    "FedProx": True,
    "FedAvgM": True,
    "FedAdam": True,
    "FedYogi": True,
    "FedAdagrad": True,
    "FedMedian": False,
    "FedTrimmedAvg": False,
    "Krum": False,
    "MultiKrum": False,
    "Bulyan": False,
    "QFedAvg": False,
    "FedXgbBagging": False,
    "FedXgbCyclic": False,
}
PRIVATE = [name for name in dir(stock) if name.startswith("DifferentialPrivacy")]
CLIPPED = {name: {"clipping_norm": 1.0} for name in PRIVATE if "Fixed" in name}
BOOSTER = {"gbtree_model_param": {"num_trees": "1", "num_parallel_tree": "1"}}
BOOSTER |= {"iteration_indptr": [0, 1], "trees": [{"id": 0}], "tree_info": [0]}  # type: ignore[dict-item]
TREES = json.dumps({"learner": {"gradient_booster": {"model": BOOSTER}}}).encode()


def strategy_called(name: str) -> Any:
    options: dict[str, dict[str, Any]] = {
        "FedProx": {"proximal_mu": 0.1},
        "FedAvgM": {"server_momentum": 0.5},
        "QFedAvg": {"client_learning_rate": 0.1, "train_loss_key": "loss"},
    }
    if name == "FedXgbCyclic":
        return stock.FedXgbCyclic(fraction_evaluate=0.0)
    if name in PRIVATE:
        return getattr(stock, name)(
            fedavg(), noise_multiplier=0.0, num_sampled_clients=8, **CLIPPED.get(name, {})
        )
    return getattr(stock, name)(
        fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1, **options.get(name, {})
    )


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_get_factors_only_where_these_are_right(name: str) -> None:
    treatment = treatment_of(strategy_called(name))
    assert treatment.factors == STRATEGIES[name]
    assert treatment.factors or name in treatment.why


def test_private_strategies_and_strangers_get_no_factors() -> None:
    noisy = stock.DifferentialPrivacyServerSideFixedClipping(fedavg(), 1.0, 1.0, 4)
    assert "guarantee" in treatment_of(noisy).why
    assert treatment_of(object()).why.endswith("pass factors=True if it does")
    assert treatment_of(None).factors


COLLECTS_GARBAGE = pytest.mark.slow  # once for every answer, which takes a while
PLAYED = [
    pytest.param(name, marks=[COLLECTS_GARBAGE] * (name in ("QFedAvg", "Bulyan")))
    for name in [*STRATEGIES, *PRIVATE]
]


def test_every_stock_strategy_is_known() -> None:
    """A strategy of a newer Flower is tested here before it is paced."""
    exported = {name for name in stock.__all__ if name not in ("Result", "Strategy")}
    assert exported == {*STRATEGIES, *PRIVATE}


@pytest.mark.parametrize("name", PLAYED)
def test_every_stock_strategy_trains_with_a_slow_node(name: str) -> None:
    name_of, trees = ("0", np.frombuffer(TREES, np.uint8)) if "Xgb" in name else ("x", None)

    def answer(message: Message, asked: int) -> RecordDict | None:
        if asked == 3 and "Adaptive" not in name:
            return None  # a round in which nobody arrives
        new = x_of(message) * 0.9 + 0.1 if trees is None else trees
        return reply_of({name_of: new}, norm_bit=1.0)

    strategy = strategy_called(name)
    grid = World(range(1, 9), answer, lambda node, _asked: 20.0 if node == 4 else 2.0)
    begin = arrays_of(**{name_of: np.zeros(2, np.float32) if trees is None else trees})
    trained = pace(grid, strategy)
    result = strategy.start(grid=trained, initial_arrays=begin, num_rounds=6, timeout=30.0)
    last = result.arrays[name_of].numpy()
    assert not trained.unpaced
    assert ((last > 0) & (last < 1)).all() if trees is None else b"learner" in last.tobytes()


BAD = {
    "reports no num-examples": reply_of({"x": np.ones(2)}, examples=None),
    "reports num-examples = nan": reply_of({"x": np.ones(2)}, examples=float("nan")),
    "reports num-examples = -3": reply_of({"x": np.ones(2)}, examples=-3),
    "replies with other arrays than it was sent ('y')": reply_of({"y": np.ones(2)}),
    "replies with other arrays than it was sent ('x')": reply_of({"x": np.ones(3)}),
    "replies without 'x'": reply_of({}),
}


@pytest.mark.parametrize("sentence", BAD)
def test_what_cannot_be_weighed_is_not_paced(sentence: str, caplog: Any) -> None:
    """From its first use on rounds wait for all, and no reply is changed; one line says why."""

    def answer(message: Message, asked: int) -> RecordDict:
        return (
            BAD[sentence]
            if message.metadata.dst_node_id == 3 and asked > 2
            else steps(message, asked)
        )

    def seconds(node: int, asked: int) -> float:
        return 1.0 if (node, asked) != (2, 2) else 5.0  # what makes factors differ from 1

    grid = World([1, 2, 3], answer, seconds)
    trained = pace(grid, deadline=3.0)
    strategy = fedavg()
    strategy.aggregate_train = lambda _round, replies: (None, None)
    start(strategy, trained, 6)
    lines = [r.message for r in caplog.records if "pacing is off from now on" in r.message]
    assert len(lines) == 1
    assert sentence in lines[0]
    assert sentence in trained.unpaced


class Growing(stock.FedAvg):
    """FedAvg that names its arrays anew in the middle of a run."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        if server_round == 4:
            arrays = arrays_of(new=np.zeros(2, np.float32))
        return arrays, metrics


def test_arrays_that_change_between_rounds_end_pacing_and_not_the_run(
    caplog: Any, tmp_path: Path
) -> None:
    """A late answer to the old model cannot be added to the new one."""

    def answer(message: Message, _asked: int) -> RecordDict:
        record = message.content["arrays"]
        assert isinstance(record, ArrayRecord)
        return reply_of({name: array.numpy() + 1 for name, array in record.items()})

    grid = World([1, 2, 3], answer, lambda node, k: 4.0 if (node, k) == (2, 4) else 1.0)
    strategy = fedavg(Growing)
    trained = pace(
        grid, strategy, deadline=2.0, journal=PacingJournal(tmp_path / "run", resume=False)
    )
    begin = arrays_of(x=np.zeros(2, np.float32))
    result = strategy.start(grid=trained, initial_arrays=begin, num_rounds=9)
    assert result.arrays["new"].numpy() == pytest.approx(4 + 2 / 3)  # one round is without node 2
    assert "pacing is off from now on" in caplog.text
    assert "replies with other arrays than it was sent ('x')" in trained.unpaced


def test_a_node_with_a_nonsensical_clock_is_timed_by_the_server(caplog: Any) -> None:
    wrong = iter([float("nan"), -1.0, 3600.0, 0.5])

    def answer(message: Message, _asked: int) -> RecordDict:
        told = {"paced-seconds": next(wrong), "paced-share": 1.0}
        return reply_of({"x": x_of(message)}, **told)

    grid = World([1], answer)
    trained = pace(grid)
    start(fedavg(), trained, 4)
    seen = trained.pacers["train"].times[1].seen
    assert list(seen) == [(1.0, 0.0)] * 3 + [(0.5, 0.5)]
    notes = [r.message for r in caplog.records if "its own times are not used" in r.message]
    assert len(notes) == 3
    assert any("reports 3600 seconds of computing, and its answer took 1" in n for n in notes)


def test_options_and_folders_are_refused_in_one_line(tmp_path: Path) -> None:
    grid: Any = World([1], steps)
    with pytest.raises(InputError, match="deadline is -1: must be a number above 0"):
        paced(grid, deadline=-1)
    with pytest.raises(InputError, match="late is 'keep': must be 'count' or 'drop'"):
        paced(grid, late="keep")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="FedXgbBagging collects trees.*start anew"):
        paced(grid, strategy_called("FedXgbBagging"), out=tmp_path / "run", resume=True)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds something else: choose another folder"):
        paced(grid, out=tmp_path)
    paced(grid, out=tmp_path / "run")
    with pytest.raises(InputError, match="continue it with resume=True"):
        paced(grid, out=tmp_path / "run")
    pace(grid, journal=PacingJournal(tmp_path / "run", resume=True)).send_and_receive([])
    start(fedavg(), pace(grid, journal=PacingJournal(tmp_path / "run", resume=True)), 1)
    other = arrays_of(x=np.zeros(5, np.float32))
    with pytest.raises(InputError, match="another app: its arrays differ"):
        fedavg().start(
            grid=pace(grid, journal=PacingJournal(tmp_path / "run", resume=True)),
            initial_arrays=other,
        )


@pytest.mark.parametrize("name", ["FedAvg", "FedAvgM", "FedAdam", "FedMedian", "Krum"])
def test_a_killed_run_continues_with_the_same_numbers(name: str, tmp_path: Path) -> None:
    """The optimiser's state is that of the rounds before, which nobody is asked again."""
    nodes, killed = range(1, 6), 4

    def answer(message: Message, _asked: int) -> RecordDict:
        x, node = x_of(message), message.metadata.dst_node_id
        return reply_of({"x": np.asarray(x + 0.1 * (node - x), np.float32)}, examples=node)

    def run(out: str, rounds: int) -> tuple[Any, World]:
        random.seed(3)
        strategy, grid = strategy_called(name), World(nodes, answer)
        journal = PacingJournal(tmp_path / out, resume=True)
        return start(strategy, pace(grid, strategy, journal=journal), rounds), grid

    whole, _ = run("whole", 8)
    run("killed", killed + (not treatment_of(strategy_called(name)).factors))
    continued, grid = run("killed", 8)
    assert continued == pytest.approx(whole, rel=1e-5)
    assert len(grid.pushed) == (8 - killed) * len(nodes)


def test_a_run_leaves_tables_a_page_and_a_fleet_to_plan_with(tmp_path: Path, run: Any) -> None:
    out = tmp_path / "run"

    def seconds(node: int, _asked: int) -> float:
        return 12.0 if node == 4 else 3.0

    trained = pace(World(TARGETS, steps, seconds), journal=PacingJournal(out, resume=False))
    start(fedavg(), trained, 12)
    trained.close()
    page = (out / "report.html").read_text("utf-8")
    assert "Waiting for all would have taken" in page
    assert "<svg" in page
    code, text, _ = run("plan", out / "fleet.csv", "--json")
    assert code == 0
    assert {row["client"] for row in json.loads(text)["clients"]} == {*map(str, TARGETS)} or {
        *TARGETS
    }


class Simulated(World):
    """An engine that simulates nodes: whatever is pulled is there at once."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = {identity: reply for _, _, identity, reply in self._coming if reply is not None}
        return [replies[identity] for identity in message_ids]


def on_a_clock_of_its_own(message: Message, _asked: int) -> RecordDict:
    """Take a second for each of ten batches, node 4 ten; 2 seconds are the link's."""
    x, node = x_of(message), message.metadata.dst_node_id
    batches = timed(message, [[0]] * 10, batch_seconds=10.0 if node == 4 else 1.0, link_seconds=2.0)
    part = sum(len(batch) for batch in batches) / 10
    return reply_of({"x": x + 0.1 * part * (TARGETS[node] - x)}, **batches.metrics)


def test_simulated_nodes_are_paced_by_the_seconds_that_they_claim(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first round waits 102 seconds for node 4, later ones do not; no clock here is read."""
    caplog.set_level(logging.INFO, "flwr")
    began = time.monotonic()
    x = start(fedavg(), paced(Simulated(TARGETS, on_a_clock_of_its_own), virtual=True), 60)
    assert time.monotonic() - began < 60
    seconds = [float(s) for s in re.findall(r"paced: round \d+: ([\d.]+) s", caplog.text)]
    assert seconds[0] == 102
    assert max(seconds[5:]) < 51
    assert x == pytest.approx(OPTIMUM, abs=1.0)


def test_a_question_without_a_time_limit_is_waited_for() -> None:
    mail = Mail(lambda ids: [(identity, None) for identity in ids])
    mail.expect(["question"])
    reply = mail.next(inf)
    assert reply is not None
    assert reply[0] == "question"


def test_simulated_nodes_have_to_say_how_long_they_took() -> None:
    with pytest.raises(InputError, match="batch_seconds"):
        start(fedavg(), paced(Simulated(TARGETS, steps), virtual=True), 2)
