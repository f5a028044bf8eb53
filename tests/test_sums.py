"""Noisy sums in a federation, on an in-memory transport: masks, helper, journal and ledgers."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy.stats import chi2
from typer.testing import CliRunner

from codedfedl.cli import app
from codedfedl.core.client import work_to
from codedfedl.core.clipped import ClippedGradient, ClippedMoments, PrivateSum
from codedfedl.core.record import ARRIVED, REFUSED
from codedfedl.core.work import ArrayClient
from codedfedl.data import load_dataset
from codedfedl.data.partitions import processing_order
from codedfedl.data.shards import Shard, read_shard
from codedfedl.errors import InputError
from codedfedl.federate.job import Job, ask_digest
from codedfedl.federate.node.node import Node
from codedfedl.federate.secure.helper import HelperNode
from codedfedl.federate.secure.vault import Vault
from codedfedl.federate.transport import Answered
from codedfedl.fleet.devices import Fleet, Workload
from codedfedl.planning.private import plan_private
from codedfedl.privacy.accounting import Account, Release, epsilon_of, mu_of
from codedfedl.privacy.contract import Contract, digest_of_keys
from codedfedl.privacy.ledger import Ledger
from codedfedl.privacy.masks import Binding, mask, own_key, public_digits, read_public, shared_seed
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import changed
from codedfedl.runs.federation import fitted, scheme_of, start
from codedfedl.runs.journal import Journal
from codedfedl.simulation.replay import replay, replayed_clients
from tests.loopback import FIRST_NODE, Script, experiment_of
from tests.malformed import spoilt
from tests.summing import (
    HELPER,
    SMALL,
    answers_sent,
    ledger_of,
    private,
    refusal,
    run,
    run_killed,
    run_until_sum,
    share_spent,
    summing,
    uniform,
)


def test_a_private_federation_trains_and_is_replayed_exactly(tmp_path: Path) -> None:
    """One question a round goes to the helper, and the account is spent exactly."""
    experiment = private(4, 12, epsilon=30.0)
    grid = summing(experiment, tmp_path)
    grid.cap = 30.0
    exchanges, _ = run(grid, experiment, tmp_path)
    rounds = [one for one in exchanges if not one.record.is_setup]
    assert len(rounds) == 12
    assert rounds[-1].record.metric > 0.6  # of ten classes
    found = replay(RunDirectory(tmp_path / "run"))
    assert (found.rounds, found.difference) == (12, 0.0)
    asked = [kind for node, kind, _ in grid.asked if node == HELPER]
    assert asked.count("sum") == 12
    assert (asked.count("agree"), asked.count("goodbye")) == (1, 1)
    assert share_spent(tmp_path / "run") == pytest.approx(1.0)
    document = json.loads((tmp_path / "run" / "privacy.json").read_text())
    (told,) = document["runs"]
    assert told["epsilon"] == pytest.approx(30.0, rel=1e-6)
    assert "do not collude" in document["holds"]


@pytest.mark.parametrize("noise_by", ["helper", "clients"])
def test_the_noise_is_the_systems_and_as_large_as_was_paid_for(
    noise_by: str, tmp_path: Path
) -> None:
    """Sum less the clients' exact parts, recomputed from the data: chi-square, both sides.

    Shares are rounded each by itself: 1/12 of a step more, which is nothing beside 4 steps squared
    and more.
    """
    experiment = private(4, 3, noise=noise_by)
    scheme = scheme_of(experiment)
    noises = []
    for place in ("one", "other"):
        grid = summing(experiment, tmp_path / place)
        exchanges, _ = run(grid, experiment, tmp_path / place)
        journal = Journal(tmp_path / place / "run")
        members = journal.members()
        assert members is not None
        clients = replayed_clients(experiment, load_dataset("digits"), members)
        zero = np.zeros((64, members.columns), dtype=np.float32)
        state: Any = start(scheme, experiment, members, fitted(journal, members), zero)
        for exchange in exchanges:
            ask = scheme.ask(state)
            assert ask is not None
            if not exchange.record.is_setup:
                assert isinstance(ask.work, ClippedMoments | ClippedGradient)
                model = state.model if ask.model is None else ask.model
                quiet = replace(ask.work, noise=0.0)
                exact = sum(
                    quiet.for_client(j)
                    .answer(client, int(exchange.record.loads[j]), np.asarray(model))
                    .arrays[ask.work.name]
                    for j, client in enumerate(clients)
                )
                assert ask.noise is not None
                deviation = ask.noise + ask.work.noise * 4**0.5  # of the helper, or of 4 clients
                assert (ask.noise > 0) == (noise_by == "helper")
                noise = (exchange.sums[ask.work.name] - exact).view(np.int32) / deviation
                squares = float((noise.astype(np.float64) ** 2).sum())
                assert SMALL / 2 < chi2.cdf(squares, noise.size) < 1 - SMALL / 2
                noises.append(noise.ravel()[:64])
            state = scheme.receive(state, journal.inbox(exchange, summed=True))
    # The same experiment and seed, and other noise: correlations are 1/8 at one deviation.
    pairs = [(a, b) for k, a in enumerate(noises) for b in noises[:k]]
    assert max(abs(np.corrcoef(a, b)[0, 1]) for a, b in pairs) < 0.75  # six deviations


def test_without_the_helper_the_server_sees_noise(tmp_path: Path) -> None:
    """Bytes of single answers, their sums and differences; the plain integers would fail."""
    grid = summing(experiment := private(4, 4), tmp_path)
    exchanges, _ = run(grid, experiment, tmp_path)
    sent = [arrays["masked"] for arrays in grid.seen]
    assert len(sent) == 16
    longest = [one for one in sent if len(one) == 640]
    views: list[Any] = [np.concatenate(sent), sum(longest)]
    views += [longest[0] - longest[1], longest[0] - longest[4]]
    views.append(np.concatenate([a - b for k, a in enumerate(longest) for b in longest[:k]]))
    assert all(uniform(view) for view in views)
    assert not uniform(exchanges[-1].sums["gradient"].astype(np.int32))


class TestKills:
    @pytest.mark.parametrize("asks", range(4, 24))
    def test_the_server_dies_at_any_question_and_nothing_is_spent_twice(
        self, asks: int, tmp_path: Path
    ) -> None:
        grid = summing(experiment := private(3, 4), tmp_path)
        run_killed(grid, experiment, tmp_path, asks)
        exchanges = list(Journal(tmp_path / "run").exchanges())
        assert sum(bool(one.sums) for one in exchanges) == 4
        assert share_spent(tmp_path / "run") == pytest.approx(1.0)
        (entry,) = ledger_of(grid, 0)["entries"]
        assert entry["sums"] == [0, 1, 2, 3]
        assert replay(RunDirectory(tmp_path / "run")).difference == 0.0

    def test_a_sum_that_was_given_out_but_not_noted_is_given_out_again(
        self, tmp_path: Path
    ) -> None:
        """Killed between the helper's answer and the journal; then other clients are there."""
        grid = summing(experiment := private(3, 4), tmp_path)
        answers = run_until_sum(2, grid, experiment, tmp_path)
        before = answers_sent(grid)
        grid.online.remove(FIRST_NODE)  # who was in the sum is not there any more
        exchanges, _ = run(grid, experiment, tmp_path)
        np.testing.assert_array_equal(answers[1], answers[2])
        assert exchanges[2].record.arrived.all()
        assert exchanges[3].record.arrived.tolist() == [False, True, True]
        assert answers_sent(grid) == before + 4  # two rounds more, of two clients
        assert share_spent(tmp_path / "run") == pytest.approx(1.0)

    def test_a_helper_that_is_gone_for_long_ends_the_run_and_nothing_is_lost(
        self, tmp_path: Path
    ) -> None:
        grid = summing(experiment := private(3, 4), tmp_path)
        questions = 0

        def delay(client: int, kind: str, facts: dict[str, Any]) -> float:
            nonlocal questions
            questions += kind == "sum"
            if kind == "sum" and questions == 3:
                grid.online.remove(HELPER)
            return 0.0

        grid.script = Script(delay=delay)
        with pytest.raises(InputError, match="no helper has connected after 60 s"):
            run(grid, experiment, tmp_path)
        grid.online.add(HELPER)
        exchanges, _ = run(grid, experiment, tmp_path)
        assert sum(bool(one.sums) for one in exchanges) == 4
        assert share_spent(tmp_path / "run") == pytest.approx(1.0)

    def test_a_lost_answer_of_the_helper_is_asked_for_again(self, tmp_path: Path) -> None:
        grid = summing(experiment := private(3, 4), tmp_path)
        lost = iter([np.inf])
        grid.script = Script(delay=lambda _c, kind, _f: next(lost, 0.0) if kind == "sum" else 0.0)
        _, said = run(grid, experiment, tmp_path)
        assert "the helper does not answer: trying again" in said
        assert share_spent(tmp_path / "run") == pytest.approx(1.0)

    def test_a_node_that_dies_costs_nothing_but_its_part(self, tmp_path: Path) -> None:
        grid = summing(experiment := private(3, 4), tmp_path)
        inf_from_second = {0: 0}

        def delay(client: int, kind: str, facts: dict[str, Any]) -> float:
            inf_from_second[0] += client == 0 and kind == "clipped_gradient"
            return np.inf if client == 0 and inf_from_second[0] >= 2 else 0.0

        grid.script = Script(delay=delay)
        exchanges, _ = run(grid, experiment, tmp_path)
        assert [one.record.arrived.sum() for one in exchanges[1:]] == [3, 3, 2, 2]
        assert share_spent(tmp_path / "run") == pytest.approx(1.0)


