"""Windows of real clients: whole blocks, as many as are done in time, and what they add up to."""

import json
from dataclasses import asdict
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codedfedl.core.client import Gradient, WindowGradient, work_to
from codedfedl.core.gradients import LEAST_IN_BLOCK, block_ends
from codedfedl.core.rounded import Rounded
from codedfedl.core.work import ArrayClient, Work
from codedfedl.data.shards import Shard
from codedfedl.errors import InputError
from codedfedl.federate.job import Job
from codedfedl.federate.node.node import Node
from codedfedl.federate.server.session import federate
from codedfedl.random import stream
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import changed
from codedfedl.runs.exchange import Exchange
from codedfedl.runs.journal import Journal
from codedfedl.simulation.replay import replay
from tests.loopback import Script, experiment_of, transport_of
from tests.summing import Summing

POINTS, FEATURES, BLOCKS = 480, 24, 9
JOB = Job("0" * 32, "fourier", FEATURES, 1.0, 0, 1, columns=POINTS)


@given(st.integers(1, 5000))
def test_blocks_are_about_equal_and_of_enough_points(points: int) -> None:
    """A tenth of all their points lie in each: so any sum of them obeys what limits sums."""
    sizes = np.diff([0, *block_ends(points)])
    assert sizes.sum() == points
    assert sizes.max() - sizes.min() <= 1
    assert sizes.min() >= min(LEAST_IN_BLOCK, points)
    assert 10 * sizes.min() >= points


def node(folder: Path, clock: Any = None, **settings: Any) -> Node:
    """Return a node each of whose points has a label column of its own."""
    points = np.random.default_rng(0).random((POINTS, 3))
    shard = Shard(points, np.eye(POINTS))
    return Node("ada", lambda: shard, folder, clock=clock or (lambda: 0.0), **settings)


def asked(ada: Node, work: Work, load: int = POINTS) -> tuple[dict[str, Any], np.ndarray]:
    """Return the facts of an answer, and which points are in it: at 0, a sum shows its labels."""
    facts = {"work": work_to(work), "round": 0, "load": load, "answered": 0, "seconds": None}
    question = json.loads(json.dumps({"job": asdict(JOB), **facts}))
    model = {"model": np.zeros((FEATURES, POINTS), np.float32)}
    told, arrays = ada.answer("work", question, model)
    return dict(told), np.abs(arrays["gradient"]).max(0)


def window(draw: int, seconds: float, by_class: float | None = 1.0, **more: Any) -> WindowGradient:
    classes = None if by_class is None else [by_class] * POINTS
    return WindowGradient(0, draw, more.pop("weight", 0.0), classes, seconds=seconds, **more)


class Ticking:
    """A clock on which every look takes a tick, so that a block takes one, and one goes by."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return float(self.looks)


@pytest.mark.parametrize(("seconds", "blocks"), [(0.5, 1), (2.9, 1), (4.9, 2), (8.9, 4), (99, 9)])
def test_a_node_stops_when_its_time_is_up(seconds: float, blocks: int, tmp_path: Path) -> None:
    """Another block that would end too late is not begun."""
    facts, weights = asked(node(tmp_path, Ticking()), window(0, seconds))
    sizes = np.diff([0, *block_ends(POINTS)])
    assert facts["points"] == np.count_nonzero(weights)
    assert len(sizes) == BLOCKS
    assert facts["points"] in {int(np.sum(np.roll(sizes, -k)[:blocks])) for k in range(BLOCKS)}


def test_with_too_few_points_it_computes_on(tmp_path: Path) -> None:
    facts, _ = asked(node(tmp_path, Ticking()), window(0, 0.5, least=200))
    assert 200 <= facts["points"] < 200 + 54


def test_windows_begin_at_random_blocks_and_overlap_in_whole_ones(tmp_path: Path) -> None:
    ada = node(tmp_path, Ticking())
    covered = np.array([asked(ada, window(draw, 6.0))[1] > 0 for draw in range(12)])
    assert covered.any(0).all()
    assert len(np.unique(covered, axis=0)) >= 4
    _, sizes = np.unique(covered.T, axis=0, return_counts=True)  # points that are always together
    assert sizes.min() >= POINTS // BLOCKS


@pytest.mark.parametrize(("weight", "by_class"), [(480.0, None), (480.0, 0.5), (0.0, 2.0)])
def test_weights_are_of_the_points_that_were_done(
    weight: float, by_class: float | None, tmp_path: Path
) -> None:
    """a_j/load of a client's mean, and v_c of a class: see `DrawnGradient`."""
    plain = asked(node(tmp_path / "plain", Ticking()), window(3, 5.0))[1]
    given = window(3, 5.0, by_class, weight=weight)
    facts, weights = asked(node(tmp_path / "weighted", Ticking()), given)
    of_each = weight / facts["points"] + (by_class or 0.0)
    np.testing.assert_allclose(weights, of_each * plain, rtol=1e-4, atol=1e-6)


