"""A command's options: their help comes from docstrings, and dataclasses group them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from codedfedl.cli.options import documented


@dataclass(frozen=True)
class Size:
    """The size of a box.

    Attributes
    ----------
    width : METRES
        Of a box, which may
        be [wide].
    """

    width: int = 2
    height: Annotated[int, typer.Option("--tall", min=1, help="From the floor.")] = 3
    marks: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @documented
    def area(name: str, *, size: Size, is_quiet: bool = False, count: int = 1) -> None:
        """Say how large a box is.

        Parameters
        ----------
        name
            What is written on it.
        count
            How many there are.
        """
        print(name, size.width * size.height * count, is_quiet, *size.marks)

    return app


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["box"], "box 6 False"),
        (["--tall", "5", "box", "--is-quiet"], "box 10 True"),
        (["box", "--marks", "a", "--marks", "b", "--count", "2"], "box 12 False a b"),
    ],
)
def test_arguments_by_position_and_options_by_name(
    app: typer.Typer, arguments: list[str], printed: str
) -> None:
    assert CliRunner().invoke(app, arguments).output == f"{printed}\n"


@pytest.mark.parametrize(
    "arguments", [["box", "--tall", "0"], ["box", "--no-is-quiet"], ["box", "--more", "a"], []]
)
def test_what_is_not_an_option_is_refused(app: typer.Typer, arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


def test_help_is_that_of_the_docstrings(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "dumb")
    shown = CliRunner().invoke(app, ["--help"]).output
    assert "Say how large a box is." in shown
    assert "Parameters" not in shown
    for words in ("What is written on it.", "How many there are.", "From the floor."):
        assert words in shown
    assert "The size of a box" in shown
    assert "METRES" in shown
    assert "Of a box, which may be [wide]." in shown