def test_with_one_client_there_is_no_sum_and_nothing_is_spent(tmp_path: Path) -> None:
    grid = summing(experiment := private(3, 4), tmp_path)
    grid.script = Script(
        delay=lambda c, kind, f: np.inf if c > 0 and "sum" in f and f["round"] == 2 else 0.0
    )
    exchanges, said = run(grid, experiment, tmp_path)
    assert any("fewer than 2" in sentence for sentence in said)
    assert [bool(one.sums) for one in exchanges[1:]] == [True, True, False, True]
    assert exchanges[3].spent == exchanges[2].spent
    assert share_spent(tmp_path / "run") < 0.9
    assert replay(RunDirectory(tmp_path / "run")).difference == 0.0


class TestLedger:
    def test_runs_add_up_and_the_cap_holds(self, tmp_path: Path) -> None:
        """Two runs of 4 are one of 5.9 at δ = 1e-5: μ² adds up."""
        experiment = private(3, 4, epsilon=4.0)
        grid = summing(experiment, tmp_path)
        grid.cap = 6.0
        run(grid, experiment, tmp_path / "first")
        data = ledger_of(grid, 0)["entries"][0]["data"]
        assert grid.vault(0).ledger.spent(data) == pytest.approx(4.0, rel=1e-6)
        exchanges, _ = run(grid, experiment, tmp_path / "second")
        both = epsilon_of((2 * exchanges[-1].spent) ** 0.5, 1e-5)
        assert grid.vault(0).ledger.spent(data) == pytest.approx(both)
        assert 5.5 < both < 6.0
        before = answers_sent(grid)
        with pytest.raises(InputError, match=r"node-000: epsilon of this data set would be 7\.\d+"):
            run(grid, experiment, tmp_path / "third")
        assert answers_sent(grid) == before

    def test_beyond_the_cap_nothing_leaves(self, tmp_path: Path) -> None:
        grid = summing(experiment := private(3, 4), tmp_path)
        grid.cap = 7.9
        with pytest.raises(InputError, match="the cap is 7.9: use other data"):
            run(grid, experiment, tmp_path)
        assert answers_sent(grid) == 0

    def test_without_noise_a_node_must_allow_any_epsilon(self, tmp_path: Path) -> None:
        grid = summing(experiment := private(3, 4, epsilon=float("inf")), tmp_path)
        with pytest.raises(InputError, match="would be inf"):
            run(grid, experiment, tmp_path)
        grid.cap = float("inf")
        exchanges, _ = run(grid, experiment, tmp_path)
        assert exchanges[-1].spent == np.inf
        assert grid.vault(0).ledger.spent(ledger_of(grid, 0)["entries"][0]["data"]) == np.inf

    @pytest.mark.parametrize(
        "change",
        [
            lambda d: d["entries"][0].update(spent=0.0),
            lambda d: d["entries"][0].update(sums=[0]),
            lambda d: d["entries"][0]["contract"]["releases"][0].update(sigma=1e9),
            lambda d: d["entries"].clear(),
            lambda d: d.update(total=None),
            lambda d: d.update(format=0),
        ],
    )
    def test_one_that_does_not_add_up_is_refused(
        self, change: Callable[[Any], None], tmp_path: Path
    ) -> None:
        grid = summing(experiment := private(3, 4), tmp_path)
        run(grid, experiment, tmp_path / "first")
        for client in range(3):
            document = ledger_of(grid, client)
            change(document)
            (grid.vault_folder(client) / "ledger.json").write_text(json.dumps(document))
        before = answers_sent(grid)
        with pytest.raises(InputError, match=r"ledger\.json cannot be trusted"):
            run(grid, experiment, tmp_path / "second")
        assert answers_sent(grid) == before

    def test_other_data_have_a_budget_of_their_own(self, tmp_path: Path) -> None:
        ledger = Ledger(tmp_path / "ledger.json", 5.0, 1e-5)
        contract = contract_of(epsilon=4.0)
        for number in range(contract.sums):
            ledger.charge("a", contract, number)
            ledger.charge("a", contract, number)  # once
        assert ledger.spent("a") == pytest.approx(4.0, rel=1e-6)
        assert ledger.spent("b") == 0
        other = replace(contract, federation="1" * 32)
        ledger.check("b", other)
        with pytest.raises(InputError, match=r"4 before it"):
            ledger.check("a", other)
        with pytest.raises(InputError, match=r"4 before it"):
            ledger.charge("a", other, 0)
        with pytest.raises(InputError, match="no budget is left"):
            ledger.charge("a", contract, contract.sums)


