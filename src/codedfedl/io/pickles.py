"""Pickles as data: containers, numbers and text are read, and nothing is ever run.

A pickle is a program for a small stack machine, and Python's own reader lets it import and call
anything. The machine here knows no import and no call. It reads what Python 3 writes for
dictionaries, lists, tuples, numbers and text; NumPy's scalars are recognised by the names in the
file, without NumPy being asked. Any other instruction is refused by its name.
"""

import io
import pickletools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from codedfedl.errors import InputError

MAX_BYTES = 2**28
_DTYPE = "numpy dtype"
_SCALARS = ("numpy.core.multiarray scalar", "numpy._core.multiarray scalar")
_FORMATS = {"f4": "<f", "f8": "<d", "i1": "<b", "i2": "<h", "i4": "<i", "i8": "<q"}
_FORMATS |= {"u1": "<B", "u2": "<H", "u4": "<I", "u8": "<Q"}


def read_plain_pickle(path: str | Path) -> Any:
    """Read a pickle of dictionaries, lists, tuples, numbers and text without running it.

    Raises `InputError` for any other pickle, naming what it asks for.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path} has more than {MAX_BYTES >> 20} MB: give a smaller trace")
        data = io.BytesIO(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    try:
        return _Machine().run(data)
    except _RefusedError as refused:
        raise InputError(
            f"{path} asks for {refused} at byte {data.tell() - 1}, which could run code: only "
            "dictionaries, lists, numbers and text are read; write it again with those alone"
        ) from None
    except (IndexError, KeyError, struct.error, TypeError, ValueError, OverflowError):
        raise InputError(
            f"{path} is not a whole pickle (byte {data.tell()}): download it again"
        ) from None


class _RefusedError(Exception):
    """An instruction that is not carried out."""


class _Name(str):
    """A name that a pickle mentions: it stands for nothing, and cannot be called."""


class _Kind(str):
    """The kind of NumPy's number, such as f8."""


class _Machine:
    """The stack machine, with the instructions that build data."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # stacks under the marks
        self.memo: dict[int, Any] = {}

    def run(self, data: io.BytesIO) -> Any:
        """Return what the pickle builds; the standard library reads the arguments as data."""
        read, known = data.read, _KNOWN
        while True:
            code = read(1)
            if code == b".":
                (result,), () = self.stack, self.below
                return result
            name, argument_of, instruction = known[code]
            if instruction is None:
                raise _RefusedError(name)
            instruction(self, None if argument_of is None else argument_of(data))

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    def last(self, count: int) -> list[Any]:
        if count > len(self.stack):
            raise IndexError
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items

    def mark(self, _: None) -> None:
        self.below.append(self.stack)
        self.stack = []

    def put(self, key: int) -> None:
        self.memo[key] = self.stack[-1]

    def mention(self, name: str) -> None:
        if name not in (*_SCALARS, _DTYPE):
            raise _RefusedError(name.replace(" ", "."))
        self.stack.append(_Name(name))

    def reduce(self, _: None) -> None:
        """Make the number that NumPy would make; nothing else."""
        arguments, name = self.stack.pop(), self.stack.pop()
        if type(name) is _Name and name == _DTYPE and arguments[0] in _FORMATS:
            self.stack.append(_Kind(arguments[0]))
        elif type(name) is _Name and name in _SCALARS and type(arguments[0]) is _Kind:
            kind, written = arguments
            self.stack.append(struct.unpack(_FORMATS[kind], written)[0])
        else:
            raise _RefusedError("REDUCE")

    def build(self, _: None) -> None:
        """Take the state of a kind of number, of which the byte order alone matters."""
        state = self.stack.pop()
        if type(self.stack[-1]) is not _Kind or state[1] not in ("<", "|"):
            raise _RefusedError("BUILD")

    def append(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise TypeError
        self.stack[-1].extend(items)

    def set(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not dict or len(items) % 2:
            raise TypeError
        if not all(type(key) in (int, str, float) for key in items[::2]):
            raise TypeError
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))


_Instruction = Callable[[_Machine, Any], None]


def _push(value: Callable[[_Machine, Any], Any]) -> _Instruction:
    def push(machine: _Machine, argument: Any) -> None:
        result = value(machine, argument)  # before the stack is looked up: it may be another one
        machine.stack.append(result)

    return push


_ARGUMENT = _push(lambda _, argument: argument)
_INSTRUCTIONS: dict[str, _Instruction] = {
    "PROTO": lambda machine, _: None,
    "FRAME": lambda machine, _: None,
    "MARK": _Machine.mark,
    "POP": lambda machine, _: machine.stack.pop(),
    "NONE": _ARGUMENT,
    "NEWTRUE": _push(lambda *_: True),
    "NEWFALSE": _push(lambda *_: False),
    "EMPTY_DICT": _push(lambda *_: {}),
    "EMPTY_LIST": _push(lambda *_: []),
    "EMPTY_TUPLE": _push(lambda *_: ()),
    "TUPLE": _push(lambda machine, _: tuple(machine.since_mark())),
    "TUPLE1": _push(lambda machine, _: tuple(machine.last(1))),
    "TUPLE2": _push(lambda machine, _: tuple(machine.last(2))),
    "TUPLE3": _push(lambda machine, _: tuple(machine.last(3))),
    "APPEND": lambda machine, _: machine.append(machine.last(1)),
    "APPENDS": lambda machine, _: machine.append(machine.since_mark()),
    "SETITEM": lambda machine, _: machine.set(machine.last(2)),
    "SETITEMS": lambda machine, _: machine.set(machine.since_mark()),
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": lambda machine, _: machine.put(len(machine.memo)),
    "BINGET": _push(lambda machine, key: machine.memo[key]),
    "LONG_BINGET": _push(lambda machine, key: machine.memo[key]),
    "GLOBAL": _Machine.mention,
    "STACK_GLOBAL": lambda machine, _: machine.mention(" ".join(machine.last(2))),
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
}
_VALUES = (
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE"),
    *("SHORT_BINSTRING", "BINSTRING", "SHORT_BINBYTES"),
)
_INSTRUCTIONS |= dict.fromkeys(_VALUES, _ARGUMENT)
_KNOWN = {
    opcode.code.encode("latin-1"): (
        opcode.name,
        opcode.arg.reader if opcode.arg else None,
        _INSTRUCTIONS.get(opcode.name),
    )
    for opcode in pickletools.opcodes
}
