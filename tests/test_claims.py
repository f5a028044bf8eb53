"""What nodes say of themselves: how far it counts as a weight, and what honest sites lose."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codedfedl.data.shards import moments, read_shard
from codedfedl.errors import InputError
from codedfedl.federate.deploy.local import node_name
from codedfedl.federate.job import Job
from codedfedl.federate.server.measuring import advice_on_claims, counted_points
from codedfedl.federate.server.session import federate
from codedfedl.federate.transport import Answered
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.exchange import Exchange
from codedfedl.runs.federation_sections import FederationConfig
from codedfedl.runs.journal import Journal
from codedfedl.simulation.replay import replay
from tests.liars import CODED, LIARS, NEWTON, UNCODED, claim_more, lied_to
from tests.loopback import Script, experiment_of, transport_of

SIZES = [1, 1, 2, 2, 3, 3, 4, 5, 8, 12]  # of unequal sites, in proportion


def run(
    experiment: Any, folder: Path, script: Script | None = None
) -> tuple[list[Exchange], list[str]]:
    said: list[str] = []
    grid = transport_of(experiment, folder / "nodes", script)
    federate(grid, experiment, RunDirectory(folder / "run"), said.append)
    return list(Journal(folder / "run").exchanges()), said


def points_in(folder: Path) -> list[int]:
    members = Journal(folder / "run").members()
    assert members is not None
    return members.points


@pytest.mark.parametrize(
    ("scheme", "least"),
    [(UNCODED, 0.8), (CODED, 0.8), (NEWTON, 0.87)],
    ids=["uncoded", "coded", "coded-newton"],
)
def test_two_of_ten_never_weigh_more_than_a_third(
    scheme: dict[str, Any], least: float, tmp_path: Path
) -> None:
    """With five times the points in full they bring the schemes to 0.27, 0.27 and 0.63."""
    exchanges, said = lied_to(tmp_path, scheme, None, rounds=10, deal=claim_more, fall=1.0)
    assert float(exchanges[-1].record.metric) >= least
    points = np.array(points_in(tmp_path))
    assert points[list(LIARS)].sum() <= points.sum() / 3
    (advice,) = [sentence for sentence in said if "points that count" in sentence]
    assert "federation.points = { node-003 = 720, node-007 = 720 }" in advice


def _unequal(shards: list[Path]) -> None:
    """Deal the points at random to sites of very different sizes."""
    parts = [read_shard(path) for path in shards]
    inputs = np.concatenate([part.inputs for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    order = np.random.default_rng(1).permutation(len(labels))
    ends = np.cumsum(_sizes(len(labels)))
    for path, rows in zip(shards, np.split(order, ends), strict=False):
        np.savez(path, inputs=inputs[rows], labels=labels[rows])


def _sizes(points: int) -> list[int]:
    return [points * size // sum(SIZES) for size in SIZES]


@pytest.mark.parametrize("scheme", [UNCODED, CODED, NEWTON], ids=lambda scheme: scheme["name"])
def test_honest_sites_of_unequal_size_lose_hardly_anything(
    scheme: dict[str, Any], tmp_path: Path
) -> None:
    """The two largest count for less until their points are stated; then in full."""
    stated = {node_name(j): size for j, size in enumerate(_sizes(1437))}
    capped, said = lied_to(tmp_path / "capped", scheme, None, rounds=10, deal=_unequal)
    full, _ = lied_to(tmp_path / "full", scheme, None, rounds=10, deal=_unequal, points=stated)
    assert points_in(tmp_path / "full") == list(stated.values())
    assert points_in(tmp_path / "capped")[:8] == list(stated.values())[:8]
    assert any("points that count: 183 of 280 of node-008" in sentence for sentence in said)
    assert not any(exchange.record.refusals for exchange in capped + full)
    assert capped[-1].record.metric >= full[-1].record.metric - 3 / 359  # three test points


def test_a_capped_federation_replays(tmp_path: Path) -> None:
    """The points that count are the first in the order of processing, on both sides."""
    unlike: dict[str, Any] = {"partition": "dirichlet", "seed": 2, "batches": 2}
    lied_to(tmp_path, CODED, None, rounds=4, **unlike)
    members = Journal(tmp_path / "run").members()
    assert members is not None
    assert (max(members.points), max(members.claimed)) == (230, 270)
    assert replay(RunDirectory(tmp_path / "run")).same


def test_a_claim_has_no_more_weight_in_the_common_scale(tmp_path: Path) -> None:
    """All count for as many points, so that the means are those of the nodes' means."""
    means: list[Any] = []

    def deal(shards: list[Path]) -> None:
        claim_more(shards)
        means.extend(moments(read_shard(path)).means for path in shards)

    lied_to(tmp_path, UNCODED, None, rounds=1, deal=deal, heaviest=1.0, scale=True, fall=1.0)
    members = Journal(tmp_path / "run").members()
    assert members is not None
    assert members.claimed[LIARS[0]] == 720
    weights = np.array(members.points) / sum(members.points)
    np.testing.assert_allclose(members.scaling["low"], weights @ np.array(means), rtol=1e-6)


