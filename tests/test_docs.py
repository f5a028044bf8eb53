"""The README and the tutorials run from top to bottom, as for a newcomer who copies every block.

Blocks in `sh` run in bash, blocks in `python` in one interpreter, all of a page in one folder. What
a `>>>` prints must be what stands below it. Lines of a `text` block must come, in this order, from
the `sh` block before it; spaces do not count. A block after the comment `<!-- not run: REASON -->`
is not run; one after `<!-- file: NAME -->` is written to that file.
"""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from codedfedl import schemes

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "docs/howto/fit.md",
    "docs/howto/notebooks.md",
    *sorted(f"docs/tutorials/{p.name}" for p in ROOT.glob("docs/tutorials/*.md")),
]
NEED_EXTRAS = ("docs/tutorials/learned-features.md", "docs/tutorials/text-classifier.md")
SECONDS = 120

_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n+)?(?:<!-- file: (?P<file>[\w.]+) -->\n+)?"
    r"```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


_ALL = re.MULTILINE | re.DOTALL


class Block(NamedTuple):
    language: str
    text: str
    reason: str | None
    file: str | None


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text("utf-8")
    return [Block(m["language"], m["text"], m["reason"], m["file"]) for m in _FENCE.finditer(text)]


def marked(page: str) -> Any:
    """Run a page with those that take long, or with those that need optional packages."""
    mark = pytest.mark.extras if page in NEED_EXTRAS else pytest.mark.slow
    return pytest.param(page, marks=mark)


@pytest.mark.parametrize("page", [marked(page) for page in PAGES])
def test_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(schemes, "SCHEMES", dict(schemes.SCHEMES))  # a page may add its own
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OPENBLAS_NUM_THREADS": "1"}
    names: dict[str, Any] = {"__name__": "tutorial"}
    said = ""
    for block in blocks(page):
        if block.reason is not None:
            said = ""
        elif block.file is not None:
            Path(block.file).write_text(block.text, "utf-8")
        elif block.language == "sh":
            said = shell(block.text, environment)
        elif block.language == "python":
            python(block.text, names, page)
        elif block.language == "text":
            assert_said(block.text, said)


def test_what_is_not_run_is_code() -> None:
    for page in PAGES:
        skipped = [block for block in blocks(page) if block.reason is not None]
        assert all(block.language in ("sh", "python") for block in skipped), page
        assert (ROOT / page).read_text("utf-8").count("<!-- not run") == len(skipped), page


def test_every_block_says_what_it_is() -> None:
    """A block without a language is output that no test compares: it must say why."""
    opening = re.compile(r"(?:<!-- (not checked: [^\n]+) -->\n+)?^```(\w*)\n.*?^```$", _ALL)
    for page in PAGES:
        openings = opening.findall((ROOT / page).read_text("utf-8"))
        assert openings, page
        assert all(language or reason for reason, language in openings), page


def test_files_that_pages_name_are_there() -> None:
    files = [f"/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "src").rglob("*.py")]
    files += [f"/{path.relative_to(ROOT).as_posix()}" for path in ROOT.glob("*/*.py")]
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
    named = {
        (page.name, name)
        for page in pages
        if page.name != "CHANGELOG.md"  # of versions in which files had other names
        for name in re.findall(r"`([\w/]+/\w+\.py)`", page.read_text("utf-8"))
    }
    assert len(named) > 20
    missing = [one for one in named if not any(file.endswith(f"/{one[1]}") for file in files)]
    assert sorted(missing) == []


def shell(text: str, environment: dict[str, str]) -> str:
    """Run a block, and return what it printed; a command that fails ends it."""
    run = subprocess.run(
        ["bash", "-e", "-c", text],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert run.returncode == 0, f"{text}\nended with {run.returncode}:\n{run.stderr}\n{run.stdout}"
    return run.stdout


def python(text: str, names: dict[str, Any], page: str) -> None:
    """Run a block as a doctest if it is one, and as it stands otherwise."""
    if not text.startswith(">>>"):
        exec(compile(text, page, "exec"), names)
        return
    test = doctest.DocTestParser().get_doctest(text, names, page, page, 0)
    told: list[str] = []
    doctest.DocTestRunner().run(test, out=told.append, clear_globs=False)
    assert not told, "".join(told)
    names.update(test.globs)


def assert_said(shown: str, said: str) -> None:
    """Find every line that is shown in what was printed, in the same order."""
    printed = iter([" ".join(line.split()) for line in said.splitlines()])
    for line in filter(None, (" ".join(line.split()) for line in shown.splitlines())):
        assert line in printed, f"{line!r} is shown and was not printed, in this order, in:\n{said}"
