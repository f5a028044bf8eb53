"""A TLS gate in front of a SuperLink: nodes get in, and nothing but the nodes' own API.

A SuperLink serves nodes, commands and server apps on one port. So it listens on loopback only, and
this gate on the public address passes ``POST /v1/fleet/…`` and answers 404 to everything else
without a word to the SuperLink. It is strict where a lenient parser could be fooled: a request has
one content length and no transfer encoding, and is written anew for the SuperLink. Bodies stream
through, up to a size.

It also holds a node's question for messages until there are some. A node that finds none sleeps
for three seconds, which would otherwise be a part of every round.
"""

import asyncio
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from codedfedl.federate.flower.accepting import Places, Stream, accepting
from codedfedl.federate.flower.heads import Head, RefusedRequest, parsed_head

__all__ = ["Gate", "GateLimits", "client_context", "server_context"]

_FLEET = re.compile(rb"/v1/fleet/[a-z-]{1,40}")
_STATUS = re.compile(rb"HTTP/1\.1 [1-9][0-9]{2}( [\t\x20-\x7e]*)?")
_PULL, _UPLOAD = b"/v1/fleet/pull-messages", b"/v1/fleet/push-object"
_STORED = (_UPLOAD, b"/v1/fleet/push-messages")
_PIECE = 2**16  # bytes that are in memory for a connection and direction
_FRESH = 3.0  # seconds for which a connection to the SuperLink is used again; it closes idle ones
_REASONS = {
    400: "Bad Request",
    404: "Not Found",
    408: "Request Timeout",
    411: "Length Required",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
    507: "Insufficient Storage",
}


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
class Gate:
    """A gate to one SuperLink.

    Parameters
    ----------
    upstream
        Host and port of the SuperLink.
    upstream_tls
        How the SuperLink's certificate is checked; None for plaintext.
    say
        Takes a sentence about refused requests, without anything that a stranger wrote.
    free
        Returns the free bytes of the disk with the SuperLink's data base.
    """

    upstream: tuple[str, int]
    upstream_tls: ssl.SSLContext | None
    limits: GateLimits = field(default_factory=GateLimits)
    say: Callable[[str], None] = lambda _: None
    free: Callable[[], float] = lambda: inf

    def __post_init__(self) -> None:
        self._places = Places(self.limits.connections, self.limits.per_address)
        self._held = 0

    @asynccontextmanager
    async def listening(
        self, host: str, port: int, tls: ssl.SSLContext | None
    ) -> AsyncIterator[int]:
        """Listen until the context ends; give the port."""
        async with accepting(
            (host, port),
            lambda node: _Passage(self, node).serve(),
            self._places,
            tls=tls,
            head=self.limits.head,
            patience=self.limits.first,
            say=self.say,
        ) as listening:
            yield listening

    @asynccontextmanager
    async def holding(self) -> AsyncIterator[None]:
        """Count a question that is held."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    @property
    def pause(self) -> float:
        """Seconds between two looks for messages of one node: longer with many nodes."""
        return max(0.2, 0.02 * self._held)


class _Passage:
    """One connection of a node, and the one to the SuperLink that belongs to it."""

    def __init__(self, gate: Gate, node: Stream) -> None:
        self.gate, self.limits = gate, gate.limits
        self.reader, self.writer = node
        self._link: Stream | None = None
        self._used = 0.0

    async def serve(self) -> None:
        """Pass one request after another until either side is done."""
        patience = self.limits.first
        try:
            while True:
                try:
                    line, head = await self._request(patience)
                    await self._pass(line, head)
                except RefusedRequest as refused:
                    why = f"{refused.status} {_REASONS[refused.status]}"
                    self.gate.say(f"refused a request ({why})")
                    await self._answer(refused.status)
                    return
                patience = self.limits.idle
        finally:
            self._hang_up()

    async def _request(self, patience: float) -> tuple[bytes, Head]:
        """Read a head; refuse everything but the nodes' API before anything else is looked at."""
        try:
            text = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), patience)
        except asyncio.LimitOverrunError:
            raise RefusedRequest(431) from None
        line, *lines = text[:-4].split(b"\r\n")
        method, _, rest = line.partition(b" ")
        path, _, version = rest.partition(b" ")
        if method != b"POST" or not _FLEET.fullmatch(path) or version != b"HTTP/1.1":
            raise RefusedRequest(404)
        if path in _STORED and self.gate.free() < self.limits.reserve:
            raise RefusedRequest(507)
        most = self.limits.upload if path == _UPLOAD else self.limits.body
        return path, parsed_head(line, lines, most)

    async def _pass(self, path: bytes, head: Head) -> None:
        if path == _PULL and head.length < _PIECE and self.limits.hold > 0:
            body = await asyncio.wait_for(self.reader.readexactly(head.length), self.limits.idle)
            answer, content = await self._held(head, body)
            self.writer.write(answer.written(None) + content)
        else:
            link = await self._connect()
            link[1].write(head.written(self._host))
            await self._stream(self.reader, link[1], head.length)
            answer = await self._response(link[0])
            self.writer.write(answer.written(None))
            await self._stream(link[0], self.writer, answer.length)
        self._used = time.monotonic()
        await asyncio.wait_for(self.writer.drain(), self.limits.idle)

    async def _held(self, head: Head, body: bytes) -> tuple[Head, bytes]:
        """Ask until there is an answer with content, or the time is up."""
        until = time.monotonic() + self.limits.hold
        async with self.gate.holding():
            while True:
                link = await self._connect()
                link[1].write(head.written(self._host) + body)
                answer = await self._response(link[0])
                content = await asyncio.wait_for(
                    link[0].readexactly(answer.length), self.limits.idle
                )
                self._used = time.monotonic()
                waiting = not content and b" 200" in answer.line
                if not waiting or time.monotonic() > until or self.reader.at_eof():
                    return answer, content
                await asyncio.sleep(self.gate.pause)

    async def _stream(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, length: int
    ) -> None:
        """Pass so many bytes, a piece at a time, and give up on whoever is too slow."""
        began, passed = time.monotonic(), 0
        while passed < length:
            piece = await asyncio.wait_for(
                source.read(min(_PIECE, length - passed)), self.limits.idle
            )
            if not piece:
                raise EOFError
            passed += len(piece)
            sink.write(piece)
            await asyncio.wait_for(sink.drain(), self.limits.idle)
            if time.monotonic() - began > self.limits.idle + passed / self.limits.rate:
                raise TimeoutError
        await asyncio.wait_for(sink.drain(), self.limits.idle)

    async def _response(self, link: asyncio.StreamReader) -> Head:
        text = await asyncio.wait_for(link.readuntil(b"\r\n\r\n"), self.limits.idle)
        line, *lines = text[:-4].split(b"\r\n")
        if not _STATUS.fullmatch(line):
            raise EOFError
        try:
            return parsed_head(line, lines, 2**40)
        except RefusedRequest:
            raise EOFError from None  # the SuperLink says how long its answers are

    @property
    def _host(self) -> bytes:
        return b"%s:%d" % (self.gate.upstream[0].encode("ascii"), self.gate.upstream[1])

    async def _connect(self) -> Stream:
        """Return a connection to the SuperLink: the last one while it is fresh."""
        stale = time.monotonic() - self._used > _FRESH
        if self._link is not None and (stale or self._link[0].at_eof()):
            self._hang_up()
        if self._link is None:
            host, port = self.gate.upstream
            try:
                self._link = await asyncio.wait_for(
                    asyncio.open_connection(
                        host, port, ssl=self.gate.upstream_tls, limit=self.limits.head
                    ),
                    self.limits.first,
                )
            except (OSError, TimeoutError):
                raise RefusedRequest(503) from None
        return self._link

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link[1].close()
            self._link = None

    async def _answer(self, status: int) -> None:
        line = f"HTTP/1.1 {status} {_REASONS[status]}".encode("ascii")
        self.writer.write(Head(line, [], 0).written(None, close=True))
        await asyncio.wait_for(self.writer.drain(), self.limits.first)


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
