"""How long a command takes to answer: `python -m benchmarks.startup`.

Seconds of processor time, user and system, of a new interpreter: the median of some runs.
"""

import os
import subprocess
import sys
from statistics import median

_RUNS = 5
_COMPLETE = {"_CODEDFEDL_COMPLETE": "complete_bash"}
_COMMANDS: tuple[tuple[str, list[str], dict[str, str], float], ...] = (
    ("--version", ["--version"], {}, 0.3),
    ("--help", ["--help"], {}, 0.4),
    ("simulate --help", ["simulate", "--help"], {}, 0.4),
    ("simulate d<TAB>", [], {"COMP_WORDS": "codedfedl simulate d", "COMP_CWORD": "2"}, 0.3),
    ("plan paper", ["plan", "paper"], {}, 0.6),
)


def main() -> None:
    print("Processor seconds from the call of a command to its end")
    for name, arguments, variables, wanted in _COMMANDS:
        seconds = median(_seconds(arguments, variables) for _ in range(_RUNS))
        print(f"  {name:18} {seconds:5.2f} s   (wanted: {wanted} s or less)")


def _seconds(arguments: list[str], variables: dict[str, str]) -> float:
    """Run a command, and return the processor time of it and its children."""
    environment = os.environ | (_COMPLETE | variables if variables else {})
    program = "import sys; sys.argv[0] = 'codedfedl'; from codedfedl.__main__ import main; main()"
    before = os.times()
    subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


if __name__ == "__main__":
    main()
