"""The examples in docstrings and reference pages run, and say what they print."""

import doctest
import importlib
import os
import pkgutil
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import codedfedl
from codedfedl.runs.documents import check
from codedfedl.runs.grid import cells
from codedfedl.simulation.engine import Simulation, entries
from tests.virtual import simulation, small

ROOT = Path(__file__).parent.parent
SOURCE = Path(codedfedl.__file__).parent.parent
MODULES = ["codedfedl"] + [
    module.name for module in pkgutil.walk_packages(codedfedl.__path__, "codedfedl.")
]


# Modules that import an optional package, which may not be installed.
OF_EXTRAS = {f"codedfedl.tracking.{name}": name for name in ("mlflow", "tensorboard", "wandb")}
OF_EXTRAS["codedfedl.pacing.nvflare"] = "nvflare"


def failed_examples(name: str) -> int:
    """Run the examples in a module's docstrings; return how many fail."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != OF_EXTRAS.get(name):
            raise
        assert ">>>" not in (SOURCE / f"{name.replace('.', '/')}.py").read_text("utf-8")
        return 0
    return doctest.testmod(module).failed


def test_docstrings() -> None:
    assert {name: failed for name in MODULES if (failed := failed_examples(name))} == {}


def test_the_scheme_in_the_docs_trains() -> None:
    text = (ROOT / "docs/tutorials/own-scheme.md").read_text("utf-8")
    block = re.findall(r"```python\n(.*?)```", text, re.S)[0]
    names: dict[str, Any] = {"__name__": "momentum"}
    exec(compile(block, "own-scheme.md", "exec"), names)
    run = simulation(small(training={"epochs": 15, "step": 0.3}))
    first = run.settings[0]
    mine = {"momentum": names["Momentum"]()}
    run = Simulation(run.problem, entries(first.state.task, first.timeline.clock.fleet, mine), 0)
    for _ in run.run():
        pass
    assert float(run.settings[0].records[-1].metric) > 0.6


def test_the_experiment_in_the_docs_is_valid() -> None:
    text = (ROOT / "docs/reference/experiments.md").read_text("utf-8")
    smallest, *parts = re.findall(r"```toml\n(.*?)```", text, re.S)
    assert check(tomllib.loads(smallest), "docs/reference/experiments.md").data.name == "my.csv"
    experiment = check(tomllib.loads("\n".join(parts)), "docs/reference/experiments.md")
    assert experiment.training.target == 0.942
    assert len(cells(experiment)) == 3 * 2 * 2


@pytest.mark.extras
@pytest.mark.skipif("CODEDFEDL_DATA" not in os.environ, reason="needs the real data")
def test_the_picture_of_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    race = importlib.import_module("race")
    results = race.race(0.08)
    waiting, ours = (result.seeds[0].metric[-1] for result in results)
    assert ours > waiting + 0.05
    assert len(race.draw(results).axes[0].lines) == 2
