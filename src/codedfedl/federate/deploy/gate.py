"""A gate in front of a SuperLink: nodes get in, and nothing but the nodes' own API.

A SuperLink serves nodes, commands and server apps on one port. So it listens on loopback only, and
this gate on the public address passes ``POST /v1/fleet/…`` and answers 404 to everything else
without a word to the SuperLink. It is strict where a lenient parser could be fooled: a request has
one content length and no transfer encoding, and is written anew for the SuperLink. Bodies stream
through, up to a size.

It also holds a node's question for messages until there are some. A node that finds none sleeps
for three seconds, which would otherwise be a part of every round. The SuperLink is asked when a
server app has rung; for one that does not ring, again and again.
"""

import asyncio
import re
import ssl
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from http import HTTPStatus
from math import inf
from pathlib import Path

from codedfedl.federate.deploy.listener import GateLimits, Listener, Stream

# Bytes that are in memory for a connection and direction.
PIECE_BYTES = 2**16

# Seconds for which a connection to the SuperLink is used again; it closes idle ones.
FRESH_SECONDS = 3.0

_FLEET = re.compile(rb"/v1/fleet/[a-z-]{1,40}")
_STATUS = re.compile(rb"HTTP/1\.1 [1-9][0-9]{2}( [\t\x20-\x7e]*)?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_NOT_PASSED = {
    *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization"),
    *(b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"),
    *(b"host", b"content-length", b"forwarded", b"x-forwarded-for", b"x-forwarded-proto"),
}
_PULL, _UPLOAD = b"/v1/fleet/pull-messages", b"/v1/fleet/push-object"
_STORED = (_UPLOAD, b"/v1/fleet/push-messages")


class RefusedRequest(Exception):  # noqa: N818
    """A request that is not passed; the status says why."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True)
class Head:
    """The head of a request or a response that is passed."""

    line: bytes
    fields: list[tuple[bytes, bytes]]
    length: int

    def written(self, host: bytes | None, *, close: bool = False) -> bytes:
        """Return the head, written anew with what the gate itself decides."""
        fields = [(name, value) for name, value in self.fields if name.lower() not in _NOT_PASSED]
        fields += [] if host is None else [(b"Host", host)]
        fields += [(b"Content-Length", b"%d" % self.length)]
        fields += [(b"Connection", b"close" if close else b"keep-alive")]
        return b"\r\n".join([self.line, *(b"%s: %s" % field for field in fields), b"", b""])


def parsed_head(line: bytes, lines: list[bytes], most: int) -> Head:
    """Return a head whose body has one length and no other coding."""
    fields = []
    for text in lines:
        match = _FIELD.fullmatch(text)
        if match is None:
            raise RefusedRequest(400)
        fields.append((match[1], match[2]))
    names = [name.lower() for name, _ in fields]
    if b"transfer-encoding" in names or names.count(b"content-length") != 1:
        raise RefusedRequest(411)
    length = fields[names.index(b"content-length")][1]
    if not _LENGTH.fullmatch(length):
        raise RefusedRequest(400)
    if int(length) > most:
        raise RefusedRequest(413)
    return Head(line, fields, int(length))


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
    bell
        A file that grows whenever a server app has sent messages; None, or absent, if none says so.
    """

    upstream: tuple[str, int]
    upstream_tls: ssl.SSLContext | None
    limits: GateLimits = field(default_factory=GateLimits)
    say: Callable[[str], None] = lambda _: None
    free: Callable[[], float] = lambda: inf
    bell: Path | None = None

    def __post_init__(self) -> None:
        self.held = 0

    def listening(
        self, host: str, port: int, tls: ssl.SSLContext | None
    ) -> AbstractAsyncContextManager[int]:
        """Listen until the context ends; give the port."""
        listener = Listener(lambda node: _Passage(self, node).serve(), self.limits, tls, self.say)
        return listener.listening(host, port)

    @property
    def rung(self) -> int:
        """How often a server app has rung; 0 if none does."""
        try:
            return 0 if self.bell is None else self.bell.stat().st_size
        except OSError:
            return 0

    async def wait(self, before: int, until: float) -> None:
        """Wait until there may be messages: less often where many questions are held."""
        if not before:
            until = min(until, time.monotonic() + max(0.2, 0.02 * self.held))
        while self.rung == before and time.monotonic() < until:
            await asyncio.sleep(max(0.05, 0.001 * self.held))


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
                path, head = await self._request(patience)
                await self._pass(path, head)
                patience = self.limits.idle
        except RefusedRequest as refused:
            line = f"{refused.status} {HTTPStatus(refused.status).phrase}"
            self.gate.say(f"refused a request ({line})")
            answer = Head(f"HTTP/1.1 {line}".encode("ascii"), [], 0)
            self.writer.write(answer.written(None, close=True))
            await asyncio.wait_for(self.writer.drain(), self.limits.first)
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
        if path == _PULL and head.length < PIECE_BYTES and self.limits.hold > 0:
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
        self.gate.held += 1
        try:
            while True:
                rung, link = self.gate.rung, await self._connect()
                link[1].write(head.written(self._host) + body)
                answer = await self._response(link[0])
                content = await asyncio.wait_for(
                    link[0].readexactly(answer.length), self.limits.idle
                )
                self._used = time.monotonic()
                is_waiting = not content and b" 200" in answer.line
                if not is_waiting:
                    return answer, content
                await self.gate.wait(rung, until)
                if time.monotonic() > until or self.reader.at_eof():
                    return answer, content
        finally:
            self.gate.held -= 1

    async def _stream(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, length: int
    ) -> None:
        """Pass so many bytes, a piece at a time, and give up on whoever is too slow."""
        began, passed = time.monotonic(), 0
        while passed < length:
            piece = await asyncio.wait_for(
                source.read(min(PIECE_BYTES, length - passed)), self.limits.idle
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
        stale = time.monotonic() - self._used > FRESH_SECONDS
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