def test_other_sums_do_not_show_parts_of_blocks(tmp_path: Path) -> None:
    end = int(block_ends(POINTS)[0])
    ada = node(tmp_path)
    asked(ada, window(0, 1.0))
    for load in (end - 1, end + 9, 2 * end + 1):
        with pytest.raises(InputError, match="would show, beside earlier sums"):
            asked(ada, Gradient(0), load)
    asked(ada, Gradient(0), end)
    other = node(tmp_path / "other")
    asked(other, Gradient(0), end + 3)
    with pytest.raises(InputError, match="would show, beside earlier sums"):
        asked(other, window(0, 1.0))


def test_no_class_counts_more_than_others(tmp_path: Path) -> None:
    """A sum over one class would be over the points of that class alone, here one point."""
    of_one = [1.0] + [0.0] * (POINTS - 1)
    with pytest.raises(InputError, match="must be the same for all classes"):
        asked(node(tmp_path), WindowGradient(0, 0, 0.0, of_one, seconds=1.0))
    with pytest.raises(InputError, match=r"paced\.weights is 'class'.*choose 'client'"):
        played(tmp_path, PACED | {"weights": "class"})


def test_a_block_of_too_few_points_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="mixes 53 points, and this node answers for 60"):
        asked(node(tmp_path, least=60), window(0, 1.0))


def test_a_clock_that_stands_still_answers_for_as_many_points_as_it_is_told() -> None:
    """So a replay computes what a node has sent."""
    rng = np.random.default_rng(0)
    features, targets = rng.random((170, 4)).astype(np.float32), np.eye(170, dtype=np.float32)
    client = ArrayClient(features, targets, 1, lambda *_: stream(0, "code"))
    work = WindowGradient(0, 1, 1.0, None, seconds=5.0)
    model = np.zeros((4, 170), np.float32)
    sizes = np.diff([0, *block_ends(170)]).tolist()
    for load in (sizes[0], sizes[0] + sizes[1], 170):
        answer = work.timed(client, load, model, lambda: 0.0)
        assert 0 <= answer.points - load <= 1


PACED: dict[str, Any] = {"name": "paced", "weights": "client", "optimiser": "sgd"}


def played(
    folder: Path, scheme: dict[str, Any], script: Script | None = None, rounds: int = 4, **more: Any
) -> list[Exchange]:
    experiment = experiment_of(3, rounds, scheme, **more)
    experiment = changed(experiment.model_dump(), {"training.step": 1.0}, "a test")
    nodes = transport_of(experiment, folder / "nodes", script)
    if scheme.get("secure"):
        nodes = Summing(nodes.folder, nodes.shards, script)
        nodes.cap = inf
    federate(nodes, experiment, RunDirectory(folder / "run"), lambda _: None)
    return list(Journal(folder / "run").exchanges())


def test_late_answers_are_for_the_model_that_they_began_with(tmp_path: Path) -> None:
    """They are no part of a later round's sum, and a replay knows their models."""
    script = Script(lambda client, kind, _: 1.0 * (client == 2 and kind == "window_gradient"))
    exchanges = played(tmp_path, PACED, script, rounds=6, deadline=0.8)[1:]
    late = [(k, reply) for k, e in enumerate(exchanges) for reply in e.replies]
    about = [(k, reply.client, reply.round) for k, reply in late]
    assert about == [(1, 2, 0), (3, 2, 2), (5, 2, 4)]
    assert all(e.counted is not None and e.counted[2] == 0 for e in exchanges)
    assert exchanges[-1].record.metric > 0.6
    assert replay(RunDirectory(tmp_path / "run")).same


