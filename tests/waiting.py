"""What tests of real processes share."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["eventually", "interruptible"]


def eventually(what: Callable[[], Any], seconds: float, why: str) -> Any:
    """Return what a function finds, once it finds something; fail with the reason if it is late."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.2)
    return pytest.fail(f"{why} within {seconds:g} s")


@contextmanager
def interruptible() -> Iterator[None]:
    """Let processes that start meanwhile heed Ctrl-C, even if the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
