"""The table of `docs/explanation/theory.md` names functions that exist."""

import re
from importlib import import_module
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "theory.md"


def named() -> list[str]:
    """Return the names in the last column of the tables with the heading `function`."""
    names, inside = [], False
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        inside = line.startswith("|") and (inside or cells[-1] == "function")
        if inside:
            names += re.findall(r"`([^`]+)`", cells[-1])
    return names


def resolve(name: str) -> object:
    """Import the longest module that the name begins with, and look up the rest."""
    found: object = import_module("codedfedl")
    path = "codedfedl"
    for part in name.split("."):
        path += f".{part}"
        if not hasattr(found, part):
            import_module(path)
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", named())
def test_name_in_the_table_exists(name: str) -> None:
    assert callable(resolve(name)) or isinstance(resolve(name), property)


def test_every_numbered_equation_is_in_the_table() -> None:
    cited: set[int] = set()
    for listed in re.findall(r"eq\. (\d+(?:, \d+)*)", PAGE.read_text("utf-8")):
        cited |= {int(number) for number in listed.split(", ")}
    assert cited == set(range(1, 15))


def test_an_unknown_name_is_found_out() -> None:
    with pytest.raises(ModuleNotFoundError):
        resolve("planning.retransmissions")
