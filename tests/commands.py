"""Commands as the command line takes them."""

from typing import Any

import click
import typer

from codedfedl.cli import app


def parsed(words: list[str]) -> dict[str, Any]:
    """Parse a command as the command line does; `click.UsageError` where it would fail."""
    command: click.Command = typer.main.get_command(app)
    context = click.Context(command)
    while isinstance(command, click.Group):
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, click.Context(found, parent=context)
    return command.make_context("codedfedl", words).params
