"""A journal that checks itself, and what a federation does when things go wrong around it."""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow.parquet
import pytest
import typer

import codedfedl
from codedfedl.cli.following import finish
from codedfedl.core.record import ARRIVED, DROPPED, LATE, REFUSED, Record
from codedfedl.errors import InputError
from codedfedl.federate.deploy.registry import BoundTransport, RegisteredKey, Registry
from codedfedl.federate.job import Job
from codedfedl.federate.node.node import Node
from codedfedl.federate.server.session import federate
from codedfedl.federate.transport import Answered
from codedfedl.io import files
from codedfedl.report.arrivals import federation_figure
from codedfedl.report.html import render_report
from codedfedl.report.story import Story
from codedfedl.runs.advice import nobody_arrived
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.exchange import Exchange
from codedfedl.runs.journal import Journal
from codedfedl.simulation.replay import replay
from tests.loopback import FIRST_NODE, NEWTON, Script, experiment_of, rounds_of, run, transport_of


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    run(experiment_of(rounds=4), folder)
    return folder / "run"


def _flip(path: Path, place: int = -40) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


EXCHANGE = "exchanges/{:06d}-round.npz"

DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a round is deleted": lambda run: (run / EXCHANGE.format(2)).unlink(),
    "the last round is deleted": lambda run: (run / EXCHANGE.format(4)).unlink(),
    "a round is there twice": lambda run: shutil.copy(
        run / EXCHANGE.format(2), run / EXCHANGE.format(5)
    ),
    "a round is replaced by another": lambda run: shutil.copy(
        run / EXCHANGE.format(2), run / EXCHANGE.format(3)
    ),
    "a round is changed": lambda run: _flip(run / EXCHANGE.format(2)),
    "the last round is changed": lambda run: _flip(run / EXCHANGE.format(4)),
    "a round is empty": lambda run: (run / EXCHANGE.format(3)).write_bytes(b""),
    "the head is deleted": lambda run: (run / "exchanges/head.json").unlink(),
    "the head is torn": lambda run: (run / "exchanges/head.json").write_text('{"count": 5'),
    "members.json is torn": lambda run: (run / "members.json").write_text('{"key": "ab'),
    "members.json is not ours": lambda run: (run / "members.json").write_text('{"format": 4}'),
    "members.json is deleted": lambda run: (run / "members.json").unlink(),
    "members.json is changed": lambda run: (run / "members.json").write_text(
        (run / "members.json").read_text().replace("360", "361").replace("479", "480")
    ),
    "traces are deleted": lambda run: (run / "traces.parquet").unlink(),
    "traces are changed": lambda run: _flip(run / "traces.parquet", 50),
    "parity is changed": lambda run: _flip(run / "parity/1/features0.npy"),
    "parity is deleted": lambda run: (run / "parity/1/targets0.npy").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_lost_or_changed_is_an_error(damage: str, finished: Path, tmp_path: Path) -> None:
    """Never a shorter history; and the error says what to do."""
    shutil.copytree(finished, tmp_path / "run")
    DAMAGES[damage](tmp_path / "run")
    with pytest.raises(InputError, match="restore|cannot read .*traces"):
        run(experiment_of(rounds=5), tmp_path)


def test_reports_and_replays_check_the_journal_too(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    assert replay(RunDirectory(tmp_path / "run")).same
    (tmp_path / "run" / EXCHANGE.format(4)).unlink()
    for use in (render_report, replay):
        with pytest.raises(InputError, match="holds 4 exchanges where head.json says 5"):
            use(RunDirectory(tmp_path / "run"))


def test_a_round_under_another_number_is_an_error(finished: Path, tmp_path: Path) -> None:
    """The last one, so that no hash is wrong: the next would get a number before it."""
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / EXCHANGE.format(4)).rename(tmp_path / "run" / EXCHANGE.format(7))
    with pytest.raises(InputError, match="000007-round.npz is in the place of number 4"):
        list(Journal(tmp_path / "run").exchanges())


