"""What several test files share."""

import math
import os
import time

import pytest
from hypothesis import settings

os.environ.pop("COLUMNS", None)  # of the terminal of whoever runs several processes of tests

from codedfedl.cli import main

# The same examples every time: a red check means a changed program, not an unlucky draw.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("repeatable")
# New examples every time, for what an attacker may find: --hypothesis-profile search.
settings.register_profile("search", derandomize=False, deadline=None, max_examples=500)


NOT_HERE = ("needs the real data", "needs the superuser")
"""Reasons for which a test may be skipped where none may."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--turn", type=int, metavar="N", help="run N of the tests: each day others")
    parser.addoption("--no-skips", action="store_true", help="fail if tests are skipped")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail where tests were skipped: a package that is missing is a check that is missing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.getoption("--no-skips"):
        return
    reasons = {str(report.longrepr[2]) for report in reporter.stats.get("skipped", [])}
    refused = sorted(reason for reason in reasons if not reason.endswith(NOT_HERE))
    if refused and session.exitstatus == pytest.ExitCode.OK:
        print("\ntests were skipped:", *refused, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests whose turn it is, by the day of the year, once markers have chosen."""
    share = config.getoption("--turn")
    if share is None:
        return
    turns = math.ceil(len(items) / share)
    today = time.localtime().tm_yday % max(turns, 1)
    others = [item for k, item in enumerate(items) if k % turns != today]
    items[:] = items[today::turns] if turns else []
    config.hook.pytest_deselected(items=others)
    print(f"\nturn {today + 1} of {turns}:", *(item.nodeid for item in items), sep="\n  ")


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
