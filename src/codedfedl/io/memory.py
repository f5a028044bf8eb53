"""How much memory there is, and files that would not fit into it."""

import os
from contextlib import suppress
from math import inf
from pathlib import Path

from codedfedl.errors import InputError

__all__ = ["check_room", "memory"]

_GROUPS = Path("/sys/fs/cgroup")
_SHARE = 0.5  # of the memory: what is read is copied at least once
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of a container, in versions 2 and 1


def memory(groups: Path = _GROUPS) -> float:
    """Return the bytes of this machine's memory, or of its container's; ∞ where nobody says."""
    found = [inf]
    with suppress(AttributeError, ValueError, OSError):
        found.append(float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    for limit in _LIMITS:
        with suppress(ValueError, OSError):  # no such file, or the word max
            found.append(float((groups / limit).read_text()))
    return min(found)


def check_room(path: Path, needed: int) -> None:
    """Refuse a file that takes more than half of the memory when it is unpacked, before it is."""
    there = memory()
    if needed > _SHARE * there:
        raise InputError(
            f"{path} takes {needed:,} bytes of memory when it is read, more than half of the "
            f"{there:,.0f} that there are: split it, or use a machine with more memory"
        )
