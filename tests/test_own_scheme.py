"""A scheme that the package does not know: asynchronous, with its own memory, wait and work.

It is `examples/buffered.py`. The same file runs on the virtual clock, in a sweep, in a federation
in memory (here) and on Flower (`test_engine.py`).
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet
import pytest
from examples.buffered import Buffered

from codedfedl import Ask, Inbox, Info, InputError, Scheme, State, Until
from codedfedl.cli.options import known_schemes
from codedfedl.core.client import Gradient
from codedfedl.federate.server.session import federate
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.journal import Journal
from codedfedl.schemes import make_scheme, scheme_class
from codedfedl.simulation.experiment import simulate
from codedfedl.simulation.replay import replay
from tests.conftest import Run
from tests.loopback import Script, experiment_of, transport_of
from tests.virtual import final_of, played, seconds_of, small

BUFFERED = {"name": "examples.buffered:Buffered", "count": 2}


def experiment(**changes: Any) -> Experiment:
    return small(
        schemes=[{"name": "uncoded"}, BUFFERED],
        training={"epochs": 40, "step": 2.0, "target": 0.5},
        data={"name": "digits", "partition": "iid"},
        **changes,
    )


class TestSimulation:
    def test_learns_without_waiting_for_anybody(self) -> None:
        setting = played(experiment())["buffered count 2"]
        assert final_of(setting) > 0.85
        counts = [int(record.arrived.sum()) for record in setting.rounds]
        assert max(counts) <= 2
        late = [record for record in setting.rounds if not record.arrived.any()]
        assert late  # a step of answers to older models alone
        assert setting.state.staleness > 0  # type: ignore[attr-defined]
        uncoded = played(experiment())["uncoded"]
        assert np.mean(seconds_of(setting)) < np.mean(seconds_of(uncoded)) / 2

    def test_each_answer_is_to_the_model_that_the_client_had(self) -> None:
        """Against plain events: idle clients begin at once, every second answer makes a step."""
        setting = played(experiment())["buffered count 2"]
        clock = setting.timeline.clock
        held, chance = clock.task.held, clock.chance
        now, busy, steps = 0.0, {}, []
        for round_ in range(len(setting.rounds)):
            seconds = clock.model.seconds(held, chance[round_])
            for j in range(len(held)):
                if j not in busy:
                    busy[j] = (now + seconds[j], round_)
            first = sorted(busy, key=lambda j: busy[j][0])[:2]
            steps.append((sorted(first), busy[first[-1]][0] - now))
            now = busy[first[-1]][0]
            for j in first:
                del busy[j]
        lasted = [length for _, length in steps]
        np.testing.assert_allclose(seconds_of(setting), lasted, rtol=1e-6)

    def test_resumes_exactly_with_its_memory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("codedfedl.simulation.experiment.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
        whole, killed = (RunDirectory(tmp_path / name) for name in ("whole", "killed"))
        simulate(experiment(), whole)

        def kill(_what: str, progress: Any) -> None:
            if progress is not None and progress.round == 15:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            simulate(experiment(), killed, watch=kill)
        simulate(experiment(), killed, resume=True)
        for name in ("rounds", "clients", "settings", "timeline"):
            mine, theirs = (run.path / f"{name}.parquet" for run in (killed, whole))
            assert mine.read_bytes() == theirs.read_bytes()

    def test_in_a_sweep(self, tmp_path: Path, run: Run) -> None:
        path = tmp_path / "own.toml"
        path.write_text(
            'data.name = "digits"\ndata.partition = "iid"\nfleet.clients = 6\n'
            "features.n_components = 60\ntraining.epochs = 20\ntraining.target = 0.5\n"
            '[[schemes]]\nname = "examples.buffered:Buffered"\n'
        )
        code, _, err = run("sweep", path, "--vary", "count=1,4", "--out", tmp_path / "s")
        assert code == 0, err
        table = pyarrow.parquet.read_table(tmp_path / "s" / "rounds.parquet").to_pydict()
        assert set(table["setting"]) == {"buffered count 1", "buffered count 4"}
        assert set(table["scheme"]) == {"buffered"}


class TestFederation:
    scheme: ClassVar[dict[str, Any]] = {**BUFFERED, "patience": 5.0}

    def test_trains_is_killed_and_resumes_exactly(self, tmp_path: Path) -> None:
        """Node 2 takes three times as long: its answers come to later steps, and count less."""

        def delay(client: int, kind: str, _: dict[str, Any]) -> float:
            return 0.15 if kind == "examples.buffered:ClippedGradient" and client == 2 else 0.0

        experiment = experiment_of(3, 12, self.scheme)
        for name, crash in (("whole", None), ("killed", 9)):
            grid = transport_of(experiment, tmp_path / name / "nodes", Script(delay=delay))
            directory = RunDirectory(tmp_path / name / "run")
            grid.crash_after = crash
            if crash is not None:
                with pytest.raises(KeyboardInterrupt):
                    federate(grid, experiment, directory, lambda _: None)
                assert 0 < Journal(directory.path).rounds() < 12
                grid.crash_after = None
            federate(grid, experiment, directory, lambda _: None)
            replies = [r for e in Journal(directory.path).exchanges() for r in e.replies]
            assert any(r.client == 2 for r in replies)
            assert replay(directory).same
        exchanges = list(Journal(tmp_path / "whole" / "run").exchanges())
        stale = [(e.record.round, r.round) for e in exchanges for r in e.replies]
        assert any(asked < now for now, asked in stale)
        assert exchanges[-1].record.metric > 0.5  # of ten classes, dealt by class

    def test_a_node_does_no_work_that_it_was_not_told_of(self, tmp_path: Path) -> None:
        experiment = experiment_of(3, 2, self.scheme)
        grid = transport_of(experiment, tmp_path / "nodes")
        plain = grid.node

        def node(client: int) -> Any:
            made = plain(client)
            made.works = ()
            return made

        grid.node = node  # type: ignore[method-assign]
        said: list[str] = []
        federate(grid, experiment, RunDirectory(tmp_path / "run"), said.append)
        assert any("is unknown here" in sentence for sentence in said)
        assert all(not e.replies for e in Journal(tmp_path / "run").exchanges())


@dataclass(frozen=True)
class Impatient(Scheme):
    """It asks by a deadline of 0 seconds: nobody ever arrives."""

    info: ClassVar[Info] = Info("impatient")

    def ask(self, state: State) -> Ask | None:
        return None if state.finished else Ask(Gradient(0), Until(0.0))

    def receive(self, state: State, inbox: Inbox) -> State:
        assert not inbox.arrived.any()
        return replace(state, model=state.model + 0, round=state.round + 1)


@dataclass(frozen=True)
class Silent(Impatient):
    """After two rounds it asks for something that is no ask."""

    info: ClassVar[Info] = Info("silent")

    def ask(self, state: State) -> Any:
        return super().ask(state) if state.round < 2 else "gradients, please"


@dataclass(frozen=True)
class Endless(Impatient):
    """It never ends by itself."""

    info: ClassVar[Info] = Info("endless")

    def ask(self, state: State) -> Ask:
        return Ask(Gradient(0), Until(0.0))


@dataclass(frozen=True)
class Greedy(Impatient):
    """It asks for more points than there are in a mini-batch."""

    info: ClassVar[Info] = Info("greedier")

    def ask(self, state: State) -> Ask:
        return Ask(Gradient(0), Until(0.0), state.task.held)


@dataclass(frozen=True)
class Former(Impatient):
    """It has a name, as schemes of version 0.2 had."""

    name = "former"


@dataclass(frozen=True)
class Facts(Impatient):
    """It has facts, as schemes of version 0.2 had."""

    def facts(self, state: State) -> dict[str, float]:
        return {}


@dataclass(frozen=True)
class Nameless(Scheme):
    """It has no info."""

    ask, receive = Impatient.ask, Impatient.receive


class Careless(Scheme):
    """Not frozen: it could remember what no checkpoint knows."""

    ask, receive = Impatient.ask, Impatient.receive


def one(scheme: type[Scheme]) -> Experiment:
    return small(schemes=[{"name": f"tests.test_own_scheme:{scheme.__name__}"}])


class TestRules:
    def test_a_deadline_of_0_counts_rounds_from_1(self, tmp_path: Path) -> None:
        simulate(one(Impatient), RunDirectory(tmp_path / "run"))
        table = pyarrow.parquet.read_table(tmp_path / "run" / "rounds.parquet").to_pydict()
        assert table["round"] == list(range(1, 9))
        assert set(table["seconds"]) == {0.0}
        assert set(table["arrived"]) == {0}

    def test_what_is_no_ask_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="scheme 'silent' returned 'gradients, please'"):
            simulate(one(Silent), RunDirectory(tmp_path / "run"))

    def test_more_points_than_there_are_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="gradient is asked for .* points where the clients"):
            simulate(one(Greedy), RunDirectory(tmp_path / "run"))

    def test_nobody_plays_more_rounds_than_there_are(self, tmp_path: Path) -> None:
        simulate(one(Endless), RunDirectory(tmp_path / "run"))
        table = pyarrow.parquet.read_table(tmp_path / "run" / "rounds.parquet").to_pydict()
        assert table["round"] == list(range(1, 9))

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("tests.test_own_scheme:Careless", "is not a frozen dataclass"),
            ("tests.test_own_scheme:Former", "defines 'name' as version 0.2 did: set info = Info"),
            ("tests.test_own_scheme:Facts", "defines 'facts' as version 0.2 did: .* describe"),
            ("tests.test_own_scheme:Nameless", "has no info: set info = Info"),
            ("tests.test_own_scheme:one", "is not a subclass of codedfedl.Scheme"),
            ("tests.test_own_scheme:Nobody", "is not a subclass of codedfedl.Scheme"),
            ("no_such_module:Scheme", "cannot be imported"),
            ("buffered", "is unknown"),
        ],
    )
    def test_what_is_no_scheme_is_refused(self, name: str, message: str) -> None:
        with pytest.raises(InputError, match=message):
            scheme_class(name)

    def test_settings_are_checked_by_name(self) -> None:
        assert make_scheme("examples.buffered:Buffered", {"count": 7}) == Buffered(count=7)
        with pytest.raises(InputError, match="has no setting 'cuont': did you mean 'count'"):
            make_scheme("examples.buffered:Buffered", {"cuont": 7})

    def test_through_the_command_line(self, tmp_path: Path, run: Run) -> None:
        """`examples/buffered.toml` as it stands, but shorter."""
        less = ("--set", "training.epochs=12", "--json", "--out", tmp_path / "run")
        code, out, err = run("simulate", "examples/buffered.toml", *less)
        assert code == 0, err
        assert [row["scheme"] for row in json.loads(out)["rows"]] == ["uncoded", "buffered"]


def test_an_installed_package_names_its_schemes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pip would leave it: a module, and metadata with an entry point beside it."""
    (tmp_path / "outside.py").write_text(
        "from dataclasses import dataclass, replace\n"
        "from codedfedl import Greedy\n"
        "@dataclass(frozen=True)\n"
        "class Hasty(Greedy):\n"
        "    info = replace(Greedy.info, name='hasty')\n"
    )
    metadata = tmp_path / "outside-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[codedfedl.schemes]\nhasty = outside:Hasty\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert make_scheme("hasty", {"drop": 0.5}).info.name == "hasty"
    assert known_schemes("ha") == ["hasty"]
    table = "title = 'x'\n[training]\nepochs = 2\n[[schemes]]\nname = 'hasty'\ndrop = 0.5\n"
    (tmp_path / "own.toml").write_text(table)
    out = tmp_path / "run"
    code, printed, _ = run("simulate", tmp_path / "own.toml", "--out", out, "--json")
    assert code == 0
    assert json.loads(printed)["rows"][0]["setting"] == "hasty 50%"
    with pytest.raises(InputError, match="did you mean 'hasty'"):
        make_scheme("hastee", {})
