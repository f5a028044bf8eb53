"""Sums without noise in a federation, on an in-memory transport: `secure = true`."""

import json
import tomllib
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from codedfedl.cli.federate_local import TrainingOptions
from codedfedl.core.client import Gradient, WeightedGradient, work_from, work_to
from codedfedl.core.clipped import ClippedGradient
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.masked import Masked, masked
from codedfedl.core.protocol import Ask, Inbox, Info, Scheme, State, Task
from codedfedl.core.waiting import Everyone
from codedfedl.data import load_dataset
from codedfedl.errors import InputError
from codedfedl.federate.deploy.local import write_shards
from codedfedl.federate.flower.apps import node_from
from codedfedl.federate.job import Job, ask_digest, in_one_row, taken_apart
from codedfedl.federate.node.config import NodeConfig
from codedfedl.federate.secure.helper import HelperNode
from codedfedl.federate.server.session import federate
from codedfedl.federate.transport import Answered
from codedfedl.privacy.contract import Contract, contract_of, digest_of_keys
from codedfedl.privacy.masks import Binding, mask, own_key, public_digits, shared_seed
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.exchange import Exchange
from codedfedl.runs.federation import scheme_of
from codedfedl.runs.journal import Journal
from codedfedl.simulation.replay import replay
from tests.loopback import FIRST_NODE, Script, experiment_of, named, transport_of
from tests.stock import as_flower_takes_it
from tests.summing import (
    HELPER,
    PlainSumming,
    refusal,
    run,
    run_killed,
    run_until_sum,
    secure,
    uniform,
)

SCHEMES: list[dict[str, Any]] = [
    {"name": "uncoded"},
    {"name": "uncoded", "optimiser": "block-cg"},
    {"name": "coded", "redundancy": 0.2, "stand_in": False},
    {"name": "balanced"},
    {"name": "partial"},
    {"name": "greedy"},
    {"name": "fedavg"},
    {"name": "one-shot"},
]


def summing(experiment: Experiment, tmp_path: Path, script: Script | None = None) -> PlainSumming:
    folder = tmp_path / "nodes"
    shards = write_shards(experiment, load_dataset("digits"), folder)
    return PlainSumming(folder, shards, script)


def played(
    scheme: dict[str, Any], tmp_path: Path, script: Script | None = None, **more: Any
) -> tuple[PlainSumming, list[Exchange]]:
    grid = summing(experiment := secure(scheme, **more), tmp_path, script)
    return grid, run(grid, experiment, tmp_path)[0]


def model_of(folder: Path) -> Any:
    stored = RunDirectory(folder).checkpoint()
    assert stored is not None
    return stored["model"]


class TestSchemes:
    @pytest.mark.parametrize("batches", [1, 2])
    @pytest.mark.parametrize("scheme", SCHEMES, ids=lambda one: "-".join(map(str, one.values())))
    def test_it_learns_what_the_plain_scheme_learns(
        self, scheme: dict[str, Any], batches: int, tmp_path: Path
    ) -> None:
        """But for rounding; the codes of parity are the same, as the tests' nodes have seeds."""
        _, exchanges = played(scheme, tmp_path, batches=batches)
        plain = experiment_of(4, 3, scheme, batches=batches)
        transport = transport_of(plain, tmp_path / "plain-nodes")
        federate(transport, plain, RunDirectory(tmp_path / "plain"), lambda _: None)
        found, right = model_of(tmp_path / "run"), model_of(tmp_path / "plain")
        assert np.abs(found - right).max() <= 1e-4 * np.abs(right).max()
        assert all(array.dtype == np.uint32 for one in exchanges for array in one.sums.values())
        assert sum(bool(one.sums) for one in exchanges) >= 1

    @pytest.mark.parametrize("scheme", SCHEMES, ids=lambda one: "-".join(map(str, one.values())))
    def test_the_replay_adds_the_answers_up_anew(
        self, scheme: dict[str, Any], tmp_path: Path
    ) -> None:
        played(scheme, tmp_path)
        found = replay(RunDirectory(tmp_path / "run"))
        assert found.same
        assert found.answers >= 4

    def test_a_replay_notices_sums_that_are_not_the_clients(self, tmp_path: Path) -> None:
        """A helper that lies spoils the model, and the replay shows that it did."""

        def change(client: int, kind: str, answer: Answered) -> Answered:
            if kind != "sum":
                return answer
            return answer[0], {"sum": answer[1]["sum"] + np.uint32(2**26)}

        played({"name": "uncoded"}, tmp_path, Script(change=change))
        assert not replay(RunDirectory(tmp_path / "run")).same

    def test_one_message_a_round_goes_to_the_helper_and_nothing_is_spent(
        self, tmp_path: Path
    ) -> None:
        """The set-up's parity is a sum of its own."""
        grid, exchanges = played({"name": "coded", "redundancy": 0.2}, tmp_path)
        asked = [kind for node, kind, _ in grid.asked if node == HELPER]
        assert (asked.count("agree"), asked.count("sum"), asked.count("goodbye")) == (1, 4, 1)
        assert {one.spent for one in exchanges} == {0.0}
        assert not (tmp_path / "run" / "privacy.json").exists()
        assert not (tmp_path / "run" / "parity").exists()
        assert not (grid.vault_folder(0) / "ledger.json").exists()


