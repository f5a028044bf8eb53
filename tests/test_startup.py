"""What a command imports before it answers: seconds are measured in `benchmarks/startup.py`."""

import os
import subprocess
import sys

import pytest
import typer

from codedfedl.cli import app
from codedfedl.cli.options import known_schemes
from codedfedl.schemes import SCHEMES
from tests.conftest import Run

COMMANDS = [*vars(typer.main.get_command(app))["commands"]]
HEAVY = {"jinja2", "matplotlib", "numpy", "pooch", "pyarrow", "pydantic", "scipy", "sklearn"}
ASK = """
import sys
sys.argv = ["codedfedl", *sys.argv[1:]]
from codedfedl.__main__ import main
try:
    main()
except SystemExit as stop:
    print("code", stop.code, file=sys.stderr)
print(*{name.partition(".")[0] for name in sys.modules}, file=sys.stderr)
"""


def imported(*arguments: str, **variables: str) -> tuple[str, set[str]]:
    """Run a command in a new interpreter; return its output and the packages that it imported."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    code, packages = done.stderr.splitlines()[-2:]
    assert code in ("code 0", "code None"), done.stderr
    return done.stdout, set(packages.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        *([*name.split(), "--help"] for name in ("", *COMMANDS, "federate local")),
    ],
    ids=" ".join,
)
def test_help_and_version_import_no_library_of_numbers(arguments: list[str]) -> None:
    printed, packages = imported(*arguments)
    assert printed
    assert packages & HEAVY == set()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("codedfedl pl", {"plan"}),
        ("codedfedl simulate table1-m", {"table1-mnist"}),
        ("codedfedl simulate demo --dev", {"--device"}),
        ("codedfedl simulate demo --device cu", {"cuda", "cupy"}),
        ("codedfedl federate local --scheme coded-", {"coded-newton"}),
    ],
)
def test_completion_imports_none_either(words: str, wanted: set[str]) -> None:
    printed, packages = imported(
        _CODEDFEDL_COMPLETE="complete_bash",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split()) - 1),
    )
    assert set(printed.split()) == wanted
    assert packages & HEAVY == set()


def test_a_plan_needs_numpy_alone() -> None:
    printed, packages = imported("plan", "paper")
    assert "Deadline" in printed
    assert packages & HEAVY == {"numpy"}


def test_every_scheme_completes() -> None:
    assert known_schemes("") == sorted(SCHEMES)


def test_help_is_wrapped_once_and_has_no_escapes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    tour = run("--help")[1]
    assert "codedfedl report RUN RUN " in tour
    lines = [line.strip() for line in run("plan", "--help")[1].splitlines()]
    first = next(place for place, line in enumerate(lines) if line.startswith("FLEET has"))
    last = lines.index("", first)
    assert last - first > 5
    assert min(len(line) for line in lines[first : last - 1]) > 40  # none ends amid a paragraph
    for shown in (tour, *lines):
        assert "\\b" not in shown
        assert "\b" not in shown


def test_an_extra_in_brackets_is_no_markup(run: Run) -> None:
    assert "codedfedl[onnx]" in run("export", "--help")[1]


def test_an_unknown_command_is_answered(run: Run) -> None:
    code, _, err = run("plam", "paper")
    assert code == 2
    assert "Did you mean 'plan'" in err
