"""The gate, in front of a tiny server that notes what reaches it."""

import asyncio
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from codedfedl.errors import InputError
from codedfedl.federate.deploy.gate import Gate
from codedfedl.federate.deploy.keys import make_keys
from codedfedl.federate.deploy.listener import GateLimits, client_context, server_context

HOST = "127.0.0.1"
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: %d\r\n\r\n%s"


@dataclass
class Upstream:
    """A server that answers with what a test says, and keeps every request."""

    answers: list[bytes] = field(default_factory=lambda: [b"answer"])
    seen: list[tuple[bytes, bytes]] = field(default_factory=list)
    connections: int = 0
    received: int = 0  # bytes of bodies

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(EOFError, OSError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                assert found is not None
                body = b""
                while piece := await reader.read(int(found[1]) - len(body)):
                    body += piece
                    self.received += len(piece)
                if len(body) < int(found[1]):
                    break
                self.seen.append((head, body))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                writer.write(OK % (len(answer), answer))
                await writer.drain()
        writer.close()


@asynccontextmanager
async def gate_to(
    upstream: Upstream, bell: Path | None = None, **limits: Any
) -> AsyncIterator[int]:
    server = await asyncio.start_server(upstream, HOST, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        gate = Gate((HOST, port), None, GateLimits(**limits), bell=bell)
        async with gate.listening(HOST, 0, None) as listening:
            yield listening


def run(upstream: Upstream, scene: Callable[[int], Awaitable[Any]], **limits: Any) -> Any:
    async def play() -> Any:
        async with gate_to(upstream, **limits) as port:
            return await asyncio.wait_for(scene(port), 20)

    return asyncio.run(play())


async def say(port: int, text: bytes) -> bytes:
    """Send bytes, and return all that comes until the gate hangs up or is silent."""
    reader, writer = await asyncio.open_connection(HOST, port)
    with suppress(OSError):
        writer.write(text)
        await writer.drain()
    got = b""
    with suppress(TimeoutError, OSError):
        while piece := await asyncio.wait_for(reader.read(2**16), 0.7):
            got += piece
    writer.close()
    return got


def request(path: str, body: bytes = b"", method: str = "POST", more: str = "") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


FLEET = "/v1/fleet/push-messages"


@pytest.mark.parametrize(
    "text",
    [
        request("/v1/control/list-runs"),
        request("/v1/control/start-run", b"code"),
        request("/v1/control/register-node"),
        request("/v1/runtime/acquire-task"),
        request("/v1/runtime/pull-object"),
        request("/docs", method="GET"),
        request("/openapi.json", method="GET"),
        request("/health", method="GET"),
        request(FLEET, method="GET"),
        request("/v1/fleet/../control/start-run"),
        request("/v1/fleet/%2e%2e/control/start-run"),
        request("/v1/fleet/push-messages/../../control/start-run"),
        request("/v1/fleet/push-messages?x=/v1/control"),
        request("//v1/fleet/push-messages"),
        request("http://127.0.0.1/v1/fleet/push-messages"),
        request("/V1/FLEET/push-messages"),
        b"POST /v1/fleet/push-messages HTTP/1.0\r\nContent-Length: 0\r\n\r\n",
        b"POST  /v1/fleet/push-messages HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT 127.0.0.1:22 HTTP/1.1\r\n\r\n",
    ],
)
def test_nothing_but_the_nodes_api_passes(text: bytes) -> None:
    upstream = Upstream()
    got = run(upstream, lambda port: say(port, text))
    assert got.startswith(b"HTTP/1.1 404 ")
    assert upstream.connections == 0, "the SuperLink was asked"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ("", 411),
        ("Transfer-Encoding: chunked\r\n", 411),
        ("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", 411),
        ("Content-Length: 3\r\nContent-Length: 30\r\n", 411),
        ("Content-Length: +3\r\n", 400),
        ("Content-Length: 3, 3\r\n", 400),
        ("Content-Length : 3\r\n", 400),
        ("Content-Length: 3\r\n folded: x\r\n", 400),
        ("Content-Length: 3\r\nX: a\nContent-Length: 9\r\n", 400),
        ("Content-Length: 99999999999\r\n", 413),
        ("X: " + "y" * 20_000 + "\r\nContent-Length: 3\r\n", 431),
    ],
)
def test_requests_that_could_be_read_in_two_ways(fields: str, status: int) -> None:
    upstream = Upstream()
    text = f"POST {FLEET} HTTP/1.1\r\n{fields}\r\nabc".encode("latin-1")
    got = run(upstream, lambda port: say(port, text))
    assert got.startswith(b"HTTP/1.1 %d " % status)
    assert upstream.seen == []


