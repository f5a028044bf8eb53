"""Flower's versions: what is not tested is refused before anything starts."""

import ast
import importlib.metadata
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

import codedfedl
from codedfedl.errors import InputError
from codedfedl.federate.flower.programs import check_engine, check_version
from tests.conftest import Run

SOURCE = Path(codedfedl.__file__).parent
VERSIONS = {
    **dict.fromkeys(["1.41.0", "1.41.7", "1.42.0", "1.42.13"], True),
    **dict.fromkeys(["1.40.0", "1.43.0", "1.4.1", "1.410.0", "2.0", "2.41.0", "0.1.41.0"], False),
    **dict.fromkeys(["1.42.0rc1", "1.42.0.dev20260101", "1.41", "1.42.0+local", "", "x"], False),
}


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the modules that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


class TestVersions:
    """Flower's internals keep delivered code out of a node: only what is tested is used."""

    @pytest.mark.parametrize("version", VERSIONS)
    def test_what_is_not_tested_is_refused(self, version: str) -> None:
        if VERSIONS[version]:
            check_version(version)
            return
        remedy = "only 1.41 and 1.42 are tested: pip install 'flwr~=1.41.0'"
        with pytest.raises(
            InputError, match=re.escape(f"flwr {version} is installed, and {remedy}")
        ):
            check_version(version)

    def test_three_files_alone_use_internals(self) -> None:
        """What these rely on is what another version must be tested for."""
        public = {"flwr", "flwr.app", "flwr.clientapp", "flwr.serverapp"}
        using = {
            path.relative_to(SOURCE).as_posix()
            for path in SOURCE.rglob("*.py")
            for module in imported(ast.parse(path.read_text("utf-8")))
            if module.split(".")[0] == "flwr" and module not in public
        }
        assert using == {f"federate/flower/{name}.py" for name in ("wire", "worker", "connection")}

    def test_the_installed_one_is_tested(self) -> None:
        check_engine()

    @pytest.mark.parametrize(
        "command",
        [
            ["node", "--superlink", "127.0.0.1:1", "--name", "ada", "--data", "ada.npz"],
            ["helper", "--superlink", "127.0.0.1:1"],
            ["serve"],
            ["register", "ada.pub"],
            ["local"],
        ],
        ids=lambda command: str(command[0]),
    )
    def test_nothing_starts_with_another(
        self, command: list[str], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_process(*_: Any, **__: Any) -> NoReturn:
            raise AssertionError("a process was started")

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(importlib.metadata, "version", lambda _: "1.43.0")
        monkeypatch.setattr(subprocess, "Popen", no_process)
        code, _, err = run("federate", *command)
        assert code == 2
        assert "flwr 1.43.0 is installed" in " ".join(err.split())
        assert list(tmp_path.iterdir()) == []
