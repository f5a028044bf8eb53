"""Rounds in trackers: the protocol on one of our own, then the real packages, read back."""

import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from codedfedl import InputError, load_run, simulate
from codedfedl.core.record import PARTS
from codedfedl.report.live import RoundSender
from codedfedl.simulation.progress import Progress
from codedfedl.tracking import Series, Tracker, open_tracker
from tests.conftest import Run
from tests.growing import ROUNDS, SETUPS, GrowingRun, after_every_look, finished_run
from tests.virtual import small

SCHEMES = [{"name": "coded", "redundancy": 0.1}, {"name": "coded-newton"}]


class Kept:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int, int], Mapping[str, float]] = {}
        self.series: set[Series] = set()
        self.reports: list[Path | None] = []

    def log(self, series: Series, round_: int, values: Mapping[str, float]) -> None:
        self.series.add(series)
        self.rows[series.setting, series.seed, round_] = values

    def finish(self, report: Path | None) -> None:
        self.reports.append(report)


def experiment(**changes: Any) -> Any:
    return small(**{"schemes": SCHEMES, "seeds": [0, 1]} | changes)


def table(path: Path) -> dict[tuple[str, int, int], dict[str, float]]:
    """Return the rounds that a run directory has, as a tracker is told of them."""
    rows = load_run(path, "pandas").rounds.to_dict("records")
    names = ("seconds", "training_hours", "total_hours", *PARTS)
    return {
        (row["setting"], row["seed"], row["round"]): {
            "accuracy": row["metric"],
            **{name: row[name] for name in names},
        }
        for row in rows
    }


def check_rows(kept: Mapping[tuple[str, int, int], Mapping[str, float]], path: Path) -> None:
    expected = table(path)
    assert set(kept) == set(expected)
    for key, row in expected.items():
        found = {name: value for name, value in kept[key].items() if name in row}
        assert found == pytest.approx(row, rel=1e-6), key


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_tracker_sees_what_the_tables_have(tmp_path: Path, jobs: int) -> None:
    kept: Kept = Kept()
    tracker: Tracker = kept  # a type checker agrees that it is one
    simulate(experiment(), tmp_path / "run", trackers=[tracker], jobs=jobs)
    check_rows(kept.rows, tmp_path / "run")
    assert ("coded-newton", 1, 0) in kept.rows  # its set-up leaves a model
    (one,) = {series for series in kept.series if (series.setting, series.seed) == ("coded 10%", 1)}
    assert one.run == "run"
    assert one.settings["schemes.redundancy"] == 0.1
    assert kept.reports == [tmp_path / "run" / "report.html"]
    assert kept.reports[0] is not None
    assert kept.reports[0].is_file()


def test_a_resumed_run_tells_everything_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codedfedl.simulation.experiment.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    first, rounds = Kept(), 0

    class Stops(Kept):
        def log(self, series: Series, round_: int, values: Mapping[str, float]) -> None:
            if (series.seed, round_) == (1, 3):
                raise KeyboardInterrupt
            first.log(series, round_, values)

        def finish(self, report: Path | None) -> None:
            first.finish(report)

    with pytest.raises(KeyboardInterrupt):
        simulate(experiment(), tmp_path / "run", trackers=[Stops()])
    assert first.reports == [None]
    rounds = len(first.rows)
    again = Kept()
    simulate(experiment(), tmp_path / "run", trackers=[again], resume=True)
    assert len(again.rows) > rounds > 4
    check_rows(again.rows, tmp_path / "run")


def test_a_tracker_that_fails_does_not_end_the_run(tmp_path: Path) -> None:
    class Fails(Kept):
        def log(self, series: Series, round_: int, values: Mapping[str, float]) -> None:
            if round_ == 2:
                raise ConnectionError("no server")
            super().log(series, round_, values)

    failing, kept = Fails(), Kept()
    with pytest.warns(UserWarning, match="Fails is left out from here on: ConnectionError: no ser"):
        simulate(experiment(), tmp_path / "run", trackers=[failing, kept])
    assert failing.reports == []
    check_rows(kept.rows, tmp_path / "run")


def test_a_federation_is_followed_round_by_round(tmp_path: Path) -> None:
    source = finished_run(tmp_path / "source")
    growing, kept = GrowingRun(source, tmp_path / "run"), Kept()
    beginning = (source.path / "beginning.json").read_bytes()  # written before the first round
    (growing.directory.path / "beginning.json").write_bytes(beginning)
    sender = RoundSender(growing.directory, [kept], print)
    told = []
    with sender.broadcast.finished(tmp_path / "page.html"):
        sender.send()  # before the first round
        while growing.grow():
            sender.send()
            told.append(sum(round_ > 0 for *_, round_ in kept.rows))
        growing.finish()
        sender.send()
    assert told == [0] * SETUPS + list(range(1, ROUNDS + 1))
    assert kept.reports == [tmp_path / "page.html"]
    check_rows(kept.rows, growing.directory.path)
    assert {row["late"] for (*_, round_), row in kept.rows.items() if round_} == {1}


def test_a_tracker_that_is_not_there(run: Run, tmp_path: Path) -> None:
    code, _, err = run("simulate", "demo", "--out", tmp_path / "run", "--track", "tensorbord")
    assert code == 2
    assert "--track tensorbord: there is no such tracker" in err
    assert "tensorboard" in err
    assert not (tmp_path / "run").exists()


def test_a_package_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [name for name in sys.modules if name.startswith("mlflow.")]  # where it is there
    for name in ("mlflow", *parts):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "codedfedl.tracking.mlflow", raising=False)
    with pytest.raises(InputError, match=r"needs the package mlflow: install codedfedl\[mlflow\]"):
        open_tracker("mlflow", tmp_path)


