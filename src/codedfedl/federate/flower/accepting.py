"""Connections, counted from the moment they are accepted: before a handshake, and until closed.

A peer that opens a connection and says nothing costs a descriptor and, with TLS, several hundred
kilobytes. So each takes one of a limited number of places at once, and whoever finds none is hung
up on before a byte is read. What goes wrong with a connection is told in one sentence to `say`,
without anything that a stranger wrote; no traceback is logged for it.
"""

import asyncio
import resource
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from codedfedl.errors import InputError

__all__ = ["Places", "Stream", "accepting", "descriptors_for"]

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""Both directions of a connection."""

_BACKLOG = 128  # connections that the kernel keeps until they are accepted
_EXHAUSTED = 1.0  # seconds to wait when there is no descriptor left
_OTHER_FILES = 256  # descriptors for everything but connections


@dataclass
class Places:
    """Connections at a time, in all and from one address."""

    most: int
    per_address: int
    _taken: Counter[str] = field(default_factory=Counter)

    def take(self, address: str) -> bool:
        """Count a connection, unless there is no place for it."""
        free = self._taken.total() < self.most and self._taken[address] < self.per_address
        if free:
            self._taken[address] += 1
        return free

    def leave(self, address: str) -> None:
        """Forget a connection that is closed."""
        self._taken[address] -= 1
        self._taken += Counter()  # forget those at zero


@dataclass(frozen=True)
class _Acceptor:
    """What all connections of a listener have in common."""

    handle: Callable[[Stream], Awaitable[None]]
    places: Places
    tls: ssl.SSLContext | None
    head: int
    patience: float
    say: Callable[[str], None]
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, listener: socket.socket) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, (address, *_) = await loop.sock_accept(listener)
            except ConnectionError:
                continue  # it is gone already
            except OSError as error:
                self.say(f"no connection can be accepted ({error.strerror})")
                await asyncio.sleep(_EXHAUSTED)
                continue
            if self.places.take(address):
                task = loop.create_task(self._connected(connection, address))
                self.tasks.add(task)
                task.add_done_callback(self._over)
            else:
                connection.close()
                self.say("refused a connection (too many)")
            await asyncio.sleep(0)  # a flood is accepted in turns with everything else

    async def _connected(self, connection: socket.socket, address: str) -> None:
        try:
            reader, writer = await self._shaken_hands(connection)
            try:
                await self.handle((reader, writer))
                writer.close()
                await asyncio.wait_for(writer.wait_closed(), self.patience)
            finally:
                writer.transport.abort()  # which waits for nobody
        except (OSError, EOFError, TimeoutError):
            pass  # whoever hung up, was too slow, or speaks another language
        finally:
            self.places.leave(address)

    async def _shaken_hands(self, connection: socket.socket) -> Stream:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=self.head)
        timeout = None if self.tls is None else self.patience
        transport, protocol = await loop.connect_accepted_socket(
            lambda: asyncio.StreamReaderProtocol(reader),
            connection,
            ssl=self.tls,
            ssl_handshake_timeout=timeout,
            ssl_shutdown_timeout=timeout,
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def _over(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.say(f"a connection failed by a fault of our own ({type(error).__name__})")


@asynccontextmanager
async def accepting(
    address: tuple[str, int],
    handle: Callable[[Stream], Awaitable[None]],
    places: Places,
    *,
    tls: ssl.SSLContext | None,
    head: int,
    patience: float,
    say: Callable[[str], None],
) -> AsyncIterator[int]:
    """Accept connections until the context ends; give the port.

    Parameters
    ----------
    handle
        Serves one connection, which is closed after it.
    head
        Bytes that a reader holds before its peer has to wait.
    patience
        Seconds for a handshake, and for closing.
    """
    acceptor = _Acceptor(handle, places, tls, head, patience, say)
    async with AsyncExitStack() as stack:
        listeners = [stack.enter_context(each) for each in _listeners(*address)]
        stack.push_async_callback(_end, acceptor.tasks)
        running = {asyncio.create_task(acceptor.run(each)) for each in listeners}
        stack.push_async_callback(_end, running)
        yield int(listeners[0].getsockname()[1])


async def _end(tasks: set[asyncio.Task[None]]) -> None:
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


def _listeners(host: str, port: int) -> list[socket.socket]:
    """Listen on every address of a host."""
    listeners: list[socket.socket] = []
    try:
        for family, _, _, _, end in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            listener = socket.create_server(end[:2], family=family, backlog=_BACKLOG)
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
    needed = 2 * connections + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections
    allowed = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, (allowed - _OTHER_FILES) // 2)
