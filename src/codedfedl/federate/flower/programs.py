"""Flower's programs as this package uses them: no telemetry, no update check, no installation.

A SuperLink takes commands from whoever reaches its port; on loopback that is every user of the
machine. So it is started by this module, ``python -m codedfedl.federate.flower.programs
flower-superlink …``: the connection of every request is looked up in the kernel's table, which says
whose it is, and those of other users are refused.
Nodes' requests to a SuperLink are left to the engine, which checks their keys: they come through
the gate anyway. The program ends with its parent process. Nothing of the engine is relied on but
its use of uvicorn. Where there is no such table (no Linux), every user of the machine passes.
"""

import logging
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from codedfedl.errors import InputError
from codedfedl.io.connections import TABLE, belongs_to, listens
from codedfedl.io.files import lock

HOST = "127.0.0.1"

APP = Path(__file__).parent / "app"
"""The Flower app folder that `flwr run` takes."""

RUNG = "rung"
"""The file in a server's home that grows whenever its server app has sent messages."""

TESTED = ("1.41", "1.42")
"""The releases of Flower whose internals this package is tested with."""

INSTALL = "pip install 'codedfedl[flower]'"
"""How to get it."""

# Seconds that a program may take to listen.
START_SECONDS = 60.0

# Seconds between asking a process to end and making it.
END_SECONDS = 5.0

# Connections that are not looked up again.
REMEMBERED_CONNECTIONS = 64

# Lines of a program's output that may say why it ended.
REMEMBERED_LINES = 20

LEVELS = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.DEBUG,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
}
"""What Flower's levels are here: it informs of every message."""

_FLEET = "/v1/fleet/"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LEVEL = re.compile(r"(?:\S+Z )?(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b\s*:?\s*(.*)")

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]


def check_engine() -> None:
    """Refuse to begin without Flower, or with a version that is not tested."""
    try:
        installed = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise InputError(f"federations need Flower: {INSTALL}") from None
    check_version(installed)


def check_version(installed: str) -> None:
    """Refuse a version of Flower other than the final releases that this package is tested with.

    Nodes answer through Flower's internals, so that no delivered code runs on them: with other
    internals nothing would vouch for that.
    """
    release, _, patch = installed.rpartition(".")
    if release not in TESTED or not re.fullmatch("[0-9]+", patch):
        raise InputError(
            f"flwr {installed} is installed, and only {' and '.join(TESTED)} are tested: "
            f"pip install 'flwr~={TESTED[0]}.0'"
        )


def environment(home: Path) -> dict[str, str]:
    """Return the environment of all Flower programs of a federation."""
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "NO_COLOR": "1",
        "MALLOC_MMAP_THRESHOLD_": str(2**20),  # large answers leave no holes behind in memory
    }


def program(name: str) -> str:
    """Return the path of a Flower program beside this Python."""
    return str(Path(sys.executable).parent / name)


def own_user(name: str) -> list[str]:
    """Return the beginning of a command for a Flower program that answers this user alone."""
    return [sys.executable, "-m", "codedfedl.federate.flower.programs", name]


def free_port(host: str = HOST) -> int:
    """Return a free port below the ephemeral range, so that no outgoing connection takes it."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind((host, port))
            return port


@contextmanager
def alone_in(folder: Path, otherwise: str) -> Iterator[None]:
    """Keep a second process out of a folder; a killed one has let go of it."""
    with (folder / ".lock").open("w") as file:
        try:
            lock(file)
        except OSError:
            raise InputError(otherwise) from None
        yield


class Program:
    """A program of Flower's; what it writes goes to the log of its name, without escape codes.

    Attributes
    ----------
    said
        The last lines that it wrote.
    """

    def __init__(self, name: str, command: Sequence[str], home: Path) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(home),
            umask=0o077,
        )
        self.said: deque[str] = deque(maxlen=REMEMBERED_LINES)
        self._log = logging.getLogger(name)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Log what it writes as it is meant; a line without a level belongs to the one before."""
        assert self.process.stdout is not None
        level = "INFO"
        with self.process.stdout as lines:
            for raw in lines:
                text = _ESCAPE.sub("", raw.decode("utf-8", "backslashreplace")).strip()
                if match := _LEVEL.match(text):
                    level, text = match.groups()
                if text:
                    self.said.append(text)
                    self._log.log(LEVELS[level], "%s", text)

    def ended(self) -> int | None:
        """Return the code with which it ended, once all that it wrote is read; None before."""
        code = self.process.poll()
        if code is not None:
            self._reader.join(END_SECONDS)
        return code

    def end(self) -> None:
        """Ask it to end, and make it if it does not."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextmanager
def engine(name: str, options: Sequence[str], home: Path, port: int) -> Iterator[Program]:
    """Run a program of Flower's that answers this user alone, from when it listens on.

    That it is this user who listens is looked up: another one might take the port before it.
    """
    command = [*own_user(name), "--host", HOST, "--port", str(port), *options]
    program, until = Program(name, command, home), time.monotonic() + START_SECONDS
    try:
        while not _is_up(port):
            if (code := program.ended()) is not None:
                why = f" ({program.said[-1]})" if program.said else ""
                raise InputError(f"{name} ended with code {code}{why}: see its lines above")
            if time.monotonic() > until:
                raise InputError(f"{name} does not listen on port {port} after {START_SECONDS:g} s")
            time.sleep(0.1)
        yield program
    finally:
        program.end()


def _is_up(port: int) -> bool:
    with socket.socket() as probe:
        return listens(port) and probe.connect_ex((HOST, port)) == 0


class OwnUser:
    """An ASGI app that refuses the connections of other users to this machine.

    Parameters
    ----------
    user
        Whose connections pass, besides the superuser's.
    table
        Where the kernel lists connections.
    """

    def __init__(self, app: _App, user: int | None = None, table: Path = TABLE) -> None:
        self.app, self.table = app, table
        self.users = {os.getuid() if user is None else user, 0}
        self._passed: deque[object] = deque(maxlen=REMEMBERED_CONNECTIONS)

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Pass a request on, or answer 403."""
        inside = scope["type"] == "lifespan" or str(scope.get("path", "")).startswith(_FLEET)
        if inside or self.passes(scope.get("client"), scope.get("server")):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-length", b"0"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "websocket.close"})

    def passes(self, client: tuple[str, int] | None, server: tuple[str, int] | None) -> bool:
        """Say whether a connection on loopback belongs to one of the users.

        The engine has an object for the client of every connection: one that passed is not looked
        up again for each of its requests.
        """
        if any(client is passed for passed in self._passed):
            return True
        passes = belongs_to(self.users, client, server, self.table)
        if passes and client is not None:
            self._passed.append(client)
        return passes


def end_with(parent: int) -> None:
    """End this process once another has become its parent."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10.0)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Run a console program of the engine with every server in it guarded."""
    import uvicorn

    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    begin = uvicorn.Config.__init__

    def guarded(self: uvicorn.Config, app: Any, *arguments: Any, **named: Any) -> None:
        named["proxy_headers"] = False  # a forwarded address is whatever its sender says
        named["access_log"] = False  # strangers could write a line with every request
        begin(self, OwnUser(app), *arguments, **named)

    uvicorn.Config.__init__ = guarded  # type: ignore[method-assign]
    sys.argv = sys.argv[1:]
    (script,) = metadata.entry_points(group="console_scripts", name=Path(sys.argv[0]).name)
    script.load()()


if __name__ == "__main__":
    main()
