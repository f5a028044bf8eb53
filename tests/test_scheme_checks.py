"""`codedfedl check-scheme`, and results for a paper: tables, panels, and tests over seeds."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from tests.conftest import Run

_SCHEME = """
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from codedfedl import Ask, Description, Everyone, Gradient, Info, Scheme, State, step

LUCK = np.random.default_rng()

@dataclass(frozen=True)
class Mine(Scheme):
    keep: float = 0.5
    info: ClassVar[Info] = Info("mine")

    def ask(self, state):
        return None if state.finished else Ask(Gradient(0), Everyone())

    def receive(self, state, inbox):
        size, ridge = state.task.step_size(state.round), state.task.ridge
        model = step(state.model, inbox.total(), inbox.points, size, ridge)
        return replace(state, model=model{more}, round=state.round + 1)

    def describe(self, state):
        return Description(facts={"my_fact": self.keep})
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, more in (("sound", ""), ("lucky", " + 1e-3 * LUCK.random()"), ("slip", " + flavour")):
        (tmp_path / f"{name}_scheme.py").write_text(_SCHEME.replace("{more}", more))
    return tmp_path


def test_own_schemes_are_checked(mine: Path, run: Run) -> None:
    results = {}
    for name in ("sound", "lucky", "slip"):
        code, printed, _ = run("check-scheme", f"{name}_scheme:Mine", "--json")
        checks = {check["name"]: check for check in json.loads(printed)["checks"]}
        results[name] = code, {check for check, entry in checks.items() if not entry["holds"]}
    assert results["sound"] == (0, {"refuses"})  # keep = -1 and NaN are taken
    assert results["lucky"] == (1, {"refuses", "repeats", "resumes"})
    assert results["slip"] == (1, {"asks, and receives answers"})
    assert run("check-scheme", "uncoded")[0] == 0


def test_results_for_a_paper(mine: Path, run: Run) -> None:
    (mine / "own.toml").write_text(
        'seeds = [0, 1, 2]\ndata.name = "digits"\nfleet.clients = 6\nfeatures.n_components = 64\n'
        "[training]\nepochs = 20\ntarget = 0.7\n"
        '[[schemes]]\nname = "uncoded"\noptimiser = "gd"\n'
        '[[schemes]]\nname = "sound_scheme:Mine"\nkeep = 0.25\n[[schemes]]\nname = "balanced"\n'
    )
    code, _, error = run("simulate", "own.toml", "--out", "run")
    assert code == 0, error
    assert run("report", "run", "--table", "t.csv", "--figure", "f.png", "--width", "3.4")[0] == 0
    with (mine / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    own = [row for row in rows if row["scheme"] == "mine"]
    assert [(row["seed"], row["keep"], row["my_fact"]) for row in own] == [
        (str(seed), "0.25", "0.25") for seed in range(3)
    ]
    tested = {row["scheme"]: row["p_value"] for row in rows}
    assert tested["uncoded"] == ""
    assert 0 < float(tested["balanced"]) < 1
    assert imread(mine / "f.png").shape[1] == pytest.approx(3.4 * 160, abs=2)
    one = ("--panels", "total_hours", "--figure", "g.png", "--table", "t.tex")
    assert run("report", "run", *one)[0] == 0
    height, width = imread(mine / "g.png").shape[:2]
    assert width < 1.2 * height
    tex = (mine / "t.tex").read_text()
    assert tex.count("&") == np.ceil(tex.count("&") / 4) * 4
    assert r"my\_fact" in tex
    for options, message in (
        (("--panels", "hours"), "--panels has 'hours'"),
        (("--width", "0.1"), "must be from 1 to 50"),
        (("--table", "t.doc"), "must end in"),
    ):
        code, _, error = run("report", "run", *options)
        assert code == 2
        assert message in error


def test_a_search_ends_with_its_best_on_other_seeds(run: Run, tmp_path: Path) -> None:
    changes = ("data.batches=1", "features.n_components=40", "training.epochs=8", "fleet.clients=4")
    options = [word for change in changes for word in ("--set", change)]
    command = ("sweep", "--search", "2", "--vary", "training.step=0.5,8.0", "--seeds", "1")
    code, printed, error = run(*command, *options, "--out", tmp_path, "--json")
    assert code == 0, error
    *trials, best = json.loads(printed)["rows"]
    assert all(0.5 <= row["training.step"] <= 8 for row in trials)
    assert trials[0]["training.step"] != trials[1]["training.step"]
    assert best["training.step"] in [row["training.step"] for row in trials]
    assert "seeds = [\n    1,\n]" in (tmp_path / "best" / "config.toml").read_text()
    code, _, error = run("sweep", "--search", "0", "--vary", "training.step=0.5,8.0")
    assert code == 2
    assert "--search 0 needs trials" in error
