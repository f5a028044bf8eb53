"""The examples in docstrings and in the README run, and say what they print."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import codedfedl

ROOT = Path(__file__).parent.parent
MODULES = ["codedfedl"] + [
    module.name for module in pkgutil.walk_packages(codedfedl.__path__, "codedfedl.")
]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_readme() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    assert blocks
    for block in blocks:
        test = doctest.DocTestParser().get_doctest(block, {}, "README", "README.md", 0)
        assert test.examples
        assert doctest.DocTestRunner().run(test).failed == 0
