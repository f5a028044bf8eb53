"""Locks on files, which end with the process that holds them, however it ends."""

import sys
from typing import IO, Any

__all__ = ["lock"]

if sys.platform == "win32":  # it has no shared locks, and gives up waiting after ten seconds
    import msvcrt

    def _lock(file: IO[Any], _shared: bool, wait: bool) -> None:
        file.seek(0)
        while True:
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            except OSError:
                if not wait:
                    raise
            else:
                return

else:
    import fcntl

    def _lock(file: IO[Any], shared: bool, wait: bool) -> None:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)


def lock(file: IO[Any], *, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file until it is closed.

    Parameters
    ----------
    shared
        Let others share it, where the system can.
    wait
        Until whoever holds it is done.

    Raises
    ------
    OSError
        If another process holds it, and this one does not wait.
    """
    _lock(file, shared, wait)
