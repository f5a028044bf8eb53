"""The checks themselves: what must not be green while something is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

TESTS = """
import pytest

def test_passes():
    pass

@pytest.mark.skipif(True, reason={reason!r})
def test_is_skipped():
    pass
"""


@pytest.mark.parametrize(
    ("reason", "options", "code"),
    [
        ("could not import 'onnx'", ["--no-skips"], 1),
        ("could not import 'onnx'", [], 0),
        ("needs the real data", ["--no-skips"], 0),
    ],
)
def test_a_skipped_test_fails_where_none_may_be(
    reason: str, options: list[str], code: int, tmp_path: Path
) -> None:
    (tmp_path / "test_it.py").write_text(TESTS.format(reason=reason))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-o", "addopts=", "--rootdir", str(tmp_path), *options, str(tmp_path)],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("tests were skipped" in done.stdout) == bool(code)
