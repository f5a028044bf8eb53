"""The names that `codedfedl` itself exports."""

import subprocess
import sys

import pytest

import codedfedl


def test_every_public_name_is_there() -> None:
    assert all(getattr(codedfedl, name) is not None for name in codedfedl.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'plann'"):
        codedfedl.plann  # noqa: B018


def test_a_node_of_a_federation_starts_without_what_it_does_not_need() -> None:
    """The engine starts a process for every message, so each import is paid again and again."""
    text = "import sys, codedfedl.federate.node.node; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"scipy", "sklearn", "matplotlib", "pydantic", "rich", "flwr"}
