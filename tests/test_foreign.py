"""Somebody else's run directory: reading it runs nothing that it names."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from codedfedl.errors import InputError
from codedfedl.report.loaded_run import load_run
from codedfedl.runs.config import Experiment
from codedfedl.runs.documents import modules_of, read_experiment
from tests.conftest import Run
from tests.growing import GrowingRun, finished_run

MINE = """
from dataclasses import dataclass, replace
from typing import ClassVar
from codedfedl import Info
from codedfedl.schemes.uncoded import Uncoded

@dataclass(frozen=True)
class Mine(Uncoded):
    info: ClassVar[Info] = replace(Uncoded.info, name="mine", baseline="my baseline")
"""
EXPERIMENT = """
seeds = [0]
data.name = "digits"
fleet.clients = 3
features.n_components = 20
training.epochs = 2
training.step = 1.0
[[schemes]]
name = "mine_module:Mine"
[[schemes]]
name = "coded"
redundancy = 0.1
"""
EVIL = 'from pathlib import Path\nPath("{marker}").touch()\n' + MINE


@pytest.fixture(autouse=True)
def _no_modules_stay() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in {"mine_module", "evil"} & (set(sys.modules) - before):
        del sys.modules[name]


@pytest.fixture
def hers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> Path:
    """The run of a user's own experiment, with her own module beside it."""
    monkeypatch.chdir(tmp_path)
    Path("mine_module.py").write_text(MINE)
    Path("mine.toml").write_text(EXPERIMENT)
    code, _, err = run("simulate", "mine.toml", "--out", "hers")
    assert code == 0, err
    return tmp_path / "hers"


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


