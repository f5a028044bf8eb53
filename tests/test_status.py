"""`status.json`: what a run is doing, for whoever follows it."""

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from codedfedl import InputError
from codedfedl.cli import following
from codedfedl.cli.following import submit
from codedfedl.federate.server.session import federate
from codedfedl.report.results import outcomes
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.status import Status, StatusFile, reason
from codedfedl.simulation.experiment import simulate
from tests.conftest import Run
from tests.loopback import experiment_of, transport_of
from tests.virtual import small
from tests.waiting import eventually

KEYS = {"state", "doing", "round", "rounds", "metric", "updated", "error"}
SCHEMES = [{"name": "uncoded"}]


def read(directory: RunDirectory) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((directory.path / "status.json").read_text("utf-8"))
    assert set(document) == KEYS
    return document


def test_a_simulation_from_beginning_to_end(tmp_path: Path) -> None:
    directory, states = RunDirectory(tmp_path / "run"), []
    simulate(
        small(schemes=SCHEMES), directory, watch=lambda _what, _p: states.append(read(directory))
    )
    assert {state["state"] for state in states} == {"running"}
    end = read(directory)
    assert (end["state"], end["round"], end["error"]) == ("done", end["rounds"], None)
    assert end["metric"] == pytest.approx(outcomes(directory)[0].final[0])
    age = datetime.now(UTC) - datetime.fromisoformat(end["updated"])
    assert timedelta(0) <= age < timedelta(minutes=10)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (InputError("the fleet is empty: add a client"), "the fleet is empty: add a client"),
        (KeyboardInterrupt(), "interrupted"),
        (ValueError("odd"), "this is a bug: ValueError: odd"),
    ],
)
def test_why_a_run_failed(error: BaseException, told: str, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")

    def stop(_what: str, progress: Any) -> None:
        if progress is not None:
            raise error

    with pytest.raises(type(error)):
        simulate(small(schemes=SCHEMES), directory, watch=stop)
    assert (read(directory)["state"], read(directory)["error"]) == ("failed", told)
    with pytest.raises(InputError, match=r"not finished: it is failed .*; continue with --resume"):
        outcomes(directory)
    simulate(small(schemes=SCHEMES), directory, resume=True)
    assert (read(directory)["state"], read(directory)["error"]) == ("done", None)


def test_a_federation_from_beginning_to_end(tmp_path: Path) -> None:
    experiment, directory = experiment_of(), RunDirectory(tmp_path / "run")
    doing = []

    def say(sentence: str) -> None:
        doing.append((sentence, directory.status.read()))

    federate(transport_of(experiment, tmp_path / "nodes"), experiment, directory, say)
    assert all(status is not None and status.state == "running" for _, status in doing)
    end = read(directory)
    assert (end["state"], end["round"], end["rounds"]) == ("done", 3, 3)
    assert end["metric"] > 0.7


def test_a_federation_that_fails_says_why(tmp_path: Path) -> None:
    experiment, directory = (
        experiment_of(ready_timeout=1.0, clients=3),
        RunDirectory(tmp_path / "r"),
    )
    grid = transport_of(experiment_of(2), tmp_path / "nodes")
    with pytest.raises(InputError) as raised, directory.logged() as say:
        federate(grid, experiment, directory, say)
    assert read(directory)["state"] == "failed"
    assert read(directory)["error"] == str(raised.value)


def test_whoever_finds_a_run_in_use_leaves_its_status_alone(tmp_path: Path) -> None:
    experiment, directory = experiment_of(), RunDirectory(tmp_path / "run")
    with directory.opened(experiment) as status:
        status.running("waiting for nodes", round_=2, rounds=9)
        other = RunDirectory(tmp_path / "run")
        with (
            pytest.raises(InputError, match="by another process"),
            other.logged() as say,
        ):
            federate(transport_of(experiment, tmp_path / "nodes"), experiment, other, say)
        with pytest.raises(InputError, match="by another process"):
            other.announce("starting")
        seen = read(directory)
        assert (seen["state"], seen["doing"], seen["round"]) == ("running", "waiting for nodes", 2)


def _contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class _NoLink:
    def submit(self, _experiment: Path, _out: Path) -> int:
        raise AssertionError("it was submitted")


def test_a_second_command_on_a_busy_directory_changes_nothing(tmp_path: Path) -> None:
    """Neither one that may resume the run with longer timeouts, nor any other."""
    path, patient = tmp_path / "run", experiment_of(setup_timeout=999.0)
    link: Any = _NoLink()
    commands: dict[str, Callable[[], object]] = {
        "open": lambda: RunDirectory(path).open(patient, resume=True),
        "local": lambda: RunDirectory(path).commanded(patient, resume=True).__enter__(),
        "run": lambda: submit(link, patient, path),
    }
    with RunDirectory(path).opened(experiment_of()):
        before = _contents(path)
        for name, command in commands.items():
            with pytest.raises(InputError, match="worked on by another process"):
                command()
            assert _contents(path) == before, name
    with RunDirectory(path).opened(patient):  # once it is free, timeouts may change
        assert RunDirectory(path).experiment() == patient


def test_two_simulations_do_not_work_on_one_run(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    with directory.opened(small()):
        before = _contents(directory.path)
        with pytest.raises(InputError, match="worked on by another process"):
            simulate(small(), RunDirectory(tmp_path / "run"), resume=True)
        assert _contents(directory.path) == before
    simulate(small(), directory, resume=True)
    assert read(directory)["state"] == "done"


def test_two_commands_do_not_start_servers_for_one_run(tmp_path: Path) -> None:
    """Until the first one's server has the lock of the run, the command has one of its own."""
    directory = RunDirectory(tmp_path / "run")
    with directory.commanded(experiment_of(), resume=False):
        before = _contents(directory.path)
        with (
            pytest.raises(InputError, match="worked on by another process"),
            RunDirectory(directory.path).commanded(experiment_of(rounds=9), resume=True),
        ):
            pass
        assert _contents(directory.path) == before
        with directory.opened(experiment_of()):  # the server
            pass


def test_a_refused_attempt_does_not_undo_what_is_done(tmp_path: Path) -> None:
    experiment, directory = experiment_of(), RunDirectory(tmp_path / "run")
    grid = transport_of(experiment, tmp_path / "nodes")
    federate(grid, experiment, directory, lambda _: None)
    with pytest.raises(InputError, match="holds a run with"), directory.logged() as say:
        federate(grid, experiment_of(deadline=9.0), directory, say)
    assert read(directory)["state"] == "done"


def test_errors_before_a_run_leave_no_directory(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    with pytest.raises(InputError), directory.logged():
        raise InputError("no such file")
    assert not directory.path.exists()


def test_the_status_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    assert StatusFile(path).read() is None
    path.write_text('{"state": "done", "doing": "done", "colour": "red"}')
    assert StatusFile(path).read() == Status("done", "done")
    path.write_text("{")
    with pytest.raises(InputError, match="delete it"):
        StatusFile(path).read()


def test_a_report_says_what_state_a_run_is_in(run: Run, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    simulate(small(schemes=SCHEMES), directory)
    assert "note:" not in run("report", directory.path)[2]
    directory.status.running("seed 1", round_=3, rounds=8)
    code, _, err = run("report", directory.path)
    assert code == 0
    assert "is running after round 3 of 8 (seed 1), last updated" in err
    (directory.path / "rounds.parquet").unlink()
    code, _, err = run("report", directory.path)
    assert code == 2
    assert "the run is not finished: it is running after round 3 of 8" in err


class Engine:
    """A local federation whose server does one thing at each look."""

    def __init__(self, directory: RunDirectory, *ends: str) -> None:
        self.directory, self.ends, self.nodes = directory, list(ends), [None, None]

    def submit(self, _experiment: Path, _out: Path) -> int:
        status = self.directory.status
        status.running("round 1 of 2")
        with self.directory.logged() as say:
            say("error: no")  # what is said is for people
            say("done: not yet")
        if self.ends == ["failed"]:
            status.failed("no parity from ada: look at its log")
        elif self.ends == ["bug"]:
            status.failed(reason(AttributeError("x")))
        elif self.ends:
            status.done()
        return 1

    def revive(self) -> None:
        raise AssertionError("nobody died")


def test_federate_local_follows_the_status_and_not_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "POLL_SECONDS", 0.0)
    directory = RunDirectory(tmp_path / "run")
    directory.open(experiment_of(), resume=False)
    directory.status.failed("of an earlier attempt")
    directory.announce("starting")
    engine: Any = Engine(directory, "done")
    assert following.follow_local(engine, directory, kill=0) == {}
    engine = Engine(directory, "failed")
    with pytest.raises(InputError, match="no parity from ada: look at its log"):
        following.follow_local(engine, directory, kill=0)
    engine = Engine(directory, "bug")
    bug = pytest.raises(RuntimeError, match="AttributeError: x; its traceback is in .*server.log")
    with bug, directory.failures_noted():
        following.follow_local(engine, directory, kill=0)
    status = directory.status.read()
    assert status is not None
    assert status.error == "this is a bug: AttributeError: x"  # as its server wrote it


def test_the_engine_is_asked_without_waiting_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that never answers does not hold up what is shown; three errors are one."""
    monkeypatch.setattr(following, "ENGINE_POLL_SECONDS", -1.0)
    answers, looks = threading.Event(), []

    def slow() -> bool:
        answers.wait(60)
        return True

    ended = following.engine_check(slow, lambda: looks.append(1))
    assert [ended() for _ in range(50)] == [False] * 50
    assert looks == [1]  # not again while it is being asked
    answers.set()
    eventually(ended, 60, "the answer did not come")

    def broken() -> bool:
        raise InputError("no SuperLink")

    failing = following.engine_check(broken)
    with pytest.raises(InputError, match="no SuperLink"):
        eventually(failing, 60, "it was not said")
