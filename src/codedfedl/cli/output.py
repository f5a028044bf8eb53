"""What every command shares: where output goes and in which form."""

import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from codedfedl.errors import InputError
from codedfedl.io.files import FIGURE_SUFFIXES, TABLE_SUFFIXES, check_destination
from codedfedl.io.names import printable

_PIPED_WIDTH = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 180
_LONG_SECONDS = 1.0
"""From this time on, a step says how long it took where no terminal shows it."""


View = RenderableType | list[dict[str, Any]]
"""What people read: anything that rich prints, or rows by the names of their columns."""


class Printing(Console):
    """A console on which no text is obeyed: names in files may be anybody's."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Escape a text before its width is measured."""
        return super().render_str(printable(text), **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Escape what came as something other than a text; leave rich's own control codes."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


results = Printing(width=_PIPED_WIDTH)  # stdout
messages = Printing(stderr=True)


class _Lines(logging.Formatter):
    """A line for every record of a log, as text or as JSON, in which no text is obeyed."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self.as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(" ", "milliseconds")
        text = record.getMessage()
        if record.exc_info:
            text += f" | {self.formatException(record.exc_info)}"
        if not self.as_json:
            line = printable(" | ".join(text.splitlines()))
            return f"{time} {record.levelname} {record.name}: {line}"
        facts = {"time": time, "level": record.levelname, "source": record.name, "text": text}
        return json.dumps(facts)


def log_lines(role: str, log: str) -> Callable[[str], None]:
    """Send this process's log to stderr, a line each, and return how its role says a sentence.

    Parameters
    ----------
    log
        text or json.
    """
    if log not in ("text", "json"):
        raise InputError(f"--log is {log!r}: must be text or json")
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines(as_json=log == "json"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every poll
    theirs = logging.getLogger("flwr")  # it colours what it writes, also in files
    theirs.handlers.clear()
    theirs.propagate = True
    return logging.getLogger(role).info


@contextmanager
def blaming(option: str) -> Iterator[None]:
    """Name the option that a user gave in errors about its value."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{option}: {error}") from None


def check_outputs(taken: Mapping[Path, str], **outputs: Path | None) -> None:
    """Refuse files that could not be written, or that overwrite an input or another output.

    Parameters
    ----------
    taken
        What each input is, in words.
    outputs
        Paths by the name of their option: a picture for `figure`, and tables for all others.
    """
    names = {path.resolve(): name for path, name in taken.items()}
    for option, path in outputs.items():
        if path is None:
            continue
        check_destination(path, FIGURE_SUFFIXES if option == "figure" else TABLE_SUFFIXES)
        if path.resolve() in names:
            raise InputError(f"--{option} {path} is {names[path.resolve()]}: choose another")
        names[path.resolve()] = f"--{option}'s file too"


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Show that something is under way; piped, say afterwards how long it took, if it was long."""
    if messages.is_terminal:
        with messages.status(what):
            yield
        return
    began = time.monotonic()
    yield
    if (seconds := time.monotonic() - began) > _LONG_SECONDS:
        messages.print(f"{what}: {seconds:.1f} s")


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(document, allow_nan=False))


def show(as_json: bool, document: Mapping[str, Any], *views: View) -> None:
    """Print the results of a command: one JSON document, or what people read."""
    if as_json:
        print_json(document)
    else:
        print_views(*views)


def print_views(*views: View) -> None:
    """Print what people read on stdout: sentences, which are not wrapped, rows, and tables."""
    for view in views:
        shown = _table(view) if isinstance(view, list) else view
        results.print(shown, soft_wrap=isinstance(view, str))


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return rows as a table without lines; where there is no room, the first column is folded."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    columns = zip(*([_cell(value) for value in row.values()] for row in rows), strict=True)
    cells = dict(zip(rows[0], columns, strict=True))
    for name, texts in cells.items():
        heading = name.replace("_", " ")
        longest = max(len(line) for text in (heading, *texts) for line in str(text).split("\n"))
        if texts[0].justify == "right":
            table.add_column(heading, justify="right", no_wrap=True, min_width=longest)
        else:
            table.add_column(heading, overflow="fold", min_width=min(longest, 12))
    for texts in zip(*cells.values(), strict=True):
        table.add_row(*texts)
    return table


def _cell(value: Any) -> Text:
    """Write a value as people do, numbers at the right; a text may have its own style."""
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, int | float):
        number = f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
        return Text(number, justify="right")
    return (
        value if isinstance(value, Text) else Text("–" if value is None else printable(str(value)))
    )


def json_number(value: float) -> float | None:
    """JSON has no infinity: null stands for it."""
    return value if math.isfinite(value) else None


@contextmanager
def with_resume_hint(run: Path, resumes: bool) -> Iterator[None]:
    """Say how to continue a run, or a folder of runs, that is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        if any(run.glob("config.toml")) or any(run.glob("*/config.toml")):
            again = "the same command" if resumes else "the same command and --resume"
            say(f"stopped: {run} is kept; continue with {again}")
        raise


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, so that all processes are ended."""

    def leave(number: int, _frame: Any) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say(sentence: str) -> None:
    """Print a message for people on stderr."""
    messages.print(sentence, soft_wrap=True)


def wrote(path: Path) -> None:
    """Say where a file is."""
    say(f"wrote {path}")
