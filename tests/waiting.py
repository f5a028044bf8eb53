"""What tests of real processes share."""

import time
from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["eventually"]


def eventually(what: Callable[[], Any], seconds: float, why: str) -> Any:
    """Return what a function finds, once it finds something; fail with the reason if it is late."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.2)
    return pytest.fail(f"{why} within {seconds:g} s")