CLAIMS = st.lists(st.integers(10, 10**6), min_size=5, max_size=40)


@given(claims=CLAIMS, stated=st.sets(st.integers(0, 39)))
def test_no_fifth_of_unstated_claims_outweighs_the_others(
    claims: list[int], stated: set[int]
) -> None:
    named = {node_name(j): claim for j, claim in enumerate(claims)}
    known = {node_name(j): claims[j] for j in stated if j < len(claims)}
    config = FederationConfig(clients=len(claims), points=known, heaviest=1e6)
    counted = dict(zip(named, counted_points(named, config), strict=True))
    assert all(counted[name] == points for name, points in known.items())
    others = sorted(points for name, points in counted.items() if name not in known)
    minority = len(claims) // 5
    cap = max(others, default=0)
    capped = [name for name in named if counted[name] < named[name]]
    assert all(counted[name] == cap for name in capped)
    if cap > 10:
        assert 3 * sum(others[-minority:]) <= sum(counted.values())
    if capped:  # a larger cap would break the rule
        more = {n: p if n in known else min(p, cap + 1) for n, p in named.items()}
        largest = sorted(points for name, points in more.items() if name not in known)
        assert 3 * sum(largest[-minority:]) > sum(more.values())


def test_equal_claims_count_in_full() -> None:
    config = FederationConfig(clients=10)
    assert counted_points({node_name(j): 100 + j % 2 for j in range(10)}, config) == [100, 101] * 5
    two = {node_name(j): 500 if j < 2 else 100 for j in range(10)}
    assert counted_points(two, config) == [200, 200] + [100] * 8
    assert counted_points({"ada": 900, "bob": 100, "eve": 100}, config) == [500, 100, 100]
    assert advice_on_claims(["ada"], [100], [100]) == ""


@pytest.mark.parametrize(
    ("claim", "more", "reason"),
    [
        ({"columns": 200_000}, {}, "200000 label columns, which is many more than the median"),
        ({"columns": 11}, {"classes": 10}, "where federation.classes is 10"),
        ({"points": 500}, {"points": {"node-001": 360}}, "federation.points says 360"),
    ],
)
def test_claims_that_are_refused(
    claim: dict[str, Any], more: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    script = Script(change=_claiming(claim))
    with pytest.raises(InputError, match="3 of 4 nodes") as error:
        run(experiment_of(4, ready_timeout=1.2, **more), tmp_path, script)
    assert reason in str(error.value)


def test_points_that_a_node_does_not_have_are_no_weight(tmp_path: Path) -> None:
    """It is asked for as many as count, cannot answer for them, and the operator is told."""
    with pytest.raises(
        InputError, match=r"node-001: parity.loads is '1795'.*without=\['node-001'\]"
    ):
        run(experiment_of(4), tmp_path, Script(change=_claiming({"points": 360_000})))
    assert points_in(tmp_path)[1] == 5 * 359


def _claiming(claim: dict[str, Any]) -> Any:
    def change(client: int, question: str, answer: Answered) -> Answered:
        return ({**answer[0], **claim}, {}) if question == "hello" and client == 1 else answer

    return change


def test_what_the_operator_states_is_believed(tmp_path: Path) -> None:
    points = {"node-001": 600}
    experiment = experiment_of(2, rounds=1, points=points, heaviest=1.0, classes=12)
    with pytest.raises(InputError, match="node-001 has 719 points where"):
        run(experiment, tmp_path / "wrong")
    right = experiment_of(2, rounds=1, points={"node-001": 719}, heaviest=1.0, classes=12)
    exchanges, _ = run(right, tmp_path / "right")
    assert [one.arrays["gradient"].shape[1] for one in exchanges[-1].replies] == [12, 12]


def test_a_cap_gives_no_single_points_away(tmp_path: Path) -> None:
    """A server that counts one point of a node is still refused a sum over fewer than `least`."""
    grid = transport_of(experiment_of(3), tmp_path)
    job = asdict(Job("0" * 32, "fourier", 8, 2.0, 0, 1, columns=10, points=1))
    work = {"kind": "gradient", "batch": 0}
    facts = {"job": job, "work": work, "round": 0, "load": 1, "answered": 0, "seconds": None}
    model = np.zeros((8, 10), dtype=np.float32)
    with pytest.raises(InputError, match="answers for 10 together at least"):
        grid.node(0).answer("work", facts, {"model": model})
