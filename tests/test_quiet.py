"""Logs that others can cause: bounded, and without their escape codes."""

import logging
import time
from typing import Any, NoReturn

import pytest

from codedfedl.federate.flower import worker
from codedfedl.federate.transport import QUIET_SECONDS, quietly

ESCAPE = "\x1b[31m\x1b]0;title\x07"


def test_one_sentence_a_minute_and_how_many_were_left_out() -> None:
    said: list[str] = []
    times = iter([0.0, 0.0, 1.0, 2.0, QUIET_SECONDS, QUIET_SECONDS])
    speak = quietly(said.append, lambda: next(times))
    for k in range(4):
        speak(f"refused {k}")
    assert said == ["refused 0", "refused 3, and 2 more since the last"]


class FailingClient(worker.TaskClient):
    """An API that answers every look for a task with somebody else's words."""

    def __init__(self) -> None:  # without a connection
        pass

    def token(self, kind: str) -> NoReturn:
        raise ConnectionError(f"{ESCAPE}\nsecond line")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_server_whose_superlink_fails_logs_one_line_a_minute(lines: Any, tmp_path: Any) -> None:
    apps = worker.ServerWorker(FailingClient(), tmp_path, None)
    for _ in range(100):
        apps.look()
    assert lines() == ["no task from the SuperLink (ConnectionError)"]
