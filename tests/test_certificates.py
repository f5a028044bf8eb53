"""Certificates that expire, and what a node is told of those that it does not accept."""

import datetime
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from codedfedl.errors import InputError
from codedfedl.federate.deploy.keys import Keys, check_server, make_keys
from codedfedl.federate.deploy.listener import server_context


@contextmanager
def tls_server(keys: Keys) -> Iterator[str]:
    """Shake hands with whoever comes, by a server's certificate; give the address."""
    context = server_context(keys.server, keys.server_key)

    def serve() -> None:
        with suppress(OSError):
            context.wrap_socket(listener.accept()[0], server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


def test_an_authority_is_renewed_before_it_expires(tmp_path: Path) -> None:
    """By the same key: nodes with the old certificate accept the new server's until then."""
    keys = make_keys(tmp_path, ["127.0.0.1"], [], days=29)
    old = keys.authority.read_bytes()
    authority, server = keys.expiring()
    assert "ca.crt expires on" in authority
    assert "server.pem expires on" in server
    make_keys(tmp_path, ["127.0.0.1"], [])
    assert keys.expiring() == []
    assert keys.authority.read_bytes() != old
    keys.authority.write_bytes(old)
    with tls_server(keys) as address:
        check_server(address, keys.authority)
    make_keys(tmp_path, ["127.0.0.1"], [])  # renews the authority that was put back
    new = keys.authority.read_bytes()
    make_keys(tmp_path, ["127.0.0.1"], [])
    assert keys.authority.read_bytes() == new


def test_a_node_is_told_of_certificates_that_it_does_not_accept(tmp_path: Path) -> None:
    expired = make_keys(tmp_path / "expired", ["127.0.0.1"], [], days=-0.01)
    with pytest.raises(InputError, match=r"ca.crt expired on .*: get the new ca.crt from the"):
        check_server("127.0.0.1:9", expired.authority)
    folder = tmp_path / "expired"
    server, key = (folder / "server.pem").read_bytes(), (folder / "server.key").read_bytes()
    make_keys(folder, ["127.0.0.1"], [])  # a good authority, and the server forgot to renew
    expired.server.write_bytes(server)
    expired.server_key.write_bytes(key)
    other = make_keys(tmp_path / "other", ["127.0.0.1"], [])
    for keys, why in ((expired, "has expired"), (other, "certificate|self-signed")):
        with tls_server(expired) as address:
            refused = f"the certificate of {address} is refused .*{why}.*clock is right"
            with pytest.raises(InputError, match=refused):
                check_server(address, keys.authority)
    with pytest.raises(InputError, match="superlink is 'example.org': write host:port"):
        check_server("example.org", other.authority)
    check_server("127.0.0.1:9", other.authority)  # nobody is there yet


def test_certificates_of_tomorrow_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server whose clock is behind would answer every node that it is to come back."""
    keys = make_keys(tmp_path, ["127.0.0.1"], [])
    keys.check("127.0.0.1", [])
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            return yesterday

    monkeypatch.setattr(datetime, "datetime", Clock)
    with pytest.raises(InputError, match=r"ca.crt is valid from .* UTC on: .* clock is right"):
        keys.check("127.0.0.1", [])


def test_a_certificate_for_nobody_is_refused(tmp_path: Path) -> None:
    """As an operator's own tools may make them: with a common name alone."""
    keys = make_keys(tmp_path, ["127.0.0.1"], [])
    keys.server.write_bytes(keys.authority.read_bytes())
    with pytest.raises(InputError, match="is not for 127.0.0.1: make it with codedfedl"):
        keys.check("127.0.0.1", [])
