"""A server: a SuperLink on loopback, the gate in front of it, and a worker for its server apps.

All of it belongs to one folder, the server's home: data base, registry, secret, and a file that
tells the operator's commands where the SuperLink is. Nobody but its user can read any of it.
"""

import asyncio
import ipaddress
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from codedfedl.errors import InputError
from codedfedl.federate.flower import worker
from codedfedl.federate.flower.accepting import descriptors_for
from codedfedl.federate.flower.gate import Gate, GateLimits, client_context, server_context
from codedfedl.federate.flower.keys import Keys, make_private, write_secret
from codedfedl.federate.flower.programs import Superlink, environment, free_port, own_user
from codedfedl.federate.flower.quiet import quietly
from codedfedl.federate.flower.registry import REGISTRY, Registry
from codedfedl.federate.flower.supernode import alone_in, end

__all__ = ["ServerSettings", "running", "serve"]

HOST = "127.0.0.1"

_START = 60.0  # seconds that a SuperLink may take to listen
_LOOK = 0.3  # seconds between two looks for a run that waits for its server app
_DAY = 86400.0  # seconds between two warnings of certificates that expire


@dataclass(frozen=True)
class ServerSettings:
    """What a server is started with.

    Attributes
    ----------
    home
        The server's folder.
    host, port
        Address and port that nodes connect to.
    keys
        Certificates; without them everything is plaintext, on loopback only.
    database
        The SuperLink's; in `home` by default.
    """

    home: Path
    host: str
    port: int
    keys: Keys | None
    database: Path | None = None
    limits: GateLimits = field(default_factory=GateLimits)

    def check(self) -> None:
        """Refuse what would be unsafe or fail later."""
        if self.keys is not None:
            self.keys.check(HOST, [])
            return
        try:
            loopback = ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            loopback = self.host == "localhost"
        if not loopback:
            raise InputError(
                f"--insecure is for loopback, not for {self.host}: make keys with codedfedl "
                "federate keys, and give their folder as --keys"
            )

    @property
    def secret(self) -> Path:
        """Path of the secret that authorises taking tasks."""
        return self.home / "secret"

    def command(self, port: int) -> list[str]:
        """Return how the SuperLink is started."""
        database = self.database or self.home / "superlink.db"
        command = [*own_user("flower-superlink"), "--host", HOST, "--port", str(port)]
        command += ["--database", str(database.resolve())]
        command += ["--disable-runtime-dependency-installation", "--isolation", "process"]
        command += ["--superexec-auth-secret-file", str(self.secret)]
        if self.keys is None:
            return [*command, "--insecure"]
        command += ["--ssl-ca-certfile", str(self.keys.authority.resolve())]
        command += ["--ssl-certfile", str(self.keys.server.resolve())]
        command += ["--ssl-keyfile", str(self.keys.server_key.resolve())]
        return [*command, "--enable-supernode-auth"]


def running(home: Path) -> Superlink:
    """Return the SuperLink of a server that runs in a folder."""
    try:
        found = json.loads((home / "serve.json").read_text("utf-8"))
        os.kill(int(found["process"]), 0)
    except (OSError, ValueError, KeyError):
        raise InputError(
            f"no server runs in {home}: start it with codedfedl federate serve, or give its --home"
        ) from None
    authority = None if found["authority"] is None else Path(found["authority"])
    return Superlink(found["address"], home, authority)


def serve(settings: ServerSettings, say: Callable[[str], None]) -> int:
    """Serve until a signal comes or the SuperLink ends; return how it ended."""
    settings.check()
    make_private(settings.home)
    if settings.keys is not None:
        Registry(settings.home / REGISTRY).begin()
    settings = replace(settings, limits=_affordable(settings.limits, say))
    taken = f"a server is already running in {settings.home}: end it, or choose another --home"
    with alone_in(settings.home, taken):
        for token in settings.home.glob("token-*"):  # of a server that was killed
            token.unlink()
        write_secret(settings.secret, secrets.token_bytes(32).hex().encode())
        port = free_port(HOST)
        link = subprocess.Popen(
            settings.command(port),
            stdin=subprocess.DEVNULL,
            env=environment(settings.home),
            umask=0o077,
            start_new_session=False,
        )
        try:
            _wait_until_it_listens(link, port)
            return asyncio.run(_serve(settings, link, port, say))
        finally:
            for path in (settings.home / "serve.json", settings.secret):
                path.unlink(missing_ok=True)
            end(link)


def _affordable(limits: GateLimits, say: Callable[[str], None]) -> GateLimits:
    """Raise the limit on open files; return no more connections than it then allows."""
    connections = descriptors_for(limits.connections)
    if connections < limits.connections:
        say(
            f"warning: the limit on open files allows {connections} connections at a time, not "
            f"{limits.connections}: raise it with ulimit -Hn, or LimitNOFILE= of systemd"
        )
    return replace(limits, connections=connections)


async def _serve(
    settings: ServerSettings,
    link: subprocess.Popen[bytes],
    port: int,
    say: Callable[[str], None],
) -> int:
    keys = settings.keys
    upstream = None if keys is None else client_context(keys.authority)
    tls = None if keys is None else server_context(keys.server, keys.server_key)
    disk = (settings.database or settings.home / "superlink.db").resolve().parent
    free = lambda: float(shutil.disk_usage(disk).free)  # noqa: E731
    gate = Gate((HOST, port), upstream, settings.limits, quietly(say), free)
    ended, warned = asyncio.Event(), -_DAY
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    with _apps(settings, port) as look:
        async with gate.listening(settings.host, settings.port, tls):
            authority = None if keys is None else str(keys.authority.resolve())
            address = {"address": f"{HOST}:{port}", "authority": authority, "process": os.getpid()}
            write_secret(settings.home / "serve.json", json.dumps(address).encode())
            say(f"nodes connect to {settings.host}:{settings.port}")
            while link.poll() is None and not ended.is_set():
                if keys is not None and time.monotonic() - warned > _DAY:
                    for sentence in keys.expiring():
                        say(sentence)
                    warned = time.monotonic()
                await asyncio.to_thread(look)
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), _LOOK)
    if ended.is_set():
        return 0
    say(f"the SuperLink ended with code {link.returncode}")
    return 1


@contextmanager
def _apps(settings: ServerSettings, port: int) -> Iterator[Callable[[], None]]:
    """Start the server apps of runs, and end them."""
    authority = None if settings.keys is None else settings.keys.authority.resolve()
    desk = worker.Desk(f"{HOST}:{port}", settings.secret.read_bytes(), authority)
    apps = worker.ServerWorker(desk, settings.home, authority)
    try:
        yield apps.look
    finally:
        apps.close()


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + _START
    while process.poll() is None and time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.1)
    raise InputError("the SuperLink does not start: see its log")
