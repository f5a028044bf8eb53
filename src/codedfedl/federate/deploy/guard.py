"""A process that outlives the starter of a local federation, to end all that is left of it.

The engine gives some processes groups of their own, and some do not notice that their parent is
gone. All of them carry the federation's mark in their environment, by which they are found. It
imports no more than it needs, and runs as a script: ``python guard.py MARK``, with process group
ids on its standard input, negative for groups that have ended.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

MARK = "CODEDFEDL_FEDERATION"
"""The environment variable that all processes of a local federation have."""


def marked(mark: str, word: str = "") -> list[int]:
    """Return the running processes with a mark, and a word in their command; none without /proc."""
    wanted, processes = f"{MARK}={mark}\0".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_marked = wanted in (folder / "environ").read_bytes() + b"\0"
            if is_marked and word.encode() in (folder / "cmdline").read_bytes():
                processes.append(int(folder.name))
    return processes


def end_marked(mark: str, seconds: float = 10.0) -> None:
    """Kill all processes with a mark, until there are none."""
    until = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < until:
        for process in left:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.1)


def main() -> None:
    """Wait until whoever started this is gone."""
    groups = set()
    for line in sys.stdin:
        group = int(line)
        groups.add(group) if group > 0 else groups.discard(-group)
    for group in groups:
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    end_marked(sys.argv[1])


if __name__ == "__main__":
    main()
