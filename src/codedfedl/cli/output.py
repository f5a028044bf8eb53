"""What every command shares: where output goes and in which form."""

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from codedfedl.errors import InputError
from codedfedl.io.names import printable

__all__ = [
    "Printing",
    "blaming",
    "json_number",
    "messages",
    "print_json",
    "progress",
    "results",
    "save_pictures",
    "with_resume_hint",
    "wrote",
]

_PIPED_WIDTH = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 180
_LONG = 1.0  # seconds


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


@contextmanager
def blaming(option: str) -> Iterator[None]:
    """Name the option that a user gave in errors about its value."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{option}: {error}") from None


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Show that something is under way; piped, say afterwards how long it took, if it was long."""
    if messages.is_terminal:
        with messages.status(what):
            yield
        return
    began = time.monotonic()
    yield
    if (seconds := time.monotonic() - began) > _LONG:
        messages.print(f"{what}: {seconds:.1f} s")


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(document, allow_nan=False))


def json_number(value: float) -> float | None:
    """JSON has no infinity: null stands for it."""
    return value if math.isfinite(value) else None


def save_pictures(figure: Any, stem: Path) -> list[Path]:
    """Write a figure as SVG and PNG, and say where they are."""
    from codedfedl.report.figures import save_figure

    paths = [stem.with_suffix(suffix) for suffix in (".svg", ".png")]
    for path in paths:
        save_figure(figure, path)
        wrote(path)
    return paths


@contextmanager
def with_resume_hint(run: Path, resumes: bool) -> Iterator[None]:
    """Say how to continue a run, or a folder of runs, that is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        if any(run.glob("config.toml")) or any(run.glob("*/config.toml")):
            again = "the same command" if resumes else "the same command and --resume"
            messages.print(f"stopped: {run} is kept; continue with {again}", soft_wrap=True)
        raise


def wrote(path: Path) -> None:
    """Say where a file is."""
    messages.print(f"wrote {path}", soft_wrap=True)
