"""What several test files share."""

import math
import os
import time
from collections.abc import Generator, Iterator
from typing import TypeVar

import pytest
from hypothesis import settings

os.environ.pop("COLUMNS", None)  # of the terminal of whoever runs several processes of tests

from codedfedl.cli import main

# The same examples every time: a red check means a changed program, not an unlucky draw.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("repeatable")
# New examples every time, for what an attacker may find: --hypothesis-profile search.
settings.register_profile("search", derandomize=False, deadline=None, max_examples=500)


NOT_HERE = (
    *(() if "CODEDFEDL_DATA" in os.environ else ("needs the real data",)),
    *("needs the superuser", "needs Docker with compose, and a daemon that runs"),
    "not checking array_api input",  # of scikit-learn
)
"""How reasons end for which a test may be skipped where none may."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--turn", type=int, metavar="N", help="run N of the tests: each day others")
    parser.addoption("--no-skips", action="store_true", help="fail if tests are skipped")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that is skipped: a package that is missing is a check that is missing."""
    return _not_skipped(item.config, (yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a file that is skipped as a whole."""
    return _not_skipped(collector.config, (yield))


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def _not_skipped(config: pytest.Config, report: Report) -> Report:
    if report.skipped and config.getoption("--no-skips") and isinstance(report.longrepr, tuple):
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        if not reason.endswith(NOT_HERE):
            report.outcome, report.longrepr = "failed", f"a test was skipped: {reason}"
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests whose turn it is, by the day of the year, once markers have chosen."""
    share = config.getoption("--turn")
    if share is None or config.getoption("--last-failed"):  # whatever failed is run again
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


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Leave out what only a power cut would show; a kill loses nothing that was written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "120")
    return Run(monkeypatch, capsys)