def contract_of(epsilon: float = 4.0, sums: int = 3, **more: Any) -> Contract:
    """Return gradients that spend ε together, for clients whose keys are not looked at."""
    sensitivity = ClippedGradient(1.0, 2.0, 2.0**10, [], 1.0, 0.5).sensitivity(640)
    release = Release("gradient", sums, sensitivity, sensitivity * sums**0.5 / mu_of(epsilon, 1e-5))
    parties = {"helper": "a" * 64, "clients": "b" * 64}
    return Contract(
        "0" * 32, account=Account(1e-5, [release]), scale=2.0**10, **{**parties, **more}
    )


class Desk:
    """A node with a vault and a question for its part in a sum."""

    def __init__(self, tmp_path: Path) -> None:
        self.grid = summing(private(2, 2), tmp_path)
        self.contract = contract_of(helper=self.grid.pinned)
        self.model = np.zeros((64, 10), dtype=np.float32)
        direction = (np.ones(64) / 8).tolist()
        work = ClippedGradient(1.0, 2.0, 2.0**10, direction, 1.0, 0.5)
        self.work = work_to(work)
        self.job = asdict(Job("0" * 32, "fourier", 64, 2.0, 0, 1, columns=10))

    def ask(self, *, model: Any = None, load: int = 100, **more: Any) -> Answered:
        """Ask; `more` are fields of the work, the number or the attempt, or a contract."""
        contract = more.pop("contract", self.contract.document())
        numbers = {name: more.pop(name, 0) for name in ("number", "attempt")}
        facts = {"work": self.work | more, "round": 0, "load": load, "answered": 0}
        facts |= {"seconds": None, "sum": {"contract": contract, **numbers}, "job": self.job}
        sent = {"model": self.model if model is None else model}
        return self.grid.node(0).answer("work", facts, sent)