@pytest.fixture
def theirs(hers: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same run with a module that does harm when it is imported; it is the current folder."""
    theirs = Path(shutil.move(hers, hers.with_name("theirs")))
    config = theirs / "config.toml"
    config.write_text(config.read_text().replace("mine_module:Mine", "evil:Mine"))
    (theirs / "evil.py").write_text(EVIL.format(marker=marker))
    monkeypatch.chdir(theirs)
    return theirs


def test_her_own_run_is_reported_as_before_and_without_her_module(hers: Path, run: Run) -> None:
    rows = [json.loads(run("report", hers, "--json")[1])["rows"]]
    (hers.parent / "mine_module.py").unlink()
    del sys.modules["mine_module"]
    code, out, err = run("report", hers, "--json")
    assert code == 0, err
    rows.append(json.loads(out)["rows"])
    assert rows[0] == rows[1]
    mine, coded = rows[1]
    assert (mine["setting"], mine["scheme"]) == ("mine", "mine")
    assert mine["disclosure"] == ["gradients"]
    assert coded["reference"] == "mine"
    assert "my baseline" in (hers / "report.html").read_text("utf-8")


def test_it_is_resumed_and_swept(hers: Path, run: Run) -> None:
    assert run("simulate", "mine.toml", "--out", hers, "--resume")[0] == 0
    code, _, err = run("sweep", "mine.toml", "--vary", "redundancy=0.1,0.2", "--out", "swept")
    assert code == 0, err
    assert "my baseline" in Path("swept/report.html").read_text("utf-8")


@pytest.mark.parametrize("described", [True, False])
def test_a_report_imports_nothing(described: bool, theirs: Path, marker: Path, run: Run) -> None:
    """Nor of a run of an earlier version, which shows what its tables say."""
    if not described:
        (theirs / "cells.json").unlink()
    code, out, err = run("report", ".", "--figure", "figure.svg", "--json")
    assert code == 0, err
    assert [row["setting"] for row in json.loads(out)["rows"]] == ["mine", "coded 10%"]
    assert [row["disclosure"] for row in json.loads(out)["rows"]][1] == (
        ["mixed", "gradients"] if described else []
    )
    other = shutil.copytree(".", theirs.parent / "other")
    assert run("report", ".", other)[0] == 0
    assert load_run(".").outcomes
    assert not marker.exists()
    assert "evil" not in sys.modules


@pytest.mark.parametrize(
    "command",
    [
        ["audit", "."],
        ["simulate", "config.toml", "--out", ".", "--resume"],
        ["simulate", "config.toml", "--out", "again"],
        ["sweep", "config.toml", "--vary", "redundancy=0.1,0.2", "--out", "again"],
    ],
    ids=" ".join,
)
def test_what_would_run_it_asks_for_trust(
    command: list[str], theirs: Path, marker: Path, run: Run
) -> None:
    code, _, err = run(*command)
    assert code == 2
    assert "names the Python code evil:Mine" in err
    assert "--trust" in err
    assert not marker.exists()
    run(*command, "--trust")
    assert marker.exists()


def test_a_replay_asks_for_trust(theirs: Path, marker: Path, run: Run) -> None:
    code, _, err = run("simulate", "--replay", ".")
    assert (code, "--trust" in err, marker.exists()) == (2, True, False)
    _, _, err = run("simulate", "--replay", ".", "--trust")
    assert "has no [federation] table" in err


def test_a_federation_in_progress_is_watched_without_its_scheme(
    tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = GrowingRun(finished_run(tmp_path), tmp_path / "theirs")
    growing.set_up()
    growing.grow()
    growing.lock.close()
    config = growing.directory.path / "config.toml"
    config.write_text(config.read_text().replace('name = "coded-newton"', 'name = "evil:Mine"'))
    monkeypatch.chdir(growing.directory.path)
    Path("evil.py").write_text(EVIL.format(marker=marker))
    assert "evil:Mine" in config.read_text()
    assert load_run(".").outcomes
    assert not marker.exists()
    Path("cells.json").unlink()
    with pytest.raises(InputError, match="report it once it has ended"):
        _ = load_run(".").outcomes
    assert not marker.exists()


@pytest.mark.parametrize(
    ("changes", "modules"),
    [
        ({"schemes": [{"name": "a:B"}]}, ["a:B"]),
        ({"features": {"kind": "encoder", "encoder": "a:f"}}, ["a:f"]),
        ({"grid": {"scheme": ["coded", "a:B"]}}, ["a:B"]),
        ({"grid": {"encoder": ["a:f"]}}, ["a:f"]),
        ({"grid": {"features": {"encoder": ["a:f"]}}}, ["a:f"]),
        ({"features": {"kind": "encoder", "encoder": "net.onnx"}}, []),
        ({"data": {"name": "C:/data.csv"}}, []),
    ],
)
def test_all_that_an_experiment_would_import_is_listed(
    changes: dict[str, object], modules: list[str]
) -> None:
    assert modules_of(Experiment.model_validate(changes)) == modules


def test_python_asks_for_trust_too(theirs: Path, marker: Path) -> None:
    with pytest.raises(InputError, match="evil:Mine"):
        read_experiment("config.toml")
    assert not marker.exists()
    read_experiment("config.toml", trust=True)
    assert marker.exists()


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '[{"id": 3}]', "[" * 100_000, "null", '"cells"', "\0"]
)
def test_a_garbled_description_is_an_error(text: str, hers: Path, run: Run) -> None:
    (hers / "cells.json").write_text(text)
    code, _, err = run("report", hers)
    assert code == 2
    assert "cells.json" in err


def _changed(run: Path, table: str, column: str, values: Any) -> None:
    """Write a table with another column, or without it."""
    path = run / f"{table}.parquet"
    columns = pyarrow.parquet.read_table(path).to_pydict()
    columns[column] = [values] * len(columns[column])
    if values == "gone":
        del columns[column]
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


@pytest.mark.parametrize(
    ("table", "column", "values"),
    [
        ("rounds", "setting", "gone"),
        ("rounds", "seed", None),
        ("rounds", "seed", 7),
        ("rounds", "metric", "high"),
        ("rounds", "total_hours", float("nan")),
        ("rounds", "as_in_paper", "yes"),
        ("clients", "seed", "gone"),
        ("clients", "seed", 7),
        ("clients", "client", 3),
        ("clients", "rate", "fast"),
        ("settings", "scheme", None),
        ("settings", "sigma", "wide"),
        ("timeline", "round_seconds", float("inf")),
        ("timeline", "arrived", 0.5),
    ],
)
def test_tables_of_other_columns_are_an_error(
    table: str, column: str, values: Any, hers: Path, run: Run
) -> None:
    _changed(hers, table, column, values)
    code, _, err = run("report", hers)
    assert code == 2
    assert "restore" in err


@pytest.mark.parametrize("name", ["environment.json", "status.json"])
@pytest.mark.parametrize("text", ["", "[]", "3", "null", '{"state": 3}', "[" * 100_000])
def test_garbled_facts_are_an_error(name: str, text: str, hers: Path, run: Run) -> None:
    (hers / name).write_text(text)
    code, _, err = run("report", hers)
    assert code == 2
    assert name in err