def test_a_round_that_is_appended_twice_is_an_error(finished: Path, tmp_path: Path) -> None:
    """With the right number and hashes: its own round tells."""
    shutil.copytree(finished, tmp_path / "run")
    journal = Journal(tmp_path / "run")
    journal.append(list(journal.exchanges())[-1])
    with pytest.raises(InputError, match="000005-round.npz is not of round 5: restore it"):
        list(Journal(tmp_path / "run").exchanges())


def test_rounds_can_be_given_up_on_purpose(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / EXCHANGE.format(4)).unlink()
    (tmp_path / "run" / "exchanges/head.json").write_text("")
    _, exchanges, _ = run(experiment_of(rounds=4), tmp_path)
    assert [e.round for e in rounds_of(exchanges)] == [0, 1, 2, 3]
    assert replay(RunDirectory(tmp_path / "run")).same


def test_a_kill_between_a_round_and_the_head_loses_nothing(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    exchanges = tmp_path / "run" / "exchanges"
    head = json.loads((exchanges / "head.json").read_text())
    last = (exchanges / "000003-round.npz").read_bytes()
    head |= {"count": 4, "last": files.digest(last)}
    (exchanges / "head.json").write_text(json.dumps(head))
    assert len(list(Journal(tmp_path / "run").exchanges())) == 5


class _Killed(BaseException):
    """The process ends here."""


_DURABLE = files.durable
_MOMENTS = ("before the write", "in the middle of the write", "after the write")


def _killed_at(write: int, moment: str) -> Callable[[Path], Any]:
    """Return a writer of files that ends the process at its nth file, and on no other."""
    writes = iter(range(write + 1))

    @contextmanager
    def durable(path: Path) -> Iterator[BinaryIO]:
        doomed = next(writes, -1) == write
        if doomed and moment == "before the write":
            raise _Killed
        with _DURABLE(path) as file:
            yield file
        if doomed:
            if moment == "in the middle of the write" and path.suffix == ".npz":
                os.truncate(path, path.stat().st_size // 2)
            raise _Killed

    return durable


def _exchange(round_: int) -> Exchange:
    return Exchange(
        Record(
            round=round_,
            deadline=1.0,
            seconds=0.5,
            loads=np.ones(2, dtype=np.int64),
            outcome=np.full(2, ARRIVED),
            arrival_times=np.ones(2),
        )
    )


def _continued(folder: Path, rounds: int) -> list[int]:
    """Resume a journal and fill it; note how many rounds are certainly kept."""
    journal = Journal(folder)
    done = [exchange.record.round for exchange in journal.exchanges()]
    (folder / "returned").write_text(str(len(done)))
    for round_ in range(len(done), rounds):
        journal.append(_exchange(round_))
        done.append(round_)
        (folder / "returned").write_text(str(len(done)))
    return done


@pytest.mark.parametrize("moment", _MOMENTS)
@pytest.mark.parametrize("second", _MOMENTS)
def test_two_kills_at_any_write_lose_at_most_the_exchange_in_flight(
    moment: str, second: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, (i, j) in enumerate(product(range(6), range(4))):
        folder = tmp_path / str(place)
        folder.mkdir()
        for write, when in ((i, moment), (j, second)):
            with monkeypatch.context() as patch:
                patch.setattr("codedfedl.io.files.durable", _killed_at(write, when))
                with suppress(_Killed):
                    _continued(folder, 4)
            kept = [exchange.record.round for exchange in Journal(folder).exchanges()]
            assert kept == list(range(len(kept)))
            assert len(kept) - int((folder / "returned").read_text()) in (0, 1)
            assert Journal(folder).count() == len(kept)
        assert _continued(folder, 4) == [0, 1, 2, 3]
        assert len(list(Journal(folder).exchanges())) == 4


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 30, 3))
def test_a_federation_is_resumed_after_two_kills(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill at a wait for the disk: before a file has its name, or after; 30 are in two rounds."""
    real, kills = os.fsync, 0
    for place in (first, 3):
        waits = iter(range(place + 1))

        def fsync(descriptor: int, waits: Any = waits, place: int = place) -> None:
            if next(waits, -1) == place:
                raise _Killed
            real(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr("codedfedl.io.files.os.fsync", fsync)
            try:
                run(experiment_of(rounds=2), tmp_path)
            except _Killed:
                kills += 1
    _, exchanges, _ = run(experiment_of(rounds=2), tmp_path)
    assert [record.round for record in rounds_of(exchanges)] == [0, 1]
    assert replay(RunDirectory(tmp_path / "run")).same
    assert kills > 0


def test_every_file_and_its_folder_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr("codedfedl.io.files.os.fsync", fsync)
    run(experiment_of(rounds=1), tmp_path)
    folder = tmp_path / "run"
    for name in ("members.json", "000001-round.npz", "features0.npy", "head.json"):
        assert any(path.endswith(name) for path in synced), name
    assert str(folder / "traces.parquet") in synced
    assert {str(folder), str(folder / "exchanges"), str(folder / "parity" / "1")} <= set(synced)


def test_a_federation_of_an_earlier_version_is_reported_and_not_continued(
    finished: Path, tmp_path: Path
) -> None:
    """No links, other names, tables of numbers, and refused answers were dropped too."""
    shutil.copytree(finished, tmp_path / "run")
    today = Journal(finished).records()
    for path, record in zip(Journal(tmp_path / "run").paths(), today, strict=True):
        arrays = dict(np.load(path)) | {"late_answers": np.array([(1, 0.5)])}
        arrays["refusals"], arrays["outcome"] = np.array('[[2, "why"]]'), record.outcome.copy()
        arrays["outcome"][2] = DROPPED
        arrays["when"] = arrays.pop("arrival_times")
        for name in ("number", "before", "has_model"):
            del arrays[name]
        np.savez(path, **arrays)
    (tmp_path / "run" / "exchanges" / "head.json").write_text("")
    members = tmp_path / "run" / "members.json"
    members.write_text(members.read_text().replace('"format": 4', '"format": 3'))
    for old, new in zip(Journal(tmp_path / "run").records(), today, strict=True):
        assert (old.late_answers, old.outcome[2]) == (((1, 0.5),), REFUSED)
        np.testing.assert_array_equal(old.outcome[:2], new.outcome[:2])
        np.testing.assert_array_equal(old.arrival_times, new.arrival_times)
    assert render_report(RunDirectory(tmp_path / "run"))
    with pytest.raises(InputError, match="another version .* can be reported, not continued"):
        run(experiment_of(rounds=6), tmp_path)


# Defects of earlier versions.


def test_refused_late_parity_excludes_its_client_and_nobody_else(tmp_path: Path) -> None:
    """Client 2's parity comes late and is wrong, while an answer of client 1 is refused too."""

    def delay(client: int, question: str, facts: dict[str, Any]) -> float:
        return 2.3 if question == "block_parity" and client == 2 else 0.0

    bad = {"on": True}

    def change(client: int, question: str, answer: Answered) -> Answered:
        facts, arrays = answer
        if client == 2 and question == "block_parity":
            return facts, {k: a * np.float16(np.nan) for k, a in arrays.items()}
        if client == 1 and question == "embedded" and bad["on"]:
            return facts, {"gradient": arrays["gradient"][:-1]}
        return answer

    script = Script(delay=delay, change=change)
    run(experiment_of(3, 2, NEWTON), tmp_path, script)
    bad["on"] = False
    grid, exchanges, _ = run(experiment_of(3, 4, NEWTON), tmp_path, script)  # resumed
    assert [e.excluded for e in exchanges][-1] == (2,)
    assert [e.outcome[1] for e in rounds_of(exchanges)] == [REFUSED, REFUSED, ARRIVED, ARRIVED]
    asked = [(c, f["round"]) for c, f in grid.kinds("embedded") if f["round"] >= 2]
    assert {client for client, _ in asked} == {0, 1}
    assert not grid.kinds("block_parity")  # it is not asked again either


def test_loads_of_nothing_are_an_error(tmp_path: Path) -> None:
    def delay(client: int, question: str, facts: dict[str, Any]) -> float:
        return 0.6 if question == "probe" else 0.0

    with pytest.raises(InputError, match="none of 3 clients is asked for any points.*deadline"):
        run(experiment_of(deadline=0.2), tmp_path, Script(delay=delay))


def test_trouble_at_a_node_is_not_called_silence(tmp_path: Path) -> None:
    def change(client: int, question: str, answer: Answered) -> Answered:
        return ({"problem": "the disk is full"}, {}) if question == "parity" else answer

    with pytest.raises(InputError, match=r"no parity from .*node-000: the disk is full") as error:
        run(experiment_of(), tmp_path, Script(change=change))
    assert "within" not in str(error.value)


def test_the_configuration_of_a_run_at_work_stays(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    with directory.opened(experiment_of()):
        before = (tmp_path / "run" / "config.toml").read_bytes()
        with (
            pytest.raises(InputError, match="worked on by another process"),
            RunDirectory(tmp_path / "run").opened(experiment_of(rounds=9)),
        ):
            pass
        assert (tmp_path / "run" / "config.toml").read_bytes() == before


def test_old_caches_go_when_a_new_federation_begins(tmp_path: Path) -> None:
    run(experiment_of(2, 1), tmp_path)
    cache = tmp_path / "nodes" / "caches" / "node-000"
    old, recent, other = (cache / name for name in ("a" * 32, "b" * 32, "mine"))
    for folder in (old, recent, other):
        folder.mkdir(parents=True)
        (folder / "features.npy").touch()
    os.utime(old, (1, 1))
    os.utime(other, (1, 1))
    run(experiment_of(2, 1), tmp_path / "again")
    grid = transport_of(experiment_of(2, 1), tmp_path / "nodes")
    federate(grid, experiment_of(2, 1), RunDirectory(tmp_path / "third"), lambda _: None)
    assert not old.exists()
    assert recent.exists()
    assert other.exists()  # not a federation's


# Lateness and the clock.


def test_everybody_is_always_late(tmp_path: Path) -> None:
    """Alive, and late in every round: one truth in the table, the chart, and the journal."""

    def delay(client: int, question: str, facts: dict[str, Any]) -> float:
        return {"gradient": 1.5, "goodbye": 15.5}.get(question, 0.0)

    _, exchanges, said = run(experiment_of(), tmp_path, Script(delay=delay))
    directory = RunDirectory(tmp_path / "run")
    rounds = pyarrow.parquet.read_table(tmp_path / "run" / "rounds.parquet").to_pydict()
    assert rounds["late"] == [3, 3, 3]
    assert rounds["dropped"] == rounds["arrived"] == [0, 0, 0]
    records = Story(directory).records
    assert all((record.outcome == LATE).all() for record in records if not record.is_setup)
    federation_figure(records, "accuracy")
    assert "raise federation.deadline" in nobody_arrived(records)
    assert any(line.startswith("warning: no client answered in time in any of 3") for line in said)
    with pytest.raises(typer.Exit) as exited:  # `federate run --follow`, once the report is written
        finish(directory)
    assert exited.value.exit_code == 1
    assert (directory.path / "report.html").is_file()
    assert len(rounds_of(exchanges)) == 3


def test_the_chart_and_the_table_tell_the_same_of_the_dead(tmp_path: Path) -> None:
    def delay(client: int, question: str, facts: dict[str, Any]) -> float:
        dead = client == 1 and (question == "goodbye" or facts.get("round", -1) >= 1)
        return np.inf if dead else 0.0

    run(experiment_of(), tmp_path, Script(delay=delay))
    rounds = pyarrow.parquet.read_table(tmp_path / "run" / "rounds.parquet").to_pydict()
    told = [r for r in Story(RunDirectory(tmp_path / "run")).records if not r.is_setup]
    assert rounds["dropped"] == [record.counts()["dropped"] for record in told] == [0, 1, 1]


def test_meeting_and_probing_are_on_the_clock(tmp_path: Path) -> None:
    def delay(client: int, question: str, facts: dict[str, Any]) -> float:
        return {"hello": 30.0, "probe": 20.0}.get(question, 0.0)

    run(experiment_of(deadline=25.0), tmp_path, Script(delay=delay))
    rounds = pyarrow.parquet.read_table(tmp_path / "run" / "rounds.parquet").to_pydict()
    setup = 3600 * (rounds["total_hours"][-1] - rounds["training_hours"][-1])
    assert 70 < setup < 75  # a greeting, two probes, and parity
    assert Journal(tmp_path / "run").records()[0].seconds > 70


# Nodes that come back, clocks that jump.


def test_a_plaintext_federation_resumes_although_its_nodes_have_new_numbers(
    tmp_path: Path,
) -> None:
    experiment = experiment_of(3, 4)
    grid = transport_of(experiment, tmp_path / "nodes")
    grid.crash_after = 5
    with pytest.raises(KeyboardInterrupt):
        federate(grid, experiment, RunDirectory(tmp_path / "run"), lambda _: None)
    grid.crash_after = None
    for j in range(3):
        grid.responds[2000 + j] = grid.responds.pop(FIRST_NODE + j)
    grid.online = {2000, 2001, 2002}
    grid.script = Script()
    grid.delay = lambda *_: 0.05
    said: list[str] = []
    federate(grid, experiment, RunDirectory(tmp_path / "run"), said.append)
    assert "node-001 is back" in said
    played = rounds_of(list(Journal(tmp_path / "run").exchanges()))
    assert [record.round for record in played] == [0, 1, 2, 3]
    assert played[-1].arrived.all()
    assert replay(RunDirectory(tmp_path / "run")).same


@pytest.mark.parametrize("keys", [True, False])
def test_another_node_does_not_come_back_under_a_name(keys: bool, tmp_path: Path) -> None:
    """Neither with another key nor, without keys, with other data or while the first is there."""
    experiment = experiment_of(2, 3, quorum=1)
    grid = transport_of(experiment, tmp_path / "nodes")
    grid.crash_after = 5
    with pytest.raises(KeyboardInterrupt):
        federate(grid, experiment, RunDirectory(tmp_path / "run"), lambda _: None)
    grid.crash_after = None
    first, missing = grid.responds[FIRST_NODE], grid.responds[FIRST_NODE + 1]

    def other(kind: str, facts: dict[str, Any], arrays: Any) -> Answered:
        told, given = missing(kind, facts, arrays)
        return ({**told, "points": 100}, given) if kind == "hello" else (told, given)

    strangers = {2001: other, 2002: missing if keys else first}
    grid.responds |= strangers
    grid.online = {FIRST_NODE, *strangers}
    grid.delay = lambda *_: 0.05
    said: list[str] = []
    registry = Registry(tmp_path / "nodes.json")
    registry.add(RegisteredKey("node-000", FIRST_NODE, "its key"))
    registry.add(RegisteredKey("node-002", 2002, "another"))
    before = len(grid.asked)
    bound = BoundTransport(grid, registry) if keys else grid
    federate(bound, experiment, RunDirectory(tmp_path / "run"), said.append)
    assert sum("the key of node 2001 is not registered" in line for line in said) == keys
    assert sum("node-001 has the key of node-002" in line for line in said) == keys
    assert sum("node-001 has other data than before" in line for line in said) == (not keys)
    assert not any("is back" in line for line in said)
    asked = {(node, kind) for node, kind, _ in grid.asked[before:] if node in strangers}
    assert asked == {(2001, "hello"), (2002, "hello")}


def test_a_clock_that_jumps_moves_no_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day forward, and a day back, in the middle of rounds: only the wall clock has it."""
    real, jump = time.time, {"by": 0.0}
    monkeypatch.setattr(time, "time", lambda: real() + jump["by"])

    def delay(client: int, question: str, facts: dict[str, Any]) -> float:
        if question == "gradient":
            jump["by"] = (86400.0, -86400.0)[facts["round"] % 2]
        return 0.0

    _, exchanges, _ = run(experiment_of(3, 4), tmp_path, Script(delay=delay))
    played = rounds_of(exchanges)
    assert all(record.arrived.all() for record in played)
    assert all(0 < record.seconds <= record.deadline for record in played)
    assert replay(RunDirectory(tmp_path / "run")).same


def test_only_dates_are_read_from_the_time_of_day() -> None:
    """The age of an old cache, and when a metric was noted: no deadline, in any transport."""
    root = Path(codedfedl.__file__).parent
    users = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if re.search(r"\btime\.time(_ns)?\(|from time import .*\btime\b", path.read_text("utf-8"))
    }
    assert users == {
        "federate/node/cache.py",
        "tracking/mlflow.py",
        "tracking/tensorboard.py",
    }


def test_a_deleted_cache_is_refused_by_no_one_and_gives_no_second_parity(tmp_path: Path) -> None:
    """It embeds anew, and answers; its parity is not asked for again."""
    experiment = experiment_of(3, 4)
    grid = transport_of(experiment, tmp_path / "nodes")

    def delay(client: int, question: str, facts: dict[str, Any]) -> float:
        if question == "gradient" and facts["round"] == 2 and client == 0:
            shutil.rmtree(tmp_path / "nodes" / "caches" / "node-001")
        return 0.0

    grid.script = Script(delay=delay)
    federate(grid, experiment, RunDirectory(tmp_path / "run"), lambda _: None)
    played = rounds_of(list(Journal(tmp_path / "run").exchanges()))
    assert all(record.arrived.all() for record in played)
    assert len(grid.kinds("parity")) == 3
    assert replay(RunDirectory(tmp_path / "run")).same


# Differences of sums.


def _node(folder: Path) -> Node:
    grid = transport_of(experiment_of(1), folder)
    return grid.node(0)


def _gradient(node: Node, load: int, **work: Any) -> Answered:
    job = asdict(Job("0" * 32, "fourier", 16, 2.0, 0, 2, columns=10))
    asked = {"kind": "gradient", "batch": 0, **work}
    if asked["kind"] == "embedded":
        asked = {"kind": "embedded", "least": 1, "grows": True, "represents": None}
    facts = {"work": asked, "round": 0, "load": load, "answered": 0, "seconds": None}
    return node.answer("work", {"job": job, **facts}, {"model": np.zeros((16, 10), np.float32)})


def test_a_difference_of_two_sums_shows_no_single_point(tmp_path: Path) -> None:
    node = _node(tmp_path)
    assert _gradient(node, 100)[0]["points"] == 100
    for load in (101, 109, 95):
        with pytest.raises(InputError, match=f"over {load} points from 0 on would show"):
            _gradient(node, load)
    assert _gradient(node, 100)[0]["points"] == 100  # the same again tells nothing new
    assert _gradient(node, 112)[0]["points"] == 112
    assert _gradient(node, 400)[0]["points"] == 400
    with pytest.raises(InputError, match="fewer than 10 points or a tenth of a sum"):
        _gradient(node, 430)  # a tenth of 430 is 43
    again = _node(tmp_path)  # another process: the cache remembers
    with pytest.raises(InputError, match="over 111 points from 0 on would show"):
        _gradient(again, 111)


def test_other_batches_and_other_kinds_count_too(tmp_path: Path) -> None:
    """The second mini-batch begins where the first ends: together they are all but five points."""
    node = _node(tmp_path)
    held = 1438
    half = held // 2
    assert _gradient(node, half)[0]["points"] == half
    assert _gradient(node, half - 5, batch=1)[0]["points"] == half - 5
    facts, _ = _gradient(node, held, kind="embedded")
    assert facts["points"] == held - 5  # all points would show those five: it answers for fewer