class TestNode:
    @pytest.mark.parametrize("kind", [ClippedMoments, ClippedGradient])
    def test_under_the_mask_is_what_the_simulator_computes(
        self, kind: type[PrivateSum], tmp_path: Path
    ) -> None:
        """Up to a step of the integers: both round the same sum, in another order perhaps."""
        desk = Desk(tmp_path)
        gradient = ClippedGradient(**{k: v for k, v in desk.work.items() if k != "kind"})
        common = (gradient.chances, gradient.cap, gradient.scale)
        work = gradient if kind is ClippedGradient else ClippedMoments(*common)
        desk.work = work_to(work)
        (release,) = desk.contract.releases
        account = Account(1e-5, [replace(release, what=work.name)])
        desk.contract = replace(desk.contract, account=account)
        model = np.random.default_rng(0).normal(size=(64, 10)).astype(np.float32)
        facts, arrays = desk.ask(model=model)
        own, helper = desk.grid.vault(0).keys().values()
        key = own_key(desk.grid.home / "masks.key")
        seed = shared_seed(key, bytes.fromhex(own), helper=bytes.fromhex(helper))
        binding = Binding(desk.contract.label, 0, 0, ask_digest(work, model))
        plain = arrays["masked"] - mask(seed, binding, len(arrays["masked"]))
        shard = read_shard(desk.grid.shards[0])
        order = processing_order(len(shard.inputs), 0)
        embedded = Job(**desk.job).features().transform(shard.inputs[order])
        client = ArrayClient(embedded, shard.targets(order, 10), 1, lambda *_: None)  # type: ignore[arg-type]
        expected = work.answer(client, 100, model).arrays[work.name].ravel()
        assert facts["points"] == 100
        assert np.abs((plain - expected).view(np.int32)).max() <= 1

    def test_the_same_question_gets_the_same_bytes_and_another_is_refused(
        self, tmp_path: Path
    ) -> None:
        desk = Desk(tmp_path)
        facts, arrays = desk.ask()
        again = desk.ask()
        assert again[0] == facts
        np.testing.assert_array_equal(again[1]["masked"], arrays["masked"])
        for change in ({"load": 99}, {"model": desk.model + 1}, {"chances": 0.5}, {"radius": 0.5}):
            with pytest.raises(InputError, match="new attempt"):
                desk.ask(**change)
        other = desk.ask(attempt=1)[1]["masked"]
        assert (other != arrays["masked"]).sum() > 630  # each is equal with a chance of 2^-32

    def test_after_the_goodbye_nothing_is_answered(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path)
        desk.ask()
        desk.grid.node(0).answer("goodbye", {"job": desk.job}, {})
        for attempt in (0, 1):
            with pytest.raises(InputError, match="is over"):
                desk.ask(attempt=attempt)

    def test_what_breaks_the_proof_is_refused(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path)
        known = desk.contract.document()
        (release,) = known["releases"]
        for change, message in (
            ({"cap": 2.1}, "a record moves clipped_gradient by"),
            ({"scale": 2.0**11}, "with scale 1024 in the contract"),
            ({"number": 3}, "no budget is left for another"),
            ({"number": -1}, "must be a whole number from 0"),
            ({"contract": known | {"helper": "c" * 64}}, "the pinned one is"),
            ({"contract": known | {"federation": "1" * 32}}, "of another federation"),
            ({"contract": known | {"least": 1}}, "would be a single client's own answer"),
            ({"contract": known | {"releases": []}}, "come to 0 sums"),
            ({"contract": known | {"releases": [release | {"sigma": 1e-3}]}}, "the cap is 10"),
            ({"contract": known | {"releases": [release | {"what": "moments"}]}}, "is moments"),
            ({"contract": {"federation": 3}}, "not a contract"),
            ({"longest": -1e5}, "longest is '-100000.0': must be one of inf"),
            ({"longest": 1.0}, "longest is '1.0': must be one of inf"),
            ({"direction": [0.125] * 100}, "must be a list of 64"),
            ({"direction": [[0.125]] * 64}, "must be a finite number"),
            ({"model": np.zeros((64, 64, 10), np.float32)}, "must be float32 of shape (64, 10)"),
            ({"model": np.zeros((64, 10))}, "must be float32 of shape (64, 10)"),
        ):
            with pytest.raises(InputError, match=re.escape(message)):
                desk.ask(**change)
        assert not (desk.grid.vault_folder(0) / "sent").exists()
        assert not (desk.grid.vault_folder(0) / "ledger.json").exists()

    def test_it_is_charged_before_there_is_an_answer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Killed while it computes, it has paid: a server cannot ask again for nothing."""
        desk = Desk(tmp_path)

        def killed(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(ClippedGradient, "part", killed)
        with pytest.raises(KeyboardInterrupt):
            desk.ask()
        (entry,) = desk.grid.vault(0).ledger.data_sets()["data"]
        assert entry.sums == (0,)

    def test_a_node_with_a_helper_answers_in_sums_alone(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path)
        facts = {"round": 0, "load": 100, "answered": 0, "seconds": None, "job": desk.job}
        gradient = {"work": {"kind": "gradient", "batch": 0}, **facts}
        with pytest.raises(InputError, match="would show this node's own answer"):
            desk.grid.node(0).answer("work", gradient, {"model": desk.model})
        node = desk.grid.node(0)
        with pytest.raises(InputError, match="without a contract"):
            node.answer("work", {"work": desk.work, **facts}, {"model": desk.model})

    @pytest.mark.parametrize("size", [1.0, 1e30])
    def test_whether_a_sum_could_be_computed_is_not_said(self, size: float, tmp_path: Path) -> None:
        """One that overflows was refused for that: a point's size, and nothing was charged."""
        pinned = public_digits(X25519PrivateKey.generate())
        points = Shard(np.full((100, 3), size), np.zeros(100, np.int64))
        node = Node("ada", lambda: points, tmp_path / "a", vault=Vault(tmp_path / "b", pinned))
        job = asdict(Job("0" * 32, "identity", 3, 1.0, 0, 1, columns=1))
        facts = {"round": 0, "load": 100, "answered": 0, "seconds": None, "job": job}
        with pytest.raises(InputError, match="would show this node's own answer"):
            node.answer(
                *("work", {"work": {"kind": "gradient", "batch": 0}, **facts}),
                {"model": np.ones((3, 1), np.float32)},
            )

    def test_a_node_without_a_helper_does_not_send_its_part(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path)
        desk.grid.vault = lambda _client: None  # type: ignore[method-assign,assignment,return-value]
        with pytest.raises(InputError, match="start node-000 with --helper"):
            desk.ask()
        with pytest.raises(InputError, match="node-000 has no helper"):
            desk.grid.node(0).answer("pair", {"job": desk.job}, {})


