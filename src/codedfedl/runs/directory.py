"""A run directory: configuration, environment, records and the checkpoint of a run.

Every file is written beside its place and then moved there, so that a run that is killed, or a full
disk, leaves the last good one.
"""

import json
import platform
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tomli_w

from codedfedl.errors import InputError
from codedfedl.io.archives import read_arrays
from codedfedl.io.files import lock, make_folder, read_json, replacing
from codedfedl.io.names import shortened
from codedfedl.io.tables import write_table
from codedfedl.io.toml import read_toml
from codedfedl.models import Model, save_model
from codedfedl.runs.config import Experiment, flattened
from codedfedl.runs.documents import check
from codedfedl.runs.grid import CELLS, cells, cells_text
from codedfedl.runs.status import Status, StatusFile, reason

Checkpoint = dict[str, npt.NDArray[Any]]

_MAY_CHANGE = (
    *("ready_timeout", "probe_timeout", "setup_timeout", "in_flight"),
    *("tolerance", "rounds", "without", "fall", "quorum", "patience"),
)
_STOP = "stop"  # the file that asks a run to end
_LOCK = ".lock"  # of the process that works on the run
_COMMAND = ".command"  # locked by a command that starts such a process
# What a run leaves that was killed before it began:
_BEFORE = ("environment.json", CELLS, _LOCK, _COMMAND)
_PACKAGES = ("codedfedl", "numpy", "scipy", "scikit-learn", "pyarrow")


def _environment(threads: int | None) -> dict[str, Any]:
    """Return what a run runs on."""
    packages = dict.fromkeys(_PACKAGES, "not installed")
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):  # a checkout that was not installed
            packages[package] = version(package)
    known = {} if threads is None else {"threads": threads}
    machine = {"python": platform.python_version(), "machine": platform.machine()}
    return {**machine, "packages": packages, **known}


