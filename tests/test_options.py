"""Options that belong together are one parameter of a command, and nothing else changes."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from codedfedl.cli.options import grouped


@dataclass(frozen=True)
class Size:
    width: Annotated[int, typer.Option(help="Of a box.")] = 2
    height: Annotated[int, typer.Option("--tall", min=1)] = 3


def test_the_fields_of_a_group_are_options_where_the_group_stands() -> None:
    app = typer.Typer()

    @app.command()
    @grouped
    def area(name: str, size: Size, *, quiet: bool = False) -> None:
        print(name, size.width * size.height, quiet)

    runner = CliRunner()
    assert runner.invoke(app, ["box"]).output == "box 6 False\n"
    assert runner.invoke(app, ["--tall", "5", "box", "--quiet"]).output == "box 10 True\n"
    assert runner.invoke(app, ["box", "--tall", "0"]).exit_code == 2
    shown = runner.invoke(app, ["--help"]).output
    assert shown.index("--width") < shown.index("--tall") < shown.index("--quiet")