def test_progress_is_nothing_to_a_run_without_trackers(tmp_path: Path) -> None:
    """Metrics stay on the device: turning each into a number would wait for it."""

    class Untouchable:
        def __float__(self) -> float:
            raise AssertionError

    from codedfedl.api import tracked
    from codedfedl.runs.directory import RunDirectory

    with tracked(experiment(), RunDirectory(tmp_path / "run"), []) as watch:
        watch("seed 0", Progress(1, 2, [Untouchable()]))  # type: ignore[list-item]


COMMAND = ["--set", "training.epochs=3", "--set", "seeds=[0]", "--set", "features.n_components=60"]


def simulated(run: Run, out: Path, *track: str) -> None:
    options = [word for text in track for word in ("--track", text)]
    code, _, err = run("simulate", "demo", *COMMAND, *options, "--out", out)
    assert code == 0, err
    assert "left out" not in err


@pytest.mark.extras
@pytest.mark.filterwarnings("default")
def test_tensorboard_event_files(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    simulated(run, tmp_path / "run", "tensorboard")
    expected = table(tmp_path / "run")
    settings = {(setting, seed) for setting, seed, _ in expected}
    folders = list((tmp_path / "run" / "tensorboard" / "run").iterdir())
    assert len(folders) == len(settings)
    for folder in folders:
        events = EventAccumulator(str(folder))
        events.Reload()
        text = events.Tensors("configuration")[0].tensor_proto.string_val[0].decode()
        assert "| features.n_components | 60 |" in text
        assert b"report.html" in events.Tensors("report")[0].tensor_proto.string_val[0]
        found = [(event.step, event.value) for event in events.Scalars("accuracy")]
        curves = {
            key: [
                (round_, pytest.approx(row["accuracy"]))
                for (*of, round_), row in expected.items()
                if tuple(of) == key
            ]
            for key in settings
        }
        assert found in curves.values()


@pytest.mark.extras
@pytest.mark.filterwarnings("default")
def test_mlflow_in_a_database(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)  # where artifacts go by default
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    simulated(run, tmp_path / "run", f"mlflow={uri}")
    client = mlflow.MlflowClient(uri)
    found = client.search_runs([client.get_experiment_by_name("codedfedl").experiment_id])
    (parent,) = [one for one in found if "mlflow.parentRunId" not in one.data.tags]
    assert parent.info.run_name == "run"
    assert [one.path for one in client.list_artifacts(parent.info.run_id)] == ["report.html"]
    rows: dict[tuple[str, int, int], dict[str, float]] = {}
    for one in found:
        if one is parent:
            continue
        assert one.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert one.data.params["features.n_components"] == "60"
        assert one.info.status == "FINISHED"
        setting, seed = one.data.tags["setting"], int(one.data.params["seed"])
        for name in one.data.metrics:
            for metric in client.get_metric_history(one.info.run_id, name):
                rows.setdefault((setting, seed, metric.step), {})[name] = metric.value
    check_rows(rows, tmp_path / "run")


def _messages(path: Path) -> Iterator[Any]:
    """Read the log of an offline run: blocks of 32 KiB of pieces, as in LevelDB."""
    from wandb.proto import wandb_internal_pb2

    data, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 2**15 - place % 2**15
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


@pytest.mark.extras
@pytest.mark.filterwarnings("default")
def test_weights_and_biases_offline(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    simulated(run, tmp_path / "run", "wandb=mine")
    rows: dict[tuple[str, int, int], dict[str, float]] = {}
    for path in (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"):
        name = ""
        for record in _messages(path):
            if record.WhichOneof("record_type") == "run":
                name = record.run.display_name
                assert (record.run.project, record.run.run_group) == ("mine", "run")
            if record.WhichOneof("record_type") == "history" and name != "report":
                items = {
                    (item.key or item.nested_key[0]): item.value_json
                    for item in record.history.item
                }
                setting, _, seed = name.rpartition(", seed ")
                values = {k: float(v) for k, v in items.items() if not k.startswith("_")}
                rows[setting, int(seed), int(items["_step"])] = values
    check_rows(rows, tmp_path / "run")
    (page,) = (tmp_path / "run" / "wandb").glob("offline-run-*/files/media/html/*.html")
    assert page.stat().st_size > 100_000


@pytest.mark.extras
@pytest.mark.filterwarnings("default")
def test_a_finished_run_is_sent_by_its_report(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    simulated(run, tmp_path / "run")
    out = ["--track", f"tensorboard={tmp_path / 'events'}"]
    assert run("report", tmp_path / "run", *out)[0] == 0
    expected = table(tmp_path / "run")
    counted = 0
    for folder in (tmp_path / "events" / "run").iterdir():
        events = EventAccumulator(str(folder))
        events.Reload()
        counted += len(events.Scalars("total_hours"))
    assert counted == len(expected)


@pytest.mark.extras
@pytest.mark.filterwarnings("default")
def test_a_federation_is_followed_into_event_files(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    growing = GrowingRun(finished_run(tmp_path / "source"), tmp_path / "run")
    after_every_look(monkeypatch, growing.grow_or_finish)
    code, _, err = run("federate", "follow", tmp_path / "run", "--track", "tensorboard")
    assert code == 0, err
    (folder,) = (tmp_path / "run" / "tensorboard" / "run").iterdir()
    events = EventAccumulator(str(folder))
    events.Reload()
    rounds = sorted(round_ for *_, round_ in table(tmp_path / "run"))
    assert [event.step for event in events.Scalars("accuracy")] == rounds
    assert b"report.html" in events.Tensors("report")[0].tensor_proto.string_val[0]