def test_fields_of_a_node_pass_unchanged_and_those_of_the_connection_do_not() -> None:
    upstream = Upstream()
    own = "flwr-public-key: a+/=\r\nX-Signature: Zz\r\nContent-Type: application/x-protobuf\r\n"
    others = "X-Forwarded-For: 10.0.0.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
    got = run(upstream, lambda port: say(port, request(FLEET, b"body", more=own + others)))
    assert got.endswith(b"\r\n\r\nanswer")
    ((head, body),) = upstream.seen
    assert body == b"body"
    assert own.encode() in head
    lower = head.lower()
    assert not any(name in lower for name in (b"forwarded", b"upgrade", b"host: x"))


def test_a_second_request_that_hides_behind_the_first_is_looked_at_too() -> None:
    upstream = Upstream()
    both = request(FLEET, b"one") + request("/v1/control/start-run", b"two")
    got = run(upstream, lambda port: say(port, both))
    assert got.count(b"HTTP/1.1 200") == 1
    assert got.count(b"HTTP/1.1 404") == 1
    assert [body for _, body in upstream.seen] == [b"one"]


def test_uploads_stream_both_ways_and_have_a_size() -> None:
    large = bytes(range(256)) * 4096  # 1 MiB
    upstream = Upstream([large])
    text = request("/v1/fleet/push-object", large)
    got = run(upstream, lambda port: say(port, text), body=2**10)
    assert got.endswith(large)
    assert upstream.seen[0][1] == large
    refused = run(upstream, lambda port: say(port, request(FLEET, large)), body=2**10)
    assert refused.startswith(b"HTTP/1.1 413 ")
    assert len(upstream.seen) == 1


def test_a_body_is_on_its_way_before_it_is_whole() -> None:
    upstream = Upstream()

    async def scene(port: int) -> int:
        _, writer = await asyncio.open_connection(HOST, port)
        writer.write(request("/v1/fleet/push-object", bytes(2**20))[: 2**19])
        await writer.drain()
        await asyncio.sleep(0.3)
        received = upstream.received
        writer.close()
        return received

    assert run(upstream, scene) > 2**18


@pytest.mark.parametrize("sent", [b"", b"POST /v1/fl", request(FLEET, b"body")[:-2]])
def test_whoever_is_slow_is_hung_up_on(sent: bytes) -> None:
    upstream = Upstream()

    async def scene(port: int) -> float:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(sent)
        began = time.monotonic()
        assert await reader.read() == b""
        writer.close()
        return time.monotonic() - began

    assert run(upstream, scene, first=0.2, idle=0.2) < 10
    assert upstream.seen == []


def test_a_trickle_does_not_hold_a_place() -> None:
    """A byte now and then keeps `idle` at bay, and not `rate`."""

    async def scene(port: int) -> int:
        _, writer = await asyncio.open_connection(HOST, port)
        writer.write(request("/v1/fleet/push-object", bytes(1000))[:-1000])
        sent = 0
        with suppress(OSError):
            while sent < 200 and not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)
                sent += 1
        writer.close()
        return sent

    assert run(Upstream(), scene, idle=0.3, rate=1000.0) < 200


@pytest.mark.parametrize("limit", ["per_address", "connections"])
def test_places_are_limited(limit: str) -> None:
    async def scene(port: int) -> tuple[bytes, bytes]:
        held = [await asyncio.open_connection(HOST, port) for _ in range(3)]
        await asyncio.sleep(0.2)
        refused = await say(port, request(FLEET, b"x"))
        for _, writer in held:
            writer.close()
        await asyncio.sleep(0.2)
        return refused, await say(port, request(FLEET, b"x"))

    refused, passed = run(Upstream(), scene, **{limit: 3})
    assert refused == b""
    assert passed.startswith(b"HTTP/1.1 200")