def test_without_the_helper_the_server_sees_noise(tmp_path: Path) -> None:
    """Bytes of answers, parity among them, and differences; what the helper uncovers fails."""
    grid, exchanges = played({"name": "coded", "redundancy": 0.2}, tmp_path)
    sent = [arrays["masked"] for arrays in grid.seen]
    assert len(sent) == 16  # parity and three gradients of four clients
    gradients = [one for one in sent if len(one) == 640]
    views: list[Any] = [np.concatenate(sent), gradients[0] - gradients[1], sent[0] - sent[1]]
    views.append(np.concatenate([a - b for k, a in enumerate(gradients) for b in gradients[:k]]))
    assert all(uniform(view) for view in views)
    assert not uniform(exchanges[-1].sums["gradient"])
    assert not uniform(exchanges[0].sums["features0"])


class TestKills:
    @pytest.mark.parametrize("name", ["coded", "balanced"])
    @pytest.mark.parametrize("asks", range(4, 18))
    def test_the_server_dies_at_any_question(self, name: str, asks: int, tmp_path: Path) -> None:
        """Whoever is asked again sends the same bytes: never two answers under one mask."""
        grid = summing(experiment := secure({"name": name}, 3), tmp_path)
        run_killed(grid, experiment, tmp_path, asks)
        assert all(len(set(sent)) == 1 for sent in grid.sent.values())
        exchanges = list(Journal(tmp_path / "run").exchanges())
        assert sum(not one.record.is_setup for one in exchanges) == 3
        assert replay(RunDirectory(tmp_path / "run")).same

    def test_a_sum_that_was_given_out_but_not_noted_is_given_out_again(
        self, tmp_path: Path
    ) -> None:
        grid = summing(experiment := secure({"name": "partial"}, 3), tmp_path)
        answers = run_until_sum(2, grid, experiment, tmp_path)
        grid.online.remove(FIRST_NODE)  # who was in the sum is not there any more
        exchanges, _ = run(grid, experiment, tmp_path)
        np.testing.assert_array_equal(answers[1], answers[2])
        assert [one.record.arrived.sum() for one in exchanges[1:]] == [3, 3, 2]
        assert replay(RunDirectory(tmp_path / "run")).same

    @pytest.mark.parametrize("sums", [1, 2, 3])
    def test_a_client_is_told_how_many_points_it_answered_for(
        self, sums: int, tmp_path: Path
    ) -> None:
        """`balanced` counts on the same points in every round, also after a kill at some sum."""
        grid = summing(experiment := secure({"name": "balanced"}, 3, 4), tmp_path)
        left = sums

        def change(client: int, kind: str, answer: Answered) -> Answered:
            nonlocal left
            left -= kind == "sum"
            if kind == "sum" and left == 0:
                raise KeyboardInterrupt
            return answer

        grid.script = Script(change=change)
        with pytest.raises(KeyboardInterrupt):
            run(grid, experiment, tmp_path)
        run(grid, experiment, tmp_path)
        told = [(facts["round"], facts["answered"]) for j, facts in grid.kinds("masked") if j == 0]
        held = json.loads((tmp_path / "run" / "members.json").read_text())["points"][0]
        assert told == [(0, 0), (1, held), (2, held), (3, held)]

    def test_more_rounds_may_be_played_later(self, tmp_path: Path) -> None:
        """There is no budget that they would exceed."""
        grid = summing(experiment := secure({"name": "uncoded"}, 3, 2), tmp_path)
        grid.script = Script(
            delay=lambda _c, _k, f: inf if f.get("round") == 1 else 0.0  # the second
        )
        with pytest.raises(InputError, match="0 clients answered within"):
            run(grid, experiment, tmp_path)
        grid.script = Script()
        longer = secure({"name": "uncoded"}, 3, 5)
        exchanges, _ = run(grid, longer, tmp_path)
        assert sum(not one.record.is_setup for one in exchanges) == 5
        assert all(len(set(sent)) == 1 for sent in grid.sent.values())
        assert replay(RunDirectory(tmp_path / "run")).same


