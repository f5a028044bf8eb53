"""Units on several processes: the bits of one process, resumed, interrupted, on a Dask cluster."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codedfedl.errors import InputError
from codedfedl.io.files import memory
from codedfedl.runs.directory import RunDirectory
from codedfedl.simulation import experiment as experiments
from codedfedl.simulation.experiment import is_done, simulate, simulate_all
from codedfedl.simulation.pool import limited, usable_threads
from codedfedl.simulation.progress import Progress, is_end, unit_of
from tests.conftest import Run
from tests.virtual import small

SCHEMES = [{"name": "coded", "redundancy": 0.1}, {"name": "coded-newton", "features": "structured"}]
TABLES = ("rounds", "clients", "settings", "timeline")


def experiment(**changes: Any) -> Any:
    """Two seeds with two feature maps each: four units."""
    return small(**{"schemes": SCHEMES, "seeds": [0, 1]} | changes)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The run of one process, with one thread."""
    directory = RunDirectory(tmp_path_factory.mktemp("alone") / "run")
    simulate(experiment(), directory, threads=1)
    return directory


def check_same_bits(one: RunDirectory, other: RunDirectory) -> None:
    for name in TABLES:
        mine, theirs = (run.path / f"{name}.parquet" for run in (one, other))
        assert mine.read_bytes() == theirs.read_bytes(), name
    kept, again = one.checkpoint(), other.checkpoint()
    assert kept is not None
    assert again is not None
    assert set(kept) == set(again)
    for key in kept:
        np.testing.assert_array_equal(kept[key], again[key])


class Watcher:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Progress | None]] = []

    def __call__(self, what: str, progress: Progress | None) -> None:
        self.told.append((what, progress))

    def rounds(self) -> list[tuple[str, int, int]]:
        return sorted(
            (one.setting, one.seed, one.round)
            for _, progress in self.told
            if progress is not None
            for one in progress.played
        )


def test_two_processes_give_the_bits_of_one_and_tell_every_round(
    alone: RunDirectory, tmp_path: Path
) -> None:
    directory, watcher, expected = RunDirectory(tmp_path / "run"), Watcher(), Watcher()
    simulate(experiment(), directory, jobs=2, threads=1, watch=watcher)
    check_same_bits(alone, directory)
    simulate(experiment(), RunDirectory(tmp_path / "alone"), threads=1, watch=expected)
    assert watcher.rounds() == expected.rounds()
    titles = {f"seed {seed}, part {part} of 2" for seed in (0, 1) for part in (1, 2)}
    assert {unit_of(what) for what, _ in watcher.told if is_end(what)} == titles


