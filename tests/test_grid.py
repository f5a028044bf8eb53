"""Grids: which settings they are made of, that they share what they can, and which is best."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from codedfedl import Fleet, InputError
from codedfedl.report.comparison import UNITS
from codedfedl.report.figures import save_figure
from codedfedl.report.grids import sweep_figure, sweep_verdict
from codedfedl.report.outcome_tables import seed_columns
from codedfedl.report.results import outcomes
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.grid import axis, cells
from codedfedl.simulation.client_data import Problem
from codedfedl.simulation.client_data import embedded as original
from codedfedl.simulation.experiment import simulate
from tests.conftest import Run
from tests.virtual import small
from tests.waiting import interruptible

SCHEMES = [{"name": "uncoded"}, {"name": "coded", "redundancy": 0.1}]


def gridded(grid: dict[str, list[Any]], **changes: Any) -> Experiment:
    return small(schemes=SCHEMES, grid=grid, **changes)


class TestCells:
    def test_every_combination_once(self) -> None:
        found = cells(gridded({"redundancy": [0.1, 0.2], "fleet.erasure": [0.1, 0.3]}))
        assert [cell.label for cell in found] == [
            "uncoded, erasure 0.1",
            "coded 10%, erasure 0.1",
            "coded 20%, erasure 0.1",
            "uncoded, erasure 0.3",
            "coded 10%, erasure 0.3",
            "coded 20%, erasure 0.3",
        ]
        assert found[0].values == {"redundancy": None, "fleet.erasure": 0.1}
        assert found[5].values == {"redundancy": 0.2, "fleet.erasure": 0.3}
        assert found[5].experiment.fleet.erasure == 0.3
        assert found[5].config.settings == {"redundancy": 0.2}

    def test_without_a_grid_a_cell_is_a_scheme(self) -> None:
        assert [cell.label for cell in cells(small(schemes=SCHEMES))] == ["uncoded", "coded 10%"]

    def test_schemes_are_an_axis(self) -> None:
        found = cells(gridded({"scheme": ["coded", "one-shot"]}))
        assert [cell.label for cell in found] == ["coded 10%", "one-shot"]
        assert [cell.values["scheme"] for cell in found] == ["coded", "one-shot"]

    @pytest.mark.parametrize(
        ("text", "key"),
        [
            ("erasure=0.1,0.2", "fleet.erasure"),
            ("fleet=a.csv,b.csv", "fleet.name"),
            ("training.step=1,2", "training.step"),
            ("step=1,2", "step"),  # a scheme's own: fedavg has one
            ("k2=0.8", "fleet.k2"),
            ("seeds=0,1", "seeds"),
            ("scheme=coded", "scheme"),
            ("redundancy=0.1", "redundancy"),
        ],
    )
    def test_short_names(self, text: str, key: str) -> None:
        assert axis(text)[0] == key

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("redundance=0.1", "did you mean 'redundancy'"),
            ("redundancy", "write key=value,value"),
            ("redundancy=", "write key=value,value"),
            ("erasure=0.1,0.1", "a value twice"),
        ],
    )
    def test_bad_axes(self, text: str, message: str) -> None:
        with pytest.raises(InputError, match=message):
            axis(text)

    def test_settings_with_the_same_label_are_told_apart(self) -> None:
        found = cells(gridded({"redundancy": [0.1, 0.1000001]}))
        assert [cell.label for cell in found] == [
            "uncoded",
            "coded 10% (redundancy 0.1)",
            "coded 10% (redundancy 0.1000001)",
        ]
        assert len({cell.id for cell in found}) == 3
        close = [{"name": "greedy", "drop": drop} for drop in (0.1, 0.100001)]
        assert list(small(schemes=close).build_schemes()) == [
            "greedy 10% (drop 0.1)",
            "greedy 10% (drop 0.100001)",
        ]

    def test_the_same_setting_twice_is_one_cell_or_refused(self) -> None:
        schemes = [{"name": "coded", "redundancy": r} for r in (0.1, 0.2)]
        found = cells(small(schemes=schemes, grid={"redundancy": [0.1, 0.2]}))
        assert [cell.label for cell in found] == ["coded 10%", "coded 20%"]
        zeros = [{"name": "greedy", "drop": drop} for drop in (0, 0.0)]
        assert len(cells(small(schemes=zeros))) == 1
        with pytest.raises(InputError, match="two have the same name and settings"):
            small(schemes=zeros).build_schemes()

    def test_an_id_is_of_what_a_cell_is_and_not_of_where(self) -> None:
        """Neither the other cells, nor their order, nor title and seeds change it."""
        grid = {"redundancy": [0.1, 0.2], "fleet.erasure": [0.1, 0.3]}
        ids = {cell.label: cell.id for cell in cells(gridded(grid))}
        assert len(set(ids.values())) == 6
        backwards = {key: values[::-1] for key, values in reversed(grid.items())}
        again = {cell.id for cell in cells(gridded(backwards, title="again", seeds=[3]))}
        assert again == set(ids.values())
        (alone,) = cells(
            small(schemes=[{"redundancy": 0.2, "name": "coded"}], fleet={"clients": 6})
        )
        assert alone.id == ids["coded 20%, erasure 0.1"]  # 0.1 is the default
        assert all(len(cell) == 12 and int(cell, 16) >= 0 for cell in ids.values())

    def test_what_a_fleet_file_says_is_no_axis(self, tmp_path: Path) -> None:
        Fleet(points=1, rate=[1, 2], alpha=2, packet_time=1, erasure=0.1).write(tmp_path / "f.csv")
        fleet = {"name": str(tmp_path / "f.csv")}
        with pytest.raises(InputError, match=r"grid\.erasure: .*f.csv has its own"):
            cells(gridded({"fleet.erasure": [0.1, 0.5]}, fleet=fleet))
        assert len(cells(gridded({"fleet.slower": [1.0, 2.0]}, fleet=fleet))) == 4

    def test_tables_in_the_grid(self) -> None:
        """In TOML, `fleet.erasure` without quotes is a table in the table."""
        found = cells(small(schemes=SCHEMES, grid={"fleet": {"erasure": [0.1, 0.2]}}))
        assert [cell.values for cell in found][::2] == [
            {"fleet.erasure": 0.1},
            {"fleet.erasure": 0.2},
        ]
        with pytest.raises(InputError, match=r"grid\.fleet\.erasure is listed twice"):
            cells(gridded({"erasure": [0.1], "fleet.erasure": [0.2]}))
        with pytest.raises(InputError, match="seeds are not an axis"):
            cells(gridded({"seeds": [0, 1]}))

    def test_bad_values_are_named(self) -> None:
        with pytest.raises(InputError, match=r"fleet\.erasure is 1\.5"):
            cells(gridded({"fleet.erasure": [0.1, 1.5]}))
        wanted = (
            r"grid\.mixing: uncoded or coded has no such setting: add a .* \(coded-newton or sk"
        )
        with pytest.raises(InputError, match=wanted):
            cells(gridded({"mixing": [10]}))

    def test_names_that_settings_once_had(self) -> None:
        """An error gives the name of today."""
        newton, solve = ({"name": name} for name in ("coded-newton", "sketch-solve"))
        with pytest.raises(InputError, match=r"round_deadline: .* it is now 'deadline'"):
            cells(small(schemes=[newton, solve], grid={"round_deadline": [20.0, 40.0]}))
        with pytest.raises(InputError, match=r"grid\.deadline: .* it is now 'setup_deadline'"):
            cells(small(schemes=[solve], grid={"deadline": [20.0]}))
        both = small(schemes=[newton, solve], grid={"deadline": [20.0, 40.0]})
        assert [cell.config.settings for cell in cells(both)] == [
            {"deadline": 20.0},
            {"deadline": 40.0},
            {},
        ]


class TestSharing:
    def test_a_cell_is_the_run_it_stands_for(self, tmp_path: Path) -> None:
        """In lock-step with other fleets, and alone: the same hours and metrics."""
        grid = {"fleet.erasure": [0.1, 0.5], "training.ridge": [1e-5, 1e-2]}
        simulate(gridded(grid, seeds=[0, 1]), RunDirectory(tmp_path / "grid"))
        alone = small(
            schemes=SCHEMES,
            seeds=[0, 1],
            fleet={"clients": 6, "erasure": 0.5},
            training={"epochs": 4, "step": 2.0, "target": 0.5, "ridge": 1e-2},
        )
        simulate(alone, RunDirectory(tmp_path / "alone"))
        together, single = (
            pyarrow.parquet.read_table(tmp_path / name / "rounds.parquet").to_pydict()
            for name in ("grid", "alone")
        )
        for scheme in ("uncoded", "coded 10%"):
            label = f"{scheme}, erasure 0.5, ridge 0.01"
            mine = [k for k, setting in enumerate(together["setting"]) if setting == label]
            theirs = [k for k, setting in enumerate(single["setting"]) if setting == scheme]
            for column in ("seed", "round", "total_hours", "arrived"):
                assert [together[column][k] for k in mine] == [single[column][k] for k in theirs]
            np.testing.assert_allclose(
                [together["metric"][k] for k in mine],
                [single["metric"][k] for k in theirs],
                atol=0.003,  # a point of the test set may fall either way in float32
            )

    def test_points_are_embedded_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        embedded = []

        def counted(*given: Any, **how: Any) -> Problem:
            embedded.append(given)
            return original(*given, **how)

        monkeypatch.setattr("codedfedl.simulation.units.embedded", counted)
        grid = {"redundancy": [0.1, 0.3], "fleet.k2": [0.5, 0.9], "training.step": [1.0, 2.0]}
        simulate(gridded(grid), RunDirectory(tmp_path / "run"))
        assert len(embedded) == 1
        monkeypatch.setattr("codedfedl.simulation.units.SETTINGS_AT_ONCE", 2)
        simulate(gridded(grid), RunDirectory(tmp_path / "few at once"))
        assert len(embedded) == 2
        for name in ("rounds", "clients", "settings"):
            one, other = (
                pyarrow.parquet.read_table(tmp_path / folder / f"{name}.parquet").to_pydict()
                for folder in ("run", "few at once")
            )
            assert one["setting"] == other["setting"]
            if name == "rounds":
                assert one["total_hours"] == other["total_hours"]
                np.testing.assert_allclose(one["metric"], other["metric"], atol=0.003)
        simulate(gridded({"fleet.clients": [4, 5]}), RunDirectory(tmp_path / "other"))
        assert len(embedded) == 4  # another number of clients is another deal

    def test_gains_are_against_waiting_in_the_same_group(self, tmp_path: Path) -> None:
        directory = RunDirectory(tmp_path / "run")
        simulate(gridded({"fleet.erasure": [0.1, 0.8]}), directory)
        found = {o.setting: o for o in outcomes(directory)}
        for erasure in (0.1, 0.8):
            waiting, coded = (found[f"{s}, erasure {erasure}"] for s in ("uncoded", "coded 10%"))
            assert waiting.gain == 1.0
            assert waiting.training_hours[0] is not None
            assert coded.training_hours[0] is not None
            assert coded.gain == waiting.training_hours[0] / coded.training_hours[0]

    def test_sigma_from_the_data(self, tmp_path: Path) -> None:
        directory = RunDirectory(tmp_path / "run")
        features = {"kind": "fourier", "n_components": 60, "sigma": "auto"}
        simulate(small(schemes=SCHEMES, features=features), directory)
        facts = pyarrow.parquet.read_table(directory.path / "settings.parquet").to_pydict()
        assert facts["sigma"] == pytest.approx([1.53, 1.53], abs=0.01)
        assert directory.experiment().features.sigma == "auto"


class TestSweep:
    def test_which_redundancy_is_best_for_my_fleet(self, run: Run, tmp_path: Path) -> None:
        rates = np.geomspace(1, 400, 8)
        fleet = Fleet(points=1, rate=rates, alpha=2, packet_time=0.5, erasure=0.1)
        fleet.write(tmp_path / "fleet.csv")
        out = tmp_path / "sweep"
        options = ("--vary", "redundancy=0.05,0.3", "--seeds", 2, "--set", "training.epochs=30")
        code, text, err = run(
            "sweep", "--fleet", tmp_path / "fleet.csv", *options, "--out", out, "--json"
        )
        assert code == 0, err
        document = json.loads(text)
        labels = ["uncoded", "coded 5%, sparse 32", "coded 30%, sparse 32", "coded-newton"]
        assert [row["setting"] for row in document["rows"]] == labels
        table = pyarrow.parquet.read_table(out / "sweep.parquet").to_pydict()
        assert len(table["redundancy"]) == 4 * 2
        assert set(table["redundancy"]) == {None, 0.05, 0.3}
        assert (out / "sweep.png").stat().st_size > 10_000
        assert "<h2>Grid</h2>" in (out / "report.html").read_text("utf-8")
        fewest = min(
            (hours, setting)
            for setting, hours in zip(table["setting"], table["total_hours"], strict=True)
            if hours is not None
        )
        assert document["best"]["total_hours"] == fewest[1]
        directory = RunDirectory(out)
        sentences = sweep_verdict(outcomes(directory))
        assert sentences[-1].startswith("The best redundancy is 0.3")  # so much slower are some
        assert run("sweep", "--out", out)[0] == 2  # which is not empty

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--vary", "redundancy=0.1,2"], "coded.redundancy is 2"),
            (["--vary", "redundancy=a,b"], "coded.redundancy is 'a': must be a number"),
            (["--vary", "sigma=auto,big"], "features.sigma is 'big'"),
            (["--vary", "erasure=0.1", "--vary", "erasure=0.2"], "a key twice"),
            (["--seeds", "0"], "--seeds is 0"),
            (["--fleet", "nowhere.csv"], "nowhere.csv: there is no such file"),
            (["nothing"], "neither a TOML file nor a built-in"),
            (["demo"], "there is no grid: name what to vary"),
            (["--seeds", "2", "--vary", "seeds=0,1"], "set the same thing: leave one out"),
            (["--set", "seeds=[0,0]"], "a seed is listed twice"),
            (["--device", "gpu"], "--device gpu is unknown"),
            (["--device", "cupy"], "needs the package cupy"),
        ],
    )
    def test_refused_before_any_work(
        self,
        run: Run,
        tmp_path: Path,
        options: list[str],
        message: str,
    ) -> None:
        code, out, err = run("sweep", *options, "--out", tmp_path / "sweep")
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1
        assert not (tmp_path / "sweep").exists()

    def test_a_folder_hides_no_built_in_experiment(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "redundancy").mkdir()
        code, _, err = run("sweep", "redundancy", "--vary", "erasure=2", "--out", "sweep")
        assert code == 2
        assert "fleet.erasure is 2" in err

    def test_words_on_an_axis(self, tmp_path: Path) -> None:
        directory = RunDirectory(tmp_path / "run")
        simulate(gridded({"data.partition": ["iid", "sorted"]}), directory)
        found = outcomes(directory)
        columns = seed_columns(found)
        assert columns["partition"] == ["iid", "iid", "sorted", "sorted"]
        figure = sweep_figure(found)
        labels = [text.get_text() for text in figure.axes[0].get_xticklabels()]
        assert labels == ["iid", "sorted"]
        minutes = sweep_figure(found, UNITS[1]).axes[0]
        assert minutes.get_ylabel() == "minutes to the target"
        heights = [line.get_ydata() for line in figure.axes[0].lines]
        assert any(np.size(height) for height in heights)
        for height, line in zip(heights, minutes.lines, strict=True):
            np.testing.assert_allclose(np.asarray(line.get_ydata()), 60 * np.asarray(height))

    def test_nobody_meets_the_target(self, tmp_path: Path) -> None:
        directory = RunDirectory(tmp_path / "run")
        training = {"epochs": 2, "step": 2.0, "target": 0.999}
        simulate(gridded({"data.partition": ["iid", "sorted"]}, training=training), directory)
        found = outcomes(directory)
        save_figure(sweep_figure(found), tmp_path / "sweep.png")
        assert sweep_verdict(found) == ["No setting met the target on every seed."]

    def test_targets_and_data_are_axes(self, tmp_path: Path) -> None:
        directory = RunDirectory(tmp_path / "run")
        training = {"epochs": 20, "step": 2.0}
        simulate(gridded({"training.target": [0.3, 0.88]}, training=training), directory)
        found = {o.setting: o for o in outcomes(directory)}
        assert found["uncoded, target 0.3"].target == 0.3
        early, late = (found[f"uncoded, target {t}"].rounds[0] for t in (0.3, 0.88))
        assert early is not None
        assert late is not None
        assert early < late
        sentences = sweep_verdict(list(found.values()))
        assert [s.partition(":")[0] for s in sentences[::2]] == [
            "On digits, to 30.00%",
            "On digits, to 88.00%",
        ]

    def test_axes_of_the_same_name_are_told_apart(self, tmp_path: Path) -> None:
        schemes = [{"name": "fedavg", "local_steps": 2}]
        grid = {"step": [0.25, 0.5], "training.step": [1.0, 2.0]}
        directory = RunDirectory(tmp_path / "run")
        simulate(small(schemes=schemes, grid=grid), directory)
        columns = seed_columns(outcomes(directory))
        assert columns["step"] == [0.25, 0.5, 0.25, 0.5]
        assert columns["training.step"] == [1.0, 1.0, 2.0, 2.0]


@pytest.mark.slow
def test_an_interrupt_says_how_to_continue(run: Run, tmp_path: Path) -> None:
    """As a person would: Ctrl-C, then the same command with --resume; and all is as without."""
    command = ["sweep", "--json", "--seeds", "2", "--vary", "redundancy=0.1,0.3"]
    for key in ("features.n_components=100", "fleet.clients=6", "training.epochs=20"):
        command += ["--set", key]
    out, whole = tmp_path / "stopped", tmp_path / "whole"
    with interruptible():
        process = subprocess.Popen(
            [sys.executable, "-m", "codedfedl", *command, "--out", str(out)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    for _ in range(6000):
        if (out / "checkpoint.npz").exists():  # the first seed is done
            break
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "continue with the same command and --resume" in err
    status = json.loads((out / "status.json").read_text("utf-8"))
    assert (status["state"], status["error"]) == ("failed", "interrupted")
    assert "Traceback" not in err
    for folder, more in ((out, ["--resume"]), (whole, [])):
        assert run(*command, "--out", folder, *more)[0] == 0
    for path in sorted(path for path in whole.iterdir() if path.is_file()):
        if path.name not in ("checkpoint.npz", "status.json", "model.npz"):  # with times in them
            assert path.read_bytes() == (out / path.name).read_bytes(), path.name