class TestFewArrivals:
    def test_a_late_client_is_not_in_the_sum(self, tmp_path: Path) -> None:
        script = Script(delay=lambda c, _k, f: inf if c == 1 and f.get("round") == 1 else 0.0)
        _, exchanges = played({"name": "coded", "redundancy": 0.2}, tmp_path, script)
        assert exchanges[2].record.arrived.tolist() == [True, False, True, True]
        assert exchanges[2].counted is not None
        assert (exchanges[2].counted > 0).tolist() == [True, False, True, True]
        assert replay(RunDirectory(tmp_path / "run")).same

    def test_one_client_alone_is_not_summed(self, tmp_path: Path) -> None:
        """A scheme with a deadline learns nothing in that round, and continues."""
        script = Script(delay=lambda c, _k, f: inf if c > 0 and f.get("round") == 1 else 0.0)
        _, exchanges = played({"name": "partial"}, tmp_path, script)
        assert [bool(one.sums) for one in exchanges[1:]] == [True, False, True]
        assert replay(RunDirectory(tmp_path / "run")).same

    def test_who_waits_for_all_ends_and_is_resumed(self, tmp_path: Path) -> None:
        grid = summing(experiment := secure({"name": "balanced"}), tmp_path)
        grid.script = Script(delay=lambda c, _k, f: inf if c > 0 and f.get("round") == 1 else 0.0)
        with pytest.raises(InputError, match="1 client answered within"):
            run(grid, experiment, tmp_path)
        grid.script = Script()
        exchanges, _ = run(grid, experiment, tmp_path)
        assert all(one.record.arrived.all() for one in exchanges)
        assert all(len(set(sent)) == 1 for sent in grid.sent.values())

    def test_all_parity_is_needed(self, tmp_path: Path) -> None:
        grid = summing(experiment := secure({"name": "coded"}), tmp_path)
        grid.script = Script(delay=lambda c, k, _f: inf if (c, k) == (2, "masked") else 0.0)
        with pytest.raises(InputError, match=r"no parity from node-002 within"):
            run(grid, experiment, tmp_path)
        assert not [kind for node, kind, _ in grid.asked if (node, kind) == (HELPER, "sum")]


@dataclass(frozen=True, eq=False)
class TwiceState(State):
    """How many sums there were before the first round, which is none."""

    sums: int = 0


@dataclass(frozen=True)
class Twice(Scheme):
    """Asks for two sums in its set-up, about two models, and for nothing else."""

    info: ClassVar[Info] = Info("twice", frozenset({Disclosure.SUMS}))

    def start(self, task: Task, fleet: Any, model: Any, *_: Any) -> TwiceState:
        return TwiceState(task, model)

    def ask(self, state: TwiceState) -> Ask | None:
        work, model = masked(Gradient(0), state.task), state.model + np.float32(state.sums)
        ask = Ask(work, Everyone(), model=model, setup=True, noise=0.0)
        return ask if state.sums < 2 else None

    def receive(self, state: TwiceState, inbox: Inbox) -> TwiceState:
        return replace(state, sums=state.sums + 1)


