import json
import re
from pathlib import Path

import pytest

from codedfedl import paper_fleet, plan
from codedfedl.cli.charged_plans import charged_views
from tests.conftest import Run

HEADER = "client,points,rate,alpha,packet_time,erasure"


@pytest.fixture
def fleet_file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.csv"
    path.write_text(f"{HEADER}\nphone,40,2,2,3,0.1\nsensor,60,1,1,5,0.2\n")
    return path


class TestPlan:
    def test_json_contract(self, run: Run) -> None:
        code, out, _ = run("plan", "paper", "--redundancy", 0.2, "--json")
        document = json.loads(out)
        expected = plan(paper_fleet(), 0.2)
        assert code == 0  # messages, such as what took long, go to stderr
        assert document["deadline_s"] == expected.deadline
        assert document["points"] == 12_000
        assert document["parity_rows"] == 2400
        assert document["expected_return"] == expected.expected_return
        assert len(document["clients"]) == 30
        assert document["gain"] == pytest.approx(5.87, abs=0.02)
        assert set(document["clients"][0]) == {"client", "points", "load", "return_probability"}

    def test_cold_start(self, run: Run) -> None:
        code, out, _ = run("plan", "paper", "--excess", 0.2, "--json")
        document = json.loads(out)
        assert code == 0
        total = document["setup_deadline_s"] + document["rounds"] * document["round_deadline_s"]
        assert document["predicted_hours"] == pytest.approx(total / 3600)
        assert document["predicted_excess"] <= 0.2
        rows = [client["parity_rows"] for client in document["clients"]]
        assert document["parity_rows"] == sum(rows)
        assert all(c["embedded"] >= 2 * c["parity_rows"] for c in document["clients"])
        _, out, _ = run("plan", "paper", "--excess", 0.2)
        assert "parity rows of ten points each" in out
        assert f"{document['rounds']} rounds of" in out

    def test_table_says_what_an_engineer_asks(self, run: Run) -> None:
        code, out, _ = run("plan", "paper")
        assert code == 0
        assert "2,099 s (35.0 min)" in out
        assert "2.65× over waiting for everybody" in out
        assert "25 clients all their points, 5 a part, 0 none" in out
        assert "\x1b" not in out  # no colour when piped

    def test_same_output_twice(self, run: Run, tmp_path: Path) -> None:
        figures = [tmp_path / "a.svg", tmp_path / "b.svg"]
        outputs = [run("plan", "paper", "--figure", figure)[1] for figure in figures]
        assert outputs[0] == outputs[1]
        assert figures[0].read_bytes() == figures[1].read_bytes()

    def test_own_fleet_with_files_out(self, run: Run, fleet_file: Path, tmp_path: Path) -> None:
        table, figure = tmp_path / "plan.parquet", tmp_path / "plan.png"
        code, out, err = run("plan", fleet_file, "--out", table, "--figure", figure)
        assert code == 0
        assert "phone" in out
        assert "sensor" in out
        assert str(table) in err
        assert table.stat().st_size > 0
        assert figure.read_bytes().startswith(b"\x89PNG")

    def test_device_file(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "devices.csv"
        path.write_text("client,mac_rate,bit_rate,alpha,erasure\na,4e5,1e5,2,0.1\n")
        work = ("--points", 50, "--features", 100, "--labels", 2)
        code, out, _ = run("plan", path, *work, "--json")
        assert code == 0
        assert json.loads(out)["points"] == 50

    def test_server_and_rounds_choose_the_rows(self, run: Run) -> None:
        _, out, _ = run("plan", "paper", "--server-rate", 1, "--json")
        assert 0 < json.loads(out)["server_return_probability"] < 1
        _, table, _ = run("plan", "paper", "--server-rate", 1)
        assert "divide the coded gradient" in table
        _, out, _ = run("plan", "paper", "--rounds", 400, "--json")
        document = json.loads(out)
        assert document["parity_rows"] < 1200  # dense parity is dear
        rule, free = document["charged"]["rule"], document["charged"]["hours"]
        for one in (rule, free):
            assert one["total_s"] == pytest.approx(one["setup_s"] + 400 * one["deadline_s"])
        assert document["charged"]["rule_costs"] == rule["total_s"] / free["total_s"] > 2
        assert free["excess_bound"] <= 1
        *_, sentence = charged_views(document["charged"], 400)
        costs = document["charged"]["rule_costs"]
        assert f"The rule takes {costs:.1f} times as long" in str(sentence)

    def test_clients_who_may_be_absent(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "fleet.csv"
        path.write_text(f"{HEADER},availability\na,40,2,2,3,0.1,0.95\nb,60,1,1,5,0.2,1\n")
        code, out, _ = run("plan", path)
        assert code == 0
        assert "would never end" in out
        assert json.loads(run("plan", path, "--json")[1])["wait_for_all_s"] is None

    def test_a_large_fleet_is_summarised(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "fleet.csv"
        rows = [f"{j},10,{1 + j % 7},2,1,0.1" for j in range(300)]
        path.write_text("\n".join([HEADER, *rows]))
        code, out, _ = run("plan", path, "--figure", tmp_path / "f.png")
        assert code == 0
        assert "The 40 of 300 clients least likely to answer" in out


class TestBadInput:
    """Exit code 2, one line that says what and where, and nothing written."""

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            ("a,40,fast,2,3,0.1", "line 2: rate is 'fast': write a number"),
            ("a,40,0,2,3,0.1", "rate of client a is 0: must be finite and above 0"),
            ("a,40,1,2,3,1", "erasure of client a is 1: must be at least 0 and below 1"),
            ("a,40,inf,2,3,0.1", "rate of client a is inf"),
            ("a,40,nan,2,3,0.1", "rate"),
            ("", "no rows"),
        ],
    )
    def test_fleet_files(self, run: Run, tmp_path: Path, rows: str, message: str) -> None:
        path, out = tmp_path / "fleet.csv", tmp_path / "plan.parquet"
        path.write_text(f"{HEADER}\n{rows}\n" if rows else f"{HEADER}\n")
        code, printed, err = run("plan", path, "--out", out)
        assert (code, printed) == (2, "")
        assert message in err
        assert err.count("\n") == 1
        assert not out.exists()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["nowhere.csv"], "cannot read nowhere.csv: there is no such file"),
            (["fleet.txt"], "must end in .csv or .parquet"),
            (["paper", "--redundancy", 0], "redundancy is 0: must lie between 0 and 1"),
            (["paper", "--redundancy", 1.5], "redundancy is 1.5"),
            (["paper", "--rows", 12001], "parity_rows is 12001"),
            (["paper", "--rows", 5, "--redundancy", 0.1], "give one of"),
            (["paper", "--rounds", 5, "--redundancy", 0.1], "leave one out"),
            (["paper", "--rounds", 0], "rounds is 0"),
            (["paper", "--excess", 0.2, "--rounds", 5], "leave one out"),
            (["paper", "--excess", 0], "excess is 0"),
            (["paper", "--excess", 0.2, "--points", 1], "every client has fewer points"),
            (["paper", "--max-rows", 5], "give --server-rate too"),
            (["paper", "--server-rate", 0], "the server's rate is 0"),
            (["paper", "--out", "plan.xlsx"], "must end in .csv or .parquet"),
            (["paper", "--out", "no/plan.csv"], "create it"),
            (["paper", "--figure", "plan.jpg"], "must end in .png"),
            (["paper", "--features", 0], "features is 0"),
            (["paper", "--points", -1], "points of client 0 is -1"),
            (["paper", "--seed", -1], "seed is -1"),
            (["paper", "--out", "/proc/plan.csv"], "cannot write /proc/plan.csv"),
        ],
    )
    def test_arguments(self, run: Run, arguments: list[object], message: str) -> None:
        code, printed, err = run("plan", *arguments)
        assert (code, printed) == (2, "")
        assert message in err

    def test_names_are_text_and_nothing_else(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "fleet.csv"
        path.write_text(f"{HEADER}\n[/nope],40,2,2,3,0.1\n$x^{{$,60,1,1,5,0.2\n")
        code, out, _ = run("plan", path, "--figure", tmp_path / "f.png")
        assert code == 0
        assert "[/nope]" in out

    def test_the_fleet_file_is_not_overwritten(self, run: Run, fleet_file: Path) -> None:
        before = fleet_file.read_bytes()
        code, _, err = run("plan", fleet_file, "--out", fleet_file)
        assert code == 2
        assert "is the fleet file itself" in err
        assert fleet_file.read_bytes() == before

    def test_points_are_said_once(self, run: Run, fleet_file: Path) -> None:
        code, _, err = run("plan", fleet_file, "--points", 5)
        assert code == 2
        assert "leave --points out" in err

    def test_unreachable_target(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "fleet.csv"
        path.write_text(f"{HEADER},availability\na,40,2,2,3,0.1,0.5\n")
        code, _, err = run("plan", path)
        assert code == 2
        assert "out of reach" in err
        assert "raise the redundancy" in err

    def test_unknown_option_and_command(self, run: Run) -> None:
        assert run("plan", "paper", "--redundancee", 0.1)[0] == 2
        assert run("plam")[0] == 2

    def test_traceback_only_on_request(self, run: Run) -> None:
        assert "Traceback" not in run("plan", "none.csv")[2]
        assert "Traceback" in run("--debug", "plan", "none.csv")[2]

    def test_a_misspelt_fleet(self, run: Run) -> None:
        code, _, err = run("plan", "papier")
        assert code == 2
        assert "neither a file that ends in .csv or .parquet, nor" in err
        assert "did you mean 'paper'?" in err

    def test_parity_for_every_point_is_pointed_out(self, run: Run) -> None:
        code, out, err = run("plan", "paper", "--redundancy", 0.999999, "--json")
        assert code == 0
        assert json.loads(out)["deadline_s"] == 0
        assert "note: 12,000 parity rows stand for all 12,000 points" in err
        assert "note" not in run("plan", "paper", "--redundancy", 0.1)[2]


class TestReproduce:
    def test_fig1(self, run: Run, tmp_path: Path) -> None:
        code, out, _ = run("reproduce", "fig1", "--out", tmp_path / "new", "--json")
        document = json.loads(out)
        assert code == 0
        assert len(document["pieces"]) == 4
        assert document["alpha"] == 20
        for name in ("fig1.svg", "fig1.png"):
            assert (tmp_path / "new" / name).stat().st_size > 10_000

    def test_sentence(self, run: Run, tmp_path: Path) -> None:
        _, out, _ = run("reproduce", "fig1", "--out", tmp_path)
        assert "best load at t = 10 s, α = 20: 5.489 points" in out

    def test_bad_alpha(self, run: Run, tmp_path: Path) -> None:
        code, _, err = run("reproduce", "fig1", "--alpha", 0, "--out", tmp_path / "new")
        assert code == 2
        assert "alpha of client 0 is 0" in err
        assert not (tmp_path / "new").exists()


TINY = """
seeds = [0, 1]
[data]
name = "digits"
batches = 1
[fleet]
clients = 5
[features]
n_components = 50
sigma = 2.0
[training]
epochs = 5
step = 2.0
target = 0.5
[[schemes]]
name = "uncoded"
[[schemes]]
name = "coded"
redundancy = 0.2
"""


class TestSimulate:
    @pytest.fixture
    def toml(self, tmp_path: Path) -> Path:
        path = tmp_path / "tiny.toml"
        path.write_text(TINY)
        return path

    def test_run_report_and_resume(self, run: Run, toml: Path, tmp_path: Path) -> None:
        out = tmp_path / "run"
        code, printed, err = run("simulate", toml, "--out", out, "--json")
        rows = json.loads(printed)["rows"]
        assert code == 0
        assert [row["setting"] for row in rows] == ["uncoded", "coded 20%"]
        assert len(rows[0]["training_hours"]) == 2
        assert str(out / "report.html") in err
        lines = err.splitlines()  # a line for every stage, since nobody watches a bar
        assert [line.partition(":")[0] for line in lines[:3]] == [
            "reading data",
            "seed 0",
            "seed 0",
        ]
        assert re.fullmatch(r"seed 0: 5 rounds in \d+\.\d s", lines[2])
        files = {path.name for path in out.iterdir()}
        assert files == {
            ".lock",
            "cells.json",
            "config.toml",
            "environment.json",
            "rounds.parquet",
            "clients.parquet",
            "settings.parquet",
            "timeline.parquet",
            "checkpoint.npz",
            "model.npz",
            "models",
            "report.html",
            "status.json",
        }
        assert run("simulate", toml, "--out", out)[0] == 2  # not empty
        assert run("simulate", toml, "--out", out, "--resume", "--json")[1] == printed
        assert run("report", out, "--json")[1] == printed
        assert "coded 20%" in run("report", out)[1]

    def test_another_configuration(self, run: Run, toml: Path, tmp_path: Path) -> None:
        out = tmp_path / "run"
        run("simulate", toml, "--out", out)
        before = {path: path.read_bytes() for path in out.rglob("*.*") if path.is_file()}
        change = ("--set", "training.epochs=6", "--set", 'schemes=[{name="coded",redundancy=0.3}]')
        code, _, err = run("simulate", toml, "--out", out, "--resume", *change)
        assert code == 2
        assert "holds a run with training.epochs" in err
        assert "not 6; schemes" in err
        (tmp_path / "empty").touch()
        assert "is a file, not a folder" in run("simulate", toml, "--out", tmp_path / "empty")[2]
        after = {path: path.read_bytes() for path in out.rglob("*.*") if path.is_file()}
        assert after == before

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ("data.name=digitz", "digits"),
            ("data.batches=2000", "batches"),
            ("fleet.clients=2000", "clients"),
            ("fleet.name=none.csv", "no such file"),
            ("training.epoch=3", "did you mean 'epochs'"),
        ],
    )
    def test_bad_input(
        self, run: Run, toml: Path, tmp_path: Path, change: str, message: str
    ) -> None:
        out = tmp_path / "run"
        code, printed, err = run("simulate", toml, "--out", out, "--set", change)
        assert (code, printed) == (2, "")
        assert message in err
        assert not out.exists()

    def test_one_class_cannot_be_learned(self, run: Run, toml: Path, tmp_path: Path) -> None:
        table = tmp_path / "table.csv"
        table.write_text("x,kind\n" + "".join(f"{j},yes\n" for j in range(40)))
        given = ("--set", f"data.name={table}", "--set", "data.label=kind")
        code, _, err = run("simulate", toml, "--out", tmp_path / "run", *given)
        assert code == 2
        assert "table: every training point has the label 'yes'" in err

    def test_clients_beside_a_fleet_file(self, run: Run, toml: Path, tmp_path: Path) -> None:
        fleet = tmp_path / "fleet.csv"
        fleet.write_text("\n".join([HEADER, *(f"d{j},7,{j + 1},2,0.5,0.1" for j in range(4))]))
        given = ("--set", f"fleet.name={fleet}", "--set", "fleet.clients=7")
        code, _, err = run("simulate", toml, "--out", tmp_path / "run", *given)
        assert code == 2
        assert f"--set fleet.clients is 7, but the fleet is {fleet}" in err

    def test_own_fleet_file(self, run: Run, toml: Path, tmp_path: Path) -> None:
        path = tmp_path / "devices.csv"
        rows = [f"d{j},{(j + 1) * 1e5},{1e5},2,0.1" for j in range(4)]
        path.write_text("\n".join(["client,mac_rate,bit_rate,alpha,erasure", *rows]))
        fleet = tmp_path / "fleet.csv"
        rows = [f"d{j},7,{j + 1},2,0.5,0.1" for j in range(4)]  # the data decide the points
        fleet.write_text("\n".join([HEADER, *rows]))
        for name in (path, fleet):
            directory = tmp_path / f"run-{name.stem}"
            code, out, _ = run(
                "simulate", toml, "--out", directory, "--set", f"fleet.name={name}", "--json"
            )
            assert code == 0
            assert json.loads(out)["rows"][1]["gain"] > 0
            assert '<td class="left">d3</td>' in (directory / "report.html").read_text("utf-8")

    @pytest.mark.slow
    def test_demo(self, run: Run, tmp_path: Path) -> None:
        code, out, _ = run("demo", "--out", tmp_path / "demo", "--json")
        found = {row["setting"]: row for row in json.loads(out)["rows"]}
        assert code == 0
        assert found["coded 20%"]["gain"] > 2
        assert None not in found["coded 10%"]["rounds"]
        winner = max(found.values(), key=lambda row: row["gain_total"] or 0.0)
        assert winner["scheme"] == "coded-newton"
        assert min(winner["rounds"]) > 1

    def test_reproduce_needs_a_seed(self, run: Run, tmp_path: Path) -> None:
        code, _, err = run("reproduce", "table1", "--seeds", 0, "--out", tmp_path / "x")
        assert code == 2
        assert "--seeds is 0" in err
        assert not (tmp_path / "x").exists()


