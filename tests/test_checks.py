"""The checks themselves: what must not be green while something is missing."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def checked(
    folder: Path, text: str, *options: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a file of tests with the options that this project's tests have."""
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--rootdir", str(folder)]
    return subprocess.run(
        [*command, "-o", "addopts=", *options, str(folder)],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{folder}", "PATH": "", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


MARKED = """
import pytest

def test_passes():
    pass

@pytest.mark.skipif(True, reason={reason!r})
def test_is_skipped():
    pass
"""
AS_A_WHOLE = "import pytest\n\npytest.skip({reason!r}, allow_module_level=True)\n"
MISSING = "could not import 'onnx'"


@pytest.mark.parametrize(
    ("text", "reason", "options", "code"),
    [
        (MARKED, MISSING, ["--no-skips"], 1),
        (MARKED, MISSING, [], 0),
        (MARKED, "needs the real data", ["--no-skips"], 0),
        (AS_A_WHOLE, MISSING, ["--no-skips"], 2),
    ],
)
def test_a_skipped_test_fails_where_none_may_be(
    text: str, reason: str, options: list[str], code: int, tmp_path: Path
) -> None:
    done = checked(tmp_path, text.format(reason=reason), "-p", "no:cacheprovider", *options)
    assert done.returncode == code, done.stdout + done.stderr
    assert (f"a test was skipped: {reason}" in done.stdout) == bool(code)


def test_where_the_real_data_are_no_test_is_skipped_for_them(tmp_path: Path) -> None:
    text = MARKED.format(reason="needs the real data")
    assert checked(tmp_path, text, "--no-skips", CODEDFEDL_DATA="/data").returncode == 1


FLAKY = """
from pathlib import Path
import pytest

def test_fails_once():
    first = not Path({seen!r}).exists()
    Path({seen!r}).touch()
    assert not first

def test_is_skipped():
    pytest.skip("no engine")
"""


def test_a_skip_fails_again_beside_a_test_that_failed_once(tmp_path: Path) -> None:
    text = FLAKY.format(seen=str(tmp_path / "seen"))
    again = ["--last-failed", "--last-failed-no-failures", "none"]
    for options in ([], again):
        assert checked(tmp_path, text, "--no-skips", *options).returncode == 1


PYTEST = """#!/bin/sh
echo "$@" >> "$CALLS"
exit "$(echo "$STATUSES" | cut -d' ' -f"$(wc -l < "$CALLS")")"
"""
ENGINE = ["test-engine-short", "test-engine-turn", "test-newest-engine"]


@pytest.mark.parametrize("target", ENGINE)
@pytest.mark.parametrize(
    ("statuses", "calls", "code"),
    [("0", 1, 0), ("1 0", 2, 0), ("1 1", 2, 2), ("1 5", 2, 2)]
    + [(status, 1, 2) for status in ("2", "3", "5", "137", "139")],
)
def test_real_processes_have_a_second_try_of_what_failed_where_every_test_was_run(
    target: str, statuses: str, calls: int, code: int, tmp_path: Path
) -> None:
    """Interrupted, broken, empty, killed, crashed: then what was not run would pass unseen."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pytest").write_text(PYTEST)
    (tmp_path / "bin" / "pytest").chmod(0o755)
    here = [f"BIN={tmp_path / 'bin'}", f"NEWEST={tmp_path}", "DEV="]
    done = subprocess.run(
        ["make", target, *here],
        cwd=ROOT,
        env=os.environ | {"CALLS": str(tmp_path / "calls"), "STATUSES": statuses},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    lines = (tmp_path / "calls").read_text().splitlines()
    assert len(lines) == calls
    assert [line.endswith("--last-failed --last-failed-no-failures none") for line in lines] == [
        False,
        True,
    ][:calls]


MANY = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_numbered(number):
    assert {assertion}
"""
ON_DAY = """
import time
from types import SimpleNamespace

time.localtime = lambda *_: SimpleNamespace(tm_yday={day})
"""


def test_tests_take_turns_by_the_day_and_are_printed(tmp_path: Path) -> None:
    """Three of them, two a day: all have had their turn after two days."""
    turns = []
    for day in (365, 366):
        (tmp_path / "on_day.py").write_text(ON_DAY.format(day=day))
        done = checked(tmp_path, MANY.format(assertion="True"), "-p", "on_day", "--turn", "2", "-v")
        assert done.returncode == 0, done.stdout + done.stderr
        printed = set(re.findall(r"^  test_it.py::test_numbered\[(\d)\]$", done.stdout, re.M))
        assert set(re.findall(r"test_numbered\[(\d)\] PASSED", done.stdout)) == printed
        turns.append(printed)
    assert sorted(number for turn in turns for number in turn) == list("012")


def test_whatever_failed_in_its_turn_is_run_again(tmp_path: Path) -> None:
    text = MANY.format(assertion="False")
    assert checked(tmp_path, text, "--turn", "3").returncode == 1
    assert "3 failed" in checked(tmp_path, text, "--turn", "1", "--last-failed").stdout


# `.ci/run`, with programs that only note that they were called.

MAKE = """#!/bin/sh
echo "$@" >> "$CALLS"
echo "$CODEDFEDL_DATA $PYTEST_ADDOPTS" >> "$CALLS.set"
case "$1" in "$FAILS") exit 2 ;; esac
"""
STEPS = re.findall(r"^ *step make ([\w-]+)", (ROOT / ".ci/run").read_text("utf-8"), re.M)


def ci(folder: Path, *, fails: str = "", without: Collection[str] = ()) -> tuple[int, list[str]]:
    """Run `.ci/run` where a target of make fails; return its exit status and the targets."""
    (folder / "clone" / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci/run", folder / "clone" / ".ci")
    (folder / "bin").mkdir()
    for name in {"make", "chromium", "python3.11", "python3.12", "python3.13"} - {*without}:
        (folder / "bin" / name).write_text(MAKE if name == "make" else "#!/bin/sh\n")
        (folder / "bin" / name).chmod(0o755)
    for name in ("bash", "date", "dirname", "sh"):
        (folder / "bin" / name).symlink_to(str(shutil.which(name)))
    calls = folder / "calls"
    calls.touch()
    done = subprocess.run(
        [folder / "clone" / ".ci" / "run"],
        env={
            "PATH": str(folder / "bin"),
            "HOME": str(folder),
            "CALLS": str(calls),
            "FAILS": fails,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == ("all steps passed" in done.stdout), done.stdout + done.stderr
    return done.returncode, calls.read_text().splitlines()


def test_the_whole_run_passes_where_every_step_does(tmp_path: Path) -> None:
    code, calls = ci(tmp_path)
    assert code == 0
    assert [call.split()[0] for call in calls] == STEPS
    makefile = (ROOT / "Makefile").read_text("utf-8")
    tests = set(re.findall(r"^(test[\w-]*):", makefile, re.M)) - {"test-engine", "tests"}
    assert tests <= {*STEPS}  # long tests take turns instead of test-engine


def test_every_step_has_the_real_data_and_skips_nothing(tmp_path: Path) -> None:
    (tmp_path / "shared" / "data").mkdir(parents=True)
    assert ci(tmp_path)[0] == 0
    variables = {*(tmp_path / "calls.set").read_text().splitlines()}
    assert variables == {f"{tmp_path / 'shared' / 'data'} --no-skips"}


def test_every_test_is_in_a_step_whatever_its_markers() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    options = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]
    markers = [line.partition(":")[0] for line in options["ini_options"]["markers"]]
    text = options["ini_options"]["addopts"] + re.sub(r".* -k .*", "", makefile)
    chosen = {
        "".join(parts) for parts in re.findall(r"""pytest -m (?:"(.+?)"|(\w+))| -m '(.+?)'""", text)
    }
    assert len(chosen) == 6
    for has in product([False, True], repeat=len(markers)):
        assert any(eval(each, dict(zip(markers, has, strict=True))) for each in chosen), has


@pytest.mark.parametrize("target", STEPS)
def test_a_step_that_fails_fails_the_whole_run(target: str, tmp_path: Path) -> None:
    code, calls = ci(tmp_path, fails=target)
    assert code != 0
    assert calls[-1].split()[0] == target


@pytest.mark.parametrize(
    "names", [["python3.11"], ["chromium"], ["python3.12", "python3.13"]], ids=str
)
def test_a_program_that_cannot_be_had_fails_the_whole_run(names: list[str], tmp_path: Path) -> None:
    """The two newest versions of Python take turns, so both are missing."""
    assert ci(tmp_path, without=names)[0] != 0
