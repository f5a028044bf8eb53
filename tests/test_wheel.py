"""The package as users install it: a wheel, built here and installed elsewhere, without a network.

`make test-extras` runs it; building takes longer than the other checks.
"""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from codedfedl import __version__

ROOT = Path(__file__).parent.parent
OFFLINE = ("--no-index", "--no-deps", "--quiet", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package alone; its dependencies are those of this interpreter."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip"]
    build = [*pip, "wheel", *OFFLINE, "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("codedfedl-*.whl")
    target = str(folder / "lib")
    subprocess.run([*pip, "install", *OFFLINE, "--target", target, str(wheel)], check=True)
    return folder / "lib"


def call(installed: Path, *words: str | Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"PYTHONPATH": str(installed), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=installed.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.extras
def test_the_wheel_plans_and_reports(installed: Path) -> None:
    where = call(installed, "-c", "import codedfedl; print(codedfedl.__file__)")
    assert Path(where.strip()).is_relative_to(installed)
    command = installed / "bin" / "codedfedl"  # what a shell calls
    assert call(installed, command, "--version").strip() == f"codedfedl {__version__}"
    assert "Deadline" in call(installed, command, "plan", "paper")
    small = ("--set", "training.epochs=3", "--set", "seeds=[0]", "--out", "run")
    call(installed, command, "simulate", "demo", *small)
    assert (installed.parent / "run" / "report.html").stat().st_size > 100_000


@pytest.mark.extras
def test_the_wheel_holds_what_is_not_python(installed: Path) -> None:
    kept = {p.relative_to(installed).as_posix() for p in installed.glob("codedfedl/**/*.*")}
    source = ROOT / "src"
    wanted = {p.relative_to(source).as_posix() for p in source.glob("codedfedl/**/*.*")}
    assert {p for p in wanted if not p.endswith(".pyc")} <= kept
    assert any(p.endswith("LICENSE") for p in map(str, installed.glob("codedfedl-*/**/*")))


@pytest.mark.extras
def test_the_source_archive_builds_the_same_package(installed: Path, tmp_path: Path) -> None:
    build = "import sys; from hatchling.build import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=ROOT, check=True)
    (archive,) = tmp_path.glob("codedfedl-*.tar.gz")
    with tarfile.open(archive) as file:
        kept = {name.partition("/")[2] for name in file.getnames()}
    assert {"README.md", "SECURITY.md", "docs/conf.py", "tests/test_wheel.py"} <= kept
    install = [sys.executable, "-m", "pip", "install", *OFFLINE, "--no-build-isolation"]
    subprocess.run([*install, "--target", str(tmp_path / "lib"), str(archive)], check=True)
    files = [
        {p.relative_to(f).as_posix() for p in f.glob("codedfedl/**/*.*") if p.suffix != ".pyc"}
        for f in (installed, tmp_path / "lib")
    ]
    assert files[0] == files[1]


def test_one_version_everywhere() -> None:
    texts = ("pyproject.toml", "src/codedfedl/federate/flower/app/pyproject.toml")
    projects = [tomllib.loads((ROOT / name).read_text("utf-8"))["project"] for name in texts]
    assert {project["version"] for project in projects} == {__version__}
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    releases = re.findall(
        r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    assert releases[:2] == ["Unreleased", __version__]


def test_no_page_promises_a_package_that_is_not_published() -> None:
    """Extras of a package that is there can be installed by its name; the package itself cannot."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    lines = [line for page in pages for line in page.read_text("utf-8").splitlines()]
    installs = [line for line in lines if "pip install" in line]
    assert len(installs) >= 3
    assert not [line for line in installs if re.search(r"pip install '?codedfedl", line)]