def test_version_and_help(run: Run) -> None:
    assert run("--version")[1].startswith("codedfedl 0.")
    _, out, _ = run("--help")
    assert "plan" in out
    assert "Exit codes" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--deadline", "-3"], "--deadline is -3.0: "),
        (["--redundancy", "5"], "--redundancy: coded.redundancy is 5: "),
        (["--scheme", "codet"], "--scheme: scheme 'codet' is unknown: did you mean 'coded'"),
        (["--scheme", "uncoded", "--redundancy", "0.1"], "has no setting 'redundancy'"),
        (["--set", "federation.deadline=-1"], "--set federation.deadline is -1: "),
        (["--set", "federation.clinets=3"], "--set federation.clinets: unknown key"),
        (["--kill", "3"], "--kill 3 would leave none of 3 nodes"),
        (["--dataset", "no.csv"], "no.csv"),
        (["--keys", "nowhere"], "ca.crt does not exist: make it with codedfedl federate init"),
        (["--deadline", "3", "--set", "federation.deadline=-1"], "--set federation.deadline is"),
    ],
)
def test_federate_local_names_the_option_that_is_wrong(
    run: Run, tmp_path: Path, options: list[str], message: str
) -> None:
    pytest.importorskip("flwr")
    code, out, err = run("federate", "local", *options, "--out", tmp_path / "run")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("--set") == message.count("--set")
    assert not (tmp_path / "run").exists()
