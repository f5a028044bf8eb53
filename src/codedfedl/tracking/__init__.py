"""Rounds as they end, for trackers: MLflow, TensorBoard, Weights & Biases, or your own.

A tracker is any object with `log` and `finish`. One that fails is left out from then on, and said
so: a run does not end because a server for its curves does.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from codedfedl.errors import InputError
from codedfedl.io.names import nearest


@dataclass(frozen=True)
class Series:
    """What a tracker draws as one line: a setting of a run, with one seed.

    Attributes
    ----------
    run
        The name of the run, which all its series share.
    settings
        All that makes the setting what it is, by dotted keys.
    """

    run: str
    setting: str
    seed: int
    settings: Mapping[str, Any] = field(compare=False, default_factory=dict)

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.setting}, seed {self.seed}"


class Tracker(Protocol):
    """Takes what happens in a run."""

    def log(self, series: Series, round_: int, values: Mapping[str, float]) -> None:
        """Take what a round of a series ended with; round 0 is the end of its set-up."""

    def finish(self, report: Path | None) -> None:
        """End all series; the report is the run's page, None where it did not come that far."""


TRACKERS = {"mlflow": "MLflow", "tensorboard": "TensorBoard", "wandb": "WeightsAndBiases"}
"""Trackers by name, which is that of their module here, of their package and of their extra."""


def open_tracker(text: str, out: Path) -> Tracker:
    """Open a tracker by its name, or by ``name=where``.

    Parameters
    ----------
    text
        ``tensorboard`` writes event files to a folder, by default ``tensorboard`` in the run
        directory; ``mlflow`` logs to a tracking URI, by default MLflow's own; ``wandb`` to a
        project, by default ``codedfedl``.
    out
        The run directory.
    """
    name, _, where = text.partition("=")
    if name not in TRACKERS:
        raise InputError(
            f"--track {name}: there is no such tracker: {nearest(name, list(TRACKERS))}"
        )
    try:
        module = import_module(f"codedfedl.tracking.{name}")
    except ImportError as error:
        raise InputError(
            f"--track {name} needs the package {error.name}: install codedfedl[{name}]"
        ) from None
    tracker: Tracker = getattr(module, TRACKERS[name])(where or None, out)
    return tracker


class Broadcast:
    """Passes everything on to several trackers.

    Parameters
    ----------
    run
        The name of the run.
    settings
        What makes each setting what it is, by its label.
    say
        Is told when a tracker fails.
    """

    def __init__(
        self,
        trackers: Iterable[Tracker],
        run: str,
        settings: Mapping[str, Mapping[str, Any]],
        say: Callable[[str], object] = lambda _sentence: None,
    ) -> None:
        self.trackers, self.run, self.settings, self.say = list(trackers), run, settings, say

    def log(self, setting: str, seed: int, round_: int, values: Mapping[str, float]) -> None:
        """Tell all trackers what a round ended with."""
        series = Series(self.run, setting, seed, self.settings.get(setting, {}))
        self._each(lambda tracker: tracker.log(series, round_, values))

    def finish(self, report: Path | None) -> None:
        """End all trackers."""
        self._each(lambda tracker: tracker.finish(report))

    @contextmanager
    def finished(self, report: Path) -> Iterator[None]:
        """End all trackers in the end, with the report where everything went well."""
        try:
            yield
        except BaseException:
            self.finish(None)
            raise
        self.finish(report)

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for tracker in list(self.trackers):
            try:
                act(tracker)
            except Exception as error:
                self.trackers.remove(tracker)
                kind = type(tracker).__name__
                self.say(f"{kind} is left out from here on: {type(error).__name__}: {error}")


def finite(metric: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return what is known of a round by names that every tracker takes.

    Parameters
    ----------
    metric
        The name of the value that is called ``metric``; R² becomes ``r2``.
    """
    name = {"R²": "r2"}.get(metric, metric)
    named = {name if key == "metric" else key: float(value) for key, value in values.items()}
    return {key: value for key, value in named.items() if isfinite(value)}


def flat(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as text, for trackers that keep no other."""
    return {key: str(value) for key, value in settings.items()}


def listed(settings: Mapping[str, Any]) -> str:
    """Return settings as a table in Markdown."""
    rows = [f"| {key} | {value} |" for key, value in flat(settings).items()]
    return "\n".join(["| key | value |", "| --- | --- |", *rows])
