"""What a notebook shows: tables with escaped names, pictures, data frames; and the example."""

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from codedfedl import (
    Devices,
    Fleet,
    InputError,
    Plan,
    Traces,
    fit,
    load_run,
    paper_fleet,
    phone_fleet,
    plan,
    simulate,
)
from codedfedl.io.notebook import html_table
from codedfedl.report.fleet_figures import round_parts
from codedfedl.runs.directory import RunDirectory
from tests.virtual import small

EVIL = "<script>alert('x')</script>&"
NOTEBOOK = Path(__file__).parent.parent / "examples" / "fleet-to-model.ipynb"


class Cells(HTMLParser):
    """Reads the cells and the caption of a table, and refuses any other element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag in {"table", "caption", "b", "thead", "tbody", "tr", "th", "td", "p"}
        assert not attrs

    def handle_data(self, data: str) -> None:
        self.cells.append(data)


def shown(thing: Any) -> list[str]:
    return Cells(thing._repr_html_()).cells


def fleet(**changes: Any) -> Fleet:
    columns: dict[str, Any] = {
        "points": [400, 300],
        "rate": [2, 20],
        "alpha": 2,
        "packet_time": 3,
        "erasure": 0.1,
    }
    return Fleet(**columns | {"client": [EVIL, "b"]} | changes)


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "run"
    schemes = [{"name": "uncoded"}, {"name": "coded", "redundancy": 0.1}]
    simulate(small(title=EVIL, schemes=schemes, seeds=[0, 1]), path)
    return path


def test_a_fleet_shows_what_differs_from_the_usual() -> None:
    assert {"400", "2", "0.1", EVIL} <= set(shown(fleet()))
    assert not {"packet_time_up", "overhead", "availability"} & set(shown(fleet()))
    assert {"packet_time_up", "availability"} <= set(
        shown(fleet(packet_time_up=[3, 4], availability=[1, 0.9]))
    )
    devices = Devices(mac_rate=[1e6], bit_rate=[1e5], alpha=2, erasure=0, client=[EVIL])
    assert EVIL in shown(devices)


def test_a_plan_shows_deadline_loads_and_names() -> None:
    chosen = plan(fleet(), redundancy=0.1)
    cells = shown(chosen)
    assert EVIL in cells
    assert any(f"Deadline {chosen.deadline:,.4g} s" in cell for cell in cells)
    assert f"{chosen.return_probabilities[0]:.1%}" in cells


def test_a_fit_shows_estimates_and_warnings() -> None:
    rng = np.random.default_rng(1)
    load = np.repeat([100.0, 200.0], 50)
    seconds = 2 + load / 50 * (1 + rng.exponential(1 / 4, 100))
    found = fit(Traces(np.repeat(EVIL, 100), load, total=seconds))
    cells = shown(found)
    assert {EVIL, "100/100", "rate", "yes"} <= set(cells)
    assert "erasure" not in cells  # not identified by totals alone
    png = found.plot()._repr_png_()
    assert png.startswith(b"\x89PNG")


def test_a_run_shows_its_results(run_path: Path) -> None:
    run = load_run(run_path)
    cells = shown(run)
    assert any(cell.startswith(EVIL) for cell in cells)
    assert {"uncoded", "coded 10%"} <= set(cells)
    final = np.median(run.outcomes[1].final)
    assert f"{final:.2%}" in cells


def test_many_rows_are_cut_and_counted() -> None:
    cells = Cells(html_table({"client": range(1000), "rate": np.full(1000, np.nan)})).cells
    assert cells.count("–") == 20
    assert cells[-1] == "and 980 more"


def test_nothing_is_drawn_until_it_is_asked_for() -> None:
    text = (
        "import sys; from codedfedl import paper_fleet, plan; f = paper_fleet(); "
        "f._repr_html_(); plan(f, redundancy=0.1)._repr_html_(); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert not {"matplotlib", "pandas", "pyarrow", "scipy"} & set(done.stdout.split())


def test_the_parts_of_a_round_add_up_to_its_mean() -> None:
    whole = paper_fleet()
    parts = round_parts(whole)
    mean = whole.mean(whole.points)
    np.testing.assert_allclose(sum(parts.values()), mean, rtol=1e-9)


def test_pictures_of_a_fleet_and_a_plan(tmp_path: Path) -> None:
    some = fleet(client=["a$b$", "b"])  # dollar signs are no formulas
    chosen = plan(some, redundancy=0.1)
    assert isinstance(chosen, Plan)
    assert len(chosen.plot().figure.axes) == 2
    assert len(chosen.plot(some).figure.axes) == 3
    labels = [text.get_text() for text in some.plot().figure.axes[0].get_xticklabels()]
    assert labels == [r"a\$b\$", "b"]  # the slowest first
    some.plot().save(tmp_path / "fleet.svg")
    assert (tmp_path / "fleet.svg").read_text("utf-8").startswith("<?xml")
    assert phone_fleet(500).plot()._repr_png_().startswith(b"\x89PNG")


def test_tables_are_data_frames(run_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    run = load_run(run_path)
    assert isinstance(run.rounds, pandas.DataFrame)
    written = pyarrow.parquet.read_table(run_path / "rounds.parquet").to_pandas()
    for name in written:
        np.testing.assert_array_equal(run.rounds[name], written[name])
    assert len(run.clients) == 2 * 2 * 6
    assert sorted(run.results["seed"]) == [0, 0, 1, 1]
    assert run.results["final"].tolist() == [m for o in run.outcomes for m in o.final]
    assert len(run.settings) == 4
    assert run.timeline["round"].max() <= 8
    assert len(run.plot().figure.axes) == 3
    assert run.model.predict(np.zeros((3, 64))).shape == (3,)
    assert run.write_report().read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.extras
def test_tables_are_polars_frames(run_path: Path) -> None:
    polars = pytest.importorskip("polars")
    run = load_run(run_path, "polars")
    assert isinstance(run.rounds, polars.DataFrame)
    assert run.rounds["metric"].to_list() == load_run(run_path).rounds["metric"].tolist()
    assert run.results.columns == list(load_run(run_path).results.columns)


def test_what_cannot_be_loaded(run_path: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run directory"):
        load_run(tmp_path)
    with pytest.raises(InputError, match="frames is 'arrow': must be pandas or polars"):
        load_run(run_path, "arrow")
    unfinished = RunDirectory(tmp_path / "begun")
    unfinished.open(small(), resume=False)
    with pytest.raises(InputError, match="the run is not finished"):
        _ = load_run(unfinished.path).rounds


@pytest.mark.extras
@pytest.mark.filterwarnings("default")  # of Jupyter
def test_the_example_notebook(tmp_path: Path) -> None:
    """Runs as it is from beginning to end, shows tables and pictures, and leaves a run."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    (tmp_path / "fleet.csv").write_bytes(NOTEBOOK.with_name("fleet.csv").read_bytes())
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # kept without
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert kinds.count("image/png") == 3
    assert kinds.count("text/html") == 4  # fleet, plan, run and a data frame
    (said,) = [output["text"] for output in outputs if output["output_type"] == "stream"]
    assert float(said.partition("%")[0]) > 90
    assert (tmp_path / "runs" / "notebook" / "report.html").stat().st_size > 100_000
