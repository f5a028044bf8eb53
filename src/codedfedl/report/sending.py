"""A finished run, or a federation that goes on, for trackers."""

from collections.abc import Callable, Iterable
from pathlib import Path

from codedfedl.core.columns import ROUND_COLUMNS
from codedfedl.report.reading import RunTables
from codedfedl.runs.directory import RunDirectory
from codedfedl.tracking import Broadcast, Tracker, finite

__all__ = ["RoundSender", "send_run"]

_VALUES = [name for name in ROUND_COLUMNS if name not in ("round", "deadline_s")]


class RoundSender:
    """Tells trackers of the rounds of a run directory that they do not know yet.

    Parameters
    ----------
    say
        Is told when a tracker fails.
    """

    def __init__(
        self, directory: RunDirectory, trackers: Iterable[Tracker], say: Callable[[str], object]
    ) -> None:
        self.directory, self._sent = directory, 0
        settings = {cell.label: cell.settings for cell in RunTables(directory).cells.values()}
        self.broadcast = Broadcast(trackers, directory.path.name, settings, say)

    def send(self) -> None:
        """Send what is new, of a federation that is not over too."""
        tables = RunTables(self.directory)
        if not self.broadcast.trackers or tables.has_no_round:
            return
        columns = tables.rounds
        for row in range(self._sent, len(columns["round"])):
            values = {name: float(columns[name][row]) for name in _VALUES}
            self.broadcast.log(
                str(columns["setting"][row]),
                int(columns["seed"][row]),
                int(columns["round"][row]),
                finite(str(columns["metric_name"][row]), values),
            )
        self._sent = len(columns["round"])


def send_run(
    directory: RunDirectory,
    trackers: Iterable[Tracker],
    page: Path,
    say: Callable[[str], object],
) -> None:
    """Tell trackers of every round of a run, and give them its page."""
    sender = RoundSender(directory, trackers, say)
    with sender.broadcast.finished(page):
        sender.send()
