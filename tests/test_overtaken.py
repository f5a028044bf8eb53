"""A SuperLink is killed between a message and its parts: its nodes go on with the next message."""

import threading
from typing import Any, NoReturn

import pytest

from codedfedl.federate.flower import worker


class Connection:
    """The API for one task, whose message never comes."""

    def __init__(self, patience: float) -> None:
        self.patience, self.closed = patience, threading.Event()
        self.was_closed = False

    def SendTaskHeartbeat(self, _request: Any) -> None: ...  # noqa: N802

    def PullTaskInput(self, _request: Any) -> NoReturn:  # noqa: N802
        self.was_closed = self.closed.wait(self.patience)
        raise ConnectionError("nothing came")

    def close(self) -> None:
        self.closed.set()


class Tasks(worker.TaskClient):
    """Two tasks: the second one is there while the first is still waited for."""

    def __init__(self) -> None:  # without a connection
        self.tokens, self.taken = iter(["first", "second"]), list[Connection]()

    def token(self, kind: str) -> str:
        return next(self.tokens, "")

    def connect(self, component: str, *interceptors: Any) -> Any:
        self.taken.append(Connection(0.0 if self.taken else 10.0))
        return self.taken[-1]


def test_a_task_whose_message_never_comes_is_left_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "HEARTBEAT_SECONDS", 0.01)
    tasks = Tasks()
    worker.answer_tasks(tasks, lambda: NotImplemented, lambda: len(tasks.taken) < 2)
    assert tasks.taken[0].was_closed
    assert len(tasks.taken) == 2


def test_a_task_that_is_alone_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "HEARTBEAT_SECONDS", 0.01)
    tasks = Tasks()
    tasks.tokens = iter(())
    tasks.connect = lambda *_: Connection(0.2)  # type: ignore[method-assign]
    with tasks.task("first", "kind") as task, pytest.raises(ConnectionError):
        task.client.PullTaskInput(None)
    assert not task.client.was_closed