def test_two_sums_in_one_set_up_are_two_sums(tmp_path: Path) -> None:
    """Each has a number, and a mask, of its own."""
    experiment = experiment_of(3, 2, {"name": f"{__name__}:Twice"})
    grid = summing(experiment, tmp_path)
    first, second = run(grid, experiment, tmp_path)[0]
    assert (first.sums["gradient"] != second.sums["gradient"]).any()
    assert len(grid.sent) == 6
    assert all(len(set(sent)) == 1 for sent in grid.sent.values())


class TestNode:
    def question(
        self, tmp_path: Path, name: str = "uncoded"
    ) -> tuple[PlainSumming, dict[str, Any], Any]:
        """Return nodes, what the first was asked for the first sum, and the model of round 1."""
        grid = summing(experiment := secure({"name": name}, 3), tmp_path)
        run_until_sum(1, grid, experiment, tmp_path)
        (facts,) = [facts for node, _, facts in grid.asked if node == FIRST_NODE and "sum" in facts]
        return grid, facts, np.zeros((64, 10), dtype=np.float32)

    def test_one_with_a_cap_refuses(self, tmp_path: Path) -> None:
        grid = summing(experiment := secure({"name": "uncoded"}), tmp_path)
        grid.cap = 10.0
        with pytest.raises(
            InputError, match=r"has no epsilon, and this node's --epsilon-cap is 10"
        ):
            run(grid, experiment, tmp_path)
        assert not grid.sent

    def test_another_question_under_the_same_mask_is_refused(self, tmp_path: Path) -> None:
        """Fewer points would be another plaintext, and both masks cancel in the difference."""
        grid, facts, model = self.question(tmp_path)
        before = grid.node(0).answer("work", facts, {"model": model})[1]["masked"].tobytes()
        assert grid.sent[0, 0, 0] == [before]
        with pytest.raises(InputError, match="another question was already answered"):
            grid.node(0).answer("work", facts | {"load": facts["load"] - 50}, {"model": model})

    def test_after_its_end_a_federation_gets_nothing(self, tmp_path: Path) -> None:
        """What was sent is forgotten: to answer again might use a mask twice."""
        grid, facts, model = self.question(tmp_path)
        grid.node(0).answer("goodbye", {"job": facts["job"]}, {})
        assert not (grid.vault_folder(0) / "sent" / facts["job"]["key"]).exists()
        with pytest.raises(InputError, match="is over: begin a new one"):
            grid.node(0).answer("work", facts | {"load": facts["load"] - 50}, {"model": model})

    def test_contracts_of_others_are_refused(self, tmp_path: Path) -> None:
        grid, facts, model = self.question(tmp_path)
        right = facts["sum"]["contract"]

        def asked(**change: Any) -> None:
            own = facts | {"sum": {**facts["sum"], "contract": right | change, "number": 9}}
            grid.node(0).answer("work", own, {"model": model})

        changes: list[tuple[dict[str, Any], str]] = [
            ({"helper": "a" * 64}, "the pinned one is"),
            ({"federation": "0" * 32}, "of another federation"),
            ({"least": 1}, "would be a single client's own answer"),
            ({"releases": [], "delta": 1e-5, "scale": 1.0}, "come to 0 sums"),
        ]
        for change, message in changes:
            with pytest.raises(InputError, match=message):
                asked(**change)
        with pytest.raises(InputError, match="without a contract"):
            grid.node(0).answer("work", facts | {"sum": None}, {"model": model})

    def test_noisy_work_needs_a_contract_with_noise(self, tmp_path: Path) -> None:
        grid, facts, model = self.question(tmp_path)
        work = work_to(ClippedGradient(1.0, 2.0, 1024.0, [0.125] * 64, 1.0, 0.5))
        with pytest.raises(InputError, match="under a contract without noise"):
            grid.node(0).answer("work", facts | {"work": work}, {"model": model})

    def test_parity_is_made_once(self, tmp_path: Path) -> None:
        """Two sums of different codes would tell more: a second one is of the same parity."""
        grid, facts, _ = self.question(tmp_path, "coded")

        def parity(attempt: int, **change: Any) -> Any:
            """Ask in another attempt, and take the mask off as the helper would."""
            work = {**facts["work"], "work": facts["work"]["work"] | change}
            asked = facts | {"work": work, "sum": {**facts["sum"], "attempt": attempt}}
            masked = grid.node(0).answer("work", asked, {})[1]["masked"]
            contract = contract_of(facts["sum"]["contract"])
            digest = ask_digest(work_from(work, lambda _: None), None)
            binding = Binding(contract.label, facts["sum"]["number"], attempt, digest)
            helper = bytes.fromhex(grid.pinned)
            key = own_key(grid.vault_folder(0) / "masks.key")
            seed = shared_seed(key, helper, helper=helper)
            return masked - mask(seed, binding, len(masked))

        np.testing.assert_array_equal(parity(5), parity(6))
        assert not uniform(parity(7))
        with pytest.raises(InputError, match="has already sent its parity, for another plan"):
            parity(8, rows=[n + 1 for n in facts["work"]["work"]["rows"]])

    def test_a_node_without_a_helper_refuses(self, tmp_path: Path) -> None:
        experiment = experiment_of(3, 2, {"name": "uncoded"})
        transport = transport_of(experiment, tmp_path)
        work = work_to(Masked(Gradient(0), 2.0**10))
        job = Job("0" * 32, "fourier", 64, 2.0, 0, 1, columns=10)
        facts: dict[str, Any] = {"job": asdict(job)}
        facts |= {"work": work, "round": 0, "load": 100, "answered": 0, "seconds": None}
        model = np.zeros((64, 10), dtype=np.float32)
        with pytest.raises(InputError, match="start node-000 with --helper"):
            transport.node(0).answer("work", facts, {"model": model})

    def test_its_own_moments_stay_with_it(self, tmp_path: Path) -> None:
        grid, facts, _ = self.question(tmp_path)
        with pytest.raises(InputError, match="would be its own"):
            grid.node(0).answer("moments", {"job": facts["job"]}, {})


