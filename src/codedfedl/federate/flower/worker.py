"""Tasks of the engine, taken and done by this package, with internals of Flower (as `wire`).

A SuperNode or SuperLink in process isolation hands its tasks to whoever has its secret. The node's
worker answers them in this process with the installed client, so that the code that a run delivers
is never loaded, no token stands on a command line, and no process starts for a message. The
server's worker starts the server app with its token in a file.

Versions of Flower that it is not tested with are refused before anything starts
(`programs.check_version`).
"""

import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message

from codedfedl.errors import InputError
from codedfedl.federate.deploy.keys import write_secret
from codedfedl.federate.flower.programs import Program, program
from codedfedl.federate.flower.wire import respond
from codedfedl.federate.transport import Answerer, printable, quietly

_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"

# Seconds between two looks for a task: just after another one, and later.
QUICK_LOOK_SECONDS, SLOW_LOOK_SECONDS = 0.1, 0.5

# Seconds after a task for which the next is expected soon.
SOON_SECONDS = 30.0

# Seconds between two heartbeats of a task.
HEARTBEAT_SECONDS = 10.0

# The code of an error reply: any number but 0 will do.
FAILED = 1

_log = logging.getLogger(__name__)
_fault = quietly(_log.error)


@dataclass(eq=False)
class TakenTask:
    """A task that was taken.

    Parameters
    ----------
    has_message
        Whether its message is there, with all of its parts.
    next_token
        The token of the task that overtook it. A SuperNode hands out one message after the other,
        and forgets one whose parts never came (a SuperLink was killed between a message and its
        parts), but not its task.
    """

    client: Any
    has_message: bool = False
    next_token: str = ""


class TaskClient:
    """The runtime API of a SuperNode or SuperLink, where tasks are.

    Parameters
    ----------
    address
        Host and port, on loopback.
    secret
        The secret that authorises taking tasks.
    authority
        The certificate that the API's own is checked with; None for plaintext.
    """

    def __init__(self, address: str, secret: bytes, authority: Path | None = None) -> None:
        from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

        self.address = address
        self.authority = None if authority is None else authority.read_bytes()
        signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={_ACQUIRE})
        self._client = self.connect("SuperExec", signed)

    def connect(self, component: str, *interceptors: Any) -> Any:
        """Return a connection to the API."""
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supercore.runtime import RuntimeHttpClient

        version = RuntimeVersionHttpInterceptor(component_name=component)
        return RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=self.authority is None,
            root_certificates=self.authority,
            interceptors=[version, *interceptors],
        )

    def token(self, kind: str) -> str:
        """Take the oldest task of a kind; return its token, or nothing where there is none."""
        from flwr.proto.runtime_pb2 import AcquireTaskRequest

        taken = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
        return str(taken.token) if taken.HasField("task") else ""

    @contextmanager
    def task(self, token: str, kind: str) -> Iterator[TakenTask]:
        """Yield one task, and send heartbeats for it; it fails when it is overtaken by another."""
        from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest
        from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor

        client = self.connect("flwr-clientapp", RuntimeTokenHttpInterceptor(token))
        done, task = threading.Event(), TakenTask(client)

        def live() -> None:
            while not done.wait(HEARTBEAT_SECONDS):
                with suppress(Exception):  # the next one may get through
                    client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
                    if not task.has_message and (another := self.token(kind)):
                        task.next_token = another
                        client.close()  # whoever waits for its parts gets an error
                        return

        threading.Thread(target=live, daemon=True).start()
        try:
            yield task
        finally:
            done.set()
            client.close()


def answer_tasks(
    tasks: TaskClient, node: Callable[[], Answerer], running: Callable[[], bool]
) -> None:
    """Answer every message that a SuperNode receives, in this process, while it runs."""
    from flwr.supercore.constant import TaskType

    last, warn = -SOON_SECONDS, quietly(_log.warning)
    task, kind = TakenTask(None), TaskType.CLIENT_APP
    while running():
        try:
            token, task = task.next_token or tasks.token(kind), TakenTask(None)
            if token:
                with tasks.task(token, kind) as task:
                    _answer(task, node)
                last = time.monotonic()
        except Exception as error:  # the SuperNode may be busy, or on its way out
            warn(f"a task was not done ({printable(f'{type(error).__name__}: {error}')})")
            token = task.next_token
        if not token:
            is_soon = time.monotonic() - last < SOON_SECONDS
            time.sleep(QUICK_LOOK_SECONDS if is_soon else SLOW_LOOK_SECONDS)


def _answer(task: TakenTask, node: Callable[[], Answerer]) -> None:
    """Pull a message, let the node answer, push the reply; the delivered bundle is not touched."""
    import flwr.supernode.runtime.run_clientapp as theirs
    from flwr.common.constant import SubStatus

    message, context, _, _ = theirs.pull_task_input(task.client)
    assert isinstance(context, Context)
    task.has_message = True
    try:
        reply, status, why = respond(message, node), SubStatus.COMPLETED, ""
    except Exception as error:  # our own bug: the server sees a dropped node, and no values
        kind, lines = message.metadata.message_type, traceback.format_exception(error)
        _fault(f"no answer to {printable(kind)}: {' | '.join(printable(line) for line in lines)}")
        why, status = f"{type(error).__name__}: see the node's log", SubStatus.FAILED
        reply = Message(Error(code=FAILED, reason=why), reply_to=message)
    del message
    theirs.push_message(task.client, reply, context)
    theirs.push_task_output(task.client, context, status, why)


class ServerWorker:
    """Starts server apps for a SuperLink, each with its token in a file that is soon gone."""

    def __init__(self, tasks: TaskClient, folder: Path, authority: Path | None) -> None:
        self.tasks, self.folder, self.authority = tasks, folder, authority
        self._started: dict[Path, Program] = {}
        self._warn = quietly(_log.warning)

    def look(self) -> None:
        """Start the server app of a run that waits for one; tidy up after those that are over."""
        from flwr.supercore.constant import TaskType

        for path, app in list(self._started.items()):
            if app.ended() is not None:
                self._end(path)
        try:
            token = self.tasks.token(TaskType.SERVER_APP)
        except Exception as error:  # the SuperLink may be busy
            self._warn(f"no task from the SuperLink ({type(error).__name__})")
            return
        if not token:
            return
        path = self.folder / f"token-{os.urandom(8).hex()}"
        write_secret(path, token.encode())
        secure = ["--insecure"]
        if self.authority is not None:
            secure = ["--root-certificates", str(self.authority)]
        command = [program("flwr-serverapp"), "--runtime-api-address", self.tasks.address]
        command += ["--token-file", str(path), "--parent-pid", str(os.getpid()), *secure]
        try:
            self._started[path] = Program("server-app", command, self.folder)
        except OSError as error:
            raise InputError(f"cannot start a server app: {error}") from None

    def close(self) -> None:
        """End all server apps; their runs can be continued."""
        for path in list(self._started):
            self._end(path)

    def _end(self, path: Path) -> None:
        self._started.pop(path).end()
        path.unlink(missing_ok=True)