class RunDirectory:
    """Where a run keeps everything."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def check(self, experiment: Experiment, *, resume: bool) -> None:
        """Refuse a directory that another run is in, before any work."""
        if resume and self.is_run:
            self._check_same(experiment)
        elif self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file, not a folder: choose another --out")
        elif self.path.exists() and self._in_use():
            again = "use --resume to continue its run, or " if self.is_run else ""
            raise InputError(f"{self.path} is not empty: {again}choose another --out")

    def open(self, experiment: Experiment, *, resume: bool, threads: int | None = None) -> None:
        """Make the directory for a new run, or check that it belongs to this one.

        Parameters
        ----------
        threads
            Of the linear algebra, as far as it is known.
        """
        with self._owned(experiment, resume, threads):
            pass

    @contextmanager
    def _owned(
        self, experiment: Experiment, resume: bool, threads: int | None = None
    ) -> Iterator[None]:
        """Make or check the directory, locked before anything in it is written."""
        self.check(experiment, resume=resume)
        make_folder(self.path)
        with self._locked():
            self.check(experiment, resume=resume)  # again: it may have been made meanwhile
            if not self.is_run:
                self.write_text("environment.json", json.dumps(_environment(threads), indent=2))
            self._write_config(experiment)  # last: this makes it a run directory
            yield

    @property
    def is_run(self) -> bool:
        """Whether a run has begun here."""
        return (self.path / "config.toml").is_file()

    def _in_use(self) -> bool:
        """Whether it holds more than a run leaves that was killed before it began."""
        return any(path.name not in _BEFORE for path in self.path.iterdir())

    @property
    def status(self) -> StatusFile:
        """What the run is doing."""
        return StatusFile(self.path / "status.json")

    @contextmanager
    def opened(
        self, experiment: Experiment, *, resume: bool = True, threads: int | None = None
    ) -> Iterator[StatusFile]:
        """Begin or resume a run, locked against other processes; a kill releases the lock."""
        with self._owned(experiment, resume, threads), self.status.tracked() as status:
            yield status

    @contextmanager
    def commanded(self, experiment: Experiment, *, resume: bool) -> Iterator[None]:
        """Begin or resume a run whose server this process starts, locked against others like it."""
        self.check(experiment, resume=resume)
        if self.is_worked_on:
            raise self._busy()
        make_folder(self.path)
        with self._locked(_COMMAND):
            self.open(experiment, resume=resume)
            self.announce("starting")  # replaces the status that an earlier run left
            yield

    def announce(self, doing: str) -> None:
        """Write the first status on behalf of a process that is about to be started for the run."""
        with self._locked():
            self.status.running(doing)

    @contextmanager
    def failures_noted(self) -> Iterator[None]:
        """Write why a run ended early: not if that is written, nor while a process works on it."""
        before = self._seen()
        try:
            yield
        except BaseException as error:
            if self.is_run:
                with suppress(InputError), self._locked():
                    now = self._seen()
                    ended = now is not None and now.state != "running" and now != before
                    if not ended and (now is None or now.state != "done"):
                        self.status.failed(reason(error))
            raise

    def _seen(self) -> Status | None:
        with suppress(InputError):  # a damaged status is replaced
            return self.status.read()
        return None

    @contextmanager
    def _locked(self, name: str = _LOCK) -> Iterator[None]:
        with (self.path / name).open("a") as file:
            for patience in (0.1, 0.2, 0.4, 0.0):  # whoever only looks has it for an instant
                try:
                    lock(file)
                    break
                except OSError:
                    time.sleep(patience)
            else:
                raise self._busy()
            yield

    def _busy(self) -> InputError:
        return InputError(
            f"{self.path} is being worked on by another process: wait for it, or end it"
        )

    @property
    def is_worked_on(self) -> bool:
        """Whether a process works on this run; one that was killed does not."""
        with suppress(FileNotFoundError), (self.path / _LOCK).open("r") as file:
            try:
                lock(file, shared=True)
            except OSError:
                return True
        return False

    @property
    def is_alive(self) -> bool:
        """Whether the run is under way, and a process works on it."""
        status = self.status.read()
        return status is not None and status.state == "running" and self.is_worked_on

    def stop(self) -> None:
        """Ask whoever works on this run to end it after the current round."""
        if not self.is_run:
            raise InputError(f"{self.path} is not a run directory: it has no config.toml")
        if not self.is_worked_on:
            raise InputError(f"no process is working on {self.path}: there is nothing to stop")
        if self.experiment().federation is None:
            raise InputError(f"{self.path} is a simulation: interrupt the command that runs it")
        (self.path / _STOP).touch()

    def stop_wanted(self) -> bool:
        """Return whether the run was asked to end, and clear the request."""
        wanted = (self.path / _STOP).exists()
        (self.path / _STOP).unlink(missing_ok=True)
        return wanted

    @property
    def log(self) -> Path:
        """The log of a federation's server, for people; programs read `status`."""
        return self.path / "server.log"

    def event(self, kind: str, **facts: Any) -> None:
        """Add a line to `events.jsonl`, for programs: the time, what kind of event, and facts."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "event": kind, **facts}, allow_nan=False)
        with (self.path / "events.jsonl").open("a", encoding="ascii") as file:
            file.write(f"{line}\n")

    def events(self) -> list[dict[str, Any]]:
        """Return all events so far; a line that is being written is not there yet."""
        path = self.path / "events.jsonl"
        lines = path.read_text("ascii").split("\n")[:-1] if path.is_file() else []
        return [json.loads(line) for line in lines]

    @contextmanager
    def logged(self) -> Iterator[Callable[[str], None]]:
        """Yield a function that logs sentences; errors go to the logs and to the status."""

        def say(sentence: str) -> None:
            if self.path.is_dir():
                now = datetime.now(UTC).isoformat(" ", "seconds")
                with self.log.open("a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(f"{now} {sentence}\n")
                self.event("message", text=sentence)

        try:
            with self.failures_noted():
                yield say
        except InputError as error:
            say(f"error: {error}")
            raise
        except Exception:
            say(f"error: this is a bug\n{traceback.format_exc()}")
            raise

    def _write_config(self, experiment: Experiment) -> None:
        unused = set() if experiment.grid else {"grid"}
        document = experiment.model_dump(exclude_none=True, exclude=unused)
        self.write_text(CELLS, cells_text(cells(experiment)))
        self.write_text("config.toml", tomli_w.dumps(document))

    def experiment(self) -> Experiment:
        """Read the run's configuration."""
        path = self.path / "config.toml"
        if not path.is_file():
            raise InputError(f"{self.path} is not a run directory: it has no config.toml")
        return check(read_toml(path), str(path))

    def privacy(self) -> dict[str, Any]:
        """Return what ``privacy.json`` says; nothing where no setting is private."""
        path = self.path / "privacy.json"
        return dict(read_json(path, "restore it")) if path.is_file() else {}

    def environment(self) -> dict[str, Any]:
        """Read what the run ran on."""
        path = self.path / "environment.json"
        document = read_json(path, "restore it")
        if not isinstance(document, dict) or not isinstance(document.get("packages"), dict):
            raise InputError(f"cannot read {path}: it names no packages; restore it")
        return {"python": "", "machine": "", **document}

    def _check_same(self, experiment: Experiment) -> None:
        before, now = self.experiment().model_dump(), experiment.model_dump()
        for document in (before, now):  # timeouts may change between runs, and so may the server
            document.pop("server")
            for key in _MAY_CHANGE:
                (document["federation"] or {}).pop(key, None)
        old, new = flattened(before), flattened(now)
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        if changed:
            differences = "; ".join(_difference(key, old.get(key), new.get(key)) for key in changed)
            raise InputError(
                f"{self.path} holds a run with {differences}: resume it with its own "
                "configuration, or choose another --out"
            )

    def checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint, if there is one."""
        path = self.path / "checkpoint.npz"
        return read_arrays(path, remedy="delete it to start again") if path.is_file() else None

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint."""
        with replacing(self.path / "checkpoint.npz") as partial, partial.open("wb") as file:
            np.savez(file, **checkpoint)  # type: ignore[arg-type]

    def save_model(self, name: str, model: Model) -> None:
        """Write a model, such as ``model.npz``."""
        make_folder((self.path / name).parent)
        save_model(model, self.path / name)

    def write(self, name: str, columns: Mapping[str, npt.ArrayLike]) -> None:
        """Write a table, such as ``rounds.parquet``."""
        write_table(self.path / name, columns)

    def write_text(self, name: str, text: str) -> Path:
        """Write a text file, such as ``report.html``, and return its path."""
        with replacing(self.path / name) as partial:
            partial.write_text(text, "utf-8")
        return self.path / name


def _difference(key: str, old: Any, new: Any) -> str:
    """Say how a setting differs; of lists of tables, such as schemes, which entries and keys."""
    lists = all(isinstance(side, list) and len(side) for side in (old, new))
    if not lists or len(old) != len(new) or not isinstance(old[0], Mapping):
        words = ("none" if side is None else shortened(side) for side in (old, new))
        return f"{key} = {next(words)}, not {next(words)}"
    return "; ".join(
        _difference(f"{key}[{k}].{name}", before.get(name), after.get(name))
        for k, (before, after) in enumerate(zip(old, new, strict=True))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    )
