"""Start a Flower program whose port answers its own user alone.

A SuperLink takes commands, and a SuperNode gives out tasks, from whoever reaches its port; on
loopback that is every user of the machine. Here each request's connection is looked up in the
kernel's table, which says whose it is, and those of other users are refused. Nodes' requests to a
SuperLink are left to the engine, which checks their keys: they come through the gate anyway.

It runs as a program, ``python -m codedfedl.federate.flower.own_user flower-superlink …``, and
relies on nothing of the engine but its use of uvicorn. It ends with its parent process. Where there
is no such table (no Linux), every user of the machine passes.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from codedfedl.io.connections import TABLE, belongs_to

__all__ = ["OwnUser", "main"]

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]

_FLEET = "/v1/fleet/"


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
        """Say whether a connection on loopback belongs to one of the users."""
        return belongs_to(self.users, client, server, self.table)


def _end_with(parent: int) -> None:
    """End this process once another has become its parent."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10.0)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Run a console program of the engine with every server in it guarded."""
    import uvicorn

    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    begin = uvicorn.Config.__init__

    def guarded(self: uvicorn.Config, app: Any, *arguments: Any, **named: Any) -> None:
        named["proxy_headers"] = False  # a forwarded address is whatever its sender says
        named["access_log"] = False  # strangers could write a line with every request
        begin(self, OwnUser(app), *arguments, **named)

    uvicorn.Config.__init__ = guarded  # type: ignore[method-assign]
    sys.argv = sys.argv[1:]
    (script,) = entry_points(group="console_scripts", name=Path(sys.argv[0]).name)
    script.load()()


if __name__ == "__main__":
    main()