class TestHelper:
    KEYS: ClassVar[dict[str, str]] = {
        name: public_digits(X25519PrivateKey.generate()) for name in ("ada", "bob", "cyd")
    }
    JOB: ClassVar[dict[str, Any]] = {
        **{"key": "0" * 32, "kind": "fourier", "n_components": 8},
        **{"sigma": 1.0, "seed": 0, "batches": 1},
    }

    def ask(self, tmp_path: Path, kind: str, *, pins: Path | None = None, **facts: Any) -> Answered:
        """Ask a helper that was just started."""
        helper = HelperNode("helper", tmp_path / "home", pins)
        return helper.answer(kind, {"job": self.JOB, **facts}, {})

    def agree(self, tmp_path: Path, pins: Path | None = None, **changes: Any) -> Contract:
        key = public_digits(own_key(tmp_path / "home" / "masks.key"))
        keys = changes.pop("keys", self.KEYS)
        contract = contract_of(**{"helper": key, "clients": digest_of_keys(keys), **changes})
        self.ask(tmp_path, "agree", pins=pins, contract=contract.document(), clients=keys)
        return contract

    def sum(self, tmp_path: Path, **changes: Any) -> Any:
        facts = {"number": 0, "attempt": 0, "ask": "00", "arrived": ["ada", "bob"], "numbers": 9}
        return self.ask(tmp_path, "sum", **{**facts, **changes})[1]["sum"]

    def test_after_a_restart_it_gives_the_same_bytes_and_refuses_another_list(
        self, tmp_path: Path
    ) -> None:
        self.agree(tmp_path)
        first = self.sum(tmp_path)
        np.testing.assert_array_equal(first, self.sum(tmp_path, arrived=["bob", "ada"]))
        for change in ({"arrived": ["ada", "cyd"]}, {"attempt": 1}, {"ask": "01"}, {"numbers": 8}):
            with pytest.raises(InputError, match="start a new round"):
                self.sum(tmp_path, **change)

    def test_two_lists_at_the_same_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An engine may start a process for each question: two once got a sum each."""
        self.agree(tmp_path)
        results: list[Any] = []

        def other() -> None:
            try:
                results.append(self.sum(tmp_path, arrived=["ada", "cyd"]))
            except InputError as error:
                results.append(error)

        thread = Thread(target=other)

        def slow(*asked: Any) -> Any:
            if not thread.ident:
                thread.start()
                thread.join(0.5)
            return mask(*asked)

        monkeypatch.setattr("codedfedl.privacy.masks.mask", slow)
        self.sum(tmp_path)
        thread.join()
        assert isinstance(results[0], InputError)
        assert "another list" in str(results[0])

    def test_what_it_refuses(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no contract with this helper"):
            self.sum(tmp_path)
        self.agree(tmp_path)
        self.agree(tmp_path)
        for change, message in (
            ({"arrived": ["ada"]}, "a sum is over 2 or more"),
            ({"arrived": ["ada", "eve"]}, "not a client"),
            ({"arrived": ["ada", "ada"]}, "twice"),
            ({"number": 3}, "no budget"),
            ({"numbers": 0}, "sum.numbers is '0'"),
        ):
            with pytest.raises(InputError, match=message):
                self.sum(tmp_path, **change)
        with pytest.raises(InputError, match="another contract already"):
            self.agree(tmp_path, epsilon=5.0)
        with pytest.raises(InputError, match="not for a helper"):
            self.ask(tmp_path, "work")
        self.ask(tmp_path, "goodbye")
        with pytest.raises(InputError, match="is over"):
            self.sum(tmp_path)

    def test_to_which_contracts_it_does_not_agree(self, tmp_path: Path) -> None:
        for change, message in (
            ({"helper": "c" * 64}, "with another helper"),
            ({"clients": "c" * 64}, "with other clients"),
            ({"keys": {"ada": self.KEYS["ada"]}}, "least is 2 where there are 1 clients"),
            ({"keys": {"ada": "0" * 64, "bob": self.KEYS["bob"]}}, "pin another"),
        ):
            with pytest.raises(InputError, match=message):
                self.agree(tmp_path, **change)
        known = contract_of().document()
        for sigma in (1e300, float("inf")):
            known["releases"][0]["sigma"] = sigma
            with pytest.raises(InputError, match="steps of the integers"):
                self.ask(tmp_path, "agree", contract=known, clients=self.KEYS)

    @pytest.mark.parametrize("job", [None, {}, [], {"key": 3}, {"key": "../x"}, {"key": None}])
    def test_a_federation_has_a_key(self, job: Any, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"job\.key is .*32 hexadecimal digits"):
            HelperNode("helper", tmp_path / "home").answer("hello", {"job": job}, {})

    def test_with_pinned_clients_it_adds_masks_for_no_others(self, tmp_path: Path) -> None:
        pins = tmp_path / "pins"
        pins.mkdir()
        for name in ("ada", "bob"):
            (pins / f"{name}.pub").write_text(self.KEYS[name])
        with pytest.raises(InputError, match="cyd is not a client of this helper"):
            self.agree(tmp_path, pins)
        (pins / "cyd.pub").write_text(self.KEYS["ada"])
        with pytest.raises(InputError, match="the key of cyd is not the one in cyd.pub"):
            self.agree(tmp_path, pins)
        (pins / "cyd.pub").write_text(self.KEYS["cyd"])
        self.agree(tmp_path, pins)


def test_a_server_that_promises_less_noise_to_one_side_gets_nothing(tmp_path: Path) -> None:
    """The helper agreed to little noise, the node to more: the masks do not fit together."""
    desk = Desk(tmp_path)
    key = own_key(desk.grid.home / "masks.key")
    keys = {f"node-{j:03d}": desk.grid.vault(j).keys()["key"] for j in range(2)}
    told = replace(desk.contract, clients=digest_of_keys(keys))
    little = replace(told, account=Account(1e-5, [Release("gradient", 3, 9.0, 1e-3)]))
    helper = HelperNode("helper", desk.grid.home)
    facts = {"contract": little.document(), "clients": keys, "job": desk.job}
    helper.answer("agree", facts, {})
    assert public_digits(key) == told.helper
    masked = desk.ask(contract=told.document())[1]["masked"]
    work = ClippedGradient(**{k: v for k, v in desk.work.items() if k != "kind"})
    question = {"number": 0, "attempt": 0, "ask": ask_digest(work, desk.model), "numbers": 640}
    arrived = {"arrived": list(keys), "job": desk.job}
    correction = helper.answer("sum", {**question, **arrived}, {})[1]["sum"]
    other = mask(
        shared_seed(key, bytes.fromhex(keys["node-001"]), helper=bytes.fromhex(told.helper)),
        Binding(little.label, 0, 0, str(question["ask"])),
        640,
    )
    left = (masked - (correction - other)).view(np.int32)
    assert np.abs(left).max() > 2**29  # else 640 uniform numbers are small: a chance of 2^-1280


class TestBadInput:
    def test_a_helper_with_another_key_than_the_pinned_one(self, tmp_path: Path) -> None:
        grid = summing(experiment := private(3, 4), tmp_path)
        grid.pinned = public_digits(X25519PrivateKey.generate())
        with pytest.raises(InputError, match="node-00. has pinned the helper key"):
            run(grid, experiment, tmp_path)
        assert answers_sent(grid) == 0

    def test_a_fleet_so_small_that_a_sum_would_be_one_client(self, tmp_path: Path) -> None:
        grid = summing(experiment := private(1, 4), tmp_path)
        with pytest.raises(
            InputError, match="clients is 1: a sum would be one client's own answer"
        ):
            run(grid, experiment, tmp_path)
        assert answers_sent(grid) == 0

    def test_all_but_one_left_out(self, tmp_path: Path) -> None:
        grid = summing(experiment := private(2, 4), tmp_path)
        members = {"federation.without": ["node-001"]}
        grid.crash_after = 2  # the members are there, and nothing else
        with pytest.raises(KeyboardInterrupt):
            run(grid, experiment, tmp_path)
        grid.crash_after = None
        with pytest.raises(InputError, match="leaves 1 client"):
            run(grid, changed(experiment.model_dump(), members, "a test"), tmp_path)

    def test_no_helper(self, tmp_path: Path) -> None:
        grid = summing(experiment := private(3, 4), tmp_path)
        grid.online.remove(HELPER)
        with pytest.raises(InputError, match="no helper has connected after 60 s"):
            run(grid, experiment, tmp_path)
        assert answers_sent(grid) == 0

    def test_another_helper_on_the_way(self, tmp_path: Path) -> None:
        grid = summing(experiment := private(3, 4), tmp_path)
        grid.crash_after = 9
        with pytest.raises(KeyboardInterrupt):
            run(grid, experiment, tmp_path)
        grid.crash_after = None
        (grid.home / "masks.key").unlink()
        with pytest.raises(InputError, match="start the helper with the home that it had"):
            run(grid, experiment, tmp_path)

    def test_a_journal_that_does_not_add_up(self, tmp_path: Path) -> None:
        grid = summing(experiment := private(3, 4), tmp_path)
        run(grid, experiment, tmp_path)
        path = sorted((tmp_path / "run" / "exchanges").glob("*-round.npz"))[1]
        with np.load(path) as stored:
            columns = dict(stored)
        np.savez(path, **{**columns, "spent": columns["spent"] / 2})
        before = answers_sent(grid)
        with pytest.raises(InputError, match="does not add up: by round 2"):
            run(grid, experiment, tmp_path)
        assert answers_sent(grid) == before

    def test_another_plan_on_resuming(self, tmp_path: Path) -> None:
        """Other rounds would be another account: what was fixed stays."""
        grid = summing(experiment := private(3, 4), tmp_path)
        grid.crash_after = 9
        with pytest.raises(KeyboardInterrupt):
            run(grid, experiment, tmp_path)
        grid.crash_after = None
        longer = changed(experiment.model_dump(), {"federation.rounds": 6}, "a test")
        with pytest.raises(InputError, match=r"resume it with its own federation\.rounds"):
            run(grid, longer, tmp_path)

    def test_features_without_a_bound(self, tmp_path: Path) -> None:
        grid = summing(experiment := private(3, 4), tmp_path)
        raw = changed(experiment.model_dump(), {"features.kind": "identity"}, "a test")
        with pytest.raises(InputError, match="needs features with a bound"):
            run(grid, raw, tmp_path)
        assert answers_sent(grid) == 0

    def test_too_few_rounds(self) -> None:
        with pytest.raises(InputError, match="rounds is 1: private needs one for its first sum"):
            scheme_of(private(3, 1))

    def test_answers_in_another_form_do_not_count(self, tmp_path: Path) -> None:
        def change(client: int, kind: str, answer: Answered) -> Answered:
            facts, arrays = answer
            if client != 0 or not kind.startswith("clipped"):
                return answer
            masked = arrays["masked"]
            wrong: list[Answered] = [
                (facts, {"masked": masked.astype(np.float32)}),
                (facts, {"masked": masked[1:]}),
                (facts, {"masked": masked, "more": masked}),
                (facts | {"round": 0}, arrays),
                (facts | {"points": 10**6}, arrays),
            ]
            return wrong[facts["round"]]

        grid = summing(experiment := private(3, 5), tmp_path, Script(change=change))
        exchanges, _ = run(grid, experiment, tmp_path)
        assert [len(one.record.refusals) for one in exchanges[1:]] == [1] * 5
        assert [one.record.arrived.sum() for one in exchanges[1:]] == [2] * 5


class TestCommands:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--clients", "1"], "a sum would be one client's own answer"),
            (["--epsilon", "0"], "--epsilon: private.epsilon is 0: must be above 0"),
            (["--rounds", "1"], "private needs one for its first sum"),
            (["--scheme", "coded", "--epsilon", "3"], "--epsilon: "),
            (["--set", "features.sigma=auto"], "features.sigma is 'auto'"),
        ],
    )
    def test_local(self, options: list[str], message: str, tmp_path: Path) -> None:
        """Refused before a process starts."""
        command = ["federate", "local", "--scheme", "private", "--out", str(tmp_path / "run")]
        assert message in refusal(*command, *options)
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--superlink", "example.org:1"], "give --ca and --key"),
            (["--superlink", "127.0.0.1:1", "--clients", "nowhere"], "is not a folder"),
            (["--superlink", "127.0.0.1:1", "--name", "a b"], "is invalid"),
        ],
    )
    def test_helper(self, options: list[str], message: str, tmp_path: Path) -> None:
        assert message in refusal("federate", "helper", "--home", str(tmp_path), *options)

    def test_ledger(self, tmp_path: Path) -> None:
        grid = summing(experiment := private(3, 4, epsilon=4.0), tmp_path)
        run(grid, experiment, tmp_path)
        told = CliRunner().invoke(
            app, ["federate", "ledger", str(grid.vault_folder(0)), "--json"], catch_exceptions=False
        )
        (row,) = json.loads(told.stdout)["data_sets"]
        assert row["epsilon"] == pytest.approx(4.0, rel=1e-6)
        assert (row["delta"], row["adjacency"]) == (1e-5, "zero-out")
        assert (row["sums"], row["federations"]) == (4, 1)
        text = CliRunner().invoke(app, ["federate", "ledger", str(grid.vault_folder(0))]).stdout
        assert "epsilon 4 at delta 1e-05, zero-out; 4 sums of 1 federations" in text
        assert "has no ledger.json" in refusal("federate", "ledger", str(tmp_path))

    def test_node(self, tmp_path: Path) -> None:
        command = ["federate", "node", "--superlink", "127.0.0.1:1", "--name", "ada"]
        assert "give --helper too" in refusal(*command, "--epsilon-cap", "3")
        (tmp_path / "masks.pub").write_text("not a key")
        command += ["--helper", str(tmp_path / "masks.pub")]
        assert "is not a key for masks" in refusal(*command)


def test_a_key_for_masks_is_its_owners_alone_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "masks.key"
    key = public_digits(own_key(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert public_digits(own_key(path)) == key == read_public(tmp_path / "masks.pub")
    path.chmod(0o644)
    with pytest.raises(InputError, match="can be read by others"):
        own_key(path)


@pytest.mark.parametrize("packet_time", [0.0, 2.0])
def test_who_may_be_away_gets_the_same_load(packet_time: float) -> None:
    """A plan is for those who are there; a fleet whose links take no time has one too."""
    here = Fleet(
        points=[100, 200], rate=50.0, alpha=2.0, packet_time=packet_time, erasure=0.0, overhead=1.0
    )
    plans = [
        plan_private(
            replace(here, availability=np.full(2, share)),
            Workload(64, 10),
            1000,
            epsilon=3.0,
            delta=1e-5,
            hours=1.0,
            most_rounds=10,
        )
        for share in (1.0, 0.9)
    ]
    assert plans[1].loads.tolist() == plans[0].loads.tolist() == [100, 200]
    np.testing.assert_allclose(plans[1].chances, 0.9 * plans[0].chances)


def test_a_deadline_without_time_for_patience_is_planned_for_all_the_same() -> None:
    """Rounds of 12 s, where answers take 5 s: a third of the deadline would be too short."""
    fleet = Fleet(
        points=[100, 200], rate=1e3, alpha=2.0, packet_time=0.0, erasure=0.0, overhead=5.0
    )
    settings: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5, "hours": 1.0, "most_rounds": 10}
    planned = plan_private(fleet, Workload(64, 10), 1000, **settings, deadline=12.0, rounds=3)
    assert planned.loads.tolist() == [100, 200]
    with pytest.raises(InputError, match="raise it, or private.deadline"):
        plan_private(fleet, Workload(64, 10), 1000, **settings, deadline=4.0, rounds=3)


def test_every_malformed_part_of_a_sum_is_refused(tmp_path: Path) -> None:
    """The last two of five clients send 30 malformed parts: none ends the run, none is added."""
    rng = np.random.default_rng(0)

    def change(client: int, question: str, answer: Answered) -> Answered:
        return spoilt(rng, answer) if client >= 3 and answer[1].keys() == {"masked"} else answer

    experiment = experiment_of(
        5, 15, {"name": "uncoded", "secure": True}, ready_timeout=60.0, fall=9.0
    )
    grid = summing(experiment, tmp_path, Script(change=change))
    grid.cap = np.inf
    exchanges, _ = run(grid, experiment, tmp_path)
    rounds = [e.record for e in exchanges if not e.record.is_setup]
    outcomes = [ARRIVED] * 3 + [REFUSED] * 2
    assert [record.outcome.tolist() for record in rounds] == [outcomes] * 15
    assert replay(RunDirectory(tmp_path / "run")).same