async def half_open(port: int, count: int) -> list[socket.socket]:
    """Connect without a word, as somebody who only takes up places."""
    loop, links = asyncio.get_running_loop(), []
    for _ in range(count):
        link = socket.socket()
        link.setblocking(False)
        await loop.sock_connect(link, (HOST, port))
        links.append(link)
    return links


def still_open(links: list[socket.socket]) -> int:
    """Return how many connections the gate has not closed."""

    def is_open(link: socket.socket) -> bool:
        try:
            return link.recv(1) != b""
        except BlockingIOError:
            return True
        except ConnectionError:
            return False

    return sum(map(is_open, links))


async def asked_by_tls(port: int, tls: ssl.SSLContext, address: str = HOST) -> bytes:
    """Return the first line that a node at an address is answered with."""
    reader, writer = await asyncio.open_connection(
        HOST, port, ssl=tls, local_addr=(address, 0), server_hostname=HOST
    )
    writer.write(request(FLEET, b"x"))
    line = await reader.readline()
    writer.close()
    return line


@asynccontextmanager
async def tls_gate(
    folder: Path, said: list[str], **limits: Any
) -> AsyncIterator[tuple[int, ssl.SSLContext]]:
    keys, upstream = make_keys(folder, [], []), Upstream()
    server = await asyncio.start_server(upstream, HOST, 0)
    async with server:
        gate = Gate(server.sockets[0].getsockname()[:2], None, GateLimits(**limits), said.append)
        shown = server_context(keys.server, keys.server_key)
        async with gate.listening(HOST, 0, shown) as port:
            yield port, client_context(keys.authority)


