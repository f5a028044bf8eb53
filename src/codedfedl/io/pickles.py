"""Pickles as data: containers, numbers and text are read, and nothing is ever run.

A pickle is a program for a small stack machine, and Python's own reader lets it import and call
anything. The machine here knows no import and no call. It reads what Python 3 writes for
dictionaries, lists, tuples, numbers and text; NumPy's scalars are recognised by the names in the
file, without NumPy being asked. Any other instruction is refused by its name.
"""

import pickletools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from codedfedl.errors import InputError

__all__ = ["read_plain_pickle"]

_MOST_BYTES = 2**28
_SCALARS = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar")
_DTYPE = "numpy.dtype"
_CODES = {"f4": "f", "f8": "d", "i1": "b", "i2": "h", "i4": "i", "i8": "q"}
_CODES |= {"u1": "B", "u2": "H", "u4": "I", "u8": "Q"}
_NUMBERS = {kind: struct.Struct(f"<{code}") for kind, code in _CODES.items()}


def read_plain_pickle(path: str | Path) -> Any:
    """Read a pickle of dictionaries, lists, tuples, numbers and text without running it.

    Raises `InputError` for any other pickle, naming what it asks for.
    """
    path = Path(path)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{path} has more than {_MOST_BYTES >> 20} MB: give a smaller trace")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    machine = _Machine(data)
    try:
        return machine.run()
    except _RefusedError as refused:
        raise InputError(
            f"{path} asks for {refused} at byte {machine.at - 1}, which could run code: only "
            "dictionaries, lists, numbers and text are read; write it again with those alone"
        ) from None
    except (IndexError, KeyError, struct.error, TypeError, ValueError, OverflowError):
        raise InputError(
            f"{path} is not a whole pickle (byte {machine.at}): download it again"
        ) from None


class _RefusedError(Exception):
    """An instruction that is not carried out."""


class _Name(str):
    """A name that a pickle mentions: it stands for nothing, and cannot be called."""


class _Kind(str):
    """The kind of NumPy's number, such as f8."""


class _Machine:
    """The stack machine, with the instructions that build data."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # stacks under the marks
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        data, instructions = self.data, _INSTRUCTIONS
        while True:
            code = data[self.at]
            self.at += 1
            if code == _STOP:
                (result,), () = self.stack, self.below
                return result
            instruction = instructions.get(code)
            if instruction is None:
                raise _RefusedError(_NAMES.get(code, f"the unknown instruction {code}"))
            instruction(self)

    def number(self, layout: struct.Struct) -> Any:
        (value,) = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return value

    def bytes(self, count: int) -> bytes:
        part = self.data[self.at : self.at + count]
        if len(part) < count:
            raise IndexError
        self.at += count
        return part

    def line(self) -> str:
        end = self.data.index(b"\n", self.at)
        return self.bytes(end + 1 - self.at)[:-1].decode("ascii")

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    def mention(self, name: str) -> None:
        if name not in (*_SCALARS, _DTYPE):
            raise _RefusedError(name)
        self.stack.append(_Name(name))

    def reduce(self) -> None:
        """Make the number that NumPy would make; nothing else."""
        arguments, name = self.stack.pop(), self.stack.pop()
        if type(name) is _Name and name == _DTYPE and arguments[0] in _NUMBERS:
            self.stack.append(_Kind(arguments[0]))
        elif type(name) is _Name and name in _SCALARS and type(arguments[0]) is _Kind:
            kind, written = arguments
            self.stack.append(_NUMBERS[kind].unpack(written)[0])
        else:
            raise _RefusedError("REDUCE")

    def build(self) -> None:
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

    def tuple(self, count: int) -> None:
        start = len(self.stack) - count
        if start < 0:
            raise IndexError
        self.stack[start:] = [tuple(self.stack[start:])]

    def last(self, count: int) -> list[Any]:
        start = len(self.stack) - count
        if start < 1:
            raise IndexError
        items = self.stack[start:]
        del self.stack[start:]
        return items


_Instruction = Callable[[_Machine], None]
_U1, _U2, _U4, _U8 = (struct.Struct(f"<{code}") for code in "BHIQ")
_I4, _FLOAT = struct.Struct("<i"), struct.Struct(">d")


def _pushing(value: Callable[[_Machine], Any]) -> _Instruction:
    return lambda machine: machine.stack.append(value(machine))


def _text(length: struct.Struct, encoding: str = "utf-8") -> _Instruction:
    return _pushing(lambda m: m.bytes(m.number(length)).decode(encoding, "surrogatepass"))


def _put(layout: struct.Struct) -> _Instruction:
    def put(machine: _Machine) -> None:  # half of all instructions: without a call of ours
        machine.memo[layout.unpack_from(machine.data, machine.at)[0]] = machine.stack[-1]
        machine.at += layout.size

    return put


def _memoize(machine: _Machine) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _long(length: struct.Struct) -> _Instruction:
    return _pushing(lambda m: int.from_bytes(m.bytes(m.number(length)), "little", signed=True))


def _marked_tuple(machine: _Machine) -> None:
    items = tuple(machine.since_mark())
    machine.stack.append(items)


def _stack_global(machine: _Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    machine.mention(f"{module}.{name}")


_BY_NAME: dict[str, _Instruction] = {
    "PROTO": lambda m: m.number(_U1),
    "FRAME": lambda m: m.number(_U8),
    "MARK": _Machine.mark,
    "POP": lambda m: m.stack.pop(),
    "NONE": _pushing(lambda m: None),
    "NEWTRUE": _pushing(lambda m: True),
    "NEWFALSE": _pushing(lambda m: False),
    "BININT": _pushing(lambda m: m.number(_I4)),
    "BININT1": _pushing(lambda m: m.number(_U1)),
    "BININT2": _pushing(lambda m: m.number(_U2)),
    "LONG1": _long(_U1),
    "BINFLOAT": _pushing(lambda m: m.number(_FLOAT)),
    "SHORT_BINUNICODE": _text(_U1),
    "BINUNICODE": _text(_U4),
    "SHORT_BINSTRING": _text(_U1, "latin-1"),
    "BINSTRING": _text(_U4, "latin-1"),
    "SHORT_BINBYTES": _pushing(lambda m: m.bytes(m.number(_U1))),
    "EMPTY_DICT": _pushing(lambda m: {}),
    "EMPTY_LIST": _pushing(lambda m: []),
    "EMPTY_TUPLE": _pushing(lambda m: ()),
    "TUPLE": _marked_tuple,
    "TUPLE1": lambda m: m.tuple(1),
    "TUPLE2": lambda m: m.tuple(2),
    "TUPLE3": lambda m: m.tuple(3),
    "APPEND": lambda m: m.append(m.last(1)),
    "APPENDS": lambda m: m.append(m.since_mark()),
    "SETITEM": lambda m: m.set(m.last(2)),
    "SETITEMS": lambda m: m.set(m.since_mark()),
    "BINPUT": _put(_U1),
    "LONG_BINPUT": _put(_U4),
    "MEMOIZE": _memoize,
    "BINGET": _pushing(lambda m: m.memo[m.number(_U1)]),
    "LONG_BINGET": _pushing(lambda m: m.memo[m.number(_U4)]),
    "GLOBAL": lambda m: m.mention(f"{m.line()}.{m.line()}"),
    "STACK_GLOBAL": _stack_global,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
}
_NAMES = {ord(known.code): known.name for known in pickletools.opcodes}
_STOP = ord(".")
_INSTRUCTIONS = {code: _BY_NAME[name] for code, name in _NAMES.items() if name in _BY_NAME}
