"""Commands that are imported when they are called, so that `--help` and completion are fast."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import click
import typer
from typer.core import TyperCommand, TyperGroup

__all__ = ["LazyCommand", "LazyGroup", "unwrapped"]


@dataclass(frozen=True)
class LazyCommand:
    """A command: the path of its function, and its line in the list of commands.

    Attributes
    ----------
    path
        ``module:function`` in `codedfedl.cli`, or ``module:app`` of a `typer.Typer` with commands
        of its own.
    panel
        The heading under which it is listed.
    summary
        The first line of the command's help; a test compares the two.
    """

    path: str
    panel: str
    summary: str

    def listed(self, name: str) -> click.Command:
        """Return a stand-in that has a name and a summary, and imports nothing."""
        return TyperCommand(name, help=self.summary, rich_help_panel=self.panel)

    def loaded(self, name: str) -> click.Command:
        """Import the command."""
        module, _, member = self.path.partition(":")
        app = getattr(import_module(f"codedfedl.cli.{module}"), member)
        if not isinstance(app, typer.Typer):
            function, app = app, typer.Typer(add_completion=False)
            app.command(name)(function)
        command = typer.main.get_command(app)
        command.name = name
        _unwrap(command)
        return command


class LazyGroup(TyperGroup):
    """A group that lists its commands without importing them. Subclasses fill `lazy`."""

    lazy: ClassVar[dict[str, LazyCommand]] = {}

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.help = unwrapped(self.help)
        self.commands = {name: entry.listed(name) for name, entry in self.lazy.items()}

    def load(self, name: str) -> click.Command:
        """Import a command."""
        return self.lazy[name].loaded(name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called, and import it."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if command is None else self.load(str(command.name)), rest


def unwrapped(text: str | None) -> str | None:
    r"""Join the lines of each paragraph, which the terminal wraps again; not below a ``\b``."""
    if text is None:
        return None
    paragraphs = text.replace("\\b\n", "\b\n").split("\n\n")
    return "\n\n".join(
        part.removeprefix("\b\n") if part.startswith("\b") else " ".join(part.split())
        for part in paragraphs
    )


def _unwrap(command: click.Command) -> None:
    text = unwrapped(command.help)
    command.help = text and text.replace("[", r"\[")  # brackets would be markup
    for below in getattr(command, "commands", {}).values():
        _unwrap(below)
