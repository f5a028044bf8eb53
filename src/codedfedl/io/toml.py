"""TOML files of bounded size and depth: they may be anybody's."""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from codedfedl.errors import InputError

MAX_TOML_BYTES = 1 << 20
"""Enough for the points of ten thousand named nodes."""

MAX_NESTING = 8  # tables and lists within each other
MAX_WHOLE_NUMBER = 2**63 - 1
MAX_DOTS = 64  # in a key: the parser's work grows with their square
_QUOTED = re.compile(
    r'''"""(?:[^\\]|\\.)*?"""|\'{3}.*?\'{3}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\#[^\n]*''', re.DOTALL
)
_BETWEEN_KEYS = re.compile(r"[^\w.\- \t]+")


def read_toml(path: Path) -> dict[str, Any]:
    """Read a file, or say why it cannot be read."""
    if not path.is_file():
        raise InputError(f"cannot read {path}: there is no such file")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TOML_BYTES + 1)
        if len(content) > MAX_TOML_BYTES:
            raise InputError(
                f"cannot read {path}: it has more than {MAX_TOML_BYTES:,} bytes; an experiment is "
                "shorter, and its data are in files of their own"
            )
        return parse_toml(content.decode("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a text; raise TOMLDecodeError for one that is too deep, or has numbers too long."""
    keys = _BETWEEN_KEYS.split(_QUOTED.sub("q", text))
    if max(key.count(".") for key in keys) > MAX_DOTS:
        raise tomllib.TOMLDecodeError(f"a key has more than {MAX_DOTS} dots")
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("tables or lists are nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except (ValueError, OverflowError) as error:  # numbers and dates that Python cannot have
        raise tomllib.TOMLDecodeError(str(error).partition(":")[0]) from None
    level: list[Any] = [document]
    for _ in range(MAX_NESTING):
        level = [value for table in level for value in _values(table)]
        if any(isinstance(value, int) and abs(value) > MAX_WHOLE_NUMBER for value in level):
            raise tomllib.TOMLDecodeError("a whole number has more than 64 bits")
        if not level:
            return document
    raise tomllib.TOMLDecodeError(f"tables or lists are nested more than {MAX_NESTING} deep")


def _values(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