@pytest.mark.parametrize("scheme", [{"name": "uncoded", "secure": True}, {"name": "private"}])
def test_a_scale_from_each_clients_sums_is_refused(scheme: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"federation\.scale is true"):
        scheme_of(experiment_of(3, 3, scheme, scale=True))


@pytest.mark.parametrize("name", ["mifa", "fedbuff"])
def test_who_needs_each_answer_is_refused(name: str, tmp_path: Path) -> None:
    grid = summing(experiment := secure({"name": name}), tmp_path)
    with pytest.raises(InputError, match=f"{name} needs each client's answer"):
        run(grid, experiment, tmp_path)
    assert not grid.seen


class TestHelper:
    def test_it_answers_one_list_and_never_fewer_than_two(self, tmp_path: Path) -> None:
        helper = HelperNode("helper", tmp_path / "helper")
        keys = [own_key(tmp_path / f"{j}" / "masks.key") for j in range(3)]
        clients = {f"node-{j}": public_digits(key) for j, key in enumerate(keys)}
        key = helper.answer("hello", {"job": JOB}, {})[0]["key"]
        contract = Contract("0" * 32, key, digest_of_keys(clients))
        agreed = {"job": JOB, "contract": contract.document(), "clients": clients}
        assert helper.answer("agree", agreed, {})[0]["digest"] == contract.digest
        names = sorted(clients)
        facts = {"job": JOB, "number": 3, "attempt": 2, "ask": "aa", "numbers": 50}
        first = helper.answer("sum", facts | {"arrived": names}, {})[1]["sum"]
        again = helper.answer("sum", facts | {"arrived": names}, {})[1]["sum"]
        np.testing.assert_array_equal(first, again)
        with pytest.raises(InputError, match="was answered for another list"):
            helper.answer("sum", facts | {"arrived": names[:2]}, {})
        with pytest.raises(InputError, match="a sum is over 2 or more"):
            helper.answer("sum", facts | {"arrived": names[:1], "number": 4}, {})
        with pytest.raises(InputError, match="must be a whole number from 0"):
            helper.answer("sum", facts | {"arrived": names, "number": -1}, {})


