"""What several test files share."""

import os

import pytest
from hypothesis import settings

os.environ.pop("COLUMNS", None)  # of the terminal of whoever runs several processes of tests

from codedfedl.cli import main

# The same examples every time: a red check means a changed program, not an unlucky draw.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("repeatable")


class Run:
    """Run a command as a shell would, and keep what it printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self.monkeypatch.setattr("sys.argv", ["codedfedl", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = self.capsys.readouterr()
        return int(stop.value.code or 0), out, err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "120")
    return Run(monkeypatch, capsys)