@pytest.mark.skipif(sys.platform != "linux", reason="loopback has other addresses on Linux alone")
def test_half_open_connections_take_no_more_places_than_one_address_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are counted before the handshake, so that a node elsewhere is answered meanwhile."""
    said: list[str] = []

    async def scene() -> tuple[int, bytes]:
        async with tls_gate(tmp_path, said) as (port, tls):
            links = await half_open(port, 400)
            try:
                line = await asked_by_tls(port, tls, "127.0.0.2")
                return still_open(links), line
            finally:
                for link in links:
                    link.close()

    kept, line = asyncio.run(asyncio.wait_for(scene(), 30))
    assert kept == GateLimits().per_address == 256
    assert line.startswith(b"HTTP/1.1 200")
    assert set(said) == {"refused a connection (too many)"}
    assert not caplog.records


def test_a_place_is_free_again_when_a_handshake_has_not_begun_in_time(tmp_path: Path) -> None:
    async def scene() -> bytes:
        async with tls_gate(tmp_path, [], per_address=20, first=0.3) as (port, tls):
            links = await half_open(port, 20)
            while still_open(links):
                await asyncio.sleep(0.05)
            for link in links:
                link.close()
            return await asked_by_tls(port, tls)

    assert asyncio.run(asyncio.wait_for(scene(), 30)).startswith(b"HTTP/1.1 200")


_FEW_FILES = """
import asyncio, resource, sys
from codedfedl.federate.deploy.gate import Gate
from codedfedl.federate.deploy.listener import GateLimits
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
async def main():
    gate = Gate(("127.0.0.1", 9), None, GateLimits(), lambda text: print(text, file=sys.stderr))
    async with gate.listening("127.0.0.1", 0, None) as port:
        print(port, flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


def test_without_descriptors_it_waits_and_logs_a_line_a_second() -> None:
    """Not a traceback for every connection in the queue; and it recovers."""

    async def scene(port: int) -> bytes:
        links = await half_open(port, 100)
        await asyncio.sleep(1.5)
        for link in links:
            link.close()
        answer = b""
        while not answer:  # until it looks again
            answer = await say(port, request("/docs"))
        return answer

    with subprocess.Popen(
        [sys.executable, "-c", _FEW_FILES],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        port = int(process.stdout.readline())
        answer = asyncio.run(asyncio.wait_for(scene(port), 30))
        _, errors = process.communicate("")
    assert answer.startswith(b"HTTP/1.1 404")
    lines = [line for line in errors.splitlines() if "refused a request" not in line]
    assert set(lines) == {"no connection can be accepted (Too many open files)"}
    assert len(lines) < 10


@pytest.mark.parametrize(
    ("limits", "connections", "soft"),
    [((64, 5000), 2048, 4352), ((64, 1000), 372, 1000), ((5000, 5000), 2048, 5000)],
)
def test_the_limit_on_open_files_is_raised_as_far_as_it_may_be(
    limits: tuple[int, int], connections: int, soft: int
) -> None:
    text = (
        "import resource; from codedfedl.federate.deploy.listener import descriptors_for; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, {limits}); "
        "print(descriptors_for(2048), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(connections), str(soft)]


def test_a_port_in_use_is_said() -> None:
    async def scene() -> None:
        gate = Gate((HOST, 9), None)
        async with gate.listening(HOST, 0, None) as port, gate.listening(HOST, port, None):
            pass

    with pytest.raises(InputError, match=r"cannot listen on 127.0.0.1:\d+ \(Address already in"):
        asyncio.run(scene())


def test_a_question_for_messages_is_held_until_there_are_some() -> None:
    upstream = Upstream([b"", b"", b"messages"])
    pull = request("/v1/fleet/pull-messages", b"node")
    got = run(upstream, lambda port: say(port, pull), hold=10.0)
    assert got.endswith(b"messages")
    assert [body for _, body in upstream.seen] == [b"node"] * 3


def test_the_superlink_is_asked_again_when_a_server_app_has_rung(tmp_path: Path) -> None:
    upstream, bell = Upstream([b"", b"messages"]), tmp_path / "rung"
    bell.write_bytes(b".")

    async def scene(port: int) -> bytes:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(request("/v1/fleet/pull-messages", b"node"))
        await asyncio.sleep(0.5)
        assert len(upstream.seen) == 1
        bell.write_bytes(b"..")
        got = await reader.readuntil(b"messages")
        writer.close()
        return got

    assert run(upstream, scene, hold=15.0, bell=bell).endswith(b"messages")


def test_a_question_for_messages_is_not_held_for_ever() -> None:
    got = run(Upstream([b""]), lambda port: say(port, request("/v1/fleet/pull-messages")), hold=0.3)
    assert b"Content-Length: 0" in got
    assert got.startswith(b"HTTP/1.1 200")


def test_without_a_superlink_nodes_are_told_to_come_back() -> None:
    async def scene() -> bytes:
        gate = Gate((HOST, 9), None)
        async with gate.listening(HOST, 0, None) as port:
            return await say(port, request(FLEET, b"x"))

    assert asyncio.run(scene()).startswith(b"HTTP/1.1 503 ")


@pytest.mark.parametrize("path", ["/v1/fleet/push-object", "/v1/fleet/push-messages"])
def test_nothing_is_stored_on_a_disk_that_is_almost_full(path: str) -> None:
    """A registered node cannot fill it; what stores nothing passes all the same."""
    upstream, free = Upstream(), [2**30 - 1]

    async def scene() -> list[bytes]:
        server = await asyncio.start_server(upstream, HOST, 0)
        async with server:
            gate = Gate(server.sockets[0].getsockname()[:2], None, free=lambda: free[0])
            async with gate.listening(HOST, 0, None) as port:
                full = [await say(port, request(p, b"x")) for p in (path, "/v1/fleet/pull-object")]
                free[0] += 1
                return [*full, await say(port, request(path, b"y"))]

    statuses = [got.split(b" ")[1] for got in asyncio.run(scene())]
    assert statuses == [b"507", b"200", b"200"]
    assert [body for _, body in upstream.seen] == [b"x", b"y"]


def test_an_old_tls_is_refused(tmp_path: Path) -> None:
    keys = make_keys(tmp_path, [], [])

    async def spoken(newest: ssl.TLSVersion) -> bytes:
        context = client_context(keys.authority)
        context.maximum_version = newest
        gate = Gate((HOST, 9), None)
        async with gate.listening(HOST, 0, server_context(keys.server, keys.server_key)) as port:
            reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
            writer.write(request("/docs"))
            answer = await reader.read()
            writer.close()
            return answer

    assert asyncio.run(spoken(ssl.TLSVersion.TLSv1_3)).startswith(b"HTTP/1.1 404")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        asyncio.run(spoken(ssl.TLSVersion.TLSv1_2))