@pytest.mark.slow
def test_what_one_process_began_two_finish(
    alone: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(tmp_path / "run")

    def stop(what: str, progress: Progress | None) -> None:
        if what.startswith("seed 0, part 2") and progress is not None and progress.round == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("codedfedl.simulation.experiment.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        simulate(experiment(), directory, watch=stop, threads=1)
    begun = directory.checkpoint()
    assert begun is not None
    assert [is_done(begun, place) for place in range(4)] == [True, False, False, False]
    assert "1/0/model" in begun  # in the middle of the second unit
    simulate(experiment(), directory, jobs=2, resume=True)
    check_same_bits(alone, directory)


@pytest.mark.slow
def test_what_two_began_one_finishes_with_their_threads(
    alone: RunDirectory, tmp_path: Path
) -> None:
    directory = RunDirectory(tmp_path / "run")

    def stop(what: str, _progress: Progress | None) -> None:
        if is_end(what):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(experiment(), directory, jobs=2, threads=1, watch=stop)
    used: set[int | None] = set()
    with limited(2, "cpu"):  # what would be used, if the run did not know better
        simulate(experiment(), directory, resume=True, watch=lambda *_: used.add(usable_threads()))
        assert usable_threads() == 2
    assert used == {1}
    check_same_bits(alone, directory)
    with pytest.raises(InputError, match=r"--threads is 2, but .* was begun with 1"):
        simulate(experiment(), directory, resume=True, threads=2)


def test_units_that_workers_left_between_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two feature maps with two settings each; of each map the second is left to be played."""
    monkeypatch.setattr("codedfedl.simulation.units.SETTINGS_AT_ONCE", 1)
    schemes = [
        {"name": "coded", "redundancy": redundancy, "features": features}
        for features in ("fourier", "structured")
        for redundancy in (0.1, 0.3)
    ]
    whole, part = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "part")
    simulate(small(schemes=schemes), whole)
    part.open(small(schemes=schemes), resume=False, threads=whole.environment().get("threads"))
    finished = whole.checkpoint()
    assert finished is not None
    assert is_done(finished, 3)
    part.save({key: value for key, value in finished.items() if key[:2] not in ("1/", "3/")})
    simulate(small(schemes=schemes), part, resume=True)
    check_same_bits(whole, part)


@pytest.mark.skipif(usable_threads() is None, reason="the library does not let threads be set")
def test_threads_are_divided_and_written_down(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    with limited(2, "cpu"):
        simulate(small(schemes=[{"name": "uncoded"}], seeds=[0, 1]), directory, jobs=2)
    assert directory.environment()["threads"] == 1


def test_an_error_in_a_worker_is_said_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scheme is in the folder where the command is called, which workers find too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raising.py").write_text(
        "from dataclasses import dataclass\n\n"
        "from codedfedl import Info, InputError, Uncoded\n\n\n"
        "@dataclass(frozen=True)\n"
        "class Raising(Uncoded):\n"
        '    info = Info("raising")\n\n'
        "    def receive(self, state, inbox):\n"
        '        raise InputError("the scheme says no: ask another")\n',
        "utf-8",
    )
    directory = RunDirectory(tmp_path / "run")
    with pytest.raises(InputError, match="the scheme says no"):
        simulate(small(schemes=[{"name": "raising:Raising"}], seeds=[0, 1]), directory, jobs=2)
    status = directory.status.read()
    assert status is not None
    assert (status.state, status.error) == ("failed", "the scheme says no: ask another")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--jobs", "0"), "Invalid value for '--jobs'"),
        (("--jobs", "2", "--dask", "tcp://localhost:1"), "leave one out"),
    ],
)
def test_workers_that_make_no_sense(
    run: Run, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    code, _, err = run("simulate", "demo", "--out", tmp_path / "run", *words)
    assert code == 2
    assert message in err
    assert not (tmp_path / "run").exists()


def _children(process: int) -> list[int]:
    path = Path(f"/proc/{process}/task/{process}/children")
    return [int(word) for word in path.read_text("ascii").split()]


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nobody_works_on_after_the_first_process(tmp_path: Path, how: signal.Signals) -> None:
    """Ctrl-C and a kill end the workers too; what they had sent is kept, and is resumed."""
    out = tmp_path / "run"
    words = ["simulate", "demo", "--jobs", "2", "--threads", "1", "--out", str(out)]
    command = [sys.executable, "-m", "codedfedl", *words, "--set", "training.epochs=3"]
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, previous)
    workers: list[int] = []
    for _ in range(6000):
        assert process.poll() is None, process.communicate()[1]
        if (out / "checkpoint.npz").exists():
            workers = _children(process.pid)
            break
        time.sleep(0.01)
    assert len(workers) >= 2
    os.kill(process.pid, how)
    _, err = process.communicate(timeout=60)
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "continue with the same command and --resume" in err
        assert "Traceback" not in err
        status = json.loads((out / "status.json").read_text("utf-8"))
        assert (status["state"], status["error"]) == ("failed", "interrupted")
    for _ in range(3000):
        if not any(map(_alive, workers)):
            break
        time.sleep(0.01)
    assert not any(map(_alive, workers))
    assert subprocess.run([*command, "--resume"], check=False, capture_output=True).returncode == 0


@pytest.fixture
def cluster() -> Iterator[str]:
    """A scheduler and two workers in processes of their own."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as started:
        yield started.scheduler_address


@pytest.mark.extras
@pytest.mark.filterwarnings("default")  # of Dask
def test_a_dask_cluster_gives_the_bits_of_one_process(
    alone: RunDirectory, tmp_path: Path, cluster: str
) -> None:
    directory, watcher = RunDirectory(tmp_path / "run"), Watcher()

    def stop(what: str, progress: Progress | None) -> None:
        watcher(what, progress)
        if is_end(what):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(experiment(), directory, dask=cluster, watch=stop)
    simulate(experiment(), directory, dask=cluster, watch=watcher, resume=True)
    check_same_bits(alone, directory)
    titles = {f"seed {seed}, part {part} of 2" for seed in (0, 1) for part in (1, 2)}
    assert {unit_of(what) for what, _ in watcher.told} == titles


@pytest.mark.extras
@pytest.mark.filterwarnings("default")
def test_no_scheduler_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("codedfedl.simulation.pool.SECONDS_TO_CONNECT", 1)
    with pytest.raises(InputError, match="no scheduler answers there"):
        simulate(experiment(), RunDirectory(tmp_path / "run"), dask="tcp://127.0.0.1:9")
    assert not (tmp_path / "run").exists()


class TestSideBySide:
    """Whole experiments at the same time."""

    @pytest.fixture(autouse=True)
    def _two_cores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(experiments, "usable_threads", lambda: 2)
        monkeypatch.setattr(experiments, "memory", lambda: 2.0**40)

    def test_two_at_once_give_the_bits_of_each_alone(
        self, tmp_path: Path, alone: RunDirectory
    ) -> None:
        watcher = Watcher()
        jobs = [(experiment(), RunDirectory(tmp_path / name)) for name in ("one", "two")]
        simulate_all(jobs, watcher, data=None, device="cpu")
        for _, directory in jobs:
            check_same_bits(directory, alone)
        ended = [what for what, _ in watcher.told if is_end(what)]
        assert sorted(ended) == [
            f"{name}, seed {k}, part {part} of 2: done"
            for name in ("one", "two")
            for k in (0, 1)
            for part in (1, 2)
        ]

    @pytest.mark.parametrize("room", [2.0**30, 2.0**40], ids=["little memory", "one job"])
    def test_one_after_the_other_in_this_process(
        self, tmp_path: Path, room: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(experiments, "memory", lambda: room)
        monkeypatch.setattr(experiments, "on_processes", None)
        names = ("one", "two") if room < 2**40 else ("one",)
        quick = small(schemes=[{"name": "uncoded"}], seeds=[0])
        jobs = [(quick, RunDirectory(tmp_path / name)) for name in names]
        simulate_all(jobs, Watcher(), data=None, device="cpu")
        assert all((directory.path / "rounds.parquet").is_file() for _, directory in jobs)

    def test_an_error_in_one_is_said_here(self, tmp_path: Path) -> None:
        (tmp_path / "two").write_text("not a folder")
        quick = small(schemes=[{"name": "uncoded"}], seeds=[0])
        jobs = [(quick, RunDirectory(tmp_path / name)) for name in ("one", "two")]
        with pytest.raises(InputError, match="two"):
            simulate_all(jobs, Watcher(), data=None, device="cpu")

    def test_an_interrupted_one_is_continued(self, tmp_path: Path, alone: RunDirectory) -> None:
        def stop(what: str, progress: Progress | None) -> None:
            if progress is not None:
                raise KeyboardInterrupt

        jobs = [(experiment(), RunDirectory(tmp_path / name)) for name in ("one", "two")]
        with pytest.raises(KeyboardInterrupt):
            simulate_all(jobs, stop, data=None, device="cpu")
        found = [directory.status.read() for _, directory in jobs]  # one may not have begun
        assert {one.error for one in found if one is not None} == {"interrupted"}
        simulate_all(jobs, Watcher(), data=None, device="cpu")
        for _, directory in jobs:
            check_same_bits(directory, alone)


def test_a_container_has_the_memory_that_it_is_given(tmp_path: Path) -> None:
    whole = memory(tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    assert memory(tmp_path) == whole
    (tmp_path / "memory.max").write_text("1048576\n")
    assert memory(tmp_path) == 2**20
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("4096\n")
    assert memory(tmp_path) == 4096