def test_a_gradient_longer_than_its_points_allow_is_refused(tmp_path: Path) -> None:
    def change(client: int, kind: str, answer: Any) -> Any:
        facts, arrays = answer
        factor = 100.0 if client == 1 and kind == "window_gradient" else 1.0
        return facts, {name: np.float32(factor) * array for name, array in arrays.items()}

    exchanges = played(tmp_path, PACED, Script(change=change))
    why = [reason for e in exchanges for _, reason in e.record.refusals]
    assert len(why) == 4
    assert all("gradient is longer than" in reason for reason in why)


def test_malenia_steps_when_all_have_answered(tmp_path: Path) -> None:
    """Client 2 takes five times as long: others answer again and again until it has answered."""
    slow = Script(lambda client, kind, _: 0.2 * (client == 2 and kind == "window_gradient"))
    scheme = {"name": "malenia", "load": 60, "enough": 60.0, "optimiser": "gd"}
    exchanges = played(tmp_path, scheme, slow, rounds=40, deadline=5.0)[1:]
    answers = [(k, r.client, r.round, r.points) for k, e in enumerate(exchanges) for r in e.replies]
    ends = [k for k, client, _, _ in answers if client == 2]  # a step follows
    assert len(ends) >= 3
    for first, last in pairwise([-1, *ends]):
        between = [(client, asked) for k, client, asked, _ in answers if first < k <= last]
        assert {client for client, _ in between} == {0, 1, 2}
        assert len(between) > 5
        assert all(asked > first for _, asked in between)  # what was under way is not counted
    assert all(60 <= points < 180 for *_, points in answers)
    assert exchanges[-1].record.metric > 0.2
    assert replay(RunDirectory(tmp_path / "run")).same


@pytest.mark.parametrize(
    "scheme", [PACED, {"name": "fedavg", "local_steps": 2, "step": 0.5}], ids=lambda s: s["name"]
)
def test_messages_of_a_few_bits(scheme: dict[str, Any], tmp_path: Path) -> None:
    """Bytes leave a node, numbers reach the scheme; late answers and replays are rounded too."""
    sent: set[int] = set()

    def change(client: int, kind: str, answer: Any) -> Any:
        if kind == "rounded" and client == 2:
            whole = np.zeros((64, 10), np.float32)
            return answer[0], dict.fromkeys(answer[1], whole)  # as if nothing were rounded
        sent.update(array.nbytes for array in answer[1].values() if kind == "rounded")
        return answer

    scheme = scheme | {"message_bits": 6}
    honest = played(tmp_path / "honest", scheme, deadline=2.0)
    assert honest[-1].record.metric > 0.6
    assert replay(RunDirectory(tmp_path / "honest" / "run")).same
    late = Script(lambda client, kind, _: 1.0 * (client == 1 and kind == "rounded"), change)
    lying = played(tmp_path / "lying", scheme, late, deadline=0.8)
    assert sent == {4 + 640 * 6 // 8}
    why = {reason for e in lying for _, reason in e.record.refusals}
    assert why == {
        "a message holds float32 of shape (64, 10), not 484 bytes: send it again, rounded to 6 bits"
    }


def test_a_server_names_tensors_that_a_model_has(tmp_path: Path) -> None:
    for sizes, words in (((FEATURES * POINTS - 1,), "sizes of tensors with"), ((), "a list of 1")):
        with pytest.raises(InputError, match=words):
            asked(node(tmp_path), Rounded(window(0, 1.0), 8, sizes, 1))


def test_a_secure_sum_of_windows(tmp_path: Path) -> None:
    """It learns what the plain one learns, up to the integers' rounding."""
    plain = played(tmp_path / "plain", PACED)
    secure = played(tmp_path / "secure", PACED | {"secure": True})
    assert all(e.counted is not None and (e.counted > 0).all() for e in secure[1:])
    assert abs(secure[-1].record.metric - plain[-1].record.metric) <= 0.02
    assert replay(RunDirectory(tmp_path / "secure" / "run")).same


def test_it_resumes_where_it_was(tmp_path: Path) -> None:
    whole = played(tmp_path / "whole", PACED, rounds=6)
    played(tmp_path / "parts", PACED, rounds=3)
    resumed = played(tmp_path / "parts", PACED, rounds=6)
    assert len(resumed) == len(whole) == 7  # features, and the rounds
    assert resumed[-1].record.metric == whole[-1].record.metric
