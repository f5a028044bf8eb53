"""Tasks of the SuperLink, taken with its secret, with internals of Flower (as `wire`).

Each server app is started with its token in a file. Versions of Flower that it is not tested with
are refused before anything starts (`programs.check_version`).
"""

import logging
import os
from pathlib import Path

from codedfedl.errors import InputError
from codedfedl.federate.deploy.keys import write_secret
from codedfedl.federate.flower.programs import Program, program
from codedfedl.federate.transport import quietly

_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"

_log = logging.getLogger(__name__)


class TaskClient:
    """The runtime API of a SuperLink, where tasks are.

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
        from flwr.supercore.interceptors import (
            RuntimeVersionHttpInterceptor,
            SuperExecAuthHttpInterceptor,
        )
        from flwr.supercore.runtime import RuntimeHttpClient

        self.address = address
        self._client = RuntimeHttpClient.from_server_address(
            server_address=address,
            insecure=authority is None,
            root_certificates=None if authority is None else authority.read_bytes(),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperExec"),
                SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={_ACQUIRE}),
            ],
        )

    def token(self, kind: str) -> str:
        """Take the oldest task of a kind; return its token, or nothing where there is none."""
        from flwr.proto.runtime_pb2 import AcquireTaskRequest

        taken = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
        return str(taken.token) if taken.HasField("task") else ""


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
