"""Commands that messages tell people to run: they are parsed, and where possible run."""

import re
import shlex
import threading
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

from codedfedl.cli import app, following
from codedfedl.cli.federate import ServerOptions
from codedfedl.cli.following import (
    LOCAL,
    continue_hint,
    follow_run,
    run_and_follow,
    server_check,
    submit,
    watch,
)
from codedfedl.errors import InputError
from codedfedl.federate.deploy.registry import RegisteredKey, Registry
from codedfedl.federate.server.session import federate
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import read_experiment
from tests.commands import parsed
from tests.loopback import experiment_of, transport_of


def commands_in(text: str) -> list[list[str]]:
    """Return the commands that a message prints, each up to a bracket or the end of a line."""
    found = re.findall(r"codedfedl (?:federate \w+|report) [^\n(]*", text)
    return [shlex.split(command)[1:] for command in found]


class Link:
    """A SuperLink that starts a run's server in a thread, when it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.go = folder, threading.Event()
        self.registry = Registry(folder / "nodes.json")
        self.submitted: list[tuple[Path, Path]] = []
        self.server = threading.Thread(target=lambda: None)

    def submit(self, experiment: Path, out: Path) -> int:
        self.submitted.append((experiment, out))
        read = read_experiment(experiment)
        self.server = threading.Thread(target=self._serve, args=(read, out), daemon=True)
        self.server.start()
        return len(self.submitted)

    def status(self, _number: int) -> tuple[str, str]:
        return "running", ""

    def _serve(self, experiment: Experiment, out: Path) -> None:
        self.go.wait(60)
        grid = transport_of(experiment, self.folder / "nodes")
        federate(grid, experiment, RunDirectory(out), lambda _: None)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "my experiment.toml"
    path.write_text(tomli_w.dumps(experiment_of(rounds=2).model_dump(exclude_none=True)))
    return path


def test_a_run_can_be_followed_as_soon_as_it_is_submitted(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server has not begun: nothing is in the run directory but what the command wrote."""
    out, link = tmp_path / "my run", Link(tmp_path)
    monkeypatch.setattr(ServerOptions, "link", lambda _self: link)
    done = CliRunner().invoke(app, ["federate", "run", str(written), "--out", str(out)])
    assert done.exit_code == 0, done.output
    [command] = commands_in(done.stderr)
    assert parsed(command)["run"] == str(out)

    def watch_and_go(*arguments: Any) -> None:
        link.go.set()
        watch(*arguments)

    monkeypatch.setattr(following, "watch", watch_and_go)
    assert CliRunner().invoke(app, command).exit_code == 0
    link.server.join()
    assert (out / "report.html").is_file()


def test_a_run_that_is_over_names_a_command_that_reports_it(tmp_path: Path) -> None:
    experiment, directory = experiment_of(rounds=1), RunDirectory(tmp_path / "my run")
    federate(transport_of(experiment, tmp_path / "nodes"), experiment, directory, lambda _: None)
    with pytest.raises(InputError) as error:
        follow_run(directory.path, None, [])
    [command] = commands_in(str(error.value))
    assert CliRunner().invoke(app, command).exit_code == 0
    assert (directory.path / "report.html").is_file()


class Stopping(Link):
    """A SuperLink whose runs are stopped at once."""

    def submit(self, experiment: Path, out: Path) -> int:
        RunDirectory(out).status.stopped()
        return 1


def test_a_run_that_was_stopped_is_continued_with_the_printed_command(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out, stopping, link = tmp_path / "my run", Stopping(tmp_path), Link(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_and_follow(stopping, read_experiment(written), out, None)  # type: ignore[arg-type]
    [command] = commands_in(capsys.readouterr().err)
    link.go.set()
    monkeypatch.setattr(ServerOptions, "link", lambda _self: link)
    assert CliRunner().invoke(app, command).exit_code == 0
    link.server.join()
    status = RunDirectory(out).status.read()
    assert status is not None
    assert (status.state, status.round) == ("done", 2)


def test_keys_that_a_run_waits_for_are_named_at_once(
    written: Path, tmp_path: Path, capsys: Any
) -> None:
    link: Any = Stopping(tmp_path)
    submit(link, read_experiment(written), tmp_path / "plaintext")
    assert capsys.readouterr().err == ""
    link.registry.begin()
    link.registry.add(RegisteredKey("ada", 7, "key of ada"))
    submit(link, read_experiment(written), tmp_path / "run")
    said = " ".join(capsys.readouterr().err.split())
    assert "warning: 1 keys are registered as node, of 3 that the run waits for" in said
    assert [command[:2] for command in commands_in(said)] == [["federate", "register"]]


def test_a_dead_server_names_a_command_that_continues_the_run(
    written: Path, tmp_path: Path
) -> None:
    directory = RunDirectory(tmp_path / "my run")
    directory.open(read_experiment(written), resume=False)
    directory.announce("round 1 of 2")
    with pytest.raises(InputError, match="is dead") as error:
        server_check(directory)()
    [command] = commands_in(str(error.value))
    given = parsed(command)
    assert given["out"] == str(directory.path)
    assert read_experiment(given["federation"]) == directory.experiment()
    (directory.path / LOCAL).mkdir()  # which no other server continues
    assert continue_hint(directory).endswith("same federate local command and --resume")


def test_a_submission_that_fails_leaves_its_reason(written: Path, tmp_path: Path) -> None:
    class Broken:
        registry = Registry(tmp_path / "nodes.json")

        def submit(self, _experiment: Path, _out: Path) -> int:
            raise InputError("the engine takes no runs")

    link: Any = Broken()
    with pytest.raises(InputError, match="takes no runs"):
        submit(link, read_experiment(written), tmp_path / "run")
    status = RunDirectory(tmp_path / "run").status.read()
    assert status is not None
    assert (status.state, status.error) == ("failed", "the engine takes no runs")
