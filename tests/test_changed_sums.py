"""`coded-newton` on secure sums in a federation: nodes keep what they sent until it is counted."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codedfedl.core.client import Embedded, work_from, work_to
from codedfedl.core.masked import Anchor, GradientDelta
from codedfedl.data import load_dataset
from codedfedl.errors import InputError
from codedfedl.federate.deploy.local import write_shards
from codedfedl.federate.secure.vault import Vault
from codedfedl.federate.transport import Answered, Arrays
from codedfedl.privacy.fixed_point import FixedPoint
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.exchange import Exchange
from codedfedl.runs.journal import Journal
from codedfedl.simulation.replay import replay, replayed_clients
from tests.loopback import FIRST_NODE, Script
from tests.summing import PlainSumming, run, run_killed, secure, uniform

NEWTON = {"name": "coded-newton"}


class WithParity(PlainSumming):
    """Nodes that send their own parity too; the models that they were sent for sums are kept."""

    parity = True

    def __init__(self, folder: Path, shards: list[Path], script: Script | None = None) -> None:
        super().__init__(folder, shards, script)
        self.models: list[Any] = []

    def ask(self, kind: str, questions: Any, arrays: Arrays, *more: Any, **named: Any) -> Any:
        if "model" in arrays and kind == "work":
            self.models.append(arrays["model"])
        return super().ask(kind, questions, arrays, *more, **named)


def nodes(experiment: Experiment, tmp_path: Path, script: Script | None = None) -> WithParity:
    folder = tmp_path / "nodes"
    return WithParity(folder, write_shards(experiment, load_dataset("digits"), folder), script)


def played(
    tmp_path: Path, script: Script | None = None, rounds: int = 6
) -> tuple[WithParity, list[Exchange], list[str]]:
    grid = nodes(experiment := secure(NEWTON, 4, rounds), tmp_path, script)
    return grid, *run(grid, experiment, tmp_path)


def lost(client: int, kind: str, answer: Answered) -> Answered:
    """Lose answers on their way: in the rounds 1 to 4, from 0 on, those of one client each."""
    there = kind == "gradient_delta" and answer[0]["round"] in range(1, 5)
    gone = there and answer[0]["round"] % 3 == client
    return ({"problem": "lost"}, {}) if gone else answer


class TestRuns:
    def test_it_learns_and_shows_parity_but_no_gradient(self, tmp_path: Path) -> None:
        grid, exchanges, _ = played(tmp_path)
        assert exchanges[-1].record.metric > exchanges[0].record.metric + 0.03
        assert exchanges[-1].record.metric > 0.9
        assert all(not one.replies for one in exchanges)
        assert (tmp_path / "run" / "parity" / "0").is_dir()
        sent = np.concatenate([arrays["masked"] for arrays in grid.seen])
        assert len(sent) == 4 * 6 * 650  # gradients and curvatures
        assert uniform(sent)
        assert not uniform(exchanges[1].sums["gradient"])
        assert replay(RunDirectory(tmp_path / "run")).same

    def test_the_sums_are_of_the_last_counted_answers_whoever_is_lost(self, tmp_path: Path) -> None:
        """Everybody is counted in the last round: all sums add up to the whole gradient there.

        To the integer, but for the rounding of float32 in another order of sums.
        """
        grid, exchanges, _ = played(tmp_path, Script(change=lost))
        setup, *rounds = exchanges
        assert setup.record.is_setup
        assert [one.record.arrived.sum() for one in rounds] == [4, 3, 3, 3, 3, 4]
        total = sum(one.sums["gradient"] for one in rounds)
        model, members = grid.models[-1], Journal(tmp_path / "run").members()
        assert members is not None
        clients = replayed_clients(secure(NEWTON, 4, 6), load_dataset("digits"), members)
        numbers = FixedPoint(float(_asked(grid)[-1]["work"]["scale"]))
        expected = np.zeros((64, 10), dtype=np.uint32)
        for client in clients:
            gradient = Embedded().answer(client, client.points, model).arrays["gradient"]
            expected = expected + numbers.encode(gradient)
        assert np.abs((total - expected).view(np.int32)).max() <= 4 * 8
        assert replay(RunDirectory(tmp_path / "run")).same

    @pytest.mark.parametrize("asks", range(4, 16))
    def test_the_server_dies_at_any_question(self, asks: int, tmp_path: Path) -> None:
        grid = nodes(experiment := secure(NEWTON, 3, 3), tmp_path)
        run_killed(grid, experiment, tmp_path, asks)
        assert all(len(set(sent)) == 1 for sent in grid.sent.values())
        assert Journal(tmp_path / "run").rounds() == 3
        assert replay(RunDirectory(tmp_path / "run")).same

    def test_a_resumed_run_ends_as_one_that_was_not_killed(self, tmp_path: Path) -> None:
        played(tmp_path / "whole", Script(change=lost))
        experiment = secure(NEWTON, 4, 6)
        grid = nodes(experiment, tmp_path, Script(change=lost))
        grid.crash_after = 14
        with pytest.raises(KeyboardInterrupt):
            run(grid, experiment, tmp_path)
        grid.crash_after = None
        run(grid, experiment, tmp_path)
        models = [RunDirectory(tmp_path / name / "run").checkpoint() for name in ("whole", ".")]
        assert models[0] is not None
        assert models[1] is not None
        np.testing.assert_allclose(models[1]["model"], models[0]["model"], atol=1e-6)


class TestKept:
    def test_only_what_may_be_needed_is_kept(self, tmp_path: Path) -> None:
        """The answer that was counted last, and the one that was just sent; at the end nothing."""
        kept: list[list[str]] = []

        def change(client: int, kind: str, answer: Answered) -> Answered:
            if client == 1 and kind == "gradient_delta":
                (folder,) = (grid.vault_folder(1) / "answers").glob("*")
                kept.append(sorted(path.name for path in folder.iterdir()))
            return lost(client, kind, answer)

        grid = nodes(experiment := secure(NEWTON, 4, 6), tmp_path)
        grid.script = Script(change=change)
        run(grid, experiment, tmp_path)
        # Its answers to the rounds 1 and 4, from 0 on, are lost.
        assert kept == [["0"], ["0", "1"], ["0", "2"], ["2", "3"], ["3", "4"], ["3", "5"]]
        assert not list((grid.vault_folder(1) / "answers").glob("*"))

    def question(self, tmp_path: Path, **told: Any) -> tuple[WithParity, dict[str, Any]]:
        """Return the nodes in the middle of a run, and what the first was asked last."""
        grid = nodes(experiment := secure(NEWTON, 4, 6), tmp_path)
        grid.crash_after = 13
        with pytest.raises(KeyboardInterrupt):
            run(grid, experiment, tmp_path)
        facts = _asked(grid)[-1]
        assert facts["work"]["counted"]
        return grid, {**facts, "sum": {**facts["sum"], "number": 50, "attempt": 49}}

    @pytest.mark.parametrize(
        ("counted", "message"),
        [
            ([[40, 360]], "an answer that this node does not have"),
            ([[0, 359]], "points, and 359 are said to be counted"),
            ([[0, 360], [1, 360]], "must be a list of 0 or 1"),
        ],
    )
    def test_what_it_did_not_send_is_not_counted(
        self, counted: list[Any], message: str, tmp_path: Path
    ) -> None:
        grid, facts = self.question(tmp_path)
        last = facts["work"]["counted"][0][0]
        told = [[last if r == 0 else r, points] for r, points in counted]
        work = {**facts["work"], "counted": told}
        model = np.zeros((64, 10), dtype=np.float32)
        with pytest.raises(InputError, match=message):
            grid.node(0).answer("work", facts | {"work": work}, {"model": model})


class TestParity:
    def test_a_node_sends_its_own_only_where_its_operator_allows_it(self, tmp_path: Path) -> None:
        grid = nodes(experiment := secure(NEWTON, 4, 6), tmp_path)
        grid.parity = False
        with pytest.raises(InputError, match=r"no client sent parity"):
            run(grid, experiment, tmp_path)
        assert not (tmp_path / "run" / "parity").exists()
        assert not list(tmp_path.glob("nodes/caches/*/*/parity.npz"))  # nor was any made

    def test_it_has_no_epsilon(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="--parity has no epsilon"):
            Vault(tmp_path, "0" * 64, epsilon_cap=3.0, parity=True)


def test_a_client_is_told_a_round_and_no_model() -> None:
    anchor = Anchor(np.ones((5, 2)), 20, 3)
    work = GradientDelta(Embedded(), 2.0**10, {1: anchor, 2: anchor}).for_client(1)
    document = json.loads(json.dumps(work_to(work)))
    assert document["counted"] == [[3, 20]]
    found = work_from(document, lambda _: None)
    assert isinstance(found, GradientDelta)
    (last,) = found.counted.values()
    assert (last.round, last.points, last.gradient) == (3, 20, None)


def _asked(grid: WithParity) -> list[dict[str, Any]]:
    """Return what the first client was asked for sums."""
    return [facts for node, _, facts in grid.asked if node == FIRST_NODE and "sum" in facts]
