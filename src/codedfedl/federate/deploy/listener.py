"""Connections to a public address, with TLS or without, so many at a time.

A peer that opens a connection and says nothing costs a descriptor and, with TLS, several hundred
kilobytes. So each takes one of a limited number of slots from the moment it is accepted until it is
closed, and a peer that finds none is disconnected before a byte is read. What goes wrong with a
connection is reported in one sentence, without anything that a stranger wrote; no traceback is
logged for it.
"""

import asyncio
import resource
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from codedfedl.errors import InputError

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""Both directions of a connection."""

# Connections that the kernel keeps until they are accepted.
BACKLOG = 128

# Seconds to wait when there is no descriptor left.
EXHAUSTED_SECONDS = 1.0

# Descriptors for everything but connections.
OTHER_FILES = 256


@dataclass(frozen=True)
class GateLimits:
    """What one peer may ask of the gate.

    Attributes
    ----------
    head, body, upload
        Bytes of a request's head, of its body, and of one that uploads a part of an array.
    connections, per_address
        Connections at a time, in all and from one address, from before their handshake on.
    first, idle
        Seconds for a TLS handshake or a head, and until the next request or piece of a body.
    rate
        Bytes a second below which a body is given up, once it took longer than `idle`.
    reserve
        Bytes of the disk that stay free: below, no answer is stored.
    hold
        Seconds for which a question for messages waits at the gate; 0 passes it at once.
    """

    head: int = 2**14
    body: int = 2**22
    upload: int = 2**23
    connections: int = 2048
    per_address: int = 256
    first: float = 10.0
    idle: float = 60.0
    rate: float = 1000.0
    reserve: int = 2**30
    hold: float = 10.0


@dataclass
class Listener:
    """Accepts connections, so many at a time.

    Attributes
    ----------
    handle
        Serves one connection, which is closed after it.
    tls
        How the certificate is shown; None for plaintext.
    """

    handle: Callable[[Stream], Awaitable[None]]
    limits: GateLimits
    tls: ssl.SSLContext | None
    say: Callable[[str], None]
    _open: Counter[str] = field(default_factory=Counter)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Accept connections on every address of a host until the context ends; give the port."""
        listeners = _listeners(host, port)
        try:
            for listener in listeners:
                self._begin(self._accept(listener))
            yield int(listeners[0].getsockname()[1])
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for listener in listeners:
                listener.close()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, (address, *_) = await loop.sock_accept(listener)
            except ConnectionError:
                continue  # it is gone already
            except OSError as error:
                self.say(f"no connection can be accepted ({error.strerror})")
                await asyncio.sleep(EXHAUSTED_SECONDS)
                continue
            is_full = self._open.total() >= self.limits.connections
            if is_full or self._open[address] >= self.limits.per_address:
                connection.close()
                self.say("refused a connection (too many)")
            else:
                self._open[address] += 1
                self._begin(self._connected(connection, address))
            await asyncio.sleep(0)  # a flood is accepted in turns with everything else

    async def _connected(self, connection: socket.socket, address: str) -> None:
        try:
            reader, writer = await self._after_handshake(connection)
            try:
                await self.handle((reader, writer))
                writer.close()
                await asyncio.wait_for(writer.wait_closed(), self.limits.first)
            finally:
                writer.transport.abort()  # which waits for nobody
        except (OSError, EOFError, TimeoutError):
            pass  # the peer hung up, was too slow, or speaks another protocol
        except Exception as error:
            self.say(f"a connection failed by a fault of our own ({type(error).__name__})")
        finally:
            self._open[address] -= 1
            self._open += Counter()  # forget addresses at zero

    async def _after_handshake(self, connection: socket.socket) -> Stream:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=self.limits.head)
        timeout = None if self.tls is None else self.limits.first
        transport, protocol = await loop.connect_accepted_socket(
            lambda: asyncio.StreamReaderProtocol(reader),
            connection,
            ssl=self.tls,
            ssl_handshake_timeout=timeout,
            ssl_shutdown_timeout=timeout,
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _listeners(host: str, port: int) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    try:
        for family, _, _, _, end in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            listener = socket.create_server(end[:2], family=family, backlog=BACKLOG)
            listener.setblocking(False)
            listeners.append(listener)
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise InputError(
            f"cannot listen on {host}:{port} ({error.strerror}): end the process that listens "
            "there, or choose another --host or --port"
        ) from None
    return listeners


def descriptors_for(connections: int) -> int:
    """Raise the limit on open files, as far as it may be; return the connections it allows.

    Each takes two: a peer's, and the one behind it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * connections + OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections
    allowed = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, (allowed - OTHER_FILES) // 2)


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return how the gate shows its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    return context


def client_context(authority: Path) -> ssl.SSLContext:
    """Return how the gate checks the SuperLink's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority)
    return context
