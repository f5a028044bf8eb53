"""The owner of a loopback connection, by the kernel's table."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

TABLE = Path("/proc/net/tcp")
"""Where Linux lists connections; other systems have no such file."""

_ESTABLISHED, _LISTENING = "01", "0A"  # an orphaned connection has another state, and no user
_LOOPBACK = "0100007F"

End = tuple[str, int]
"""An address and a port."""


def belongs_to(
    users: Collection[int], client: End | None, server: End | None, table: Path = TABLE
) -> bool:
    """Say whether a connection on loopback was opened by one of the users.

    Without such a table, the answer is yes.
    """
    if not table.exists():
        return True
    if client is None or server is None or client[0] != "127.0.0.1":
        return False
    ends = f"{_LOOPBACK}:{client[1]:04X}", f"{_LOOPBACK}:{server[1]:04X}"
    return any(
        (local, remote, state) == (*ends, _ESTABLISHED) and user in users
        for local, remote, state, user in _rows(table)
    )


def own_or_superuser(client: End | None, server: End | None) -> bool:
    """Say whether a connection on loopback was opened by this process's user, or the superuser."""
    return belongs_to({os.getuid(), 0}, client, server)


def listens(port: int, table: Path = TABLE) -> bool:
    """Say whether this user, and no other, listens on a port of loopback."""
    if not table.exists():
        return True
    address = f"{_LOOPBACK}:{port:04X}"
    return any(
        local == address and state == _LISTENING and user == os.getuid()
        for local, _, state, user in _rows(table)
    )


def _rows(table: Path) -> Iterator[tuple[str, str, str, int]]:
    """Yield the local and remote address, state and user of every connection."""
    for line in table.read_text("ascii").splitlines()[1:]:
        words = line.split()
        yield words[1], words[2], words[3], int(words[7])