JOB = {"key": "0" * 32, "kind": "fourier", "n_components": 8, "sigma": 1.0, "seed": 0, "batches": 1}


def test_a_contract_comes_back_from_its_document() -> None:
    plain = Contract("0" * 32, "a" * 64, "b" * 64)
    assert contract_of(json.loads(json.dumps(plain.document()))) == plain
    with pytest.raises(InputError, match="this is not a contract"):
        contract_of(plain.document() | {"more": 1})


class TestWork:
    def test_it_travels_with_the_work_inside(self) -> None:
        work = Masked(WeightedGradient(2, np.array([1.5, 2.0])), 2.0**12).for_client(1)
        found = work_from(json.loads(json.dumps(work_to(work))), lambda _: None)
        assert isinstance(found, Masked)
        assert (found.scale, found.batch, found.work) == (2.0**12, 2, found.work)
        assert isinstance(found.work, WeightedGradient)
        assert found.work.weights == 2.0
        assert named("work", {"work": work_to(work)}) == "masked"

    def test_all_clients_bind_their_masks_to_the_same_ask(self) -> None:
        work = Masked(WeightedGradient(0, np.array([1.5, 2.0])), 2.0**12)
        asks = {ask_digest(one, None) for one in (work, work.for_client(0), work.for_client(1))}
        assert len(asks) == 1
        assert ask_digest(Masked(Gradient(0), 2.0**11), None) not in asks

    def test_rows_are_taken_apart_again(self) -> None:
        arrays = {
            "b": np.arange(6, dtype=np.uint32).reshape(2, 3),
            "a": np.arange(4, dtype=np.uint32),
        }
        row = in_one_row(arrays)
        found = taken_apart(row, {"b": (2, 3), "a": (4,)})
        assert row[:4].tolist() == [0, 1, 2, 3]
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)


def test_masks_that_would_not_cancel_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gradient, "for_client", lambda self, j: Gradient(self.batch + j))
    with pytest.raises(InputError, match="let its `common` leave that out"):
        played({"name": "uncoded"}, tmp_path, batches=4)


class TestCommands:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--clients", "1"], "a sum would be one client's own answer"),
            (["--set", "federation.scale=true"], "federation.scale is true"),
            (["--set", "features.kind=identity"], "needs features with a bound"),
        ],
    )
    def test_local(self, options: list[str], message: str, tmp_path: Path) -> None:
        """Refused before a process starts."""
        command = ["federate", "local", "--scheme", "uncoded", "--secure"]
        command += ["--out", str(tmp_path / "run")]
        assert message in refusal(*command, *options)
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize(
        ("options", "cap", "parity"),
        [
            (TrainingOptions(scheme="uncoded"), None, False),
            (TrainingOptions(scheme="uncoded", secure=True), inf, False),
            (TrainingOptions(scheme="coded", secure=True), inf, False),
            (TrainingOptions(scheme="coded-newton", secure=True), inf, True),
            (TrainingOptions(scheme="private"), 10.0, False),
            (TrainingOptions(scheme="private", epsilon=30.0), 30.0, False),
        ],
    )
    def test_local_nodes_allow_what_the_scheme_needs(
        self, options: TrainingOptions, cap: float | None, parity: bool
    ) -> None:
        scheme = scheme_of(experiment_of(3, 3, options.scheme_table))
        node = options.node(scheme, None, text=False)
        assert (node.epsilon_cap, node.parity) == (cap, parity)

    def test_a_node_from_its_configuration(self, tmp_path: Path) -> None:
        own_key(tmp_path / "masks.key")
        pinned = tmp_path / "masks.pub"
        config = NodeConfig("ada", helper=pinned, vault=tmp_path, epsilon_cap=inf, parity=True)
        vault = node_from(config).vault
        assert vault is not None
        assert (vault.ledger.epsilon, vault.parity) == (inf, True)
        told = tomllib.loads(as_flower_takes_it(config).replace(" ", "\n"))
        assert (told["epsilon_cap"], told["parity"]) == (inf, True)
        assert NodeConfig.read(told, "1") == config
        command = ["federate", "node", "--superlink", "127.0.0.1:1", "--name", "ada"]
        assert "give --helper too" in refusal(*command, "--parity")
