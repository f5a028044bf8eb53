"""`codedfedl reproduce … --docs` writes its rows as a table for the documentation."""

import json
import re
from pathlib import Path

import pytest

from codedfedl import __version__
from codedfedl.cli.reproduce import reproduce_command
from codedfedl.errors import InputError
from codedfedl.reproduce import REPRODUCTIONS
from codedfedl.reproduce.documented import write_table

ROW = {
    "dataset": "mnist",
    "scheme": "coded",
    "setting": "coded 10%",
    "disclosure": ["mixed", "gradients"],
    "points_per_parity_row": 400.0,
    "target": 0.942,
    "metric": "accuracy",
    "rounds": [241, 237, 347],
    "training_hours": [141.2, 137.6, None],
    "total_hours": [800.0, 742.0, 979.0],
    "gain": 2.601,
    "gain_total": None,
    "final": [0.9487, 0.9401, 0.9512],
}


def test_a_row_has_medians_ranges_and_how_many_seeds_met_the_target(tmp_path: Path) -> None:
    path = write_table(tmp_path / "docs", "table1", "codedfedl reproduce table1", {"rows": [ROW]})
    caption, _, heading, rule, row = path.read_text("utf-8").splitlines()
    assert caption.startswith(f"*Version {__version__}, 20")
    assert caption.endswith(": `codedfedl reproduce table1`.*")
    assert heading.count("|") == rule.count("|") == row.count("|")
    cells = dict(zip(heading.strip("| ").split(" | "), row.strip("| ").split(" | "), strict=True))
    assert cells["scheme"] == "coded 10%"
    assert cells["discloses"] == "mixed, gradients"
    assert cells["points a row"] == "400"
    assert cells["rounds"] == "241 (237–347)"
    assert cells["training, h"] == "139 (2/3)"
    assert cells["with set-up, h"] == "800 (742–979)"
    assert cells["gain"] == "2.60×"
    assert cells["gain, set-up charged"] == "–"
    assert cells["final"] == "94.87%"
    assert "fleet" not in cells  # no row has one


def test_rows_without_hours_to_a_target_are_written_as_they_are(tmp_path: Path) -> None:
    rows = [{"plan": "kept", "points_lost": 0.25}, {"plan": "foreseen", "points_lost": None}]
    text = write_table(tmp_path, "robustness", "c", {"settings": {"a": rows}}).read_text("utf-8")
    assert text.splitlines()[2:] == [
        "| plan | points lost |",
        "| --- | --- |",
        "| kept | 0.25 |",
        "| foreseen | |",
    ]


def test_the_command_writes_the_table_of_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(REPRODUCTIONS, "robustness", lambda _job: {"rows": [ROW]})
    docs = tmp_path / "docs"
    reproduce_command("robustness", out=tmp_path, dataset="mnist", docs=docs, as_json=True)
    assert json.loads(capsys.readouterr().out)["rows"][0]["rounds"] == [241, 237, 347]
    command = re.search(r"`(.*)`", (docs / "robustness-mnist.md").read_text("utf-8"))
    assert command is not None
    assert command[1] == "codedfedl reproduce robustness --dataset mnist --seeds 3"


def test_a_figure_has_no_rows() -> None:
    with pytest.raises(InputError, match="fig1 has no rows"):
        reproduce_command("fig1", docs=Path("docs"))
